#!/usr/bin/env python3
"""Rows 10 and 11 of the acceptance table (README.md) for the HTTP API: 10,000 idle keep-alive
connections, and 256 streams whose clients stop reading, must not prevent the server from serving
other clients. Memory must stay bounded, idle connections must end after 75 s, and stalled streams
after 30 s. Takes about 4 minutes. The server accepts at most half as many connections as its limit
of open files, so 10,000 connections need a hard limit (ulimit -Hn) of 20,000. With a lower limit
the script opens half as many connections as the limit. Several client processes hold them.
"""

import contextlib
import http.client
import json
import multiprocessing
import selectors
import socket
import statistics
import threading
import time

from serving import Server, Verdict, arguments, eventually, free_port, raise_files_limit

HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
CLIENT_PROCESSES = 4  # that hold the idle connections


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


def answer_times_s(port: int, requests: int) -> list[float]:
    """Returns the times of some completions, one after the other, each on a new connection."""
    times = []
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
        times.append(time.monotonic() - begin)
    return times


def gauge(server: Server, name: str) -> float:
    return server.metrics().get(f"quintet_{name}", -1)


def hold_connections(port: int, wanted: int, commands) -> None:
    """Runs in a client process. Opens `wanted` connections, makes a request on each, and sends the
    number of connections to the pipe `commands`. Then replies to commands: to "open" with the
    number of connections that the server has not closed, to "use" with whether the last one still
    gets a response. When the pipe is closed, the process ends, which closes the connections."""
    idle = []
    for _ in range(wanted):
        connection = connect(port)
        connection.sendall(HEALTH)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            break
        idle.append(connection)
    commands.send(len(idle))
    with contextlib.suppress(EOFError):
        while True:
            if commands.recv() == "use":
                idle[-1].sendall(HEALTH)
                commands.send(idle[-1].recv(4096).startswith(b"HTTP/1.1 200"))
            else:
                commands.send(sum(map(is_open, idle)))


def is_open(connection: socket.socket) -> bool:
    """Whether the server has not closed an idle connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(60)


class IdleConnections:
    """Idle connections, held by several processes because a process has a limit of open files."""

    def __init__(self, port: int, wanted: int):
        self._pipes, self._processes = [], []
        for i in range(CLIENT_PROCESSES):
            ours, theirs = multiprocessing.Pipe()
            share = wanted // CLIENT_PROCESSES + (i < wanted % CLIENT_PROCESSES)
            process = multiprocessing.get_context("spawn").Process(
                target=hold_connections, args=(port, share, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self.opened = sum(pipe.recv() for pipe in self._pipes)

    def ask(self, command: str) -> int:
        """The sum of the answers of all processes."""
        for pipe in self._pipes:
            pipe.send(command)
        return sum(pipe.recv() for pipe in self._pipes)

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes):
            pipe.close()
            process.join()


def idle_connections(server: Server, port: int, verdict: Verdict, wanted: int) -> None:
    alone = answer_times_s(port, 50)
    before = server.resident_bytes()
    begin = time.monotonic()
    idle = IdleConnections(port, wanted)
    verdict.claim("idle connections after a first request", idle.opened, idle.opened == wanted)
    verdict.figure("seconds to open them", time.monotonic() - begin)
    kept = gauge(server, "http_api_connections")
    verdict.claim("connections that the server keeps", kept, kept >= wanted)
    bytes_each = (server.resident_bytes() - before) / wanted
    verdict.claim("KiB of memory for each <= 16", bytes_each / 1024, bytes_each <= 16 << 10)
    begin = time.monotonic()
    times = answer_times_s(port, 50)
    verdict.claim("seconds of the slowest of 50 answers <= 5", max(times), max(times) <= 5)
    verdict.figure("median seconds of an answer", statistics.median(times))
    verdict.figure("median seconds of an answer without them", statistics.median(alone))
    # At its limit of connections the server closes the longest idle one to accept a new one.
    still = idle.ask("open")
    verdict.claim("idle connections open after these answers", still, still >= wanted - 50)
    used = idle.ask("use")
    verdict.claim(
        f"of {CLIENT_PROCESSES} idle connections, those that are answered again",
        used,
        used == CLIENT_PROCESSES,
    )
    eventually(lambda: gauge(server, "http_api_connections") < 10, 120)
    ended = time.monotonic() - begin
    left = gauge(server, "http_api_connections")
    verdict.claim("connections left after the idle timeout (75 s)", left, left < 10)
    verdict.figure("seconds until the idle connections had ended", ended)
    idle.close()


class Streams:
    """Streams whose clients read everything as it arrives if `reading`, and nothing otherwise."""

    def __init__(self, port: int, count: int, reading: bool):
        body = {
            "prompt": "wagner",
            "ignore_eos": True,
            "max_new_tokens": 500,  # more bytes than the buffers of the sockets hold
            "stream": True,
            "return_token_ids": True,
        }
        self.connections = [connect(port, 0 if reading else 4096) for _ in range(count)]
        for connection in self.connections:
            connection.sendall(post(body))
            connection.setblocking(False)
        self._selector = selectors.DefaultSelector()
        if reading:
            for connection in self.connections:
                self._selector.register(connection, selectors.EVENT_READ)
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select(timeout=1):
                with contextlib.suppress(BlockingIOError):
                    if b"[DONE]" in key.fileobj.recv(1 << 16):
                        self._selector.unregister(key.fileobj)

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def serve_beside(server: Server, port: int, count: int, reading: bool) -> dict:
    """Sends completions one after the other until all streams have ended."""
    before, accepted = server.resident_bytes(), gauge(server, "requests_accepted_total")
    streams = Streams(port, count, reading)
    started = eventually(lambda: gauge(server, "requests_accepted_total") >= accepted + count, 60)
    slowest, peak, begin = 0.0, 0, time.monotonic()
    while gauge(server, "open_calls") > 0 and time.monotonic() - begin < 180:
        slowest = max(slowest, *answer_times_s(port, 1))
        peak = max(peak, server.resident_bytes() - before)
    left = gauge(server, "open_calls")
    streams.close()
    return {
        "started": started is not None,
        "slowest_s": slowest,
        "mib_for_each": peak / 2**20 / count,
        "left": left,
        "seconds": time.monotonic() - begin,
    }


def stalled_streams(server: Server, port: int, verdict: Verdict, wanted: int) -> None:
    """Compares stalled streams with streams that are read. The streams that are read run first, so
    that the memory measured for stalled streams excludes the first use of the KV cache's pages."""
    read = serve_beside(server, port, wanted, reading=True)
    stalled = serve_beside(server, port, wanted, reading=False)
    verdict.figure("streams that are read", read)
    verdict.figure("streams that are not read", stalled)
    verdict.claim("stalled streams that were accepted", wanted, stalled["started"])
    limit = max(5.0, 1.5 * read["slowest_s"])
    verdict.claim(
        f"seconds of the slowest other answer <= {limit:.1f} (5, or 1.5 times that beside streams "
        "that are read)",
        stalled["slowest_s"],
        stalled["slowest_s"] <= limit,
    )
    verdict.claim(
        "MiB of memory for each stalled stream <= 1",
        stalled["mib_for_each"],
        stalled["mib_for_each"] <= 1,
    )
    verdict.claim("stalled streams that were not cut off", stalled["left"], stalled["left"] == 0)
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
    connections = min(args.connections, raise_files_limit() // 2)
    port = free_port()
    flags = dict(
        http_api_listen=f"127.0.0.1:{port}",
        max_queue=2 * args.streams,
        # Leave room for the other requests: their time must not depend on the engine's capacity.
        max_running=2 * args.streams,
        cache_memory=2048,
    )
    with Server(args.model, **flags) as server:
        answer_times_s(port, 50)
        idle_connections(server, port, verdict, connections)
        stalled_streams(server, port, verdict, args.streams)
        slowest = max(answer_times_s(port, 20))
        verdict.claim("seconds of the slowest answer afterwards <= 5", slowest, slowest <= 5)
        exit_code = server.stop()
        verdict.claim("exit code after SIGTERM", exit_code, exit_code == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
