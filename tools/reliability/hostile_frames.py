#!/usr/bin/env python3
"""Row 13 of the acceptance table (README.md): hostile HTTP/2 traffic through haproxy: large
metadata, invalid te and :scheme headers, endless CONTINUATION frames, 100,000 stream resets within
10 s, random bytes.

Both haproxy and the server must keep running, and other clients must be served afterwards.
--direct 1 sends the traffic to the server without haproxy. A server without haproxy is not a
supported setup for untrusted clients, because Debian's gRPC 1.51 lacks fixes for some of these
attacks; for it the script only reports figures and checks no claim.
"""

import os
import time

import frames
from haproxy import Haproxy
from serving import Server, Verdict, arguments, eventually

MESSAGE = b"\x12\x04\x0a\x02hi"  # GenerateRequest{input {text: "hi"}}


def send(port: int, blob: bytes) -> None:
    try:
        with frames.connect(port) as connection:
            connection.sendall(blob)
            time.sleep(0.05)
            frames.drain(connection)
    except OSError:
        pass  # a rejected or closed connection is a valid response


def request(fields) -> bytes:
    return frames.headers_frames(1, frames.header_block(fields)) + frames.message_frame(1, MESSAGE)


def metadata(port: int) -> None:
    for size in (8 << 10, 16 << 10, 64 << 10, 1 << 20):
        send(port, request(frames.request_fields(more=[("x-large", "a" * size)])))
        send(
            port,
            request(
                frames.request_fields(more=[(f"x-many-{i}", "a" * 64) for i in range(size // 64)])
            ),
        )


def bad_fields(port: int) -> None:
    for te in ("gzip", "", "trailers, deflate", "\x00"):
        send(port, request(frames.request_fields(te=te)))
    for scheme in ("ftp", "", "http\r\nx: y", "a" * 5000):
        send(port, request(frames.request_fields(scheme=scheme)))
    for path in ("", "/", "//", "/no.such/Method", "/" + "a" * 9000):
        send(port, request(frames.request_fields(path=path)))
    fields = frames.request_fields()
    for missing in range(len(fields)):
        send(port, request(fields[:missing] + fields[missing + 1 :]))
        send(port, request(fields + [fields[missing]]))
    send(port, request(frames.request_fields(more=[("grpc-timeout", "99999999999999H")])))
    send(port, request(frames.request_fields(more=[("grpc-encoding", "nonsense")])))


def continuation_flood(port: int) -> None:
    part = frames.header_block([("x-flood", "a" * 4000)])
    for _ in range(5):
        try:
            with frames.connect(port) as connection:
                connection.sendall(
                    frames.frame(frames.HEADERS, 0, 1, frames.header_block(frames.request_fields()))
                )
                for _ in range(20000):
                    connection.sendall(frames.frame(frames.CONTINUATION, 0, 1, part))
        except OSError:
            continue


def resets(port: int, wanted: int, seconds: float) -> tuple[int, float]:
    """Opens streams and resets them until `wanted` streams are reset or `seconds` have passed.
    Opens a new connection if the server closes one."""
    block = frames.header_block(frames.request_fields())
    done, begin, connection, stream = 0, time.monotonic(), None, 1
    while done < wanted and time.monotonic() - begin < seconds:
        try:
            if connection is None:
                connection, stream = frames.connect(port), 1
            blob = b""
            for _ in range(100):
                blob += (
                    frames.headers_frames(stream, block)
                    + frames.message_frame(stream, MESSAGE)
                    + frames.reset_frame(stream)
                )
                stream += 2
            connection.sendall(blob)
            done += 100
            if not frames.drain(connection):
                raise ConnectionResetError
        except OSError:
            if connection:
                connection.close()
            connection = None
    if connection:
        connection.close()
    return done, time.monotonic() - begin


def garbage(port: int) -> None:
    for size in (1, 9, 100, 20000):
        send(port, os.urandom(size))
    send(port, frames.frame(frames.DATA, 0, 0, b"x"))
    send(port, frames.frame(frames.HEADERS, frames.END_HEADERS, 2, b"\xff" * 50))
    send(port, b"\xff\xff\xff" + bytes((frames.DATA, 0)) + b"\x00\x00\x00\x01")
    send(port, frames.frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 3)
    send(port, frames.frame(frames.SETTINGS, 0, 0, b"\x00\x04\xff\xff\xff\xff"))
    send(port, frames.frame(frames.PING, 0, 0, b"12345678") * 20000)
    send(port, frames.frame(frames.SETTINGS, 0, 0) * 20000)


def attack(port: int, server: Server, verdict: Verdict, served, resets_wanted: int) -> None:
    for name, run in (
        ("metadata of 8 KiB to 1 MiB", metadata),
        ("bad te, scheme, path, fields", bad_fields),
        ("CONTINUATION flood", continuation_flood),
        ("garbage", garbage),
    ):
        run(port)
        verdict.claim(f"alive after: {name}", server.alive(), server.alive())
    # Check that the requests that will be reset are valid: the server must accept such a request
    # without a reset.
    accepted = server.metrics()["quintet_requests_accepted_total"]
    send(port, request(frames.request_fields()))
    understood = (
        eventually(lambda: server.metrics()["quintet_requests_accepted_total"] > accepted, 5)
        is not None
    )
    verdict.claim("a request of ours is accepted", understood, understood)
    done, seconds = resets(port, resets_wanted, 10)
    verdict.figure("seconds of resets", seconds)
    verdict.claim("streams reset in 10 s", done, done >= resets_wanted)
    verdict.claim("alive after: resets", server.alive(), server.alive())
    to_answer = eventually(served, 30)
    verdict.claim(
        "seconds to an answer for a new client <= 5",
        to_answer,
        to_answer is not None and to_answer <= 5,
    )
    at_rest = eventually(server.at_rest, 30)
    verdict.claim("seconds until nothing runs, waits or holds cache", at_rest, at_rest is not None)


def main() -> int:
    args = arguments(__doc__, resets=100_000, direct=0)
    verdict = Verdict(
        "hostile_frames_direct" if args.direct else "hostile_frames",
        None if args.direct else 13,
        "hostile HTTP/2",
    )
    with Server(args.model) as server:
        before = server.resident_bytes()
        if args.direct:
            attack(server.port, server, verdict, server.answers, args.resets)
        else:
            with Haproxy([(server.port, server.http_port)]) as proxy:
                if eventually(proxy.answers, 10) is None:
                    raise RuntimeError("no answer through haproxy")
                verdict.figure("haproxy", proxy.version)
                attack(proxy.port, server, verdict, proxy.answers, args.resets)
                verdict.claim("haproxy is alive", proxy.alive(), proxy.alive())
        verdict.figure(
            "MiB gained by the server",
            (server.resident_bytes() - before) / 2**20 if server.alive() else None,
        )
        exit_code = server.stop()
        verdict.claim("exit code after SIGTERM", exit_code, exit_code == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
