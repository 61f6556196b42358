"""Our gRPC service in Ray Serve's gRPC proxy. The proxy imports `add_inference_to_server`.

The proxy passes messages on as bytes: it neither parses nor copies fields. To each request it adds
the time that the client has left, which Ray does not pass on. A call whose replica was lost ends
as UNAVAILABLE, so that clients retry it; Ray's own status is INTERNAL.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from quintet.wire import HEALTH, POOL, SERVICE, error_details, status

DETAILS = "grpc-status-details-bin"
RETRY_S = 1.0  # after which clients retry a call that was lost
# The unary call of the health service. Its streams would count as requests for ever.
_HEALTH_METHODS = ("Check",)
# Statuses that Ray itself sets, and the code and the reason that clients get for them
# (server/README.md).
_STATUSES = {
    grpc.StatusCode.INTERNAL: (grpc.StatusCode.UNAVAILABLE, "NOT_READY"),
    grpc.StatusCode.UNKNOWN: (grpc.StatusCode.UNAVAILABLE, "NOT_READY"),
    grpc.StatusCode.UNAVAILABLE: (grpc.StatusCode.UNAVAILABLE, "NOT_READY"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Message = tuple[bytes, float | None]  # a request and the seconds that its client waits for it


def methods() -> list[tuple[str, Any]]:
    """The methods that replicas serve: the name of the service, and the method's descriptor."""
    found = [(SERVICE, method) for method in POOL.FindServiceByName(SERVICE).methods]
    health = POOL.FindServiceByName(HEALTH).methods
    return found + [(HEALTH, method) for method in health if method.name in _HEALTH_METHODS]


def add_inference_to_server(servicer: Any, server: Any) -> None:
    """Adds quintet.v1.Inference and grpc.health.v1.Health to Ray Serve's gRPC proxy; for
    `grpc_servicer_functions` of its gRPC options."""
    handlers: dict[str, dict[str, Any]] = {SERVICE: {}, HEALTH: {}}
    for service, method in methods():
        streams = bool(method.client_streaming), bool(method.server_streaming)
        handlers[service][method.name] = _Handler._make((*streams, *[None] * 6))
    for service, own in handlers.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, own),))


_handler_type: Any = type(grpc.unary_unary_rpc_method_handler(lambda request, context: None))


class _Handler(_handler_type):  # type: ignore[misc]
    """A handler that wraps the functions with which Ray replaces its own."""

    def _replace(self, **changes: Any) -> Any:
        for name, wrap in _WRAPPERS.items():
            if changes.get(name) is not None:
                changes[name] = wrap(changes[name])
        return super()._replace(**changes)


Context = Any  # grpc.aio.ServicerContext


def _unary(serve: Callable[[Message, Context], Awaitable[bytes]]) -> Any:
    async def run(request: bytes, context: Context) -> bytes:
        answer = await serve((request, context.time_remaining()), context)
        name_lost_call(context)
        code = _code(context)
        if code != grpc.StatusCode.OK:
            # Without this call grpcio sends an empty message before the status, after which
            # clients do not retry.
            await context.abort(code, context.details(), tuple(context.trailing_metadata()))
        return answer

    return run


def _stream(serve: Callable[[Message, Context], AsyncIterator[bytes]]) -> Any:
    async def run(request: bytes, context: Context) -> AsyncIterator[bytes]:
        async for answer in _messages(serve((request, context.time_remaining()), context), context):
            yield answer

    return run


def _bidirectional(serve: Callable[[Any, Context], AsyncIterator[bytes]]) -> Any:
    async def run(requests: Any, context: Context) -> AsyncIterator[bytes]:
        async def timed() -> AsyncIterator[Message]:
            async for request in requests:
                yield request, context.time_remaining()

        async for answer in _messages(serve(timed(), context), context):
            yield answer

    return run


async def _messages(answers: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
    """The messages of a stream. The one with which a replica sends a status is none of them."""
    async for answer in answers:
        if not context.code():
            yield answer
    name_lost_call(context)


_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "unary_unary": _unary,
    "unary_stream": _stream,
    "stream_stream": _bidirectional,
}


def _code(context: Context) -> grpc.StatusCode:
    """The status that a call has so far. grpcio has a number, or nothing for OK."""
    code = context.code() or grpc.StatusCode.OK
    return code if isinstance(code, grpc.StatusCode) else _CODES[code]


def name_lost_call(context: Context) -> None:
    """Gives a call that Ray has ended its code and details. Leaves the statuses of replicas as they
    are: those that Ray can set, too, have details."""
    code = _code(context)
    trailers = list(context.trailing_metadata() or ())
    if code not in _STATUSES or any(name == DETAILS for name, _ in trailers):
        return
    code, reason = _STATUSES[code]
    lost = reason == "NOT_READY"
    message = (
        "the replica that ran this call was lost, or none is ready; try again"
        if lost
        else "all replicas are busy and the queue of Ray Serve is full; try again later"
    )
    context.set_code(code)
    context.set_details(message)
    context.set_trailing_metadata((*trailers, *retry_trailers(code, message, reason)))


def retry_trailers(code: grpc.StatusCode, message: str, reason: str) -> list[tuple[str, Any]]:
    """The trailers of a call that may succeed after RETRY_S."""
    return [
        ("grpc-retry-pushback-ms", str(int(RETRY_S * 1000))),
        (DETAILS, status_details(code, message, reason, RETRY_S)),
    ]


def status_details(
    code: grpc.StatusCode, message: str, reason: str, retry_s: float | None = None
) -> bytes:
    """A google.rpc.Status with ErrorInfo and, if a retry may succeed, RetryInfo."""
    made = status.Status(code=code.value[0], message=message)
    made.details.add().Pack(error_details.ErrorInfo(reason=reason, domain="quintet"))
    if retry_s is not None:
        retry = error_details.RetryInfo()
        retry.retry_delay.FromTimedelta(datetime.timedelta(seconds=retry_s))
        made.details.add().Pack(retry)
    return bytes(made.SerializeToString())
