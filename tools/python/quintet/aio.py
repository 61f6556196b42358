"""A model in this process for asyncio: the methods of Model as coroutines."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from quintet import _engine, calls
from quintet import options as opt
from quintet.methods import AsyncMethods, Task
from quintet.model import Model
from quintet.results import Chunk, Generation, ModelInfo, Tokens

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Waker:
    """Wakes the event loops of calls that are ready. One thread for each AsyncModel."""

    def __init__(self) -> None:
        self.notifier = _engine.Notifier()
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._next = 0
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="quintet-async", daemon=True)
        self._thread.start()

    def register(self) -> tuple[int, asyncio.Event]:
        event = asyncio.Event()
        with self._lock:
            self._next += 1
            self._waiting[self._next] = (asyncio.get_running_loop(), event)
            return self._next, event

    def unregister(self, token: int) -> None:
        with self._lock:
            self._waiting.pop(token, None)

    def close(self) -> None:
        if os.getpid() == self._pid:
            self.notifier.close()
            self._thread.join()

    def _run(self) -> None:
        while tokens := self.notifier.wait():
            for token in set(tokens):
                with self._lock:
                    loop, event = self._waiting.get(token, (None, None))
                if loop is not None and event is not None:
                    try:
                        loop.call_soon_threadsafe(event.set)
                    except RuntimeError:  # the loop has been closed
                        self.unregister(token)


class AsyncModel(AsyncMethods):
    """`Model` for asyncio: the same methods, options, results and errors.

        model = quintet.AsyncModel("flan-t5-base")
        results = await asyncio.gather(*(model.generate(text) for text in texts))
        async for chunk in model.stream(text): ...

    Inputs of all coroutines share the engine's batch. An iterator of inputs gives an asynchronous
    iterator. Cancelling a task ends its call. May be used from several event loops.
    """

    _owner = "Model"

    @opt.takes(opt.LoadOptions)
    def __init__(self, model: Model | str | os.PathLike[str], **options: Unpack[opt.LoadOptions]):
        """Loads a model as `Model` does (this blocks), or uses a `Model` that is already loaded."""
        if isinstance(model, Model):
            if options:
                raise TypeError("options of a model that is already loaded cannot be changed")
            self._model, self._closes_model = model, False
        else:
            self._model, self._closes_model = Model(model, **options), True
        self._waker = _Waker()

    async def close(self) -> None:
        """Frees the model, unless it was passed to the constructor. May be repeated."""
        if self._closes_model:
            await asyncio.to_thread(self._model.close)
        await asyncio.to_thread(self._waker.close)

    @property
    def closed(self) -> bool:
        return self._model.closed

    async def info(self) -> ModelInfo:
        return self._model.info()

    async def load_adapter(self, name: str, path: str | os.PathLike[str]) -> None:
        """Reads a LoRA adapter as `Model.load_adapter` does."""
        await asyncio.to_thread(self._model.load_adapter, name, path)

    async def unload_adapter(self, name: str) -> None:
        """Forgets an adapter as `Model.unload_adapter` does."""
        self._model.unload_adapter(name)

    def _classify_task(self, inputs: Any, contexts: Any, given: Any) -> Task:
        return self._model._classify_task(inputs, contexts, given)

    async def _tokenize(self, text: str, options: dict[str, Any]) -> Tokens:
        return self._model._tokenize(text, options)

    async def _detokenize(self, token_ids: Any, options: dict[str, Any]) -> str:
        return self._model._detokenize(token_ids, options)

    def _begin(self, task: Task, token: int) -> _engine.Call:
        return calls.begin(self._model._engine, task, self._waker.notifier, token)

    def _end(self, token: int, call: _engine.Call | None) -> None:
        self._waker.unregister(token)
        if call is not None:
            call.cancel()

    async def _stream(self, task: Task) -> AsyncGenerator[Chunk | Generation, None]:
        token, event = self._waker.register()
        call = None
        try:
            call = self._begin(task, token)
            call.push(list(task.inputs), None)
            results: list[Generation] = []
            while not results:
                event.clear()
                chunks, results = call.pop_with_chunks(0)
                for chunk in chunks:
                    yield chunk
                if not chunks and not results:
                    await event.wait()
            yield results[0]
        finally:
            self._end(token, call)

    async def _results(self, task: Task) -> AsyncGenerator[Any, None]:
        token, event = self._waker.register()
        call = None
        told = task.progress_bar()
        try:
            call = self._begin(task, token)
            feed = calls.Feed(call, task, self._model._engine.window())
            while feed.fill():
                event.clear()
                count, results = calls.take(call, task, 0)
                if count == 0 and feed.full:
                    await event.wait()
                else:
                    await asyncio.sleep(0)
                feed.done(count)
                told(count)
                for result in results:
                    yield result
            if task.array:
                yield call.array()
        finally:
            self._end(token, call)
            told(-1)

    async def _run(self, task: Task) -> Any:
        values = self._results(task)
        if task.size is None:
            return values
        results = [value async for value in values]
        return results[0] if task.one or task.array else results
