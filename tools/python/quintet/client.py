"""A client of a Quintet server, with the methods, options and results of Model."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from quintet import messages
from quintet.connection import OF_INPUTS, Connection, error_of, failed
from quintet.errors import FailedPreconditionError
from quintet.messages import Answered, Batch
from quintet.methods import Methods, Stream, Task
from quintet.options import Respond
from quintet.results import Chunk, ModelInfo, ServedModel, Tokens
from quintet.wire import HEALTH, Stub


class Client(Connection, Methods):
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

    def _connect(self) -> None:
        self._channel = (
            grpc.secure_channel(self._target, self._tls.credentials(), self._channel_options)
            if self._tls
            else grpc.insecure_channel(self._target, self._channel_options)
        )
        self._stub, self._health = Stub(self._channel), Stub(self._channel, HEALTH)
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the channel; calls in flight end with CancelledError. May be repeated."""
        self._closed = True
        self._channel.close()
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def info(self, *, on_response: Respond | None = None) -> ModelInfo:
        """Properties of the model, with the limits of the server."""
        return messages.read_info(
            self._unary("GetModelInfo", messages.info(self._call), on_response)
        )

    # ---- Methods of the server ----

    def list_models(self, *, on_response: Respond | None = None) -> list[ServedModel]:
        """All models of the server, in the order of its command line, also while they load."""
        return messages.read_models(self._unary("ListModels", messages.list_models(), on_response))

    def health(self, service: str = "") -> str:
        """Health of the server: "SERVING" or "NOT_SERVING" (it loads or drains). Needs no API key.

        Args:
            service: "" or "quintet.v1.Inference"; for any other, NotFoundError.
        """
        self._check_open()
        try:
            answer = self._health.Check(messages.check_health(service), timeout=self._timeout)
        except grpc.RpcError as error:
            raise error_of(error, None) from None
        return messages.read_health(answer)

    # ---- Calls ----

    def _tokenize(self, text: str, options: dict[str, Any]) -> Tokens:
        request = messages.tokenize(self._call, text, options)
        return messages.read_tokens(self._unary("Tokenize", request, options["on_response"]))

    def _detokenize(self, token_ids: Any, options: dict[str, Any]) -> str:
        request = messages.detokenize(self._call, token_ids, options)
        return str(self._unary("Detokenize", request, options["on_response"]).text)

    def _stream(self, task: Task) -> Stream:
        self._check_open()
        [batch] = messages.call_of(self._call, task).batches(task)
        events = self._stub.GenerateStream(batch.request, **self._sending(self._seconds(task)))
        return ClientStream(events, batch, messages.responder(task.options["on_response"]))

    def _unary(self, method: str, request: Any, on_response: Respond | None) -> Any:
        self._check_open()
        respond = messages.responder(on_response)
        try:
            answer = getattr(self._stub, method)(request, **self._sending(self._timeout))
        except grpc.RpcError as error:
            raise error_of(error, None) from None
        except ValueError as error:  # the channel was closed by another thread
            raise FailedPreconditionError(f"the client has been closed: {error}") from None
        respond(answer)
        return answer

    def _executor(self) -> concurrent.futures.ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(
                    self._concurrency, thread_name_prefix="quintet-client"
                )
            return self._pool

    def _run(self, task: Task) -> Any:
        self._check_open()
        call = messages.call_of(self._call, task)
        values = self._results(call, task, self._seconds(task))
        return values if task.size is None else messages.collect(task, list(values))

    def _results(self, call: messages.Call, task: Task, timeout: float | None) -> Iterator[Any]:
        """Yields the results of a task in order, with up to `concurrency` requests in flight."""

        def send(batch: Batch) -> list[Answered]:
            try:
                answer = getattr(self._stub, batch.method)(batch.request, **self._sending(timeout))
            except grpc.RpcError as error:
                if batch.size > 1 and error.code() in OF_INPUTS:
                    return [answered for part in batch.split() for answered in send(part)]
                return [(failed(batch, error, task), None)]
            except ValueError as error:
                raise FailedPreconditionError(f"the client has been closed: {error}") from None
            return [(batch.read(answer), answer)]

        told = task.progress_bar()
        if task.one:
            for batch in call.batches(task):
                yield from messages.take(send(batch), task)
                told(1)
            told(-1)
            return
        pending: collections.deque[concurrent.futures.Future[list[Answered]]] = collections.deque()
        pool = self._executor()
        batches = iter(call.batches(task))
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
                    answered = pending.popleft().result()
                except concurrent.futures.CancelledError:
                    raise FailedPreconditionError("the client has been closed") from None
                results = messages.take(answered, task)
                told(len(results))
                yield from results
        finally:
            for future in pending:
                future.cancel()
            told(-1)


class ClientStream(Stream):
    """A stream of a Client."""

    def __init__(self, events: Any, batch: Batch, respond: Respond):
        self._events, self._batch, self._respond = events, batch, respond
        self._closed = False

    def __next__(self) -> Chunk:
        try:
            for event in self._events:
                self._respond(event)
                if event.HasField("complete"):
                    [self._result] = self._batch.read(event.complete)
                    continue
                return messages.read_chunk(event.chunk)
        except grpc.RpcError as error:
            if self._events.cancelled() and self._result is None and self._closed:
                raise StopIteration from None
            raise error_of(error, None) from None
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        self._events.cancel()
