"""Tests of `quintet health`, the health check of images without a shell."""

import socket
import subprocess
import threading

import pytest

from server_process import BINARY, G2P, Server, eventually


def health(listen: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [BINARY, "health", "--http-listen", listen, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_ready_server(server, host):
    listen = f"{host}:{server.http_port}"
    assert health(listen) == (0, "ready\n")
    assert health(listen, "--live") == (0, "healthy\n")


def test_a_draining_server_is_alive_but_not_ready():
    with Server(G2P, drain_delay=3) as draining:
        listen = f"127.0.0.1:{draining.http_port}"
        draining.process.terminate()
        assert eventually(lambda: draining.get("/readyz")[0] == 503)
        code, printed = health(listen)
        assert code == 1 and f"http://{listen}/readyz: expected status 200, got 503" in printed
        assert health(listen, "--live") == (0, "healthy\n")


def test_nobody_listens():
    code, printed = health("127.0.0.1:9")
    assert code == 1 and "http://127.0.0.1:9/readyz: connect: Connection refused" in printed


@pytest.mark.parametrize(
    "answer, message",
    [
        (b"", "the connection was closed before an answer"),
        (b"HTTP/1.1 2", "the connection was closed before an answer"),
        (b"SSH-2.0-OpenSSH_9.2", "the answer is not HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "the answer is not HTTP"),
        (None, "no answer within 3 s"),  # never answers
    ],
)
def test_not_a_server_of_ours(answer, message):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = []

        def serve():
            connection, _ = listener.accept()
            connections.append(connection)
            connection.recv(4096)
            if answer is not None:
                connection.sendall(answer)
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        code, printed = health(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join(10)
        assert code == 1 and message in printed
        connections[0].close()


def test_usage():
    code, printed = health("nowhere")
    assert code == 2 and "--http-listen: expected HOST:PORT, got nowhere" in printed
