"""A model in this process for asyncio: the methods of Model as coroutines."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from quintet import _engine, calls, options as opt
from quintet.model import Model
from quintet.results import Chunk, Generation, ModelInfo, Tokens

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from quintet.model import OneInput, OnError, Pooling
    from quintet.options import GenerationOptions


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


class AsyncModel:
    """`Model` for asyncio: the same methods, options, results and errors.

        model = quintet.AsyncModel("flan-t5-base")
        results = await asyncio.gather(*(model.generate(text) for text in texts))
        async for chunk in model.stream(text): ...

    Inputs of all coroutines share the engine's batch. An iterator of inputs gives an asynchronous
    iterator. Cancelling a task ends its call. May be used from several event loops.
    """

    def __init__(self, model: Model | str | os.PathLike[str], **options: Any):
        """Loads a model as `Model` does (this blocks), or shares one that is loaded."""
        if isinstance(model, Model):
            if options:
                raise TypeError("options of a model that is already loaded cannot be changed")
            self._model, self._owned = model, False
        else:
            self._model, self._owned = Model(model, **options), True
        self._waker = _Waker()

    async def __aenter__(self) -> AsyncModel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Frees the model, unless it was passed to the constructor. May be repeated."""
        if self._owned:
            await asyncio.to_thread(self._model.close)
        await asyncio.to_thread(self._waker.close)

    @property
    def closed(self) -> bool:
        return self._model.closed

    async def info(self) -> ModelInfo:
        """`Model.info`."""
        return self._model.info()

    async def generate(
        self,
        inputs: Any,
        *,
        add_special_tokens: bool = True,
        truncate: bool = False,
        skip_special_tokens: bool = True,
        timeout: float | None = None,
        on_error: OnError = "raise",
        progress: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> Any:
        """`Model.generate`."""
        return await self._collect(
            calls.generate_plan(
                "generate",
                inputs,
                add_special_tokens,
                truncate,
                skip_special_tokens,
                timeout,
                on_error,
                progress,
                dict(options),
            )
        )

    async def stream(
        self,
        input: OneInput,  # noqa: A002
        *,
        add_special_tokens: bool = True,
        truncate: bool = False,
        skip_special_tokens: bool = True,
        timeout: float | None = None,
        **options: Unpack[GenerationOptions],
    ) -> AsyncIterator[Chunk]:
        """`Model.stream`, as an asynchronous iterator of chunks."""
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
        token, event = self._waker.register()
        call = None
        try:
            call = self._begin(plan, token)
            call.push(list(plan.inputs), None)
            results: list[Generation] = []
            while not results:
                event.clear()
                chunks, results = call.pop_with_chunks(False)
                for chunk in chunks:
                    yield chunk
                if not chunks and not results:
                    await event.wait()
        finally:
            self._end(token, call)

    async def encode(
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
        """`Model.encode`."""
        return await self._collect(
            calls.encode_plan(
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
        )

    async def score(
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
        """`Model.score`."""
        return await self._collect(
            calls.score_plan(
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
        )

    async def classify(
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
        """`Model.classify`."""
        return await self._collect(
            calls.classify_plan(
                inputs,
                contexts,
                top_k,
                max_answer_tokens,
                add_special_tokens,
                truncate,
                timeout,
                on_error,
                progress,
                self._model._head,
            )
        )

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Tokens:
        """`Model.tokenize`."""
        opt.flag("add_special_tokens", add_special_tokens)
        return self._model.tokenize(text, add_special_tokens=add_special_tokens)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> str:
        """`Model.detokenize`."""
        return self._model.detokenize(token_ids, skip_special_tokens=skip_special_tokens)

    # ---- Calls ----

    def _begin(self, plan: calls.Plan, token: int) -> _engine.Call:
        return self._model._engine.begin(
            plan.kind,
            plan.options,
            plan.decoding,
            plan.rows,
            plan.raises,
            self._waker.notifier,
            token,
        )

    def _end(self, token: int, call: _engine.Call | None) -> None:
        self._waker.unregister(token)
        if call is not None:
            call.cancel()

    async def _run(self, plan: calls.Plan) -> AsyncIterator[Any]:
        token, event = self._waker.register()
        call = None
        told = opt.progress_bar(plan.progress, plan.size)
        try:
            call = self._begin(plan, token)
            feed = calls.Feed(call, plan, self._model._engine.window())
            while feed.fill():
                event.clear()
                count, results = calls.take(call, plan, False)
                if count == 0 and feed.full:
                    await event.wait()
                else:
                    await asyncio.sleep(0)
                feed.done(count)
                told(count)
                for result in results:
                    yield result
            if plan.array:
                yield call.array()
        finally:
            self._end(token, call)
            told(-1)

    async def _collect(self, plan: calls.Plan) -> Any:
        values = self._run(plan)
        if plan.size is None:
            return values
        results = [value async for value in values]
        return results[0] if plan.one or plan.array else results
