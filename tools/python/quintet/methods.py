"""The methods that Model and Client have in common (`Methods`), and those of AsyncModel and
AsyncClient (`AsyncMethods`): their signatures, and the checks of their arguments."""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from quintet import checks
from quintet import options as opt
from quintet.errors import InvalidArgumentError
from quintet.options import takes
from quintet.results import Chunk, ClassifyResult, Generation, ModelInfo, Scores, Tokens

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack

    OneInput = str | Sequence[int] | NDArray[numpy.integer[Any]]
    Targets = OneInput | Sequence[OneInput]
    Pooled = Literal["auto", "mean", "first", "last", "max", "mean_sqrt_len", "weighted_mean"]
    Vectors = NDArray[numpy.float32]


class Extras:
    """The targets or contexts of the inputs of a call, in the order of these inputs."""

    def __init__(self, values: Iterable[Any], name: str):
        self._values, self._name, self._taken = iter(values), name, 0

    def take(self, count: int) -> list[Any]:
        """Returns the entries of the next `count` inputs."""
        taken = list(itertools.islice(self._values, count))
        self._taken += len(taken)
        if len(taken) < count:
            raise InvalidArgumentError(
                f"{self._name}: there are fewer entries ({self._taken}) than inputs"
            )
        return taken

    def check_end(self) -> None:
        """Raises an error if entries are left. Call it when the inputs have ended."""
        for _ in self._values:
            raise InvalidArgumentError(
                f"{self._name}: there are more entries than inputs ({self._taken})"
            )


@dataclasses.dataclass
class Task:
    """A call of a method: its inputs and options, checked."""

    method: str
    options: dict[str, Any]  # all options of the method but the decoding options
    decoding: dict[str, Any]  # the decoding options that were given, under the engine's names
    inputs: Iterable[Any]
    extras: Iterable[Any] | None  # the targets (score) or contexts (classify) of the inputs
    extras_name: str  # the name of the argument `extras`
    one: bool  # a single input: the result is not in a list
    size: int | None  # number of inputs; None: an iterator

    def pairs(self) -> Extras | None:
        """The extras, to be taken together with the inputs."""
        return None if self.extras is None else Extras(self.extras, self.extras_name)

    @property
    def raises(self) -> bool:
        return bool(self.options["on_error"] == "raise")

    @property
    def array(self) -> bool:
        """Whether the results are the rows of one array."""
        pooling = self.options.get("pooling", "none")
        return pooling != "none" and not self.one and self.size is not None

    def progress_bar(self) -> Callable[[int], Any]:
        """Returns a function to call with the number of inputs that have been finished since its
        last call, or with -1 when the call has ended."""
        if not self.options["progress"]:
            return lambda count: None
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError("progress=True needs tqdm: pip install tqdm") from error
        bar = tqdm(total=self.size, unit=" inputs")
        return lambda count: bar.close() if count < 0 else bar.update(count)


class Stream(Iterator[Chunk]):
    """The chunks of one generation. Iterate over it once."""

    _result: Generation | None = None

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the generation; the iterator is then exhausted."""

    @property
    def result(self) -> Generation:
        """The whole generation. Raises RuntimeError if the iterator has not ended yet."""
        return _ended(self._result)


class AsyncStream(AsyncIterator[Chunk]):
    """The chunks of one generation, as an asynchronous iterator. Iterate over it once."""

    def __init__(self, items: AsyncGenerator[Chunk | Generation, None]):
        """`items`: the chunks and, at the end, the generation."""
        self._items = items
        self._result: Generation | None = None

    async def __anext__(self) -> Chunk:
        item = await self._items.__anext__()
        if isinstance(item, Chunk):
            return item
        self._result = item
        await self._items.aclose()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the generation; the iterator is then exhausted."""
        await self._items.aclose()

    @property
    def result(self) -> Generation:
        """The whole generation. Raises RuntimeError if the iterator has not ended yet."""
        return _ended(self._result)


def _ended(result: Generation | None) -> Generation:
    if result is None:
        raise RuntimeError("the stream has not ended: iterate over it first")
    return result


class _Tasks:
    """Makes tasks from the arguments of methods."""

    _owner: ClassVar[str]  # "Model" or "Client"

    def _task(
        self,
        method: str,
        inputs: Any,
        given: Mapping[str, Any],
        extras: tuple[str, Any] | None = None,
    ) -> Task:
        """Checks the arguments of a method and makes a task. `extras`: (name, value) of the
        argument that has one entry for each input, if the method has such an argument."""
        options, decoding = opt.resolve(self._owner, method, given)
        checks.inputs("inputs", inputs)
        one = checks.is_one_input(inputs)
        size = 1 if one else len(inputs) if isinstance(inputs, Sized) else None
        name, paired = "", None
        if extras is not None:
            name, value = extras
            paired = [value] if one else checks.one_for_each_input(name, value, size)
        sources = [inputs] if one else inputs
        return Task(method, options, decoding, sources, paired, name, one, size)

    def _stream_task(self, source: Any, given: Mapping[str, Any]) -> Task:
        options, decoding = opt.resolve(self._owner, "stream", given)
        options |= {"on_error": "raise", "progress": False}
        inputs = [checks.one_input("input", source)]
        return Task("stream", options, decoding, inputs, None, "", True, 1)

    def _classify_task(self, inputs: Any, contexts: Any, given: Mapping[str, Any]) -> Task:
        extras = None if contexts is None else ("contexts", contexts)
        return self._task("classify", inputs, given, extras)


class Methods(_Tasks, abc.ABC):
    """The methods of Model and Client that process inputs.

    Every method takes one input or an iterable of inputs; an input is a str or a list (or integer
    array) of token ids. One input gives one result, a list gives a list, and any other iterator
    gives an iterator, in the order of the inputs and with bounded memory.

    Raises:
        TypeError: an argument has the wrong type, or an option does not exist.
        quintet.Error: a subclass that belongs to the status code.
    """

    # ---- Generation ----

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, inputs: OneInput, **options: Unpack[opt.GenerateOptions]
    ) -> Generation: ...

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, inputs: Sequence[OneInput], **options: Unpack[opt.GenerateOptions]
    ) -> list[Generation]: ...

    @overload
    def generate(
        self, inputs: Iterable[OneInput], **options: Unpack[opt.GenerateOptions]
    ) -> Iterator[Generation]: ...

    @takes(opt.GenerateOptions)
    def generate(self, inputs: Any, **options: Any) -> Any:
        """Generates text.

        Options have the names, values and meaning of Hugging Face's `generate`; an option that
        cannot have an effect is an error.

        Args:
            inputs: one input or an iterable of inputs; for GPT-2 the prompts.

        Returns:
            One `Generation` for each input.
        """
        return self._run(self._task("generate", inputs, options))

    @takes(opt.StreamOptions)
    def stream(
        self,
        input: OneInput,
        **options: Unpack[opt.StreamOptions],
    ) -> Stream:
        """Generates text and returns it while it is generated.

        The texts of the chunks of a sequence concatenate to its text. With several beams and one
        returned sequence, text arrives once all beams share it.

        Returns:
            An iterator of `Chunk`; its `result` is the `Generation` once it has ended.
        """
        return self._stream(self._stream_task(input, options))

    # ---- Embeddings ----

    @overload
    def encode(  # type: ignore[overload-overlap]
        self,
        inputs: OneInput | Sequence[OneInput],
        *,
        pooling: Pooled = ...,
        **options: Unpack[opt.EmbeddingOptions],
    ) -> Vectors: ...

    @overload
    def encode(  # type: ignore[overload-overlap]
        self,
        inputs: OneInput,
        *,
        pooling: Literal["none"],
        **options: Unpack[opt.EmbeddingOptions],
    ) -> Vectors: ...

    @overload
    def encode(  # type: ignore[overload-overlap]
        self,
        inputs: Sequence[OneInput],
        *,
        pooling: Literal["none"],
        **options: Unpack[opt.EmbeddingOptions],
    ) -> list[Vectors]: ...

    @overload
    def encode(
        self,
        inputs: Iterable[OneInput],
        *,
        pooling: opt.Pooling = ...,
        **options: Unpack[opt.EmbeddingOptions],
    ) -> Iterator[Vectors]: ...

    @takes(opt.EncodeOptions)
    def encode(self, inputs: Any, **options: Any) -> Any:
        """Computes embeddings from the encoder's hidden states.

        Args:
            inputs: one input or an iterable of inputs.

        Returns:
            Arrays of f32: [d] for one input, [inputs, d] for a list, an iterator of [d] for an
            iterator; d is d_model or the output size of the model's modules. With pooling "none":
            [tokens, d_model], or a list or iterator of these. The arrays of a Model share memory
            with the engine's results.
        """
        return self._run(self._task("encode", inputs, options))

    # ---- Scores and labels ----

    @overload
    def score(  # type: ignore[overload-overlap]
        self, inputs: OneInput, targets: Targets, **options: Unpack[opt.ScoreOptions]
    ) -> Scores: ...

    @overload
    def score(  # type: ignore[overload-overlap]
        self,
        inputs: Sequence[OneInput],
        targets: Iterable[Targets],
        **options: Unpack[opt.ScoreOptions],
    ) -> list[Scores]: ...

    @overload
    def score(
        self,
        inputs: Iterable[OneInput],
        targets: Iterable[Targets],
        **options: Unpack[opt.ScoreOptions],
    ) -> Iterator[Scores]: ...

    @takes(opt.ScoreOptions)
    def score(self, inputs: Any, targets: Any, **options: Any) -> Any:
        """Computes the log-likelihood of given targets.

        Args:
            inputs: one input or an iterable of inputs; for GPT-2 the prompts.
            targets: for one input, its targets: a list of 1 to 64 texts or lists of token ids. For
                several inputs, the targets of each, in their order.

        Returns:
            One `Scores` for each input; its `logprobs` are an array [targets] f64.
        """
        return self._run(self._task("score", inputs, options, ("targets", targets)))

    @overload
    def classify(  # type: ignore[overload-overlap]
        self,
        inputs: OneInput,
        contexts: str | None = ...,
        **options: Unpack[opt.ClassifyOptions],
    ) -> ClassifyResult: ...

    @overload
    def classify(  # type: ignore[overload-overlap]
        self,
        inputs: Sequence[OneInput],
        contexts: Iterable[str] | None = ...,
        **options: Unpack[opt.ClassifyOptions],
    ) -> list[ClassifyResult]: ...

    @overload
    def classify(
        self,
        inputs: Iterable[OneInput],
        contexts: Iterable[str] | None = ...,
        **options: Unpack[opt.ClassifyOptions],
    ) -> Iterator[ClassifyResult]: ...

    @takes(opt.ClassifyOptions)
    def classify(self, inputs: Any, contexts: Any = None, **options: Any) -> Any:
        """Runs the task head of the model.

        Args:
            inputs: one input or an iterable of inputs; for question answering the questions.
            contexts: question answering: the text that answers are taken from, one for each input.

        Returns:
            For each input a `Classification`, a `TokenClassification` or `Answers`, depending on
            the model's head.
        """
        return self._run(self._classify_task(inputs, contexts, options))

    # ---- Tokens ----

    @takes(opt.TokenizeOptions)
    def tokenize(self, text: str, **options: Unpack[opt.TokenizeOptions]) -> Tokens:
        """The tokens of a text: ids, pieces and byte offsets."""
        return self._tokenize(text, opt.resolve(self._owner, "tokenize", options)[0])

    @takes(opt.DetokenizeOptions)
    def detokenize(
        self,
        token_ids: Sequence[int] | NDArray[numpy.integer[Any]],
        **options: Unpack[opt.DetokenizeOptions],
    ) -> str:
        """The text of token ids."""
        return self._detokenize(token_ids, opt.resolve(self._owner, "detokenize", options)[0])

    @abc.abstractmethod
    def info(self) -> ModelInfo:
        """Properties of the model."""

    # ---- Life ----

    @abc.abstractmethod
    def close(self) -> None:
        """Ends calls of other threads, and frees what this object holds. May be repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- For subclasses ----

    @abc.abstractmethod
    def _run(self, task: Task) -> Any: ...
    @abc.abstractmethod
    def _stream(self, task: Task) -> Stream: ...
    @abc.abstractmethod
    def _tokenize(self, text: str, options: dict[str, Any]) -> Tokens: ...
    @abc.abstractmethod
    def _detokenize(self, token_ids: Any, options: dict[str, Any]) -> str: ...


class AsyncMethods(_Tasks, abc.ABC):
    """`Methods` as coroutines. An iterator of inputs gives an asynchronous iterator. Cancelling a
    task ends its call."""

    @overload
    async def generate(  # type: ignore[overload-overlap]
        self, inputs: OneInput, **options: Unpack[opt.GenerateOptions]
    ) -> Generation: ...

    @overload
    async def generate(  # type: ignore[overload-overlap]
        self, inputs: Sequence[OneInput], **options: Unpack[opt.GenerateOptions]
    ) -> list[Generation]: ...

    @overload
    async def generate(
        self, inputs: Iterable[OneInput], **options: Unpack[opt.GenerateOptions]
    ) -> AsyncIterator[Generation]: ...

    @takes(opt.GenerateOptions)
    async def generate(self, inputs: Any, **options: Any) -> Any:
        """`Methods.generate`."""
        return await self._run(self._task("generate", inputs, options))

    @takes(opt.StreamOptions)
    def stream(
        self,
        input: OneInput,
        **options: Unpack[opt.StreamOptions],
    ) -> AsyncStream:
        """`Methods.stream`, as an asynchronous iterator of chunks."""
        return AsyncStream(self._stream(self._stream_task(input, options)))

    @overload
    async def encode(  # type: ignore[overload-overlap]
        self,
        inputs: OneInput | Sequence[OneInput],
        *,
        pooling: Pooled = ...,
        **options: Unpack[opt.EmbeddingOptions],
    ) -> Vectors: ...

    @overload
    async def encode(  # type: ignore[overload-overlap]
        self,
        inputs: OneInput,
        *,
        pooling: Literal["none"],
        **options: Unpack[opt.EmbeddingOptions],
    ) -> Vectors: ...

    @overload
    async def encode(  # type: ignore[overload-overlap]
        self,
        inputs: Sequence[OneInput],
        *,
        pooling: Literal["none"],
        **options: Unpack[opt.EmbeddingOptions],
    ) -> list[Vectors]: ...

    @overload
    async def encode(
        self,
        inputs: Iterable[OneInput],
        *,
        pooling: opt.Pooling = ...,
        **options: Unpack[opt.EmbeddingOptions],
    ) -> AsyncIterator[Vectors]: ...

    @takes(opt.EncodeOptions)
    async def encode(self, inputs: Any, **options: Any) -> Any:
        """`Methods.encode`."""
        return await self._run(self._task("encode", inputs, options))

    @overload
    async def score(  # type: ignore[overload-overlap]
        self, inputs: OneInput, targets: Targets, **options: Unpack[opt.ScoreOptions]
    ) -> Scores: ...

    @overload
    async def score(  # type: ignore[overload-overlap]
        self,
        inputs: Sequence[OneInput],
        targets: Iterable[Targets],
        **options: Unpack[opt.ScoreOptions],
    ) -> list[Scores]: ...

    @overload
    async def score(
        self,
        inputs: Iterable[OneInput],
        targets: Iterable[Targets],
        **options: Unpack[opt.ScoreOptions],
    ) -> AsyncIterator[Scores]: ...

    @takes(opt.ScoreOptions)
    async def score(self, inputs: Any, targets: Any, **options: Any) -> Any:
        """`Methods.score`."""
        return await self._run(self._task("score", inputs, options, ("targets", targets)))

    @overload
    async def classify(  # type: ignore[overload-overlap]
        self,
        inputs: OneInput,
        contexts: str | None = ...,
        **options: Unpack[opt.ClassifyOptions],
    ) -> ClassifyResult: ...

    @overload
    async def classify(  # type: ignore[overload-overlap]
        self,
        inputs: Sequence[OneInput],
        contexts: Iterable[str] | None = ...,
        **options: Unpack[opt.ClassifyOptions],
    ) -> list[ClassifyResult]: ...

    @overload
    async def classify(
        self,
        inputs: Iterable[OneInput],
        contexts: Iterable[str] | None = ...,
        **options: Unpack[opt.ClassifyOptions],
    ) -> AsyncIterator[ClassifyResult]: ...

    @takes(opt.ClassifyOptions)
    async def classify(self, inputs: Any, contexts: Any = None, **options: Any) -> Any:
        """`Methods.classify`."""
        return await self._run(self._classify_task(inputs, contexts, options))

    @takes(opt.TokenizeOptions)
    async def tokenize(self, text: str, **options: Unpack[opt.TokenizeOptions]) -> Tokens:
        """`Methods.tokenize`."""
        return await self._tokenize(text, opt.resolve(self._owner, "tokenize", options)[0])

    @takes(opt.DetokenizeOptions)
    async def detokenize(
        self,
        token_ids: Sequence[int] | NDArray[numpy.integer[Any]],
        **options: Unpack[opt.DetokenizeOptions],
    ) -> str:
        """`Methods.detokenize`."""
        return await self._detokenize(token_ids, opt.resolve(self._owner, "detokenize", options)[0])

    @abc.abstractmethod
    async def info(self) -> ModelInfo:
        """`Methods.info`."""

    @abc.abstractmethod
    async def close(self) -> None:
        """`Methods.close`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abc.abstractmethod
    async def _run(self, task: Task) -> Any: ...
    @abc.abstractmethod
    def _stream(self, task: Task) -> AsyncGenerator[Chunk | Generation, None]: ...
    @abc.abstractmethod
    async def _tokenize(self, text: str, options: dict[str, Any]) -> Tokens: ...
    @abc.abstractmethod
    async def _detokenize(self, token_ids: Any, options: dict[str, Any]) -> str: ...
