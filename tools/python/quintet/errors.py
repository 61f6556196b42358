"""Exceptions of Model and Client.

Every failed call raises a subclass of `Error` that belongs to the engine's status code. A value of
the wrong type and an option that does not exist raise a TypeError.
"""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """A failed call.

    Attributes:
        code: status code, the same in Model and Client, for example "INVALID_ARGUMENT".
        message: what is wrong, where, and what to do.
        index: number of the input that failed, from 0; None if the call has one input.
        reason: the server's ErrorInfo.reason, for example "QUEUE_FULL"; empty for Model.
        retry_after: seconds after which the server expects a retry to succeed; else None.
        request_id: the server's id of the request; empty for Model.
    """

    code = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        index: int | None = None,
        reason: str = "",
        retry_after: float | None = None,
        request_id: str = "",
        code: str | None = None,
    ):
        super().__init__(message if index is None else f"input {index}: {message}")
        self.message = message
        self.index = index
        self.reason = reason
        self.retry_after = retry_after
        self.request_id = request_id
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[Error], args: tuple[Any, ...], state: dict[str, Any]) -> Error:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidArgumentError(Error, ValueError):
    """An input or an option is wrong."""

    code = "INVALID_ARGUMENT"


class NotFoundError(Error, LookupError):
    """The model directory, a file in it, or the served model does not exist."""

    code = "NOT_FOUND"


class FailedPreconditionError(Error):
    """The model lacks what the call needs, was closed, or belongs to another process."""

    code = "FAILED_PRECONDITION"


class UnimplementedError(Error, NotImplementedError):
    """The model's files ask for something that Quintet does not support."""

    code = "UNIMPLEMENTED"


class ResourceExhaustedError(Error):
    """Memory is short, or the server's queue is full."""

    code = "RESOURCE_EXHAUSTED"


class UnavailableError(Error):
    """The model is closed, the device is missing, or the server cannot be reached."""

    code = "UNAVAILABLE"


class DeadlineExceededError(Error, TimeoutError):
    """`timeout` has passed."""

    code = "DEADLINE_EXCEEDED"


class CancelledError(Error):
    """The call was cancelled."""

    code = "CANCELLED"


class InternalError(Error):
    """The device or the engine failed."""

    code = "INTERNAL"


class UnauthenticatedError(Error, PermissionError):
    """The server wants an API key or a client certificate."""

    code = "UNAUTHENTICATED"


class PermissionDeniedError(Error, PermissionError):
    """The API key does not allow the call."""

    code = "PERMISSION_DENIED"


# The class of each status code; Error for any other.
CLASSES: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        NotFoundError,
        FailedPreconditionError,
        UnimplementedError,
        ResourceExhaustedError,
        UnavailableError,
        DeadlineExceededError,
        CancelledError,
        InternalError,
        UnauthenticatedError,
        PermissionDeniedError,
    )
}
