"""Helpers of admin_test.py and reload_test.py: a server with a configuration file and an
administration address, two versions of a model, and a client of quintet.admin.v1."""

import hashlib
import json
import os
import pathlib
import shutil
import struct
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from server_process import G2P, SOURCE, Server, free_port

PACKAGE = "quintet.admin.v1"


def _pool() -> descriptor_pool.DescriptorPool:
    """Returns the descriptors of admin.proto. Generated Python modules are not used, because they
    would be in the package quintet, which belongs to the client."""
    with tempfile.NamedTemporaryFile() as file:
        arguments = [f"-I{SOURCE / 'proto'}", f"--descriptor_set_out={file.name}"]
        proto = "quintet/admin/v1/admin.proto"
        assert protoc.main(["protoc", *arguments, "--include_imports", proto]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for one in files.file:
        pool.Add(one)
    return pool


POOL = _pool()


def message(name: str):
    """Returns the class of a message, such as LoadModelRequest."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ADMIN_KEY = "sk-admin-0042-secret"


def other_weights(weights: bytes) -> bytes:
    """Returns weights of the same size that give other answers: the last norm is negated."""
    (header_bytes,) = struct.unpack("<Q", weights[:8])
    header = json.loads(weights[8 : 8 + header_bytes])
    tensor = header["decoder.final_layer_norm.weight"]
    begin, end = (8 + header_bytes + offset for offset in tensor["data_offsets"])
    width = {"F32": 4, "BF16": 2, "F16": 2}[tensor["dtype"]]
    changed = bytearray(weights)
    for sign in range(begin + width - 1, end, width):
        changed[sign] ^= 0x80
    return bytes(changed)


class Checkpoint:
    """A model directory whose weights tests replace."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        shutil.copytree(G2P, folder)
        self._weights = folder / "model.safetensors"
        first = self._weights.read_bytes()
        self.versions = [first, other_weights(first)]
        self.hashes = [hashlib.sha256(weights).hexdigest() for weights in self.versions]

    def write(self, weights: bytes) -> None:
        """Replaces the weights in one step, as a deployment should."""
        new = self._weights.with_suffix(".new")
        new.write_bytes(weights)
        os.replace(new, self._weights)

    def use(self, version: int) -> None:
        self.write(self.versions[version % 2])

    def remove(self) -> None:
        self._weights.unlink()


class AdminServer(Server):
    """A server whose models are in a configuration file: {name: (folder, {key: value})}. A value
    that is a dict is a table, such as adapters."""

    def __init__(self, folder: pathlib.Path, models: dict, **flags):
        self.config = folder / "serve.toml"
        self.configure(models)
        keys = folder / "admin-keys"
        keys.write_text(hashlib.sha256(ADMIN_KEY.encode()).hexdigest() + "\n")
        keys.chmod(0o600)
        self.admin_target = f"127.0.0.1:{free_port()}"
        super().__init__(
            config=self.config,
            admin_listen=self.admin_target,
            admin_api_key_file=keys,
            **flags,
        )
        self._channel = grpc.insecure_channel(self.admin_target)

    def configure(self, models: dict) -> None:
        lines = [f"model = {json.dumps([f'{name}={models[name][0]}' for name in models])}"]
        for name, (_, settings) in models.items():
            lines.append(f"[models.{name}]")
            tables = {key: value for key, value in settings.items() if isinstance(value, dict)}
            plain = {key: value for key, value in settings.items() if key not in tables}
            lines += [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
            for table, entries in tables.items():
                lines.append(f"[models.{name}.{table}]")
                lines += [f"{json.dumps(key)} = {json.dumps(entries[key])}" for key in entries]
        new = self.config.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        os.replace(new, self.config)

    def stop(self) -> int:
        self._channel.close()
        return super().stop()

    def admin(self, method: str, model: str = "", key: str = ADMIN_KEY, timeout: float = 120):
        """Calls a method of quintet.admin.v1.Admin."""
        call = self._channel.unary_unary(
            f"/{PACKAGE}.Admin/{method}",
            request_serializer=message(f"{method}Request").SerializeToString,
            response_deserializer=message(f"{method}Response").FromString,
        )
        request = message(f"{method}Request")(**({"model": model} if model else {}))
        metadata = [("authorization", f"Bearer {key}")] if key else []
        return call(request, timeout=timeout, metadata=metadata)

    def listed(self, model: str = "g2p"):
        """Returns the state of one model, or None if it is not listed."""
        for one in self.admin("ListModels").models:
            if one.model == model:
                return one
        return None

    def state(self, model: str = "g2p") -> str:
        listed = self.listed(model)
        names = POOL.FindEnumTypeByName("quintet.v1.ModelState").values_by_number
        return "" if listed is None else names[listed.state].name.removeprefix("MODEL_STATE_")
