#!/usr/bin/env python3
"""Row 11 of the acceptance table (README.md): 10,000 idle connections must not prevent the server
from serving other clients. A server that ran out of file descriptors must serve again within 5 s
after descriptors are released.
"""

import time

import frames
from serving import Server, Verdict, arguments, eventually, raise_files_limit


def open_connections(port: int, wanted: int) -> list:
    connections = []
    for _ in range(wanted):
        try:
            connections.append(frames.connect(port, 2))
        except OSError:
            break
    return connections


def main() -> int:
    args = arguments(__doc__, connections=10_000, files_limit=512)
    verdict = Verdict(
        "connections", 11, f"{args.connections} idle connections, then no file descriptor left"
    )
    raise_files_limit()
    with Server(args.model) as server:
        before = server.resident_bytes()
        idle = open_connections(server.port, args.connections)
        verdict.claim("idle connections opened", len(idle), len(idle) == args.connections)
        seconds = eventually(lambda: server.answers(), 30)
        verdict.claim(
            "seconds to a response while they are open <= 5",
            seconds,
            seconds is not None and seconds <= 5,
        )
        verdict.figure(
            "KiB for each connection", (server.resident_bytes() - before) / 1024 / max(len(idle), 1)
        )
        for connection in idle:
            connection.close()
        seconds = eventually(lambda: server.answers(), 30)
        verdict.claim(
            "seconds to an answer after their end <= 5",
            seconds,
            seconds is not None and seconds <= 5,
        )
        exit_code = server.stop()
        verdict.claim("exit code after SIGTERM", exit_code, exit_code == 0)
    with Server(args.model, files_limit=args.files_limit) as server:
        flood = open_connections(
            server.port, args.files_limit + 200
        )  # connections that are not accepted wait in the kernel's queue
        time.sleep(3)
        verdict.figure("connections over the limit of descriptors", len(flood) - args.files_limit)
        verdict.claim("alive without descriptors", server.alive(), server.alive())
        for connection in flood:
            connection.close()
        seconds = eventually(lambda: server.answers(1), 30)
        verdict.claim(
            "seconds to an answer after the release <= 5",
            seconds,
            seconds is not None and seconds <= 5,
        )
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
