"""Results of Model and Client. All are plain data: comparable, printable and picklable.

Log-probabilities are natural logarithms of the raw softmax, before logits processors. Byte offsets
count bytes of the UTF-8 text.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy


@dataclasses.dataclass(slots=True)
class TokenLogprob:
    """One token with its log-probability and, on request, the most likely alternatives."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]  # (token id, log-probability), most likely first


@dataclasses.dataclass(slots=True)
class Sequence:
    """One generated sequence."""

    text: str
    token_ids: list[int]  # new tokens, the end-of-sequence id included
    finish_reason: str  # "eos", "stop" or "length"
    score: float | None  # with return_scores: Hugging Face's sequences_scores
    logprobs: list[TokenLogprob] | None  # with logprobs: one for each new token
    matched_stop: str | None  # the stop string that ended the sequence


@dataclasses.dataclass(slots=True)
class Usage:
    """Token counts of one input."""

    input_tokens: int
    prefix_tokens: int  # number of tokens of decoder_prefix
    output_tokens: int
    cached_tokens: int  # input tokens whose encoder output came from a server's cache


@dataclasses.dataclass(slots=True)
class Generation:
    """The sequences of one input, best first."""

    sequences: list[Sequence]
    usage: Usage
    seed: int | None  # with do_sample: the seed in use

    @property
    def text(self) -> str:
        """Text of the best sequence."""
        return self.sequences[0].text

    @property
    def token_ids(self) -> list[int]:
        """New tokens of the best sequence."""
        return self.sequences[0].token_ids


@dataclasses.dataclass(slots=True)
class Chunk:
    """New text of a stream, which later tokens cannot change."""

    text: str
    token_ids: list[int]  # the ids that made this text final
    index: int  # index of the sequence; chunks of several samples interleave


@dataclasses.dataclass(slots=True)
class TargetScore:
    """Log-likelihood of one target."""

    logprob: float  # sum over the target's tokens
    tokens: list[TokenLogprob]


@dataclasses.dataclass(slots=True)
class Scores:
    """Log-likelihoods of the targets of one input, in their order."""

    targets: list[TargetScore]
    usage: Usage

    @property
    def logprobs(self) -> numpy.ndarray:
        """Total log-probabilities [targets] f64."""
        import numpy

        return numpy.array([target.logprob for target in self.targets], dtype=numpy.float64)


@dataclasses.dataclass(slots=True)
class LabelScore:
    """One label of a classification head."""

    label: str
    probability: float  # softmax, sigmoid for independent labels; regression: the logit
    logit: float


@dataclasses.dataclass(slots=True)
class Classification:
    """The labels of one text, in the order of the head's outputs; `label` is the most likely."""

    label: str
    labels: list[LabelScore]
    usage: Usage


@dataclasses.dataclass(slots=True)
class TokenLabel:
    """The label of one token. The offsets are None for inputs of token ids."""

    token_id: int
    label: str  # the most likely
    probability: float
    labels: list[LabelScore]  # most likely first
    begin_byte: int | None
    end_byte: int | None


@dataclasses.dataclass(slots=True)
class TokenClassification:
    """The labels of the tokens of one input."""

    tokens: list[TokenLabel]
    usage: Usage


@dataclasses.dataclass(slots=True)
class Answer:
    """A span of the context: its bytes [begin_byte, end_byte)."""

    text: str
    begin_byte: int
    end_byte: int
    probability: float  # of the start times that of the end


@dataclasses.dataclass(slots=True)
class Answers:
    """Answers to one question, most probable first."""

    answers: list[Answer]
    usage: Usage


@dataclasses.dataclass(slots=True)
class Tokens:
    """Tokens of a text."""

    ids: list[int]
    pieces: list[str]  # spelling in the vocabulary
    offsets: list[tuple[int, int]]  # bytes [begin, end) of the text; equal for tokens without text


@dataclasses.dataclass(slots=True)
class Limits:
    """Limits of a server for calls of one model, under the names of the message Limits."""

    max_queue_requests: int  # queued requests
    max_queue_tokens: int  # input tokens of queued requests
    max_running_sequences: int  # sequences decoded concurrently; each beam counts
    max_input_tokens: int  # tokens of one input
    max_new_tokens: int
    max_beams: int  # num_beams
    max_samples: int  # num_return_sequences with do_sample
    max_inputs: int  # inputs of one request of encode and classify
    max_targets: int  # targets of one input of score
    max_message_bytes: int  # one request
    max_text_bytes: int  # text of one input
    encoder_cache_bytes: int  # host memory of the cache of encoder outputs; 0: off
    default_timeout_ms: int  # for calls without a timeout
    max_timeout_ms: int  # longer timeouts are shortened to it


@dataclasses.dataclass(slots=True)
class ModelInfo:
    """Properties of a model."""

    model: str  # directory; of a Client: the name on the server
    family: str  # t5, mt5, umt5, longt5, flash_t5 or gpt2
    head: str
    device: str  # cpu, cuda or cuda:N
    dtype: str  # type of the GEMM weights
    cache_dtype: str  # type of the keys and values in the KV cache: f32, bf16, f16 or fp8
    parameters: int
    vocab: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    labels: list[str]
    eos_token_ids: list[int]
    max_input_tokens: int
    max_num_seqs: int  # sequences decoded concurrently
    prompt_names: list[str]  # values of encode's `prompt_name`
    adapters: list[str]  # values of the option `adapter`
    limits: Limits | None = None  # of a Client: those of the server


@dataclasses.dataclass(slots=True)
class ServedModel:
    """One model of a server. If the model is not loaded, only name, device, dtype and adapters are
    known."""

    name: str  # the argument `model` of Client
    ready: bool  # False while the model is being loaded and while the server drains
    device: str  # cpu, cuda or cuda:N
    dtype: str  # type of the GEMM weights
    family: str  # t5, mt5, umt5, longt5, flash_t5 or gpt2
    head: str
    tasks: list[str]  # methods that the model supports: generate, encode, score, classify
    adapters: list[str]  # values of the option `adapter`
    parameters: int
    max_input_tokens: int
    max_new_tokens: int  # 0: the model cannot generate


ClassifyResult = Classification | TokenClassification | Answers
