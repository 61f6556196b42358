"""Options of Model and Client, with Hugging Face's names and values.

Each option is defined only here: its type, default, check and meaning. The methods (methods.py)
take the options of a TypedDict as keyword arguments, so that type checkers and editors know them;
`help()` and `inspect.signature` show them, too.
"""

from __future__ import annotations

import difflib
import inspect
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar, get_args, get_type_hints

from quintet import checks

Respond = Callable[[Any], object]
Pooling = Literal["auto", "mean", "first", "last", "max", "mean_sqrt_len", "weighted_mean", "none"]
POOLINGS = get_args(Pooling)
VECTOR_TYPES = ("fp32", "fp16", "bf16")


class Option(NamedTuple):
    """An option of a method."""

    default: Any
    check: Callable[[str, Any], Any]  # returns the value in the form that the engine takes
    text: str  # what it means
    owner: str = ""  # "Model" or "Client" if only these classes have it
    decoding: bool = False  # whether it is a decoding option, whose value the engine checks


def _decoding(text: str) -> Option:
    return Option(None, lambda name, value: value, text, decoding=True)


class GenerationOptions(TypedDict, total=False):
    """Decoding options. For an option that is not set, or None, the model's generation_config.json
    decides."""

    max_new_tokens: Annotated[int | None, _decoding("default 256; range [1, 4096]")]
    min_new_tokens: Annotated[int | None, _decoding("default 0")]
    num_beams: Annotated[int | None, _decoding("default 1; range [1, 32]")]
    num_return_sequences: Annotated[
        int | None, _decoding("default 1; at most num_beams, or 16 samples")
    ]
    length_penalty: Annotated[float | None, _decoding("default 1; range [-10, 10]")]
    early_stopping: Annotated[bool | Literal["never"] | None, _decoding("default False")]
    patience: Annotated[
        float | None, _decoding("default 1; range [0.1, 4]; needs early_stopping=True")
    ]
    do_sample: Annotated[bool | None, _decoding("default False")]
    seed: Annotated[int | None, _decoding("default: random; range [0, 2^64)")]
    temperature: Annotated[float | None, _decoding("default 1; range [0.01, 100]")]
    top_k: Annotated[int | None, _decoding("default 50; 0: no limit")]
    top_p: Annotated[float | None, _decoding("default 1; range (0, 1]")]
    typical_p: Annotated[float | None, _decoding("default 1; range (0, 1]")]
    min_p: Annotated[float | None, _decoding("default 0; range [0, 1)")]
    repetition_penalty: Annotated[float | None, _decoding("default 1; range (0, 10]")]
    no_repeat_ngram_size: Annotated[int | None, _decoding("default 0 (off); range [0, 64]")]
    suppress_tokens: Annotated[Sequence[int] | None, _decoding("tokens never generated")]
    begin_suppress_tokens: Annotated[
        Sequence[int] | None, _decoding("tokens not generated as the first token")
    ]
    bad_words_ids: Annotated[
        Sequence[Sequence[int]] | None, _decoding("sequences of tokens never generated")
    ]
    forced_bos_token_id: Annotated[int | None, _decoding("the first token generated")]
    forced_eos_token_id: Annotated[
        int | Sequence[int] | None, _decoding("the token generated at max_new_tokens")
    ]
    eos_token_id: Annotated[int | Sequence[int] | None, _decoding("default: those of the model")]
    decoder_start_token_id: Annotated[int | None, _decoding("default: that of the model")]
    pad_token_id: Annotated[int | None, _decoding("default: that of the model")]
    decoder_prefix: Annotated[
        str | Sequence[int] | None, _decoding("decoder tokens after the start token")
    ]
    stop_strings: Annotated[str | Sequence[str] | None, _decoding("strings that end a sequence")]
    include_stop: Annotated[
        bool | None, _decoding("default False: the text ends before the stop string")
    ]
    ignore_eos: Annotated[bool | None, _decoding("default False; for benchmarks")]
    logprobs: Annotated[bool | None, _decoding("default False: log-probabilities of new tokens")]
    top_logprobs: Annotated[int | None, _decoding("default 0; range [0, 20]; needs logprobs=True")]
    return_scores: Annotated[bool | None, _decoding("default False: Sequence.score")]
    echo: Annotated[bool | None, _decoding("default False: the prompt or prefix comes first")]


class RequestOptions(TypedDict, total=False):
    """Options of all methods of clients."""

    request_id: Annotated[
        str | None,
        Option(
            None,
            checks.text_or_none,
            "id of the call's requests, which the server logs and returns: at most 64 characters "
            "of [A-Za-z0-9._-]; None: the server generates one for each request",
            "Client",
        ),
    ]
    on_response: Annotated[
        Respond | None,
        Option(
            None,
            checks.function_or_none,
            "called with each response, in the order of the inputs and in the caller's thread: "
            "messages of quintet/v1/inference.proto, whose info (CallInfo) has the request id, "
            "usage and timing; of a stream, each of its messages",
            "Client",
        ),
    ]


class TokenizeOptions(RequestOptions, total=False):
    """Options of tokenize."""

    add_special_tokens: Annotated[
        bool,
        Option(True, checks.flag, "adds the special tokens of the tokenizer files to texts"),
    ]


class _OutputOptions(TypedDict, total=False):
    skip_special_tokens: Annotated[
        bool, Option(True, checks.flag, "omits special tokens from texts of token ids")
    ]


class DetokenizeOptions(_OutputOptions, RequestOptions, total=False):
    """Options of detokenize."""


class _InputOptions(TokenizeOptions, total=False):
    adapter: Annotated[
        str | None,
        Option(
            None,
            checks.text_or_none,
            "name of a LoRA adapter of the model (info().adapters); None: the model as it is",
        ),
    ]
    truncate: Annotated[
        bool,
        Option(False, checks.flag, "cuts inputs longer than max_input_tokens instead of failing"),
    ]
    timeout: Annotated[
        float | None,
        Option(
            None,
            checks.seconds,
            "seconds for each input from the time it is passed to the engine; None: no limit. "
            "Default: None; of a client the timeout that its constructor was given",
        ),
    ]


class _ListOptions(TypedDict, total=False):
    on_error: Annotated[
        Literal["raise", "return"],
        Option(
            "raise",
            checks.one_of("raise", "return"),
            '"raise" raises the exception of the first input that fails, after the results before '
            'it; "return" puts the exception in the place of the result (encode: a row of NaN)',
        ),
    ]
    progress: Annotated[bool, Option(False, checks.flag, "shows a progress bar; needs tqdm")]


class CallOptions(_InputOptions, _ListOptions, total=False):
    """Options that generate, encode, score and classify share."""


class StreamOptions(GenerationOptions, _InputOptions, _OutputOptions, total=False):
    """Options of stream."""


class GenerateOptions(StreamOptions, _ListOptions, total=False):
    """Options of generate."""


class EmbeddingOptions(CallOptions, total=False):
    """Options of encode, except pooling."""

    normalize: Annotated[bool, Option(False, checks.flag, "scales rows to unit length")]
    prompt_name: Annotated[
        str | None,
        Option(
            None,
            checks.text_or_none,
            "name of a prompt of the model (info().prompt_names), which is put before every text; "
            'None: the model\'s default prompt, if it has one; "": no prompt',
        ),
    ]
    prompt: Annotated[
        str | None,
        Option(
            None,
            checks.text_or_none,
            "text to put before every text instead of prompt_name. With either, inputs must be "
            "texts",
        ),
    ]
    vector_type: Annotated[
        Literal["fp32", "fp16", "bf16"],
        Option(
            "fp32",
            checks.one_of(*VECTOR_TYPES),
            "how embeddings are sent; they are returned as f32",
            "Client",
        ),
    ]


class EncodeOptions(EmbeddingOptions, total=False):
    """Options of encode."""

    pooling: Annotated[
        Pooling,
        Option(
            "auto",
            checks.one_of(*POOLINGS),
            '"auto" (that of the model\'s modules.json, otherwise "mean"), "mean", "first", '
            '"last", "max", "mean_sqrt_len" (sum / sqrt(tokens)), "weighted_mean" (weights 1, 2, '
            '...), or "none": one row for each token',
        ),
    ]
    pad_to: Annotated[
        int,
        Option(
            0,
            checks.in_range(0, 2**31 - 1),
            "number of tokens to which inputs are padded or truncated, as pipelines of image and "
            'video models do with their text encoders; 0: neither. Needs pooling="none"',
        ),
    ]
    pad_mode: Annotated[
        Literal["attend", "zero"],
        Option(
            "attend",
            checks.one_of("attend", "zero"),
            '"attend": padding tokens are part of the input (Flux, Stable Diffusion 3, CogVideoX, '
            'LTX-Video); "zero": rows of zeros are appended to the hidden states (Wan)',
        ),
    ]


class ScoreOptions(CallOptions, total=False):
    """Options of score."""

    top_logprobs: Annotated[
        int, Option(0, checks.in_range(0, 20), "alternatives of each token; range [0, 20]")
    ]
    sliding_window: Annotated[
        int,
        Option(
            0,
            checks.in_range(0, 2**31 - 1),
            "attention window in tokens; 0: unlimited. GPT-2 only",
        ),
    ]
    prefix_lm: Annotated[
        bool,
        Option(False, checks.flag, "bidirectional attention within the input. GPT-2 only"),
    ]
    target_special_tokens: Annotated[
        bool,
        Option(
            True,
            checks.flag,
            "adds special tokens to text targets (T5: the end-of-sequence id). A client has one "
            "option, add_special_tokens, for both inputs and targets",
            "Model",
        ),
    ]


class ClassifyOptions(CallOptions, total=False):
    """Options of classify."""

    top_k: Annotated[
        int,
        Option(
            1,
            checks.in_range(1, 20),
            "question answering: answers for each question; range [1, 20]",
        ),
    ]
    max_answer_tokens: Annotated[
        int,
        Option(
            30,
            checks.in_range(1, 4096),
            "question answering: longest answer; range [1, 4096]",
        ),
    ]


class LoadOptions(TypedDict, total=False):
    """Options of the constructors of Model and AsyncModel."""

    device: Annotated[
        str,
        Option(
            "auto",
            checks.text,
            '"cpu", "cuda" (or "gpu"), "cuda:N", several GPUs ("cuda:N,M" or "cuda:all"), or '
            '"auto": the first GPU, otherwise the CPU',
        ),
    ]
    dtype: Annotated[
        str,
        Option(
            "auto",
            checks.text,
            'type of the GEMM weights: "f32", "bf16", "f16", "int8", "fp8", "int8-w8a8" and '
            '"fp8-w8a8" (inputs of GEMMs quantised, too; Hopper GPUs), or "auto": f32 on a CPU, '
            "bf16 on a GPU, and the type of a converted directory",
        ),
    ]
    cache_dtype: Annotated[
        str,
        Option(
            "auto",
            checks.text,
            'type of the keys and values in the KV cache: "fp8" (on a GPU with bf16 or f16 '
            'activations; half the memory), or "auto": that of the activations',
        ),
    ]
    revision: Annotated[
        str | None,
        Option(
            None,
            checks.text_or_none,
            "branch, tag or commit of a model on the Hugging Face hub; the same as ID@REVISION. "
            "None: the main branch",
        ),
    ]
    tokenizer: Annotated[
        str | os.PathLike[str] | None,
        Option(
            None,
            checks.path_or_none,
            "another tokenizer: a directory, a file (tokenizer.json, spiece.model, GGUF) or an id "
            "on the Hugging Face hub. None: that of the model",
        ),
    ]
    follow_symlinks: Annotated[
        bool,
        Option(
            False,
            checks.flag,
            "follows all symbolic links to model files, not only those within a repository's "
            "folder of the Hugging Face cache",
        ),
    ]
    adapters: Annotated[
        Mapping[str, str | os.PathLike[str]] | None,
        Option(
            None,
            checks.paths_by_name,
            "LoRA adapters to load beside the model, by the names that the option adapter of calls "
            "takes: directories of PEFT, or safetensors files of kohya's format",
        ),
    ]
    threads: Annotated[
        int,
        Option(
            0,
            checks.in_range(0, 1024),
            "compute threads; 0: one for each physical core, with a GPU at most 8",
        ),
    ]
    engines: Annotated[
        int,
        Option(
            1,
            checks.in_range(1, 256),
            "engines on a CPU, each with an equal part of the cores and of the threads",
        ),
    ]
    max_num_seqs: Annotated[
        int | None,
        Option(
            None,
            checks.size_or_automatic,
            "sequences decoded concurrently; each beam counts. None: automatic",
        ),
    ]
    max_input_tokens: Annotated[int, Option(4096, checks.integer, "limit of each input")]
    max_num_batched_tokens: Annotated[
        int | None,
        Option(None, checks.size_or_automatic, "tokens encoded in one batch. None: automatic"),
    ]
    cache_memory: Annotated[
        int | None,
        Option(None, checks.size_or_automatic, "size of the KV cache in MiB. None: automatic"),
    ]
    max_memory: Annotated[
        int | None,
        Option(
            None,
            checks.size_or_automatic,
            "limit of all memory of the model in MiB. None: no limit",
        ),
    ]
    ignore_generation_fields: Annotated[
        bool,
        Option(
            False,
            checks.flag,
            "warns of fields of generation_config.json that Quintet does not support, instead of "
            "refusing to generate",
        ),
    ]


def options_of(kind: Any) -> dict[str, Option]:
    """The options of one of the classes above, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


OPTIONS: dict[str, dict[str, Option]] = {
    "generate": options_of(GenerateOptions),
    "stream": options_of(StreamOptions),
    "encode": options_of(EncodeOptions),
    "score": options_of(ScoreOptions),
    "classify": options_of(ClassifyOptions),
    "tokenize": options_of(TokenizeOptions),
    "detokenize": options_of(DetokenizeOptions),
    "Model": options_of(LoadOptions),
}
_DEFAULTS = {
    method: {name: option.default for name, option in options.items() if not option.decoding}
    for method, options in OPTIONS.items()
}

# {Hugging Face's name: the engine's name} of decoding options whose names differ. Methods accept
# both names.
ALIASES = {
    "eos_token_id": "eos_token_ids",
    "forced_eos_token_id": "forced_eos_token_ids",
    "stop_strings": "stop",
}
HUGGING_FACE = {name: alias for alias, name in ALIASES.items()}
# The decoding options under the engine's names.
ENGINE_NAMES = frozenset(ALIASES.get(name, name) for name in options_of(GenerationOptions))
# Options of transformers' generate that have another form here.
HINTS = {
    "max_length": "use max_new_tokens",
    "min_length": "use min_new_tokens",
    "output_scores": "use logprobs=True, or return_scores=True for the scores of sequences",
    "return_dict_in_generate": "results are always objects; leave it out",
    "decoder_input_ids": "use decoder_prefix, without the start token",
    "input_ids": "pass token ids as the first argument",
    "attention_mask": "inputs are not padded; leave it out",
    "batch_size": "batches are formed by the engine; leave it out",
}


def resolve(
    owner: str, method: str, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Checks the options that a method was called with. Returns two dicts: all options except
    decoding options, with defaults for those that were not given; and the given decoding
    options, under the engine's names. `owner`: "Model" or "Client". Raises TypeError for an option
    that does not exist."""
    known = OPTIONS[method]
    values, decoding = dict(_DEFAULTS[method]), {}
    for name, value in given.items():
        option = known.get(HUGGING_FACE.get(name, name))
        if option is None or option.owner not in ("", owner):
            raise TypeError(f"{method}() has no option {name!r}{_hint(name, known, owner)}")
        if not option.decoding:
            values[name] = option.check(name, value)
            continue
        target = ALIASES.get(name, name)
        if target in decoding:
            other = ALIASES.get(name) or HUGGING_FACE[name]
            raise TypeError(f"{method}(): {name} is given twice, also as {other}")
        decoding[target] = checks.plain(value)
    return values, decoding


def _hint(name: str, known: Mapping[str, Option], owner: str) -> str:
    if name in HINTS:
        return f": {HINTS[name]}"
    if name in known:
        return f": only a {known[name].owner} has it"
    own = [other for other, option in known.items() if option.owner in ("", owner)]
    near = difflib.get_close_matches(name, sorted({*own, *HUGGING_FACE}), 1, cutoff=0.8)
    return f"; did you mean {near[0]!r}?" if near else ""


Function = TypeVar("Function", bound=Callable[..., Any])


def takes(kind: Any) -> Callable[[Function], Function]:
    """Returns a decorator for a function with `**options: Unpack[kind]`. It adds the options to the
    function's docstring and to its signature for inspect, which completion in an interactive
    interpreter uses."""

    def decorate(function: Function) -> Function:
        options = options_of(kind)
        own = inspect.signature(function)
        parameters = list(own.parameters.values())[:-1]
        lines = []
        for name, annotation in get_type_hints(kind).items():
            option = options[name]
            kept = inspect.Parameter.KEYWORD_ONLY
            parameters.append(
                inspect.Parameter(name, kept, default=option.default, annotation=annotation)
            )
            whose = f"{option.owner} only: " if option.owner else ""
            lines += textwrap.wrap(
                f"{name}: {whose}{option.text}.",
                96,
                initial_indent="    ",
                subsequent_indent=" " * 8,
            )
        setattr(function, "__signature__", own.replace(parameters=parameters))  # noqa: B010
        head = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = "\n".join([head, "", "Options:", *lines, ""])
        return function

    return decorate
