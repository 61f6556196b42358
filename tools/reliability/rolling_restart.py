#!/usr/bin/env python3
"""Row 16 of the acceptance table (README.md): servers behind haproxy are replaced under load. Three
replicas are restarted one after another, each on its own address. Then one server is replaced three
times as Kubernetes does it with maxSurge 1: a new server starts on a second address, and when its
/readyz answers 200, the old server gets SIGTERM. No request may fail, with one exception: while a
replica is restarted, at most one in a thousand requests of a client without retries may fail. With
--image the servers run in containers.
"""

import contextlib
import time

from haproxy import Haproxy
from serving import Load, Server, Verdict, arguments, count, eventually, failures, free_port, lost

# The server's drain must take longer than two of haproxy's health checks, which deploy/haproxy
# sends one second apart.
LIFE = dict(drain_delay=4, drain_timeout=20, cache_memory=128)


def start(args, ports) -> Server:
    """Starts a server on the given ports and returns it when it is ready."""
    return Server(args.model, ports=ports, image=args.image, **LIFE)


def restart_each(args, addresses, load) -> list[int]:
    """Starts one replica on each address. Under `load`, restarts one after the other. Returns the
    exit codes of the stopped servers."""
    replicas = [start(args, ports) for ports in addresses]
    codes = []
    with load:
        for i, ports in enumerate(addresses):
            codes.append(replicas[i].stop())
            replicas[i] = start(args, ports)
            time.sleep(args.settle_seconds)
    for replica in replicas:
        replica.stop()
    return codes


def surge(args, addresses, load) -> list[int]:
    """Starts one server. Under `load`, replaces it three times, each time on the other one of two
    addresses. Returns the exit codes of the replaced servers."""
    server = start(args, addresses[0])
    codes = []
    with load:
        for i in range(3):
            new = start(args, addresses[(i + 1) % 2])
            codes.append(server.stop())
            server = new
            time.sleep(args.settle_seconds)
    server.stop()
    return codes


@contextlib.contextmanager
def load_through_haproxy(args, verdict: Verdict, addresses, attempts: int, report: dict):
    """Sends load to the servers through haproxy during the with-block. Fills `report` at the end of
    the block."""
    with Haproxy(addresses) as proxy:
        verdict.figure("haproxy", proxy.version)
        if eventually(proxy.answers, 10) is None:
            raise RuntimeError("no answer through haproxy")
        client = Load(
            proxy.target,
            request_rate=args.rate,
            channels=4,
            attempts=attempts,
            input_tokens="4:16",
            output_tokens="8:64",
            duration=300,
            timeout=30,
        )
        time.sleep(args.settle_seconds)
        yield
        report.update(client.stop())


def roll(args, verdict: Verdict, change, servers: int, attempts: int):
    addresses = [(free_port(), free_port()) for _ in range(servers)]
    report = {}
    load = load_through_haproxy(args, verdict, addresses, attempts, report)
    codes = change(args, addresses, load)
    verdict.conditions(report)
    name = f"{change.__name__}, {'with' if attempts > 1 else 'without'} retries"
    verdict.figure(name, report["load"])
    failed, answered = failures(report), count(report, "OK")
    allowed = 0.001 * report["load"]["measured"] if attempts == 1 and change is restart_each else 0
    verdict.claim(f"{name}: exit codes of the replaced servers", codes, codes == [0, 0, 0])
    verdict.claim(f"{name}: requests without an answer", lost(report), lost(report) == 0)
    verdict.claim(f"{name}: requests answered OK", answered, answered > 0)
    verdict.claim(f"{name}: failed requests, {allowed:.1f} allowed", failed, failed <= allowed)


def main() -> int:
    args = arguments(__doc__, rate=40.0, settle_seconds=2.0, image="")
    name = "rolling_restart_containers" if args.image else "rolling_restart"
    verdict = Verdict(name, 16, "servers replaced one after another behind haproxy")
    for change, servers in ((restart_each, 3), (surge, 2)):
        for attempts in (5, 1):
            roll(args, verdict, change, servers, attempts)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
