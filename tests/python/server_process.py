"""Runs `build/quintet serve` on free loopback ports, with helpers for tests."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import grpc
from prometheus_client.parser import text_string_to_metric_families

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("QUINTET_BINARY", str(SOURCE / "build" / "quintet"))
# Commands without --device run on the CPU, also on a machine with a GPU: tests compare results bit
# by bit, and Quintet makes them bit-identical only on the CPU.
os.environ.setdefault("QUINTET_DEVICE", "cpu")
# The folder of the Python package quintet that tests import: by default in the build that contains
# BINARY. With QUINTET_PACKAGE=installed, tests import the package that is installed for the running
# Python interpreter instead.
PACKAGE = str(pathlib.Path(BINARY).resolve().parent / "python")
if os.environ.get("QUINTET_PACKAGE") == "installed":
    PACKAGE = ""
else:
    sys.path.insert(0, PACKAGE)
from rpc_client import RpcClient  # noqa: E402

G2P = SOURCE / "deploy" / "models" / "g2p"
SMALL = {"device": "cpu", "cache_memory": 64}  # arguments of quintet.Model
CASES = SOURCE / "tests" / "golden" / "cases"
# API keys: the first two are in the file of the fixture key_file.
KEY, OTHER_KEY, WRONG_KEY = "sk-right-4711-secret", "sk-second-0815-secret", "sk-wrong-9999-secret"


def words(count: int) -> list[str]:
    """Returns the first `count` words of the shipped model's test set."""
    lines = (
        (SOURCE / "tests" / "data" / "g2p" / "test.tsv").read_text(encoding="utf-8").splitlines()
    )
    return [line.split("\t")[0] for line in lines[:count]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(condition, timeout_s: float = 20.0) -> bool:
    """Polls `condition` until it holds. Returns false if it does not within the timeout.

    For effects that follow a response, such as updated metrics.
    """
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def run_quintet(*arguments: str, stdin: str = "") -> bytes:
    """Runs a subcommand that must succeed and returns its standard output."""
    done = subprocess.run(
        [BINARY, *arguments], input=stdin.encode(), capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def package_environment(**environment: str) -> dict[str, str]:
    """Returns the environment of a Python process that imports the package quintet. G2P is the
    folder of the shipped model."""
    package = {"PYTHONPATH": PACKAGE} if PACKAGE else {}
    return {**os.environ, **package, "G2P": str(G2P), **environment}


def run_python(
    code: str | pathlib.Path, timeout_s: float = 120, **environment: str
) -> subprocess.CompletedProcess:
    """Runs a program in another process of this Python interpreter, with package_environment.

    `code`: the program or the path of its file.
    """
    program = [str(code)] if isinstance(code, pathlib.Path) else ["-c", code]
    return subprocess.run(
        [sys.executable, *program],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=package_environment(**environment),
    )


class Server:
    """A running `quintet serve`.

    `flags` are the flags of `quintet serve` with underscores, as in Server(G2P, max_queue=4); True
    sets a boolean flag. The name of a model is the name of its folder.
    """

    def __init__(self, *models: pathlib.Path, **flags):
        for _ in range(5):
            self._start(models, flags)
            eventually(lambda: self.process.poll() is not None or self.get("/readyz")[0] == 200, 60)
            # Another process may take the free port before the server listens on it.
            if self.process.poll() != 2 or "cannot listen" not in self.log():
                break
        if self.process.poll() is not None or self.get("/readyz")[0] != 200:
            self.process.kill()
            raise AssertionError(f"the server does not become ready:\n{self.log()}")

    def _start(self, models, flags: dict) -> None:
        port, self.http_port = free_port(), free_port()
        self.target = f"127.0.0.1:{port}"
        command = [BINARY, "serve"]
        for model in models:
            command += ["--model", str(model)]
        defaults = {
            "listen": self.target,
            "http_listen": f"127.0.0.1:{self.http_port}",
            "threads": 1,
            "drain_delay": 0,
            "cache_memory": 128,
        }
        for name, value in {**defaults, **flags}.items():
            flag = f"--{name.replace('_', '-')}"
            command += [flag] if value is True else [flag, str(value)]
        self._output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def log(self) -> str:
        self._output.seek(0)
        return self._output.read().decode()

    def stop(self) -> int:
        """Sends SIGTERM, waits until the server has drained, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def client(self, **arguments) -> RpcClient:
        """Returns a client, by default without retries so that tests see every error."""
        return RpcClient(self.target, **{"attempts": 1, "timeout_s": 60.0, **arguments})

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}{path}", timeout=10
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def samples(self) -> list:
        """Returns all samples of /metrics, with .name, .labels and .value."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return [sample for family in families for sample in family.samples]

    def metric(self, name: str, **labels: str) -> float:
        """Sums the samples named `name` that have all `labels`."""
        found = [
            s.value for s in self.samples() if s.name == name and labels.items() <= s.labels.items()
        ]
        assert found, f"no metric {name} {labels}"
        return sum(found)

    def resident_bytes(self) -> int:
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


def engine_calls(client: RpcClient) -> list:
    """Returns one function for each RPC that sends work to the engine.

    Classify is left out because the shipped model does not support it. Each function makes one
    call.
    """
    return [
        lambda: client.generate("a"),
        lambda: client.stream("a"),
        lambda: client.encode(["a"]),
        lambda: client.encode_stream(["a"]),
        lambda: client.score("a", ["b"]),
    ]


def all_calls(client: RpcClient) -> list:
    """Returns one function for each RPC. Each function makes one call."""
    others = [
        lambda: client.classify(["a"]),
        lambda: client.tokenize("a"),
        lambda: client.detokenize([5]),
        client.info,
    ]
    return engine_calls(client) + others


def failure_of(call) -> grpc.RpcError:
    """Makes a call that must fail and returns its error."""
    try:
        answer = call()
        if hasattr(answer, "__next__"):
            answer = list(answer)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"expected a failure, got {answer}")
