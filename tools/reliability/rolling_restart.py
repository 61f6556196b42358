#!/usr/bin/env python3
"""Row 16: three replicas behind haproxy are restarted one after another under load. A client with
retries sees no error; without retries at most one request in a thousand fails.
"""

import time

from haproxy import Haproxy
from serving import Load, Server, Verdict, arguments, count, eventually, failures, free_port, lost

# The drain must outlast two health checks of deploy/haproxy, which are one second apart.
LIFE = dict(drain_delay=4, drain_timeout=20, cache_memory=128)


def restart(server: Server, model) -> tuple[Server, int]:
    code = server.stop()
    return Server(model, ports=(server.port, server.http_port), **LIFE), code


def roll(args, verdict: Verdict, attempts: int):
    ports = [(free_port(), free_port()) for _ in range(3)]
    replicas = [Server(args.model, ports=pair, **LIFE) for pair in ports]
    with Haproxy(ports) as proxy:
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
        codes = []
        for i in range(3):
            time.sleep(args.settle_seconds)
            replicas[i], code = restart(replicas[i], args.model)
            codes.append(code)
        time.sleep(args.settle_seconds)
        client_report = client.stop()
        verdict.figure("haproxy", proxy.version)
    for replica in replicas:
        replica.stop()
    verdict.conditions(client_report)
    name = "with retries" if attempts > 1 else "without retries"
    verdict.figure(name, client_report["load"])
    failed, measured = failures(client_report), client_report["load"]["measured"]
    verdict.claim(f"exit codes of the replicas, {name}", codes, codes == [0, 0, 0])
    verdict.claim(
        f"requests without an answer, {name}", lost(client_report), lost(client_report) == 0
    )
    verdict.claim(
        f"requests answered OK, {name}", count(client_report, "OK"), count(client_report, "OK") > 0
    )
    if attempts > 1:
        verdict.claim("failed requests with retries", failed, failed == 0)
    else:
        verdict.claim(
            "share of failed requests without retries <= 0.001",
            failed / measured,
            failed <= 0.001 * measured,
        )


def main() -> int:
    args = arguments(__doc__, rate=40.0, settle_seconds=2.0)
    verdict = Verdict("rolling_restart", 16, "rolling restart of three replicas behind haproxy")
    for attempts in (5, 1):
        roll(args, verdict, attempts)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
