"""Code that Client and AsyncClient share: checks of their arguments, and the exceptions that failed
requests raise."""

from __future__ import annotations

import abc
import os
import re
from typing import Any, Literal

import grpc

from quintet import checks, messages
from quintet.errors import Error, FailedPreconditionError, InvalidArgumentError
from quintet.messages import Batch
from quintet.methods import Task
from quintet.rpc import Failure, Tls, check_key, make_channel_options
from quintet.spelling import make_error

Priority = Literal["low", "normal", "high"]
# Status codes of failures that a single input of a request may have caused. Such a request is sent
# again as requests of one input each.
OF_INPUTS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)


def error_of(error: grpc.RpcError, timeout: float | None, index: int = -1) -> Error:
    """Returns the exception for a failed call. `timeout`: the call's timeout in seconds."""
    failure = Failure.of(error)
    message = failure.message
    if failure.code is grpc.StatusCode.DEADLINE_EXCEEDED and timeout is not None:
        message += f"; the timeout was {timeout:g} s, the option timeout sets a longer one"
    return make_error(
        failure.code.name,
        message,
        index,
        reason=failure.reason,
        retry_after=failure.retry_after_s,
        request_id=failure.request_id,
    )


class Connection(abc.ABC):
    """Base class of Client and AsyncClient: the arguments of the constructor and of every call."""

    _owner = "Client"

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
            model: name of the model on the server; "" if the server has only one.
            tls: `Tls` with PEM files, or True for the system's CA certificates.
            api_key: sent with every call; never in plain text to another machine, unless
                `allow_plaintext` is True.
            timeout: default of the methods' `timeout`: seconds for each input, retries included.
            attempts: attempts of each request; range [1, 5]. UNAVAILABLE and RESOURCE_EXHAUSTED
                are retried after the delay that the server asks for.
            concurrency: requests of one call in flight; range [1, 1024].
            priority: priority of all requests.
            max_message_bytes: maximum size of a response.
        """
        if not checks.text("target", target).strip():
            raise InvalidArgumentError(f"target: expected HOST:PORT, got {target!r}")
        checks.text("model", model)
        if not (tls is None or isinstance(tls, (bool, Tls))):
            raise TypeError(f"tls: expected a Tls or a bool, got {type(tls).__name__}")
        if api_key is not None and not re.fullmatch("[!-~]*", checks.text("api_key", api_key)):
            raise InvalidArgumentError(
                "api_key: expected printable ASCII without spaces; a key that was read from a file "
                "may end with a newline: strip it"
            )
        checks.in_range(1, 5)("attempts", attempts)
        checks.in_range(1, 1024)("concurrency", concurrency)
        checks.in_range(1, 2**31 - 1)("max_message_bytes", max_message_bytes)
        if priority is not None:
            checks.one_of("low", "normal", "high")("priority", priority)
        default_timeout = checks.seconds("timeout", timeout) or None
        self._tls = Tls() if tls is True else tls or None
        try:
            check_key(target, self._tls, api_key, checks.flag("allow_plaintext", allow_plaintext))
        except ValueError as error:
            raise InvalidArgumentError(f"api_key: {error}") from None
        self._target, self._timeout, self._attempts = target, default_timeout, attempts
        self._concurrency = concurrency
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._call = messages.call_options(model, priority)
        self._channel_options = make_channel_options(self._tls, attempts, max_message_bytes)
        self._closed = False
        self._pid = os.getpid()
        self._connect()

    @abc.abstractmethod
    def _connect(self) -> None:
        """Called at the end of the constructor."""

    def _sending(self, timeout: float | None, batch: Batch | None = None) -> dict[str, Any]:
        """Arguments of a call of the stub, besides the request."""
        value = batch.input_hash if batch else None
        metadata = (*self._metadata, ("quintet-input-hash", value)) if value else self._metadata
        return {"timeout": timeout, "metadata": metadata}

    def _check_open(self) -> None:
        if self._closed:
            raise FailedPreconditionError("the client has been closed")
        if os.getpid() != self._pid:
            raise FailedPreconditionError(
                "the client was made before a fork; make one in this process"
            )

    def _seconds(self, task: Task) -> float | None:
        """Time limit of each request of a task; None: no limit."""
        given = task.options["timeout"]
        return self._timeout if given is None else given or None

    @property
    def closed(self) -> bool:
        return self._closed

    def __repr__(self) -> str:
        return f"<quintet.{type(self).__name__} {self._target!r}{', closed' * self._closed}>"


def failed(batch: Batch, error: grpc.RpcError, task: Task, timeout: float | None) -> list[Any]:
    """Returns the results of a failed request: a list with the error once for each input. Raises
    the error instead if the task has on_error="raise"."""
    failure = error_of(error, timeout, -1 if task.one else batch.first)
    if task.raises:
        raise failure from None
    return [failure] * batch.size
