"""Clients of a Quintet server, with the methods, options and results of Model and AsyncModel."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import itertools
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Literal

import grpc
import grpc.aio

from quintet import messages, options as opt
from quintet.errors import Error, FailedPreconditionError, InvalidArgumentError, make_error
from quintet.messages import Batch
from quintet.results import Chunk, Generation, ModelInfo, Tokens
from quintet.rpc import Failure, Tls, check_key, make_channel_options
from quintet.wire import Stub

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from quintet.model import OneInput, OnError, Pooling
    from quintet.options import GenerationOptions

Priority = Literal["low", "normal", "high"]
# Codes of failures that one of several inputs may have caused.
_OF_INPUTS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)


def _error(error: grpc.RpcError, index: int | None) -> Error:
    """The exception of a failed call."""
    failure = Failure.of(error)
    return make_error(
        failure.code.name,
        failure.message,
        -1 if index is None else index,
        reason=failure.reason,
        retry_after=failure.retry_after_s,
        request_id=failure.request_id,
    )


class _Connection:
    """What Client and AsyncClient share: the arguments of the constructor and of every call."""

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        model: str = "",
        tls: Tls | bool | None = None,
        api_key: str | None = None,
        timeout: float | None = 60.0,
        attempts: int = 5,
        concurrency: int = 32,
        priority: Priority | None = None,
        allow_plaintext: bool = False,
        max_message_bytes: int = 64 << 20,
    ):
        """Opens a channel; the first call connects.

        Args:
            target: HOST:PORT or a gRPC name, for example "dns:///host:port".
            model: name of the model on the server; "": the only one.
            tls: `Tls` with PEM files, or True for the system's CA certificates.
            api_key: sent with every call. Never in plain text to another machine, unless
                `allow_plaintext`.
            timeout: default of the methods' `timeout`: seconds for each input, retries included.
            attempts: attempts of each request; range [1, 5]. UNAVAILABLE and RESOURCE_EXHAUSTED
                are retried after the delay that the server asks for.
            concurrency: requests of one call in flight; range [1, 1024].
            priority: of all requests.
            max_message_bytes: limit of a response.
        """
        if not isinstance(target, str):
            raise TypeError(f"target: expected a str, got {type(target).__name__}")
        if not isinstance(model, str):
            raise TypeError(f"model: expected a str, got {type(model).__name__}")
        if not (tls is None or isinstance(tls, (bool, Tls))):
            raise TypeError(f"tls: expected a Tls or a bool, got {type(tls).__name__}")
        if not (api_key is None or isinstance(api_key, str)):
            raise TypeError(f"api_key: expected a str, got {type(api_key).__name__}")
        for name, value, most in (("attempts", attempts, 5), ("concurrency", concurrency, 1024)):
            if not 1 <= opt.integer(name, value) <= most:
                raise InvalidArgumentError(f"{name}: {value} is not in [1, {most}]")
        if priority is not None:
            opt.choice("priority", priority, ("low", "normal", "high"))
        opt.seconds("timeout", timeout)
        self._tls = Tls() if tls is True else tls or None
        try:
            check_key(target, self._tls, api_key, opt.flag("allow_plaintext", allow_plaintext))
        except ValueError as error:
            raise InvalidArgumentError(f"api_key: {error}") from None
        self._target, self._timeout, self._attempts = target, timeout, attempts
        self._concurrency = concurrency
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else None
        self._call = messages.call_options(model, priority)
        self._channel_options = make_channel_options(self._tls, attempts, max_message_bytes)
        self._closed = False
        self._pid = os.getpid()

    def _sending(self, timeout: float | None) -> dict[str, Any]:
        return {"timeout": timeout, "metadata": self._metadata}

    def _check_open(self) -> None:
        if self._closed:
            raise FailedPreconditionError("the client has been closed")
        if os.getpid() != self._pid:
            raise FailedPreconditionError(
                "the client was made before a fork; make one in this process"
            )

    def _seconds(self, timeout: float | None | Literal["default"]) -> float | None:
        if timeout == "default":
            return self._timeout
        return opt.seconds("timeout", timeout) or None

    @property
    def closed(self) -> bool:
        return self._closed

    def __repr__(self) -> str:
        return f"<quintet.{type(self).__name__} {self._target!r}{', closed' * self._closed}>"


def _failed(batch: Batch, error: grpc.RpcError, job: messages.Job) -> list:
    """The results of a failed request: its error for each input, unless the job raises it."""
    failure = _error(error, None if job.one else batch.first)
    if job.raises:
        raise failure
    return [failure] * batch.size


class Client(_Connection):
    """A model on a server, with the methods of `Model`.

        with quintet.Client("127.0.0.1:50051") as model:
            model.generate(["one", "two"], num_beams=4)

    Long inputs are split into requests, which run in parallel (`concurrency`) and are retried as
    the server asks. May be used by several threads.

    Raises:
        TypeError: an argument has the wrong type, or an option does not exist.
        quintet.Error: a subclass that belongs to the server's status code; `reason` and
            `retry_after` are the server's details.
    """

    def __init__(self, *args: Any, **arguments: Any):
        super().__init__(*args, **arguments)
        self._channel = (
            grpc.secure_channel(self._target, self._tls.credentials(), self._channel_options)
            if self._tls
            else grpc.insecure_channel(self._target, self._channel_options)
        )
        self._stub = Stub(self._channel)
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    __init__.__doc__ = _Connection.__init__.__doc__

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel; calls in flight end with CancelledError. May be repeated."""
        self._closed = True
        self._channel.close()
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- Methods of Model ----

    def generate(
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
        return self._run(call, inputs, None, timeout, on_error, progress)

    def stream(
        self,
        input: OneInput,  # noqa: A002
        *,
        add_special_tokens: bool = True,
        truncate: bool = False,
        skip_special_tokens: bool = True,
        timeout: float | None | Literal["default"] = "default",
        **options: Unpack[GenerationOptions],
    ) -> ClientStream:
        """`Model.stream`."""
        self._check_open()
        call = messages.generate(
            self._call, options, "stream", add_special_tokens, truncate, skip_special_tokens
        )
        [batch] = call.batches(messages.one_input(input), None)
        events = self._stub.GenerateStream(batch.request, **self._sending(self._seconds(timeout)))
        return ClientStream(events, batch)

    def encode(
        self,
        inputs: Any,
        *,
        pooling: Pooling = "mean",
        normalize: bool = False,
        add_special_tokens: bool = True,
        truncate: bool = False,
        timeout: float | None | Literal["default"] = "default",
        on_error: OnError = "raise",
        progress: bool = False,
    ) -> Any:
        """`Model.encode`."""
        call = messages.encode(self._call, pooling, normalize, add_special_tokens, truncate)
        return self._run(call, inputs, None, timeout, on_error, progress)

    def score(
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
        """`Model.score`. Special tokens are added to inputs and targets, or to neither."""
        call = messages.score(
            self._call, top_logprobs, sliding_window, prefix_lm, add_special_tokens, truncate
        )
        return self._run(call, inputs, ("targets", targets), timeout, on_error, progress)

    def classify(
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
        return self._run(call, inputs, extras, timeout, on_error, progress)

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> Tokens:
        """`Model.tokenize`."""
        self._check_open()
        request, read = messages.tokenize(self._call, text, add_special_tokens)
        return read(self._unary("Tokenize", request, self._timeout))

    def detokenize(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        """`Model.detokenize`."""
        self._check_open()
        request = messages.detokenize(self._call, token_ids, skip_special_tokens)
        return self._unary("Detokenize", request, self._timeout).text

    def info(self) -> ModelInfo:
        """`Model.info`."""
        self._check_open()
        return messages.read_info(
            self._unary("GetModelInfo", messages.info(self._call), self._timeout)
        )

    # ---- Calls ----

    def _unary(self, method: str, request: Any, timeout: float | None) -> Any:
        try:
            return getattr(self._stub, method)(request, **self._sending(timeout))
        except grpc.RpcError as error:
            raise _error(error, None) from None
        except ValueError as error:  # the channel was closed by another thread
            raise FailedPreconditionError(f"the client has been closed: {error}") from None

    def _executor(self) -> concurrent.futures.ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(
                    self._concurrency, thread_name_prefix="quintet-client"
                )
            return self._pool

    def _run(
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
        return job.collect(values)

    def _values(self, job: messages.Job, timeout: float | None) -> Iterator:
        """Yields the results of a job in order, with up to `concurrency` requests in flight."""

        def send(batch: Batch) -> list:
            try:
                answer = getattr(self._stub, batch.method)(batch.request, **self._sending(timeout))
            except grpc.RpcError as error:
                if batch.size > 1 and error.code() in _OF_INPUTS:
                    return [result for part in batch.split() for result in send(part)]
                return _failed(batch, error, job)
            except ValueError as error:
                raise FailedPreconditionError(f"the client has been closed: {error}") from None
            return batch.read(answer)

        told = job.progress_bar()
        if job.one:
            for batch in job.batches():
                yield from send(batch)
            return
        pending: collections.deque[concurrent.futures.Future[list]] = collections.deque()
        pool = self._executor()
        batches = iter(job.batches())
        try:
            while True:
                for batch in itertools.islice(batches, 2 * self._concurrency - len(pending)):
                    try:
                        pending.append(pool.submit(send, batch))
                    except RuntimeError:
                        raise FailedPreconditionError("the client has been closed") from None
                if not pending:
                    return
                try:
                    results = pending.popleft().result()
                except concurrent.futures.CancelledError:
                    raise FailedPreconditionError("the client has been closed") from None
                told(len(results))
                yield from results
        finally:
            for future in pending:
                future.cancel()
            told(-1)


class ClientStream(Iterator[Chunk]):
    """The chunks of one generation on a server, like `quintet.Stream`."""

    def __init__(self, events: Any, batch: Batch):
        self._events, self._batch = events, batch
        self._result: Generation | None = None

    def __iter__(self) -> ClientStream:
        return self

    def __next__(self) -> Chunk:
        try:
            for event in self._events:
                if event.HasField("complete"):
                    [self._result] = self._batch.read(event.complete)
                    continue
                return messages.read_chunk(event.chunk)
        except grpc.RpcError as error:
            if self._events.cancelled() and self._result is None and self._ended:
                raise StopIteration from None
            raise _error(error, None) from None
        raise StopIteration

    _ended = False

    def __enter__(self) -> ClientStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the generation; the iterator is then exhausted."""
        self._ended = True
        self._events.cancel()

    @property
    def result(self) -> Generation:
        """The whole generation. RuntimeError before the iterator has ended."""
        if self._result is None:
            raise RuntimeError("the stream has not ended: iterate over it first")
        return self._result


class AsyncClient(_Connection):
    """`Client` for asyncio: the same methods as coroutines, `stream` as an asynchronous iterator.

    An iterator of inputs gives an asynchronous iterator. To be used in one event loop.
    """

    def __init__(self, *args: Any, **arguments: Any):
        super().__init__(*args, **arguments)
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    __init__.__doc__ = _Connection.__init__.__doc__

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
        """The stub; the channel belongs to the event loop of the first call."""
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
            raise _error(error, None) from None
        finally:
            events.cancel()

    async def encode(
        self,
        inputs: Any,
        *,
        pooling: Pooling = "mean",
        normalize: bool = False,
        add_special_tokens: bool = True,
        truncate: bool = False,
        timeout: float | None | Literal["default"] = "default",
        on_error: OnError = "raise",
        progress: bool = False,
    ) -> Any:
        """`Model.encode`."""
        call = messages.encode(self._call, pooling, normalize, add_special_tokens, truncate)
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

    # ---- Calls ----

    async def _unary(self, method: str, request: Any, timeout: float | None) -> Any:
        try:
            return await getattr(self._open(), method)(request, **self._sending(timeout))
        except grpc.RpcError as error:
            raise _error(error, None) from None

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
                if batch.size > 1 and error.code() in _OF_INPUTS:
                    return [result for part in batch.split() for result in await send(part)]
                return _failed(batch, error, job)
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
