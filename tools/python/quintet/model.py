"""A model in this process."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import TYPE_CHECKING, Any

from quintet import _engine, calls, checks, hub
from quintet import options as opt
from quintet.cuda import use_cublas_wheel
from quintet.errors import Error, InvalidArgumentError, NotFoundError
from quintet.methods import Methods, Stream, Task
from quintet.results import Chunk, ModelInfo, Tokens

if TYPE_CHECKING:
    from typing_extensions import Unpack

_log = logging.getLogger("quintet")
_open_models: weakref.WeakSet[Model] = weakref.WeakSet()


class Model(Methods):
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

    Raises:
        TypeError: an argument has the wrong type, or an option does not exist.
        quintet.Error: a subclass that belongs to the status code; `InvalidArgumentError` for a
            wrong value, `FailedPreconditionError` if the model lacks the head or tokenizer, was
            closed, or was loaded before a fork.
    """

    _owner = "Model"

    @opt.takes(opt.LoadOptions)
    def __init__(self, path: str | os.PathLike[str], **options: Unpack[opt.LoadOptions]):
        """Loads a model.

        Args:
            path: directory with Hugging Face's files, the output of `quintet convert`, a text
                encoder in one file, or the id of a model on the Hugging Face hub, with @REVISION if
                it is not the main one. A model that is not in the cache is downloaded if the
                package huggingface_hub is installed.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path: expected a str or a path, got {type(path).__name__}")
        values, _ = opt.resolve(self._owner, "Model", options)
        if _engine.cuda:
            use_cublas_wheel()
        given = {name: value for name, value in values.items() if value is not None}
        name = hub.with_revision(os.fspath(path), given.pop("revision", None))
        self._engine: _engine.Model = _load(name, given)
        for level, message in self._engine.messages():
            _log.log(level, "%s: %s", path, message)
        self._head: str = self._engine.info()["head"]
        _open_models.add(self)

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

    def load_adapter(self, name: str, path: str | os.PathLike[str]) -> None:
        """Reads a LoRA adapter. Calls can then use it with the option `adapter`. If the model has
        an adapter of this name, replaces it; calls in progress keep the old one.

        The model must have been loaded with adapters (`adapters={...}`). A new adapter must not
        have larger ranks than those adapters, nor change modules that they do not change.

        Args:
            name: 1 to 256 bytes without a colon.
            path: directory of PEFT, or a safetensors file of kohya's format.

        Raises:
            FailedPreconditionError: the model has no room for the adapter.
            NotFoundError, InvalidArgumentError: there are no such files, or they are not an
                adapter of this model.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path: expected a str or a path, got {type(path).__name__}")
        self._engine.load_adapter(checks.text("name", name), os.fspath(path))

    def unload_adapter(self, name: str) -> None:
        """Forgets an adapter. Calls in progress keep it.

        Raises:
            NotFoundError: the model has no adapter of this name.
        """
        self._engine.unload_adapter(checks.text("name", name))

    def _classify_task(self, inputs: Any, contexts: Any, given: Any) -> Task:
        answers = self._head == "question answering"
        if answers and contexts is None:
            raise InvalidArgumentError(
                "contexts: this model answers questions; pass their contexts"
            )
        if not answers and contexts is not None:
            raise InvalidArgumentError(
                f"contexts: this model has the head {self._head!r}, which takes none"
            )
        return super()._classify_task(inputs, contexts, given)

    def _run(self, task: Task) -> Any:
        return calls.run(self._engine, task)

    def _stream(self, task: Task) -> Stream:
        return ModelStream(self._engine, task)

    def _tokenize(self, text: str, options: dict[str, Any]) -> Tokens:
        return self._engine.tokenize(text, options["add_special_tokens"])

    def _detokenize(self, token_ids: Any, options: dict[str, Any]) -> str:
        return self._engine.detokenize(token_ids, options["skip_special_tokens"])


def _load(name: str, options: dict[str, Any]) -> _engine.Model:
    """Loads a model, after a download if the hub's cache lacks it or its tokenizer."""
    try:
        return _engine.Model(name, options)
    except (NotFoundError, InvalidArgumentError) as error:
        failure = error
    sources = [name, *([options["tokenizer"]] if "tokenizer" in options else [])]
    if not any([hub.download(source, failure) for source in sources]):
        raise failure
    return _engine.Model(name, options)


class ModelStream(Stream):
    """A stream of a Model. Any thread may close it."""

    def __init__(self, model: _engine.Model, task: Task):
        self._call = calls.begin(model, task)
        self._call.push(list(task.inputs), None)
        self._chunks: list[Chunk] = []
        self._over = False

    def __next__(self) -> Chunk:
        while not self._chunks:
            if self._over:
                raise StopIteration
            try:
                chunks, results = self._call.pop_with_chunks(1)
            except BaseException:
                self.close()
                raise
            self._chunks = chunks[::-1]
            if results:
                self._result, self._over = results[0], True
        return self._chunks.pop()

    def close(self) -> None:
        self._over = True
        self._chunks = []  # those that had arrived together with the last one
        self._call.cancel()


@atexit.register
def _close_models() -> None:
    for model in list(_open_models):
        try:
            model.close()
        except Error:  # a forked process cannot close its parent's models
            pass
