"""A `quintet serve` process of one replica, on free ports of the loopback interface."""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from quintet import options as opt
from quintet.errors import FailedPreconditionError, InvalidArgumentError
from quintet.ray.needs import need

_log = logging.getLogger("quintet.ray")
_USAGE = 2  # exit code: a flag is wrong, or an address is in use
_STARTS = 3  # attempts, because another process can take a free port first
# Flags that a replica sets itself.
_OWN = frozenset(
    ("model", "listen", "http_listen", "http_api_listen", "config", "drain_delay", "tls_cert")
)
# The flags of options whose names differ from theirs.
_FLAGS = {"max_num_seqs": "max-running", "max_num_batched_tokens": "max-batch-tokens"}


def flags_of(model: str, options: Mapping[str, Any], flags: Mapping[str, Any]) -> list[str]:
    """Returns the arguments of `quintet serve` for a model with options of quintet.Model and
    further flags (True: a flag without a value).

    Raises:
        TypeError, InvalidArgumentError: an option or a flag is wrong.
    """
    opt.resolve("Model", "Model", options)
    name = options.get("revision")
    arguments = [f"--model={model}@{name}" if name else f"--model={model}"]
    for name, value in options.items():
        if name not in ("revision", "adapters") and value is not None:
            arguments += _flag(_FLAGS.get(name, name), value)
    for name, value in flags.items():
        if not isinstance(name, str) or name.lstrip("-").replace("-", "_") in _OWN:
            raise InvalidArgumentError(f"flags: {name!r} is set by the replica")
        arguments += _flag(name.lstrip("-"), value)
    return arguments


def _flag(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is True or value is False:
        return [flag] if value else []
    return [f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]


def adapters_file(model: str, adapters: Mapping[str, Any]) -> str:
    """The text of a configuration file with the LoRA adapters of a model."""
    lines = [f"[models.{_quoted(served_name(model))}.adapters]"]
    lines += [f"{_quoted(name)} = {_quoted(os.fspath(path))}" for name, path in adapters.items()]
    return "\n".join(lines) + "\n"


def served_name(model: str) -> str:
    """The name under which `quintet serve --model MODEL` serves a model: that of its folder, or the
    id of the Hugging Face hub."""
    return pathlib.Path(model).name if os.path.exists(model) else model


def _quoted(text: str) -> str:
    """A basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise InvalidArgumentError(f"adapters: {text!r} has a control character")
    return f'"{escaped}"'


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A running server. Its thread of creation must live as long as it does (child.py). Not thread
    safe."""

    def __init__(self, model: str, options: Mapping[str, Any], flags: Mapping[str, Any]):
        self._arguments = flags_of(model, options, flags)
        self._folder = tempfile.TemporaryDirectory(prefix="quintet-")
        if options.get("adapters"):
            config = pathlib.Path(self._folder.name) / "adapters.toml"
            config.write_text(adapters_file(model, options["adapters"]), encoding="utf-8")
            self._arguments.append(f"--config={config}")
        self._session: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._last_lines: collections.deque[str] = collections.deque(maxlen=20)
        self.target = self.api = self._probes = ""

    async def start(self) -> None:
        """Returns when the server is ready.

        Raises:
            FailedPreconditionError: it ended before. The message has its last log lines.
        """
        self._session = need("aiohttp").ClientSession(
            auto_decompress=False, timeout=need("aiohttp").ClientTimeout(total=None)
        )
        for attempt in range(_STARTS):
            self._start()
            while self._process is not None and self._process.poll() is None:
                if await self._get("/readyz") == 200:
                    return
                await asyncio.sleep(0.05)
            if self._code() != _USAGE or attempt == _STARTS - 1:
                break
        await asyncio.sleep(0.1)  # for the thread that reads the log
        raise FailedPreconditionError(
            f"quintet serve ended with code {self._code()}: {' | '.join(self._last_lines)}"
        )

    def _start(self) -> None:
        ports = [_free_port() for _ in range(3)]
        self.target, self.api, self._probes = (f"127.0.0.1:{port}" for port in ports)
        own = {"listen": self.target, "http-api-listen": self.api, "http-listen": self._probes}
        command = [sys.executable, "-m", "quintet.ray.child", str(os.getpid()), "serve"]
        command += self._arguments + [f"--{name}={value}" for name, value in own.items()]
        # Ray has stopped sending requests when it ends a replica.
        command.append("--drain-delay=0")
        # The package may be in the path of this process alone.
        folders = [str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
        threading.Thread(target=self._read_log, args=(self._process,), daemon=True).start()

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            text = line.decode(errors="replace").rstrip()
            self._last_lines.append(text)
            _log.info("%s", text)

    def _code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def session(self) -> Any:
        """The aiohttp.ClientSession for requests to `api`."""
        return self._session

    async def _get(self, path: str) -> int:
        """The status of an HTTP endpoint; 0 if there is no answer."""
        aiohttp = need("aiohttp")
        try:
            limit = aiohttp.ClientTimeout(total=5)
            async with self._session.get(f"http://{self._probes}{path}", timeout=limit) as answer:
                return int(answer.status)
        except (aiohttp.ClientError, asyncio.TimeoutError):  # noqa: UP041  (Python 3.10)
            return 0

    async def wait(self) -> int:
        """Waits until the server has ended. Returns its exit code."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait)

    async def check(self) -> None:
        """Raises RuntimeError if the server is not healthy."""
        status = await self._get("/healthz")
        if status != 200:
            raise RuntimeError(f"quintet serve: /healthz answers {status}")

    async def stop(self) -> None:
        """Ends the server, after its running calls. May be repeated."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._process.wait)
        if self._session is not None:
            await self._session.close()
        self._folder.cleanup()
