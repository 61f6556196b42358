#!/usr/bin/env python3
"""Rows 10 and 11 of the acceptance table (README.md) for the HTTP API: 10,000 idle keep-alive
connections, and 256 streams whose clients stop reading, must not prevent the server from serving
other clients. Memory stays bounded, idle connections end after 75 s, and stalled streams after
30 s. Takes about 4 minutes. The server keeps as many connections as a quarter of its limit of open
files, so that 10,000 need a hard limit (ulimit -Hn) of 40,040; with a lower one, as many as that
permits are opened.
"""

import http.client
import json
import socket
import time

from serving import Server, Verdict, arguments, eventually, free_port, raise_files_limit

HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


def connect(port: int, receive_bytes: int = 0) -> socket.socket:
    connection = socket.socket()
    connection.settimeout(60)
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect(("127.0.0.1", port))
    return connection


def post(body: dict) -> bytes:
    text = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


def slowest_answer_s(port: int, requests: int) -> float:
    """Returns the time of the slowest of some completions, each on a connection of its own."""
    slowest = 0.0
    for _ in range(requests):
        begin = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        client.request(
            "POST",
            "/v1/completions",
            json.dumps({"prompt": "wagner"}),
            {"Content-Type": "application/json"},
        )
        answer = client.getresponse()
        answer.read()
        client.close()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}")
        slowest = max(slowest, time.monotonic() - begin)
    return slowest


def gauge(server: Server, name: str) -> float:
    return server.metrics().get(f"quintet_{name}", -1)


def idle_connections(server: Server, port: int, verdict: Verdict, wanted: int) -> None:
    before = server.resident_bytes()
    idle = []
    for _ in range(wanted):
        connection = connect(port)
        connection.sendall(HEALTH)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            break
        idle.append(connection)
    begin = time.monotonic()
    verdict.claim("idle connections after a first request", len(idle), len(idle) == wanted)
    kept = gauge(server, "http_api_connections")
    verdict.claim("connections that the server keeps", kept, kept >= wanted)
    slowest = slowest_answer_s(port, 50)
    verdict.claim("seconds of the slowest of 50 answers <= 5", slowest, slowest <= 5)
    kib = (server.resident_bytes() - before) / 1024 / wanted
    verdict.claim("KiB of memory for each <= 16", kib, kib <= 16)
    idle[0].sendall(HEALTH)
    served = idle[0].recv(4096).startswith(b"HTTP/1.1 200")
    verdict.claim("the oldest one is answered again", served, served)
    eventually(lambda: gauge(server, "http_api_connections") < 10, 120)
    ended = time.monotonic() - begin
    left = gauge(server, "http_api_connections")
    verdict.claim("connections left after the idle timeout (75 s)", left, left < 10)
    verdict.figure("seconds until the idle connections had ended", ended)
    for connection in idle:
        connection.close()


def stalled_streams(server: Server, port: int, verdict: Verdict, wanted: int) -> None:
    before = server.resident_bytes()
    accepted = gauge(server, "requests_accepted_total")
    body = {
        "prompt": "wagner",
        "ignore_eos": True,
        "max_new_tokens": 500,  # more bytes than the buffers of the sockets hold
        "stream": True,
        "return_token_ids": True,
    }
    stalled = []
    for _ in range(wanted):
        connection = connect(port, receive_bytes=4096)
        connection.sendall(post(body))
        stalled.append(connection)
    started = eventually(lambda: gauge(server, "requests_accepted_total") >= accepted + wanted, 60)
    verdict.claim("stalled streams that were accepted", wanted, started is not None)
    slowest, peak = 0.0, 0
    begin = time.monotonic()
    while gauge(server, "open_calls") > 0 and time.monotonic() - begin < 180:
        slowest = max(slowest, slowest_answer_s(port, 1))
        peak = max(peak, server.resident_bytes() - before)
    verdict.claim("seconds of the slowest other answer <= 5", slowest, slowest <= 5)
    mib = peak / 2**20 / wanted
    verdict.claim("MiB of memory for each stalled stream <= 1", mib, mib <= 1)
    seconds = time.monotonic() - begin
    left = gauge(server, "open_calls")
    verdict.claim("stalled streams left when all should have been cut off", left, left == 0)
    verdict.figure("seconds until all were cut off", seconds)
    for connection in stalled:
        connection.close()
    rest = eventually(server.at_rest, 30)
    verdict.claim("seconds until the engine is idle <= 30", rest, rest is not None)


def main() -> int:
    args = arguments(__doc__, connections=10_000, streams=256)
    verdict = Verdict(
        "http_connections",
        11,
        f"HTTP API: {args.connections} idle keep-alive connections, then {args.streams} streams "
        "whose clients stop reading",
    )
    connections = min(args.connections, raise_files_limit() // 4 - 10)
    port = free_port()
    flags = dict(
        http_api_listen=f"127.0.0.1:{port}",
        max_queue=2 * args.streams,
        # Room for the other requests, whose time must not depend on the engine's capacity.
        max_running=2 * args.streams,
        cache_memory=2048,
    )
    with Server(args.model, **flags) as server:
        slowest_answer_s(port, 50)
        idle_connections(server, port, verdict, connections)
        stalled_streams(server, port, verdict, args.streams)
        slowest = slowest_answer_s(port, 20)
        verdict.claim("seconds of the slowest answer afterwards <= 5", slowest, slowest <= 5)
        exit_code = server.stop()
        verdict.claim("exit code after SIGTERM", exit_code, exit_code == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
