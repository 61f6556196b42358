"""A client of a Quintet server for asyncio, with the methods of AsyncModel."""

from __future__ import annotations

import asyncio
import collections
import itertools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

import grpc
import grpc.aio

from quintet import messages
from quintet.connection import OF_INPUTS, Connection, error_of, failed
from quintet.messages import Batch
from quintet.results import Chunk, ModelInfo, ServedModel, Tokens
from quintet.wire import Stub

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from quintet.model import OneInput, OnError, Pooling
    from quintet.options import GenerationOptions


class AsyncClient(Connection):
    """`Client` for asyncio: the same methods as coroutines, `stream` as an asynchronous iterator.

    An iterator of inputs gives an asynchronous iterator. To be used in one event loop.
    """

    def __init__(self, *args: Any, **arguments: Any):
        super().__init__(*args, **arguments)
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    __init__.__doc__ = Connection.__init__.__doc__

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel. May be repeated."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    def _open(self) -> Any:
        """The gRPC stub. Its channel is created at the first use, for the event loop that runs
        then."""
        self._check_open()
        if self._stub is None:
            self._channel = (
                grpc.aio.secure_channel(
                    self._target, self._tls.credentials(), self._channel_options
                )
                if self._tls
                else grpc.aio.insecure_channel(self._target, self._channel_options)
            )
            self._stub = Stub(self._channel)
        return self._stub

    async def generate(
        self,
        inputs: Any,
        *,
        add_special_tokens: bool = True,
        truncate: bool = False,
        skip_special_tokens: bool = True,
        timeout: float | None | Literal["default"] = "default",
        on_error: OnError = "raise",
        progress: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> Any:
        """`Model.generate`."""
        call = messages.generate(
            self._call, options, "generate", add_special_tokens, truncate, skip_special_tokens
        )
        return await self._run(call, inputs, None, timeout, on_error, progress)

    async def stream(
        self,
        input: OneInput,  # noqa: A002
        *,
        add_special_tokens: bool = True,
        truncate: bool = False,
        skip_special_tokens: bool = True,
        timeout: float | None | Literal["default"] = "default",
        **options: Unpack[GenerationOptions],
    ) -> AsyncIterator[Chunk]:
        """`Model.stream`, as an asynchronous iterator of chunks."""
        call = messages.generate(
            self._call, options, "stream", add_special_tokens, truncate, skip_special_tokens
        )
        [batch] = call.batches(messages.one_input(input), None)
        events = self._open().GenerateStream(batch.request, **self._sending(self._seconds(timeout)))
        try:
            async for event in events:
                if event.HasField("chunk"):
                    yield messages.read_chunk(event.chunk)
        except grpc.RpcError as error:
            raise error_of(error, None) from None
        finally:
            events.cancel()

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
        timeout: float | None | Literal["default"] = "default",
        on_error: OnError = "raise",
        progress: bool = False,
    ) -> Any:
        """`Model.encode`."""
        call = messages.encode(
            self._call, pooling, normalize, prompt_name, prompt, add_special_tokens, truncate
        )
        return await self._run(call, inputs, None, timeout, on_error, progress)

    async def score(
        self,
        inputs: Any,
        targets: Any,
        *,
        top_logprobs: int = 0,
        sliding_window: int = 0,
        prefix_lm: bool = False,
        add_special_tokens: bool = True,
        truncate: bool = False,
        timeout: float | None | Literal["default"] = "default",
        on_error: OnError = "raise",
        progress: bool = False,
    ) -> Any:
        """`Client.score`."""
        call = messages.score(
            self._call, top_logprobs, sliding_window, prefix_lm, add_special_tokens, truncate
        )
        return await self._run(call, inputs, ("targets", targets), timeout, on_error, progress)

    async def classify(
        self,
        inputs: Any,
        contexts: Any = None,
        *,
        top_k: int = 1,
        max_answer_tokens: int = 30,
        add_special_tokens: bool = True,
        truncate: bool = False,
        timeout: float | None | Literal["default"] = "default",
        on_error: OnError = "raise",
        progress: bool = False,
    ) -> Any:
        """`Model.classify`."""
        call = messages.classify(self._call, top_k, max_answer_tokens, add_special_tokens, truncate)
        extras = None if contexts is None else ("contexts", contexts)
        return await self._run(call, inputs, extras, timeout, on_error, progress)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Tokens:
        """`Model.tokenize`."""
        request, read = messages.tokenize(self._call, text, add_special_tokens)
        return read(await self._unary("Tokenize", request, self._timeout))

    async def detokenize(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        """`Model.detokenize`."""
        request = messages.detokenize(self._call, token_ids, skip_special_tokens)
        return (await self._unary("Detokenize", request, self._timeout)).text

    async def info(self) -> ModelInfo:
        """`Model.info`."""
        request = messages.info(self._call)
        return messages.read_info(await self._unary("GetModelInfo", request, self._timeout))

    async def list_models(self) -> list[ServedModel]:
        """`Client.list_models`."""
        answer = await self._unary("ListModels", messages.list_models(), self._timeout)
        return messages.read_models(answer)

    # ---- Calls ----

    async def _unary(self, method: str, request: Any, timeout: float | None) -> Any:
        try:
            return await getattr(self._open(), method)(request, **self._sending(timeout))
        except grpc.RpcError as error:
            raise error_of(error, None) from None

    async def _run(
        self,
        call: messages.Call,
        inputs: Any,
        extras: tuple[str, Any] | None,
        timeout: Any,
        on_error: str,
        progress: bool,
    ) -> Any:
        self._check_open()
        job = messages.job(call, inputs, extras, on_error, progress)
        values = self._values(job, self._seconds(timeout))
        if job.size is None:
            return values
        return job.collect([value async for value in values])

    async def _values(self, job: messages.Job, timeout: float | None) -> AsyncIterator[Any]:
        stub = self._open()

        async def send(batch: Batch) -> list:
            try:
                answer = await getattr(stub, batch.method)(batch.request, **self._sending(timeout))
            except grpc.RpcError as error:
                if batch.size > 1 and error.code() in OF_INPUTS:
                    return [result for part in batch.split() for result in await send(part)]
                return failed(batch, error, job)
            return batch.read(answer)

        told = job.progress_bar()
        pending: collections.deque[asyncio.Task[list]] = collections.deque()
        batches = iter(job.batches())
        try:
            while True:
                for batch in itertools.islice(batches, self._concurrency - len(pending)):
                    pending.append(asyncio.ensure_future(send(batch)))
                if not pending:
                    return
                results = await pending.popleft()
                told(len(results))
                for result in results:
                    yield result
        finally:
            for task in pending:
                task.cancel()
            told(-1)
