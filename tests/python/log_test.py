"""Tests that clients cannot flood the log and that log failures do not affect calls."""

import fcntl
import json
import os
import re
import select
import subprocess
import sys
import time

import pytest

from server_process import BINARY, G2P, SOURCE, Server, eventually, free_port

sys.path.insert(0, str(SOURCE / "tools" / "reliability"))
import frames  # noqa: E402

F_SETPIPE_SZ = 1031


class Pipe:
    """A full pipe of the smallest size. Nothing reads from it until `read_until` is called."""

    def __enter__(self):
        self._reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, F_SETPIPE_SZ, 4096)
        os.set_blocking(self.writer, False)
        try:
            while True:
                os.write(self.writer, b"#")
        except BlockingIOError:
            os.set_blocking(self.writer, True)
        return self

    def __exit__(self, *_):
        os.close(self._reader)
        os.close(self.writer)

    def read_until(self, words: str) -> str:
        """Reads until the text contains `words`. Returns the text without the initial filling."""
        text = b""
        while words.encode() not in text:
            ready, _, _ = select.select([self._reader], [], [], 30)
            assert ready, f"{words!r} is not in {text!r}"
            text += os.read(self._reader, 1 << 16)
        return text.decode().lstrip("#")


def start(log, *, ports, flags=(), model=G2P) -> subprocess.Popen:
    command = [
        BINARY,
        "serve",
        "--model",
        model,
        "--threads",
        "1",
        "--cache-memory",
        "128",
        "--drain-delay",
        "0",
    ]
    command += ["--listen", f"127.0.0.1:{ports[0]}", "--http-listen", f"127.0.0.1:{ports[1]}"]
    return subprocess.Popen([*map(str, command), *flags], stderr=log)


class LoggingServer(Server):
    """A server that logs to the file descriptor `log`."""

    def __init__(self, log, **flags):
        self._log_descriptor = log
        super().__init__(G2P, **flags)

    def _start(self, models, flags: dict) -> None:
        ports = free_port(), free_port()
        self.target, self.http_port = f"127.0.0.1:{ports[0]}", ports[1]
        self.process = start(self._log_descriptor, ports=ports)

    def log(self) -> str:
        return ""


def flood(port: int, value: str, seconds: float) -> int:
    """Makes calls with an invalid grpc-timeout and returns their number. gRPC logs each one."""
    block = frames.header_block(frames.request_fields(more=[("grpc-timeout", value)]))
    end, done = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with frames.connect(port) as connection:
            try:
                for first in range(1, 4000, 40):
                    connection.sendall(
                        b"".join(
                            frames.headers_frames(first + 2 * i, block)
                            + frames.reset_frame(first + 2 * i)
                            for i in range(20)
                        )
                    )
                    done += 20
                    frames.drain(connection)
            except OSError:
                pass  # the server closed this connection
    return done


def test_clients_cannot_fill_the_log():
    with Server(G2P, log_format="json") as server:
        calls = flood(int(server.target.rpartition(":")[2]), "client" * 1000, 3)
        assert calls > 500
        with server.client() as client:
            assert client.generate("a").sequences
        assert server.stop() == 0
        log = server.log()
    assert len(log) < 20_000
    assert "clientclient" not in log
    lines = [json.loads(line) for line in log.splitlines()]
    assert all(set(line) == {"time", "level", "message"} for line in lines)
    reports = [
        line for line in lines if "text withheld because it may quote a client" in line["message"]
    ]
    assert len(reports) >= 1
    assert all(line["level"] == "error" for line in reports)


def test_calls_go_on_while_nobody_reads_the_log():
    with Pipe() as pipe, LoggingServer(pipe.writer) as server:
        with server.client() as client:
            for _ in range(20):
                assert client.generate("a").sequences
        assert server.stop() == 0


def test_what_waited_for_a_reader_arrives():
    with Pipe() as pipe, LoggingServer(pipe.writer) as server:
        assert "listening on " in pipe.read_until("info serving\n")
        server.process.terminate()
        assert "draining: " in pipe.read_until("info stopped\n")
        assert server.stop() == 0


def test_the_log_names_the_ports_that_the_system_chose():
    with Pipe() as pipe:
        process = start(pipe.writer, ports=(0, 0))
        log = pipe.read_until("info serving\n")
        process.terminate()
        pipe.read_until("info stopped\n")
        assert process.wait(60) == 0
    ports = re.findall(r"\((?:gRPC|HTTP), port (\d+)\)", log)
    assert len(ports) == 2 and "0" not in ports, log


@pytest.mark.parametrize("refuses", ["full disk", "closed pipe"])
def test_lines_that_cannot_be_written_are_counted(refuses):
    if refuses == "full disk":
        log = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, log = os.pipe()
        os.close(reader)
    with LoggingServer(log) as server:
        os.close(log)
        with server.client() as client:
            assert client.generate("a").sequences
        assert (
            server.metric("quintet_log_lines_dropped_total") >= 3
        )  # "listening", "loaded", "serving"
        assert server.stop() == 0


def test_no_line_is_lost_in_passing():
    with Server(G2P) as server:
        assert server.metric("quintet_log_lines_dropped_total") == 0


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize(
    "fault, code", [(["--device", "cuda:1000"], 2), (["--model", "other=/no/such/model"], 3)]
)
def test_a_server_that_fails_ends_although_nobody_reads_its_log(log_format, fault, code):
    with Pipe() as pipe:
        process = start(pipe.writer, ports=(0, 0), flags=[*fault, "--log-format", log_format])
        assert process.wait(30) == code


@pytest.mark.parametrize(
    "fault, code, words",
    [
        (["--device", "cuda:1000"], 2, "use --device cpu"),
        (["--model", "b=/no/such"], 3, "/no/such: "),
    ],
)
def test_a_failure_is_the_last_line_of_the_log_in_its_format(fault, code, words, tmp_path):
    for log_format in ("json", "text"):
        with open(tmp_path / log_format, "wb") as log:
            process = start(log, ports=(0, 0), flags=[*fault, "--log-format", log_format])
            assert process.wait(60) == code
    lines = [json.loads(line) for line in (tmp_path / "json").read_text().splitlines()]
    assert words in lines[-1]["message"]
    assert lines[-1]["level"] == "error"
    assert (tmp_path / "text").read_text().splitlines()[-1] == f"quintet: {lines[-1]['message']}"


DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d info "
LOADED = (
    r"loaded in \d+\.\d s: device cpu, dtype f32; weights \d+\.\d MiB, KV cache 128\.0 MiB; "
    r"capacity 5 sequences, (\d+) tokens in the cache, 777 tokens in a batch"
)


def test_the_log_says_what_was_loaded_and_its_capacity(tiny_models):
    flags = {"dtype": "f32", "max_running": 5, "max_batch_tokens": 777, "max_input_tokens": 777}
    with Server(G2P, tiny_models["t5-encoder"], **flags) as server:
        lines = server.log().splitlines()
    (g2p,) = [line for line in lines if "model g2p: version 1 serves" in line]
    match = re.fullmatch(DATE + "model g2p: version 1 serves, " + LOADED, g2p)
    assert match, g2p
    assert int(match[1]) > 5 * 256
    (encoder,) = [line for line in lines if "model t5-encoder: version 1 serves" in line]
    assert encoder.endswith(" MiB, capacity 777 tokens in a batch")
    with Server(G2P, log_format="json", **flags) as server:
        told = [json.loads(line)["message"] for line in server.log().splitlines()]
    assert any(re.fullmatch("model g2p: version 1 serves, " + LOADED, line) for line in told), told
