"""Code that Client and AsyncClient share: checks of their arguments, and the exceptions that failed
requests raise."""

from __future__ import annotations

import os
from typing import Any, Literal

import grpc

from quintet import messages
from quintet import options as opt
from quintet.errors import Error, FailedPreconditionError, InvalidArgumentError, make_error
from quintet.messages import Batch
from quintet.rpc import Failure, Tls, check_key, make_channel_options

Priority = Literal["low", "normal", "high"]
# Codes of failures that one of several inputs may have caused.
OF_INPUTS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)


def error_of(error: grpc.RpcError, index: int | None) -> Error:
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


class Connection:
    """Base class of Client and AsyncClient: the arguments of the constructor and of every call."""

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

    def _options(self, request_id: str | None) -> dict[str, Any]:
        """What the CallOptions of a call's requests have in common."""
        if request_id is None:
            return self._call
        if not isinstance(request_id, str):
            raise TypeError(f"request_id: expected a str, got {type(request_id).__name__}")
        opt.check_text("request_id", request_id)
        return {**self._call, "request_id": request_id}

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


def failed(batch: Batch, error: grpc.RpcError, job: messages.Job) -> list:
    """Returns the results of a failed request, its error for each of its inputs. Raises the error
    instead if the job was called with on_error="raise"."""
    failure = error_of(error, None if job.one else batch.first)
    if job.raises:
        raise failure
    return [failure] * batch.size
