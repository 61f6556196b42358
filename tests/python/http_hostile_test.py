"""Tests the HTTP API with hostile JSON, and with clients that are slow, stop reading, go away or
keep many connections open."""

import json
import re
import resource
import socket
import time

import pytest

from http_api import HttpServer
from server_process import G2P, eventually

PROMPT = "zanzibarprompt"
ENDLESS = {"prompt": "wagner", "ignore_eos": True, "max_new_tokens": 4000}


@pytest.fixture(scope="module")
def server():
    with HttpServer(G2P, max_message_bytes=1 << 20) as running:
        yield running
    assert running.process.returncode == 0


def works(server) -> bool:
    return server.post("/v1/completions", {"prompt": "a"}).status == 200


@pytest.mark.parametrize(
    "body, text",
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"prompt":"a"}x', "not JSON"),
        ("null", "expected a JSON object"),
        ("[1]", "expected a JSON object"),
        ('{"prompt":zanzibarprompt}', "not JSON"),
        ('"prompt"', "expected a JSON object"),
        ('{"prompt":"a","prompt":"b"}', "twice"),
        ('{"prompt":NaN}', "not JSON"),
        ('{"prompt":"a","temperature":1e999}', "not JSON"),
        ('{"prompt":"a","temperature":-Infinity}', "not JSON"),
        ('{"prompt":"a","seed":99999999999999999999999}', "seed"),
        ('{"prompt":"a","max_tokens":18446744073709551615}', "max_tokens"),
        ('{"prompt":"a","max_tokens":-9223372036854775808}', "max_tokens"),
        ('{"prompt":"a","top_k":1.0}', "top_k"),
        ('{"prompt":' + "[" * 100_000, "nesting"),
        ('{"prompt":' + '{"a":' * 100_000, "nesting"),
        (b'{"prompt":"\xff\xfe"}', "not JSON"),
        (b'{"prompt":"\xed\xa0\x80"}', "not JSON"),
        ('{"prompt":"\\ud800"}', "not JSON"),
        ('{"prompt":"a\0"}', "NUL"),
        ("\0" * 100, "NUL"),
        ('{"prompt":{"text":"a"}}', "prompt"),
        ('{"prompt":[["a"]]}', "prompt"),
        ('{"prompt":[1,"a"]}', "prompt"),
        ('{"prompt":"a","stop":[[]]}', "stop"),
        ('{"prompt":"a","bad_words_ids":[[1,"x"]]}', "bad_words_ids"),
        ('{"prompt":"a","bad_words_ids":[1]}', "bad_words_ids"),
        ('{"prompt":"a","stream_options":[]}', "stream_options"),
        ('{"prompt":"a","model":5}', "model"),
        ('{"prompt":"a","early_stopping":"soon"}', "early_stopping"),
        ('{"prompt":"a","priority":"urgent"}', "priority"),
        ('{"prompt":"a","\\u0007\\u001b[31m":1}', "unknown field"),
    ],
)
def test_bad_json(server, body, text):
    answer = server.post("/v1/completions", body)
    assert answer.status == 400, answer.body
    message = answer.json()["error"]["message"]
    assert text in message and len(message) < 600 and PROMPT not in message
    assert message.isprintable()


def test_bodies_above_the_limit_and_of_other_types(server):
    answer = server.post("/v1/completions", {"prompt": "a" * (1 << 20)})
    assert answer.status == 413 and "1048576" in answer.json()["error"]["message"]
    form = server.post("/v1/completions", b"prompt=a", Content_Type="text/plain")
    assert form.status == 415 and "application/json" in form.json()["error"]["message"]
    packed = server.post("/v1/completions", b"x", Content_Encoding="gzip")
    assert packed.status == 415
    for path, method, status in (("/v1/completions", "GET", 405), ("/nothing", "POST", 404)):
        headers = {"Content_Type": "application/json"}
        answer = server.fetch(method, path, b"{}", **headers)
        assert answer.status == status and answer.json()["error"]["message"]
    for timeout in ("0", "-1", "nan", "x", "1e9"):
        answer = server.post("/v1/completions", {"prompt": "a"}, X_Request_Timeout=timeout)
        assert answer.status == 400, timeout
    many = server.post("/v1/completions", {"prompt": [5] * 200_000})
    assert many.status == 400 and many.json()["error"]["param"] == "prompt"
    assert works(server)


def head(path: str, length: int, extra: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{extra}\r\n"
    ).encode()


def connect(server, receive_bytes: int = 0) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(60)
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect(("127.0.0.1", server.api_port))
    return connection


def send(connection, body: dict, path: str = "/v1/completions") -> None:
    text = json.dumps(body).encode()
    connection.sendall(head(path, len(text)) + text)


def idle(server) -> bool:
    return (
        server.metric("quintet_open_calls") == 0
        and server.metric("quintet_requests_running") == 0
        and server.metric("quintet_kv_cache_usage_ratio") == 0
    )


def test_pipelined_requests_are_answered_in_order(server):
    with connect(server) as connection:
        for word in ("a", "bach", "wagner"):
            send(connection, {"prompt": word, "request_id": word})
        received = b""
        while received.count(b"text_completion") < 3:
            received += connection.recv(65536)
    ids = re.findall(rb'"id":"cmpl-(\w+)"', received)
    assert ids == [b"a", b"bach", b"wagner"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ending", ["close", "half", "reset"])
def test_a_client_that_goes_away_cancels_its_call(server, stream, ending):
    connection = connect(server)
    send(connection, {**ENDLESS, "stream": stream})
    assert eventually(lambda: server.metric("quintet_requests_running") == 1)
    if ending == "half":
        connection.shutdown(socket.SHUT_WR)
    elif ending == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    else:
        connection.close()
    assert eventually(lambda: idle(server))
    connection.close()


def test_slow_clients_delay_nobody(server):
    slow = []
    for _ in range(20):
        connection = connect(server)
        connection.sendall(head("/v1/completions", 1000) + b'{"prompt":')
        slow.append(connection)
    for _ in range(20):
        assert works(server)
    for connection in slow:
        connection.close()


def test_streams_whose_clients_do_not_read_delay_nobody(server):
    """tests/server/http_api_test.cc tests that the server ends a stream that nobody reads."""
    stalled = []
    accepted = server.metric("quintet_requests_accepted_total")
    for _ in range(16):
        connection = connect(server, receive_bytes=4096)
        send(connection, {**ENDLESS, "max_new_tokens": 500, "stream": True})
        stalled.append(connection)
    assert eventually(lambda: server.metric("quintet_requests_accepted_total") == accepted + 16)
    for _ in range(5):
        assert works(server)
    for connection in stalled:
        connection.close()
    assert eventually(lambda: idle(server))


def test_many_idle_connections_are_kept(server):
    limit = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
    connections = []
    for _ in range(limit):
        connection = connect(server)
        connections.append(connection)
    for connection in connections[:: limit // 20]:
        send(connection, {"prompt": "a"})
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
    assert server.metric("quintet_http_api_connections") >= limit
    assert works(server)
    for connection in connections:
        connection.close()
    assert eventually(lambda: server.metric("quintet_http_api_connections") < 10)


def test_drain():
    """After SIGTERM a running stream ends completely, and new calls get 503."""
    with HttpServer(G2P, drain_delay=0, drain_timeout=120) as server:
        body = {"prompt": "wagner", "ignore_eos": True, "max_new_tokens": 600, "stream": True}
        with connect(server) as connection:
            send(connection, body)
            received = connection.recv(65536)
            server.process.terminate()
            assert eventually(lambda: server.fetch("GET", "/health").status == 503)
            refused = server.post("/v1/completions", {"prompt": "a"})
            assert refused.status == 503
            assert refused.json()["error"]["code"] == "NOT_READY"
            assert int(refused.headers["Retry-After"]) >= 1
            while chunk := connection.recv(65536):
                received += chunk
            assert b"data: [DONE]\n\n" in received
        assert server.process.wait(60) == 0


def test_overload():
    """Requests above the queue limit get 429 with a time to wait; the others are answered."""
    with HttpServer(G2P, max_queue=2, max_running=1) as server:
        connections = [connect(server) for _ in range(12)]
        for connection in connections:
            send(connection, {"prompt": "wagner", "ignore_eos": True, "max_new_tokens": 300})
        answers = [connection.recv(65536) for connection in connections]
        statuses = [int(answer.split()[1]) for answer in answers]
        assert set(statuses) == {200, 429}
        for answer, status in zip(answers, statuses):
            if status == 429:
                assert b"Retry-After: 1\r\n" in answer and b"QUEUE_FULL" in answer
            connections.pop().close()
        time.sleep(0.1)
        assert works(server)
