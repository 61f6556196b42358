"""A model in this process."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from quintet import _engine, calls
from quintet import options as opt
from quintet.cuda import use_cublas_wheel
from quintet.errors import Error, InvalidArgumentError
from quintet.results import (
    Chunk,
    ClassifyResult,
    Generation,
    ModelInfo,
    Scores,
    Tokens,
)

if TYPE_CHECKING:
    import numpy
    from typing_extensions import Unpack

    from quintet.options import (
        ClassifyOptions,
        EncodeOptions,
        GenerateOptions,
        GenerationOptions,
        ScoreOptions,
    )

    OneInput = str | Sequence[int] | numpy.ndarray
    OnError = Literal["raise", "return"]
    Pooling = Literal["auto", "mean", "first", "last", "none"]

_log = logging.getLogger("quintet")
_open_models: weakref.WeakSet[Model] = weakref.WeakSet()


class Model:
    """A T5-family model or GPT-2 that runs in this process.

        model = quintet.Model("flan-t5-base")
        model.generate("translate English to German: hello", num_beams=4).text
        model.encode(["one", "two"], normalize=True)  # numpy [2, d_model] f32

    Every method takes one input or an iterable of inputs; an input is a str or a list (or integer
    array) of token ids. One input gives one result, a list gives a list, and any other iterator
    gives an iterator, in the order of the inputs and with bounded memory. With token ids the
    directory needs no tokenizer files.

    All methods may be called by several threads at the same time: their inputs share the engine's
    batch. In f32 on a CPU a result does not depend on the other inputs. The GIL is released while
    the engine works. Ctrl-C ends a call.

    Arguments that all methods share:
        add_special_tokens: adds the special tokens of the tokenizer files to texts.
        truncate: cuts inputs longer than `max_input_tokens` instead of failing.
        timeout: seconds for each input from the time it is passed to the engine; None: no limit.
        on_error: "raise" raises the exception of the first input that fails, after the results
            before it; "return" puts the exception in the place of the result (encode: a row of
            NaN).
        progress: shows a progress bar; needs tqdm.

    Raises:
        TypeError: an argument has the wrong type, or an option does not exist.
        quintet.Error: a subclass that belongs to the status code; `InvalidArgumentError` for a
            wrong value, `FailedPreconditionError` if the model lacks the head or tokenizer, was
            closed, or was loaded before a fork.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 0,
        max_num_seqs: int | None = None,
        max_input_tokens: int = 4096,
        max_num_batched_tokens: int | None = None,
        cache_memory: int | None = None,
        max_memory: int | None = None,
        ignore_generation_fields: bool = False,
    ):
        """Loads a model.

        Args:
            path: directory with Hugging Face's files, or the output of `quintet convert`.
            device: "cpu", "cuda" (or "gpu"), "cuda:N", or "auto": the first GPU, otherwise the CPU.
            dtype: type of the GEMM weights: "f32", "bf16", "f16", "int8", "fp8", or "auto": f32 on
                a CPU, bf16 on a GPU, and the type of a converted directory.
            threads: compute threads on a CPU; 0: one for each physical core.
            max_num_seqs: sequences decoded concurrently; each beam counts. None: automatic.
            max_input_tokens: limit of each input.
            max_num_batched_tokens: tokens encoded in one batch. None: automatic.
            cache_memory: size of the KV cache in MiB. None: automatic.
            max_memory: limit of all memory of the model in MiB. None: no limit.
            ignore_generation_fields: warns of fields of generation_config.json that Quintet does
                not support, instead of refusing to generate.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path: expected a str or a path, got {type(path).__name__}")
        for name, value in {"device": device, "dtype": dtype}.items():
            if not isinstance(value, str):
                raise TypeError(f"{name}: expected a str, got {type(value).__name__}")

        def automatic(name: str, value: int | None) -> int:
            if value is None:
                return 0
            number = opt.integer(name, value)
            if number < 1:
                raise InvalidArgumentError(f"{name}: {number} is less than 1; None is automatic")
            return number

        if _engine.cuda:
            use_cublas_wheel()
        self._engine: _engine.Model = _engine.Model(
            os.fspath(path),
            device,
            dtype,
            opt.integer("threads", threads),
            automatic("max_num_seqs", max_num_seqs),
            opt.integer("max_input_tokens", max_input_tokens),
            automatic("max_num_batched_tokens", max_num_batched_tokens),
            automatic("cache_memory", cache_memory),
            automatic("max_memory", max_memory),
            opt.flag("ignore_generation_fields", ignore_generation_fields),
        )
        for level, message in self._engine.messages():
            _log.log(level, "%s: %s", path, message)
        self._head: str = self._engine.info()["head"]
        _open_models.add(self)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._engine.closed:
            return "<quintet.Model, closed>"
        info = self.info()
        return f"<quintet.Model {info.model!r} {info.family} {info.dtype} on {info.device}>"

    def close(self) -> None:
        """Frees the model. Calls of other threads end with UnavailableError. May be repeated."""
        self._engine.close()
        _open_models.discard(self)

    @property
    def closed(self) -> bool:
        return self._engine.closed

    def info(self) -> ModelInfo:
        """Properties of the model."""
        values = self._engine.info()
        known = [name for name in ModelInfo.__slots__ if name != "limits"]
        return ModelInfo(**{name: values[name] for name in known})

    # ---- Generation ----

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, inputs: OneInput, **options: Unpack[GenerateOptions]
    ) -> Generation: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, inputs: Sequence[OneInput], **options: Unpack[GenerateOptions]
    ) -> list[Generation]: ...

    @overload
    def generate(
        self, inputs: Iterable[OneInput], **options: Unpack[GenerateOptions]
    ) -> Iterator[Generation]: ...

    def generate(
        self,
        inputs: Any,
        *,
        add_special_tokens: bool = True,
        truncate: bool = False,
        skip_special_tokens: bool = True,
        timeout: float | None = None,
        on_error: OnError = "raise",
        progress: bool = False,
        **options: Any,
    ) -> Any:
        """Generates text.

        Options have the names, values and meaning of Hugging Face's `generate` and are listed in
        `quintet.options.GenerationOptions`; an option that cannot have an effect is an error.

        Args:
            inputs: one input or an iterable of inputs; for GPT-2 the prompts.
            skip_special_tokens: omits special tokens from the texts.

        Returns:
            One `Generation` for each input.
        """
        plan = calls.generate_plan(
            "generate",
            inputs,
            add_special_tokens,
            truncate,
            skip_special_tokens,
            timeout,
            on_error,
            progress,
            options,
        )
        return calls.run(self._engine, plan)

    def stream(
        self,
        input: OneInput,  # noqa: A002
        *,
        add_special_tokens: bool = True,
        truncate: bool = False,
        skip_special_tokens: bool = True,
        timeout: float | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Stream:
        """Generates text and returns it while it is generated.

        The texts of the chunks of a sequence concatenate to its text. With several beams and one
        returned sequence, text arrives once all beams share it.

        Returns:
            An iterator of `Chunk`; its `result` is the `Generation` once it has ended.
        """
        plan = calls.generate_plan(
            "stream",
            input,
            add_special_tokens,
            truncate,
            skip_special_tokens,
            timeout,
            "raise",
            False,
            dict(options),
            stream=True,
        )
        return Stream(self._engine, plan)

    # ---- Embeddings ----

    @overload
    def encode(  # type: ignore[overload-overlap]
        self,
        inputs: OneInput | Sequence[OneInput],
        *,
        pooling: Literal["auto", "mean", "first", "last"] = ...,
        **options: Unpack[EncodeOptions],
    ) -> numpy.ndarray: ...

    @overload
    def encode(  # type: ignore[overload-overlap]
        self, inputs: OneInput, *, pooling: Literal["none"], **options: Unpack[EncodeOptions]
    ) -> numpy.ndarray: ...

    @overload
    def encode(  # type: ignore[overload-overlap]
        self,
        inputs: Sequence[OneInput],
        *,
        pooling: Literal["none"],
        **options: Unpack[EncodeOptions],
    ) -> list[numpy.ndarray]: ...

    @overload
    def encode(
        self,
        inputs: Iterable[OneInput],
        *,
        pooling: Pooling = ...,
        **options: Unpack[EncodeOptions],
    ) -> Iterator[numpy.ndarray]: ...

    def encode(
        self,
        inputs: Any,
        *,
        pooling: Pooling = "auto",
        normalize: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        add_special_tokens: bool = True,
        truncate: bool = False,
        timeout: float | None = None,
        on_error: OnError = "raise",
        progress: bool = False,
    ) -> Any:
        """Computes embeddings from the encoder's hidden states.

        Args:
            inputs: one input or an iterable of inputs.
            pooling: "auto" (that of the model's modules.json, otherwise "mean"), "mean", "first",
                "last", or "none": one row for each token.
            normalize: scales rows to unit length.
            prompt_name: name of a prompt of the model (`info().prompt_names`), which is put before
                every text. None: the model's default prompt, if it has one; "": no prompt.
            prompt: text to put before every text instead; cannot be combined with `prompt_name`.
                With either, inputs must be texts.

        Returns:
            Arrays of f32, which share memory with the engine's results: [d] for one input,
            [inputs, d] for a list, an iterator of [d] for an iterator; d is d_model or that of
            the model's modules. With pooling "none": [tokens, d_model], or a list or iterator of
            these.
        """
        plan = calls.encode_plan(
            inputs,
            pooling,
            normalize,
            prompt_name,
            prompt,
            add_special_tokens,
            truncate,
            timeout,
            on_error,
            progress,
        )
        return calls.run(self._engine, plan)

    # ---- Scores and labels ----

    @overload
    def score(  # type: ignore[overload-overlap]
        self,
        inputs: OneInput,
        targets: OneInput | Sequence[OneInput],
        **options: Unpack[ScoreOptions],
    ) -> Scores: ...

    @overload
    def score(  # type: ignore[overload-overlap]
        self,
        inputs: Sequence[OneInput],
        targets: Iterable[OneInput | Sequence[OneInput]],
        **options: Unpack[ScoreOptions],
    ) -> list[Scores]: ...

    @overload
    def score(
        self,
        inputs: Iterable[OneInput],
        targets: Iterable[OneInput | Sequence[OneInput]],
        **options: Unpack[ScoreOptions],
    ) -> Iterator[Scores]: ...

    def score(
        self,
        inputs: Any,
        targets: Any,
        *,
        top_logprobs: int = 0,
        sliding_window: int = 0,
        prefix_lm: bool = False,
        target_special_tokens: bool = True,
        add_special_tokens: bool = True,
        truncate: bool = False,
        timeout: float | None = None,
        on_error: OnError = "raise",
        progress: bool = False,
    ) -> Any:
        """Computes the log-likelihood of given targets.

        Args:
            inputs: one input or an iterable of inputs; for GPT-2 the prompts.
            targets: for one input, its targets: a list of 1 to 64 texts or lists of token ids. For
                several inputs, the targets of each, in their order.
            top_logprobs: alternatives of each token; range [0, 20].
            sliding_window: attention window in tokens; 0: unlimited. GPT-2 only.
            prefix_lm: bidirectional attention within the input. GPT-2 only.
            target_special_tokens: adds special tokens to text targets (T5: the end-of-sequence id).

        Returns:
            One `Scores` for each input; its `logprobs` are an array [targets] f64.
        """
        plan = calls.score_plan(
            inputs,
            targets,
            top_logprobs,
            sliding_window,
            prefix_lm,
            target_special_tokens,
            add_special_tokens,
            truncate,
            timeout,
            on_error,
            progress,
        )
        return calls.run(self._engine, plan)

    @overload
    def classify(  # type: ignore[overload-overlap]
        self,
        inputs: OneInput,
        contexts: str | None = ...,
        **options: Unpack[ClassifyOptions],
    ) -> ClassifyResult: ...

    @overload
    def classify(  # type: ignore[overload-overlap]
        self,
        inputs: Sequence[OneInput],
        contexts: Iterable[str] | None = ...,
        **options: Unpack[ClassifyOptions],
    ) -> list[ClassifyResult]: ...

    @overload
    def classify(
        self,
        inputs: Iterable[OneInput],
        contexts: Iterable[str] | None = ...,
        **options: Unpack[ClassifyOptions],
    ) -> Iterator[ClassifyResult]: ...

    def classify(
        self,
        inputs: Any,
        contexts: Any = None,
        *,
        top_k: int = 1,
        max_answer_tokens: int = 30,
        add_special_tokens: bool = True,
        truncate: bool = False,
        timeout: float | None = None,
        on_error: OnError = "raise",
        progress: bool = False,
    ) -> Any:
        """Runs the task head of the model.

        Args:
            inputs: one input or an iterable of inputs; for question answering the questions.
            contexts: question answering: the text that answers are taken from, one for each input.
            top_k: question answering: answers for each question; range [1, 20].
            max_answer_tokens: question answering: longest answer; range [1, 4096].

        Returns:
            For each input a `Classification`, a `TokenClassification` or `Answers`, depending on
            the model's head.
        """
        plan = calls.classify_plan(
            inputs,
            contexts,
            top_k,
            max_answer_tokens,
            add_special_tokens,
            truncate,
            timeout,
            on_error,
            progress,
            self._head,
        )
        return calls.run(self._engine, plan)

    # ---- Tokens ----

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Tokens:
        """The tokens of a text: ids, pieces and byte offsets."""
        return self._engine.tokenize(text, opt.flag("add_special_tokens", add_special_tokens))

    def detokenize(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        return self._engine.detokenize(
            token_ids, opt.flag("skip_special_tokens", skip_special_tokens)
        )


class Stream(Iterator[Chunk]):
    """The chunks of one generation. Iterate over it once; `close` ends the generation early."""

    def __init__(self, model: _engine.Model, plan: calls.Plan):
        self._call = model.begin(plan.kind, plan.options, plan.decoding, -1, True)
        self._call.push(list(plan.inputs), None)
        self._chunks: list[Chunk] = []
        self._result: Generation | None = None
        self._ended = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        while not self._chunks:
            if self._ended:
                raise StopIteration
            try:
                chunks, results = self._call.pop_with_chunks(True)
            except BaseException:
                self.close()
                raise
            self._chunks = chunks[::-1]
            if results:
                self._result, self._ended = results[0], True
        return self._chunks.pop()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the generation; the iterator is then exhausted."""
        self._ended = True
        self._chunks = []  # those that had arrived together with the last one
        self._call.cancel()

    @property
    def result(self) -> Generation:
        """The whole generation. Raises RuntimeError if the iterator has not ended yet."""
        if self._result is None:
            raise RuntimeError("the stream has not ended: iterate over it first")
        return self._result


@atexit.register
def _close_models() -> None:
    for model in list(_open_models):
        try:
            model.close()
        except Error:  # a forked process cannot close its parent's models
            pass
