"""A client of a Quintet server, with the methods, options and results of Model."""

from __future__ import annotations

import collections
import dataclasses
import queue
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

    def close(self) -> None:
        """Closes the channel; calls in flight end with CancelledError. May be repeated."""
        self._closed = True
        self._channel.close()

    def info(self, *, on_response: Respond | None = None) -> ModelInfo:
        """Properties of the model, with the limits of the server."""
        return messages.read_info(
            self._unary("GetModelInfo", messages.info(self._call), on_response)
        )

    # ---- Methods of the server ----

    def list_models(self, *, on_response: Respond | None = None) -> list[ServedModel]:
        """Returns all models of the server, loaded or not, in the order of its command line."""
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
            raise error_of(error, self._timeout) from None
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
        events = self._stub.GenerateStream(batch.request, **self._sending_of(batch, task))
        respond = messages.responder(task.options["on_response"])
        return ClientStream(events, batch, respond, self._seconds(task))

    def _unary(self, method: str, request: Any, on_response: Respond | None) -> Any:
        self._check_open()
        respond = messages.responder(on_response)
        try:
            answer = getattr(self._stub, method)(request, **self._sending(self._timeout))
        except grpc.RpcError as error:
            raise error_of(error, self._timeout) from None
        except ValueError as error:  # the channel was closed by another thread
            raise FailedPreconditionError(f"the client has been closed: {error}") from None
        respond(answer)
        return answer

    def _run(self, task: Task) -> Any:
        self._check_open()
        call = messages.call_of(self._call, task)
        values = self._result(call, task) if task.one else self._results(call, task)
        return values if task.size is None else messages.collect(task, list(values))

    def _result(self, call: messages.Call, task: Task) -> Iterator[Any]:
        """Yields the result of a task of one input. A blocking request takes less time than one
        that runs in gRPC's thread."""
        told = task.progress_bar()
        [batch] = call.batches(task)
        try:
            answer = getattr(self._stub, batch.method)(
                batch.request, **self._sending_of(batch, task)
            )
            answered: Answered = batch.read(answer), answer
        except grpc.RpcError as error:
            answered = failed(batch, error, task, self._seconds(task)), None
        except ValueError as error:
            raise FailedPreconditionError(f"the client has been closed: {error}") from None
        yield from messages.take([answered], task)
        told(1)
        told(-1)

    def _results(self, call: messages.Call, task: Task) -> Iterator[Any]:
        """Yields the results of a task in order, with up to `concurrency` requests in flight."""
        told = task.progress_bar()
        requests = _Requests(self, call.batches(task), task)
        try:
            while (answered := requests.next()) is not None:
                results = messages.take([answered], task)
                told(len(results))
                yield from results
        finally:
            requests.cancel()
            told(-1)

    def _begin(self, batch: Batch, task: Task) -> Any:
        """Sends a request. Returns its grpc.Future."""
        try:
            method = getattr(self._stub, batch.method)
            return method.future(batch.request, **self._sending_of(batch, task))
        except ValueError as error:  # the channel was closed by another thread
            raise FailedPreconditionError(f"the client has been closed: {error}") from None

    def _sending_of(self, batch: Batch, task: Task) -> dict[str, Any]:
        return self._sending(self._seconds(task), batch)


@dataclasses.dataclass
class _Request:
    batch: Batch
    future: Any = None  # grpc.Future; None until it is sent


class _Requests:
    """The requests of one call of a client: sends up to `concurrency` at a time, and returns the
    responses in order. Used by the thread that makes the call."""

    def __init__(self, client: Client, batches: Iterator[Batch], task: Task):
        self._client, self._batches, self._task = client, batches, task
        self._pending: collections.deque[_Request] = collections.deque()  # in order
        self._unsent: collections.deque[_Request] = collections.deque()  # those of _pending
        self._in_flight = 0
        # Futures that gRPC's thread has finished since _in_flight was last updated.
        self._finished: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def next(self) -> Answered | None:
        """Waits for the next request. Returns its results and response; None: it was the last."""
        while True:
            self._send()
            if not self._pending:
                return None
            first = self._pending[0]
            if first.future is None or not first.future.done():
                self._finished.get()
                self._in_flight -= 1
                continue
            self._pending.popleft()
            try:
                answer = first.future.result()
            except grpc.RpcError as error:
                if first.batch.size > 1 and error.code() in OF_INPUTS:
                    parts = [_Request(batch) for batch in first.batch.split()]
                    self._pending.extendleft(reversed(parts))
                    self._unsent.extendleft(reversed(parts))
                    continue
                timeout = self._client._seconds(self._task)
                return failed(first.batch, error, self._task, timeout), None
            return first.batch.read(answer), answer

    def cancel(self) -> None:
        """Cancels the requests that have not finished."""
        for request in self._pending:
            if request.future is not None:
                request.future.cancel()

    def _send(self) -> None:
        """Sends requests until `concurrency` of them are in flight. Up to twice as many may be
        pending (in flight, or finished but not returned yet), so that a slow first request does not
        delay the requests after it."""
        concurrency = self._client._concurrency
        while not self._finished.empty():
            self._finished.get()
            self._in_flight -= 1
        while self._in_flight < concurrency:
            if not self._unsent:
                batch = next(self._batches, None) if len(self._pending) < 2 * concurrency else None
                if batch is None:
                    return
                self._pending.append(_Request(batch))
                self._unsent.append(self._pending[-1])
            request = self._unsent.popleft()
            request.future = self._client._begin(request.batch, self._task)
            self._in_flight += 1
            request.future.add_done_callback(self._finished.put)


class ClientStream(Stream):
    """A stream of a Client."""

    def __init__(self, events: Any, batch: Batch, respond: Respond, timeout: float | None):
        self._events, self._batch, self._respond = events, batch, respond
        self._timeout = timeout
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
            raise error_of(error, self._timeout) from None
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        self._events.cancel()
