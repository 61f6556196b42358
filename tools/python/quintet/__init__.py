"""Quintet: inference of T5-family models and GPT-2, in this process or on a server.

    import quintet

    model = quintet.Model("flan-t5-base")  # in this process
    model = quintet.Client("127.0.0.1:50051")  # on a server: the same methods
    model.generate("translate English to German: hello", num_beams=4).text

`AsyncModel` and `AsyncClient` have the same methods for asyncio. Client needs grpcio and protobuf,
which are imported with it; Model needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quintet.errors import (
    CancelledError,
    DeadlineExceededError,
    Error,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from quintet.results import (
    Answer,
    Answers,
    Chunk,
    Classification,
    Generation,
    LabelScore,
    Limits,
    ModelInfo,
    Scores,
    Sequence,
    ServedModel,
    TargetScore,
    TokenClassification,
    TokenLabel,
    TokenLogprob,
    Tokens,
    Usage,
)

if TYPE_CHECKING:
    from quintet.aio import AsyncModel
    from quintet.async_client import AsyncClient
    from quintet.client import Client
    from quintet.methods import AsyncMethods, AsyncStream, Methods, Stream
    from quintet.model import Model
    from quintet.rpc import Tls

# These classes are imported when they are first used, so that a Client does not load the engine and
# a Model does not load gRPC.
_LATER = {
    "Model": "quintet.model",
    "AsyncMethods": "quintet.methods",
    "Methods": "quintet.methods",
    "Stream": "quintet.methods",
    "AsyncStream": "quintet.methods",
    "AsyncModel": "quintet.aio",
    "Client": "quintet.client",
    "AsyncClient": "quintet.async_client",
    "Tls": "quintet.rpc",
}

__all__ = [
    "Answer",
    "Answers",
    "AsyncClient",
    "AsyncMethods",
    "AsyncModel",
    "AsyncStream",
    "CancelledError",
    "Chunk",
    "Classification",
    "Client",
    "DeadlineExceededError",
    "Error",
    "FailedPreconditionError",
    "Generation",
    "InternalError",
    "InvalidArgumentError",
    "LabelScore",
    "Limits",
    "Methods",
    "Model",
    "ModelInfo",
    "NotFoundError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "Scores",
    "Sequence",
    "ServedModel",
    "Stream",
    "TargetScore",
    "Tls",
    "TokenClassification",
    "TokenLabel",
    "TokenLogprob",
    "Tokens",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Usage",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(importlib.import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'quintet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
