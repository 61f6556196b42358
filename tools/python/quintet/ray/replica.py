"""A replica of Ray Serve: passes calls on to its own `quintet serve`.

The server does all the work: checks, queue, deadlines, errors. Its messages and statuses reach the
client as they are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from quintet.ray.needs import need
from quintet.ray.proxy import DETAILS, Message, methods, retry_trailers, status_details
from quintet.ray.server import Server

_log = logging.getLogger("quintet.ray")
# Metadata of a call that the server reads.
_METADATA = frozenset(("authorization", "traceparent", "tracestate"))
# Headers that belong to one connection (RFC 9110, 7.6.1) or that the next one sets.
_HOP = frozenset(
    (
        "connection",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


class Raw:
    """A serialized message, which Ray asks to serialize itself."""

    def __init__(self, value: bytes):
        self._value = value

    def SerializeToString(self) -> bytes:
        return self._value


class Replica:
    """The class of the deployment. Has a method for each RPC, under its name."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, model: str, options: Mapping[str, Any], flags: Mapping[str, Any]
    ) -> None:
        """Starts the server. `options`: those of quintet.Model; `flags`: of `quintet serve`."""
        self._stopping = False
        self._server = Server(model, options, flags)
        try:
            await self._server.start()
        except BaseException:
            await self._server.stop()
            raise
        unlimited = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        self._channel = grpc.aio.insecure_channel(self._server.target, unlimited)
        self._calls = {
            f"/{service}/{method.name}": getattr(self._channel, _kind(method))(
                f"/{service}/{method.name}"
            )
            for service, method in methods()
        }
        self._watch = asyncio.get_running_loop().create_task(self._end_with_server())

    async def _end_with_server(self) -> None:
        """Ends this process if the server ends, so that Ray replaces the replica at once."""
        code = await self._server.wait()
        if not self._stopping:
            _log.error("quintet serve ended with code %d; this replica ends", code)
            logging.shutdown()
            os._exit(1)

    async def check_health(self) -> None:
        await self._server.check()

    async def __del__(self) -> None:
        """Ends the server. Ray calls this once, after the last request."""
        if getattr(self, "_stopping", True):
            return
        self._stopping = True
        await self._channel.close()
        await self._server.stop()

    # ---- HTTP ----

    async def __call__(self, request: Any) -> Any:
        """Passes an HTTP request on to the server's HTTP API. `request`: starlette's Request.
        Returns a StreamingResponse."""
        responses = need("starlette.responses")
        scope = request.scope
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        query = scope.get("query_string", b"").decode("latin-1")
        url = f"http://{self._server.api}{urllib.parse.quote(path)}" + (
            f"?{query}" if query else ""
        )
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP]
        has_body = not {"content-length", "transfer-encoding"}.isdisjoint(request.headers)
        answer = await self._server.session.request(
            request.method,
            need("yarl").URL(url, encoded=True),
            headers=headers,
            data=request.stream() if has_body else None,
            allow_redirects=False,
        )
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        return responses.StreamingResponse(_body(answer), answer.status, kept)


async def _body(answer: Any) -> AsyncIterator[bytes]:
    try:
        async for part in answer.content.iter_any():
            yield part
    finally:
        answer.close()


# ---- gRPC ----


def _kind(method: Any) -> str:
    return "_".join(
        "stream" if streams else "unary"
        for streams in (method.client_streaming, method.server_streaming)
    )


def _metadata(context: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in context.invocation_metadata() if name in _METADATA]


def _fail(context: Any, error: grpc.aio.AioRpcError) -> None:
    """Gives a call the status of the server."""
    code, message = error.code(), error.details() or ""
    trailers = [(name, value) for name, value in error.trailing_metadata() or ()]
    if code == grpc.StatusCode.UNAVAILABLE and not any(name == DETAILS for name, _ in trailers):
        message = "the server of the replica has ended; try again"
        trailers += retry_trailers(code, message, "NOT_READY")
    context.set_code(code)
    context.set_details(message)
    context.set_trailing_metadata(trailers)


def _fail_with_bug(context: Any) -> None:
    """Gives a call the status of an error of this module, which is logged."""
    _log.exception("a call has failed")
    code, message = grpc.StatusCode.INTERNAL, "the replica has failed; its log has the reason"
    context.set_code(code)
    context.set_details(message)
    context.set_trailing_metadata([(DETAILS, status_details(code, message, "BUG"))])


def _unary(path: str) -> Any:
    async def call(self: Replica, request: Message, grpc_context: Any) -> Raw:
        message, seconds = request
        try:
            return Raw(
                await self._calls[path](message, timeout=seconds, metadata=_metadata(grpc_context))
            )
        except grpc.aio.AioRpcError as error:
            _fail(grpc_context, error)
        except Exception:  # noqa: BLE001  Ray's own status would mean that the replica was lost
            _fail_with_bug(grpc_context)
        return Raw(b"")

    return call


def _stream(path: str) -> Any:
    async def call(self: Replica, request: Message, grpc_context: Any) -> AsyncIterator[Raw]:
        message, seconds = request
        answers = self._calls[path](message, timeout=seconds, metadata=_metadata(grpc_context))
        async for answer in _answers(answers, grpc_context):
            yield answer

    return call


def _bidirectional(path: str) -> Any:
    async def call(self: Replica, requests: Any, grpc_context: Any) -> AsyncIterator[Raw]:
        async def messages() -> AsyncIterator[bytes]:
            async for message, _ in requests:
                yield message

        answers = self._calls[path](messages(), metadata=_metadata(grpc_context))
        async for answer in _answers(answers, grpc_context):
            yield answer

    return call


async def _answers(answers: Any, context: Any) -> AsyncIterator[Raw]:
    """The messages of a stream of the server. Ray sends the status of a call only with a message,
    so an error comes with an empty one, which the proxy drops."""
    try:
        async for answer in answers:
            yield Raw(answer)
    except grpc.aio.AioRpcError as error:
        _fail(context, error)
        yield Raw(b"")
    except Exception:  # noqa: BLE001  see above
        _fail_with_bug(context)
        yield Raw(b"")
    finally:
        answers.cancel()


_MAKERS: dict[str, Any] = {
    "unary_unary": _unary,
    "unary_stream": _stream,
    "stream_stream": _bidirectional,
}
for _service, _method in methods():
    setattr(Replica, _method.name, _MAKERS[_kind(_method)](f"/{_service}/{_method.name}"))
