"""A client of a Quintet server for asyncio, with the methods of AsyncModel."""

from __future__ import annotations

import asyncio
import collections
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import grpc.aio

from quintet import messages
from quintet.connection import OF_INPUTS, Connection, error_of, failed
from quintet.errors import FailedPreconditionError
from quintet.messages import Answered, Batch
from quintet.methods import AsyncMethods, Task
from quintet.options import Respond
from quintet.results import Chunk, Generation, ModelInfo, ServedModel, Tokens
from quintet.wire import HEALTH, Stub


class AsyncClient(Connection, AsyncMethods):
    """`Client` for asyncio: the same methods as coroutines, `stream` as an asynchronous iterator.

    An iterator of inputs gives an asynchronous iterator. Use a client in only one event loop at a
    time; `on_response` is called in that loop.
    """

    def _connect(self) -> None:
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stub: Any = None
        self._health: Any = None

    async def close(self) -> None:
        """Closes the channel. May be repeated."""
        self._closed = True
        if self._channel is not None and self._loop is asyncio.get_running_loop():
            await self._channel.close()

    def _open(self) -> Any:
        """The gRPC stub. Its channel belongs to the event loop that runs at the first use, and is
        replaced if that loop has been closed."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise FailedPreconditionError(
                    "the client is used by another event loop; make one client for each loop"
                )
            self._loop = loop
            self._channel = (
                grpc.aio.secure_channel(
                    self._target, self._tls.credentials(), self._channel_options
                )
                if self._tls
                else grpc.aio.insecure_channel(self._target, self._channel_options)
            )
            self._stub, self._health = Stub(self._channel), Stub(self._channel, HEALTH)
        return self._stub

    async def info(self, *, on_response: Respond | None = None) -> ModelInfo:
        """`Client.info`."""
        request = messages.info(self._call)
        return messages.read_info(await self._unary("GetModelInfo", request, on_response))

    async def list_models(self, *, on_response: Respond | None = None) -> list[ServedModel]:
        """`Client.list_models`."""
        answer = await self._unary("ListModels", messages.list_models(), on_response)
        return messages.read_models(answer)

    async def health(self, service: str = "") -> str:
        """`Client.health`."""
        self._open()
        request = messages.check_health(service)
        try:
            answer = await self._health.Check(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise error_of(error, self._timeout) from None
        return messages.read_health(answer)

    # ---- Calls ----

    async def _tokenize(self, text: str, options: dict[str, Any]) -> Tokens:
        request = messages.tokenize(self._call, text, options)
        return messages.read_tokens(await self._unary("Tokenize", request, options["on_response"]))

    async def _detokenize(self, token_ids: Any, options: dict[str, Any]) -> str:
        request = messages.detokenize(self._call, token_ids, options)
        return str((await self._unary("Detokenize", request, options["on_response"])).text)

    async def _stream(self, task: Task) -> AsyncGenerator[Chunk | Generation, None]:
        stub = self._open()
        respond = messages.responder(task.options["on_response"])
        [batch] = messages.call_of(self._call, task).batches(task)
        timeout = self._seconds(task)
        events = stub.GenerateStream(batch.request, **self._sending(timeout, batch))
        try:
            async for event in events:
                respond(event)
                if event.HasField("chunk"):
                    yield messages.read_chunk(event.chunk)
                else:
                    yield batch.read(event.complete)[0]
        except grpc.RpcError as error:
            raise error_of(error, timeout) from None
        finally:
            events.cancel()

    async def _unary(self, method: str, request: Any, on_response: Respond | None) -> Any:
        respond = messages.responder(on_response)
        try:
            answer = await getattr(self._open(), method)(request, **self._sending(self._timeout))
        except grpc.RpcError as error:
            raise error_of(error, self._timeout) from None
        respond(answer)
        return answer

    async def _run(self, task: Task) -> Any:
        self._check_open()
        values = self._results(messages.call_of(self._call, task), task)
        if task.size is None:
            return values
        return messages.collect(task, [value async for value in values])

    async def _results(self, call: messages.Call, task: Task) -> AsyncGenerator[Any, None]:
        stub, timeout = self._open(), self._seconds(task)

        async def send(batch: Batch) -> list[Answered]:
            try:
                method = getattr(stub, batch.method)
                answer = await method(batch.request, **self._sending(timeout, batch))
            except grpc.RpcError as error:
                if batch.size > 1 and error.code() in OF_INPUTS:
                    return [answered for part in batch.split() for answered in await send(part)]
                return [(failed(batch, error, task, timeout), None)]
            return [(batch.read(answer), answer)]

        told = task.progress_bar()
        pending: collections.deque[asyncio.Task[list[Answered]]] = collections.deque()
        batches = iter(call.batches(task))
        try:
            while True:
                for batch in itertools.islice(batches, self._concurrency - len(pending)):
                    pending.append(asyncio.ensure_future(send(batch)))
                if not pending:
                    return
                results = messages.take(await pending.popleft(), task)
                told(len(results))
                for result in results:
                    yield result
        finally:
            for future in pending:
                future.cancel()
            # Wait until gRPC has cancelled the calls, and retrieve the exceptions of failed tasks,
            # which asyncio would log otherwise.
            await asyncio.gather(*pending, return_exceptions=True)
            told(-1)
