"""A client of a Quintet server, with the methods, options and results of Model."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import grpc

from quintet import messages
from quintet.connection import OF_INPUTS, Connection, error_of, failed
from quintet.errors import FailedPreconditionError
from quintet.messages import Answered, Batch, Respond
from quintet.results import Chunk, Generation, ModelInfo, ServedModel, Tokens
from quintet.wire import HEALTH, Stub

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from quintet.model import OneInput, OnError, Pooling
    from quintet.options import GenerationOptions


class Client(Connection):
    """A model on a server, with the methods of `Model`.

        with quintet.Client("127.0.0.1:50051") as model:
            model.generate(["one", "two"], num_beams=4)

    Long inputs are split into requests, which run in parallel (`concurrency`) and are retried as
    the server asks. May be used by several threads.

    Arguments that the methods have beside those of Model:
        request_id: id of the call's requests, which the server logs and returns: at most 64
            characters of [A-Za-z0-9._-]. None: the server generates one for each request.
        on_response: called with each response, in the order of the inputs and in the caller's
            thread: messages of quintet/v1/inference.proto, whose `info` (CallInfo) has the request
            id, `usage` and `timing`; of a stream, each of its messages.
        vector_type: "fp32", "fp16" or "bf16": how embeddings are sent. They are returned as f32.

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
        self._stub, self._health = Stub(self._channel), Stub(self._channel, HEALTH)
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    __init__.__doc__ = Connection.__init__.__doc__

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
        request_id: str | None = None,
        on_response: Respond | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Any:
        """`Model.generate`."""
        base = self._options(request_id)
        call = messages.generate(
            base, options, "generate", add_special_tokens, truncate, skip_special_tokens
        )
        return self._run(call, inputs, None, timeout, on_error, progress, on_response)

    def stream(
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
    ) -> ClientStream:
        """`Model.stream`."""
        self._check_open()
        base = self._options(request_id)
        call = messages.generate(
            base, options, "stream", add_special_tokens, truncate, skip_special_tokens
        )
        respond = messages.responder(on_response)
        [batch] = call.batches(messages.one_input(input), None)
        events = self._stub.GenerateStream(batch.request, **self._sending(self._seconds(timeout)))
        return ClientStream(events, batch, respond)

    def encode(
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
        return self._run(call, inputs, None, timeout, on_error, progress, on_response)

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
        request_id: str | None = None,
        on_response: Respond | None = None,
    ) -> Any:
        """`Model.score`. Special tokens are added to inputs and targets, or to neither."""
        base = self._options(request_id)
        call = messages.score(
            base, top_logprobs, sliding_window, prefix_lm, add_special_tokens, truncate
        )
        return self._run(
            call, inputs, ("targets", targets), timeout, on_error, progress, on_response
        )

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
        request_id: str | None = None,
        on_response: Respond | None = None,
    ) -> Any:
        """`Model.classify`."""
        base = self._options(request_id)
        call = messages.classify(base, top_k, max_answer_tokens, add_special_tokens, truncate)
        extras = None if contexts is None else ("contexts", contexts)
        return self._run(call, inputs, extras, timeout, on_error, progress, on_response)

    def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        request_id: str | None = None,
        on_response: Respond | None = None,
    ) -> Tokens:
        """`Model.tokenize`."""
        self._check_open()
        request, read = messages.tokenize(self._options(request_id), text, add_special_tokens)
        return read(self._unary("Tokenize", request, on_response))

    def detokenize(
        self,
        token_ids: Any,
        *,
        skip_special_tokens: bool = True,
        request_id: str | None = None,
        on_response: Respond | None = None,
    ) -> str:
        """`Model.detokenize`."""
        self._check_open()
        base = self._options(request_id)
        request = messages.detokenize(base, token_ids, skip_special_tokens)
        return self._unary("Detokenize", request, on_response).text

    def info(self, *, on_response: Respond | None = None) -> ModelInfo:
        """`Model.info`, with the limits of the server."""
        self._check_open()
        return messages.read_info(
            self._unary("GetModelInfo", messages.info(self._call), on_response)
        )

    # ---- Methods of the server ----

    def list_models(self, *, on_response: Respond | None = None) -> list[ServedModel]:
        """All models of the server, in the order of its command line, also while they load."""
        self._check_open()
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

    def _unary(self, method: str, request: Any, on_response: Respond | None) -> Any:
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

    def _run(
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
        return job.collect(values)

    def _values(self, job: messages.Job, timeout: float | None) -> Iterator:
        """Yields the results of a job in order, with up to `concurrency` requests in flight."""

        def send(batch: Batch) -> list[Answered]:
            try:
                answer = getattr(self._stub, batch.method)(batch.request, **self._sending(timeout))
            except grpc.RpcError as error:
                if batch.size > 1 and error.code() in OF_INPUTS:
                    return [answered for part in batch.split() for answered in send(part)]
                return [(failed(batch, error, job), None)]
            except ValueError as error:
                raise FailedPreconditionError(f"the client has been closed: {error}") from None
            return [(batch.read(answer), answer)]

        told = job.progress_bar()
        if job.one:
            for batch in job.batches():
                yield from job.take(send(batch))
            return
        pending: collections.deque[concurrent.futures.Future[list[Answered]]] = collections.deque()
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
                    answered = pending.popleft().result()
                except concurrent.futures.CancelledError:
                    raise FailedPreconditionError("the client has been closed") from None
                results = job.take(answered)
                told(len(results))
                yield from results
        finally:
            for future in pending:
                future.cancel()
            told(-1)


class ClientStream(Iterator[Chunk]):
    """The chunks of one generation on a server, like `quintet.Stream`."""

    def __init__(self, events: Any, batch: Batch, respond: Respond):
        self._events, self._batch, self._respond = events, batch, respond
        self._result: Generation | None = None

    def __iter__(self) -> ClientStream:
        return self

    def __next__(self) -> Chunk:
        try:
            for event in self._events:
                self._respond(event)
                if event.HasField("complete"):
                    [self._result] = self._batch.read(event.complete)
                    continue
                return messages.read_chunk(event.chunk)
        except grpc.RpcError as error:
            if self._events.cancelled() and self._result is None and self._ended:
                raise StopIteration from None
            raise error_of(error, None) from None
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
        """The whole generation. Raises RuntimeError if the iterator has not ended yet."""
        if self._result is None:
            raise RuntimeError("the stream has not ended: iterate over it first")
        return self._result
