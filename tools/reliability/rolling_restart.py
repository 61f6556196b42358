#!/usr/bin/env python3
"""Row 16: servers behind haproxy are replaced under load. Three replicas are restarted one after
another on their addresses. Then one server is replaced three times as Kubernetes does it with
maxSurge 1: a new one starts on a second address, and when its /readyz answers 200, the old one gets
SIGTERM. No request fails, except that of a client without retries at most one in a thousand may
fail while a replica is restarted. With --image the servers are containers.
"""

import contextlib
import time

from haproxy import Haproxy
from serving import Load, Server, Verdict, arguments, count, eventually, failures, free_port, lost

# The drain must outlast two health checks of deploy/haproxy, which are one second apart.
LIFE = dict(drain_delay=4, drain_timeout=20, cache_memory=128)


def start(args, ports) -> Server:
    """Returns a server that is ready."""
    return Server(args.model, ports=ports, image=args.image, **LIFE)


def restart_each(args, addresses, load) -> list[int]:
    """Restarts a replica on each address in turn and returns their exit codes."""
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
    """Replaces one server three times, on alternating addresses, and returns the exit codes."""
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
    """Loads the servers during the with-block; `report` is filled at its end."""
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
