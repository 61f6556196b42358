"""The messages of the wire contract (proto/), from descriptors that the package ships.

`pb` holds the messages and enum values of quintet.v1, for example `pb.GenerateRequest` and
`pb.PRIORITY_LOW`; `health`, `status` and `error_details` those of the standard protocols. The
descriptors are in a pool of their own, so that other packages may ship the same protocols.
"""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

SERVICE = "quintet.v1.Inference"
HEALTH = "grpc.health.v1.Health"


def _pool() -> descriptor_pool.DescriptorPool:
    path = pathlib.Path(__file__).with_name("descriptors.binpb")
    files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


POOL = _pool()


def _names(file_name: str) -> Any:
    """Returns an object whose attributes are the messages and enum values of a .proto file."""
    file = POOL.FindFileByName(file_name)
    names = SimpleNamespace()
    for name, message in file.message_types_by_name.items():
        setattr(names, name, message_factory.GetMessageClass(message))
    for enum in file.enum_types_by_name.values():
        setattr(names, enum.name, EnumTypeWrapper(enum))
        for value in enum.values:
            setattr(names, value.name, value.number)
    return names


pb = _names("quintet/v1/inference.proto")
health = _names("grpc/health/v1/health.proto")
status = _names("google/rpc/status.proto")
error_details = _names("google/rpc/error_details.proto")


class Stub:
    """Has one attribute for each method of a gRPC service: a callable that makes the call on a
    channel."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, channel: Any, service: str = SERVICE):
        methods = POOL.FindServiceByName(service).methods
        for method in methods:
            kind = (
                ("stream" if method.client_streaming else "unary")
                + "_"
                + ("stream" if method.server_streaming else "unary")
            )
            answer = message_factory.GetMessageClass(method.output_type)
            request = message_factory.GetMessageClass(method.input_type)
            make = getattr(channel, kind)
            setattr(
                self,
                method.name,
                make(
                    f"/{service}/{method.name}",
                    request_serializer=request.SerializeToString,
                    response_deserializer=answer.FromString,
                ),
            )
