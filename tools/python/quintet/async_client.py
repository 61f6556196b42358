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
from quintet.messages import Answered, Batch, Respond
from quintet.results import Chunk, ModelInfo, ServedModel, Tokens
from quintet.wire import HEALTH, Stub

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from quintet.model import OneInput, OnError, Pooling
    from quintet.options import GenerationOptions


class AsyncClient(Connection):
    """`Client` for asyncio: the same methods as coroutines, `stream` as an asynchronous iterator.

    An iterator of inputs gives an asynchronous iterator. To be used in one event loop, in which
    `on_response` is called.
    """

    def __init__(self, *args: Any, **arguments: Any):
        super().__init__(*args, **arguments)
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._health: Any = None

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
            self._stub, self._health = Stub(self._channel), Stub(self._channel, HEALTH)
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
        request_id: str | None = None,
        on_response: Respond | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Any:
        """`Model.generate`."""
        base = self._options(request_id)
        call = messages.generate(
            base, options, "generate", add_special_tokens, truncate, skip_special_tokens
        )
        return await self._run(call, inputs, None, timeout, on_error, progress, on_response)

    async def stream(
        self,
        input: OneInput,  # noqa: A002
        *,
        add_special_tokens: bool = True,
        truncate: bool = False,
        skip_special_tokens: bool = True,
        timeout: float | None | Literal["default"] = "default",
        request_id: str | None = None,
        on_response: Respond | None = None,
        **options: Unpack[GenerationOptions],
    ) -> AsyncIterator[Chunk]:
        """`Model.stream`, as an asynchronous iterator of chunks."""
        base = self._options(request_id)
        call = messages.generate(
            base, options, "stream", add_special_tokens, truncate, skip_special_tokens
        )
        respond = messages.responder(on_response)
        [batch] = call.batches(messages.one_input(input), None)
        events = self._open().GenerateStream(batch.request, **self._sending(self._seconds(timeout)))
        try:
            async for event in events:
                respond(event)
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
        vector_type: Literal["fp32", "fp16", "bf16"] = "fp32",
        add_special_tokens: bool = True,
        truncate: bool = False,
        timeout: float | None | Literal["default"] = "default",
        on_error: OnError = "raise",
        progress: bool = False,
        request_id: str | None = None,
        on_response: Respond | None = None,
    ) -> Any:
        """`Model.encode`."""
        base = self._options(request_id)
        call = messages.encode(
            base, pooling, normalize, prompt_name, prompt, vector_type, add_special_tokens, truncate
        )
        return await self._run(call, inputs, None, timeout, on_error, progress, on_response)

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
        request_id: str | None = None,
        on_response: Respond | None = None,
    ) -> Any:
        """`Client.score`."""
        base = self._options(request_id)
        call = messages.score(
            base, top_logprobs, sliding_window, prefix_lm, add_special_tokens, truncate
        )
        return await self._run(
            call, inputs, ("targets", targets), timeout, on_error, progress, on_response
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
        timeout: float | None | Literal["default"] = "default",
        on_error: OnError = "raise",
        progress: bool = False,
        request_id: str | None = None,
        on_response: Respond | None = None,
    ) -> Any:
        """`Model.classify`."""
        base = self._options(request_id)
        call = messages.classify(base, top_k, max_answer_tokens, add_special_tokens, truncate)
        extras = None if contexts is None else ("contexts", contexts)
        return await self._run(call, inputs, extras, timeout, on_error, progress, on_response)

    async def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        request_id: str | None = None,
        on_response: Respond | None = None,
    ) -> Tokens:
        """`Model.tokenize`."""
        request, read = messages.tokenize(self._options(request_id), text, add_special_tokens)
        return read(await self._unary("Tokenize", request, on_response))

    async def detokenize(
        self,
        token_ids: Any,
        *,
        skip_special_tokens: bool = True,
        request_id: str | None = None,
        on_response: Respond | None = None,
    ) -> str:
        """`Model.detokenize`."""
        base = self._options(request_id)
        request = messages.detokenize(base, token_ids, skip_special_tokens)
        return (await self._unary("Detokenize", request, on_response)).text

    async def info(self, *, on_response: Respond | None = None) -> ModelInfo:
        """`Client.info`."""
        request = messages.info(self._call)
        return messages.read_info(await self._unary("GetModelInfo", request, on_response))

    # ---- Methods of the server ----

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
            raise error_of(error, None) from None
        return messages.read_health(answer)

    # ---- Calls ----

    async def _unary(self, method: str, request: Any, on_response: Respond | None) -> Any:
        respond = messages.responder(on_response)
        try:
            answer = await getattr(self._open(), method)(request, **self._sending(self._timeout))
        except grpc.RpcError as error:
            raise error_of(error, None) from None
        respond(answer)
        return answer

    async def _run(
        self,
        call: messages.Call,
        inputs: Any,
        extras: tuple[str, Any] | None,
        timeout: Any,
        on_error: str,
        progress: bool,
        on_response: Respond | None,
    ) -> Any:
        self._check_open()
        job = messages.job(call, inputs, extras, on_error, progress, on_response)
        values = self._values(job, self._seconds(timeout))
        if job.size is None:
            return values
        return job.collect([value async for value in values])

    async def _values(self, job: messages.Job, timeout: float | None) -> AsyncIterator[Any]:
        stub = self._open()

        async def send(batch: Batch) -> list[Answered]:
            try:
                answer = await getattr(stub, batch.method)(batch.request, **self._sending(timeout))
            except grpc.RpcError as error:
                if batch.size > 1 and error.code() in OF_INPUTS:
                    return [answered for part in batch.split() for answered in await send(part)]
                return [(failed(batch, error, job), None)]
            return [(batch.read(answer), answer)]

        told = job.progress_bar()
        pending: collections.deque[asyncio.Task[list[Answered]]] = collections.deque()
        batches = iter(job.batches())
        try:
            while True:
                for batch in itertools.islice(batches, self._concurrency - len(pending)):
                    pending.append(asyncio.ensure_future(send(batch)))
                if not pending:
                    return
                results = job.take(await pending.popleft())
                told(len(results))
                for result in results:
                    yield result
        finally:
            for task in pending:
                task.cancel()
            told(-1)
