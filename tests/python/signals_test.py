"""Tests signals that arrive at any time after the start of a process.

The process must either ignore the signal or exit with a documented code."""

import os
import resource
import signal
import subprocess
import time

import pytest

from server_process import BINARY, G2P, Server, eventually

SERVE = ["serve", "--listen", "127.0.0.1:0", "--http-listen", "", "--cache-memory", "128"]
HARMLESS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPIPE]


def reading_flags(command, fifo, **arguments) -> tuple[subprocess.Popen, int]:
    """Starts a process that blocks reading --config.

    Returns the process and the write end of the fifo.
    """
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [BINARY, *command, "--model", str(G2P), "--config", str(fifo)], **arguments
    )
    opened = []

    def is_read() -> bool:
        try:
            opened.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # no reader yet
            return False
        return True

    assert eventually(is_read)
    return process, opened[0]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    "command", [["generate"], ["encode"], ["score"], ["convert", "--out", "/tmp/none"], ["bench"]]
)
def test_a_command_that_is_stopped_at_its_start_was_interrupted(command, stop, tmp_path):
    process, config = reading_flags(command, tmp_path / "fifo", stdin=subprocess.DEVNULL)
    process.send_signal(stop)
    assert process.wait(30) == 130
    os.close(config)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_at_its_start_has_drained(stop, tmp_path):
    process, config = reading_flags(SERVE, tmp_path / "fifo")
    process.send_signal(stop)
    assert process.wait(30) == 0
    os.close(config)


def test_a_server_that_is_hung_up_at_its_start_serves(tmp_path):
    log = open(tmp_path / "log", "wb")
    process, config = reading_flags(SERVE, tmp_path / "fifo", stderr=log)
    process.send_signal(signal.SIGHUP)
    os.write(config, b"drain-delay = 0\n")
    os.close(config)
    assert eventually(
        lambda: " serving" in (tmp_path / "log").read_text() or process.poll() is not None, 60
    )
    process.terminate()
    assert process.wait(30) == 0


def test_nohup_is_respected():
    process = subprocess.Popen(
        [BINARY, "generate", "--model", str(G2P)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    time.sleep(0.2)
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(b"hello\n", timeout=60)
    assert process.returncode == 0 and output


@pytest.mark.parametrize(
    "command",
    [["generate"], ["encode"], ["bench", "engine", "--concurrency", "1", "--requests", "2"]],
)
def test_signals_without_a_meaning_do_not_end_a_command(command):
    process = subprocess.Popen(
        [BINARY, *command, "--model", str(G2P)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert eventually(lambda: b"quintet" in open(f"/proc/{process.pid}/comm", "rb").read())
    time.sleep(0.2)  # until the process is in main
    for number in HARMLESS:
        process.send_signal(number)
    output, _ = process.communicate(b"hello\n", timeout=120)
    assert process.returncode == 0 and output


def test_signals_without_a_meaning_do_not_end_a_server_and_are_logged():
    with Server(G2P) as server:
        for number in HARMLESS[:3]:
            server.process.send_signal(number)
            assert eventually(lambda: f"{number.name} has no meaning here" in server.log())
        server.process.send_signal(signal.SIGPIPE)
        with server.client() as client:
            assert client.generate("a").sequences
        assert server.stop() == 0


def test_a_file_that_may_not_grow_is_an_error_and_no_signal(tmp_path):
    limit = 100_000
    done = subprocess.run(
        [BINARY, "convert", "--model", str(G2P), "--out", str(tmp_path / "out")],
        capture_output=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert (done.returncode, b"no space" in done.stderr) == (1, True)
    assert not list(tmp_path.iterdir())
