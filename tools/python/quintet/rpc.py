"""What a channel to a Quintet server needs: TLS, retries as the server asks, and the details of
failed calls."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import grpc

from quintet.wire import SERVICE, error_details, status

LOOPBACK = re.compile(r"(127\.[0-9.]+|localhost|\[::1\]):[0-9]+$|unix:")


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failed call with the server's google.rpc error details."""

    code: grpc.StatusCode
    message: str
    reason: str = ""  # ErrorInfo.reason, such as QUEUE_FULL
    request_id: str = ""
    fields: tuple[tuple[str, str], ...] = ()  # BadRequest: field and description
    retry_after_s: float | None = None  # RetryInfo

    @staticmethod
    def of(error: grpc.RpcError) -> Failure:
        reason = request_id = ""
        fields, retry_after_s = [], None
        trailers = dict(error.trailing_metadata() or ())
        for detail in status.Status.FromString(
            trailers.get("grpc-status-details-bin", b"")
        ).details:
            info, bad, retry = (
                error_details.ErrorInfo(),
                error_details.BadRequest(),
                error_details.RetryInfo(),
            )
            if detail.Unpack(info):
                reason, request_id = info.reason, info.metadata.get("request_id", "")
            elif detail.Unpack(bad):
                fields += [
                    (violation.field, violation.description) for violation in bad.field_violations
                ]
            elif detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
        return Failure(
            error.code(), error.details() or "", reason, request_id, tuple(fields), retry_after_s
        )

    def __str__(self) -> str:
        return (
            f"{self.code.name} {self.reason}: {self.message}"
            if self.reason
            else f"{self.code.name}: {self.message}"
        )


@dataclasses.dataclass(frozen=True)
class Tls:
    """Names of PEM files. ca: the CAs to trust; by default the system's. cert and key: certificate
    and key of the client, if the server requires one (mutual TLS)."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = (
        None  # the name in the server's certificate, if it differs from the address
    )

    def credentials(self) -> grpc.ChannelCredentials:
        def read(path: str | None) -> bytes | None:
            return pathlib.Path(path).read_bytes() if path else None

        return grpc.ssl_channel_credentials(read(self.ca), read(self.key), read(self.cert))


def check_key(target: str, tls: Tls | None, api_key: str | None, allow_plaintext: bool) -> None:
    """Raises ValueError if the API key would be sent in plain text to another machine."""
    if api_key and not tls and not allow_plaintext and not LOOPBACK.match(target):
        raise ValueError("an API key is sent to another machine only over TLS")


def make_channel_options(
    tls: Tls | None, attempts: int, max_message_bytes: int
) -> list[tuple[str, object]]:
    options: list[tuple[str, object]] = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.enable_retries", int(attempts > 1)),
        # Requests that do not fit into this buffer are not retried.
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes),
    ]
    if attempts > 1:
        # Before a retry gRPC waits for the time in the server's trailer grpc-retry-pushback-ms,
        # which equals its RetryInfo. Without this trailer the delay follows from this policy.
        policy = {
            "maxAttempts": attempts,
            "initialBackoff": "0.1s",
            "maxBackoff": "5s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
        }
        config = {"methodConfig": [{"name": [{"service": SERVICE}], "retryPolicy": policy}]}
        options.append(("grpc.service_config", json.dumps(config)))
    if tls and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options
