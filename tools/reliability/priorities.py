#!/usr/bin/env python3
"""Row 5 of the acceptance table (README.md): while LOW requests arrive at twice the server's
capacity, HIGH requests may take at most twice as long as without them, and no accepted LOW request
may wait longer than 30 s for its start.

The baseline (HIGH requests alone) is measured before and after the test, and the faster measurement
counts, so that other jobs on the machine cannot make the comparison easier.
"""

from serving import LOAD_CORE, SERVER_CORE, Load, Server, Verdict, arguments, count, load


def main() -> int:
    args = arguments(
        __doc__,
        seconds=30.0,
        max_running=8,
        max_queue=64,
        high_share=0.1,
        input_tokens="4:16",
        output_tokens="8:32",
    )
    verdict = Verdict("priorities", 5, "HIGH over a LOW load of twice the capacity")
    shape = dict(core=LOAD_CORE, input_tokens=args.input_tokens, output_tokens=args.output_tokens)
    with Server(
        args.model, core=SERVER_CORE, max_running=args.max_running, max_queue=args.max_queue
    ) as server:
        capacity = load(
            server.target, concurrency=args.max_running, warmup=100, duration=5, **shape
        )["load"]["requests_per_s"]
        high = dict(request_rate=args.high_share * capacity, warmup=20, priority="high", **shape)
        alone = [load(server.target, duration=args.seconds / 2, **high)]
        low = Load(
            server.target,
            request_rate=2 * capacity,
            warmup=int(4 * capacity),
            duration=args.seconds + 4,
            priority="low",
            seed=2,
            **shape,
        )
        over = load(server.target, duration=args.seconds, **high)
        low_report = low.report()
        alone.append(load(server.target, duration=args.seconds / 2, **high))
    verdict.conditions(over)
    alone_p99, over_p99 = (
        min(report["load"]["e2e_ms"]["p99"] for report in alone),
        over["load"]["e2e_ms"]["p99"],
    )
    verdict.figure("server", server.flags)
    verdict.figure("capacity_requests_per_s", capacity)
    verdict.figure("high_alone", [report["load"] for report in alone])
    verdict.figure("high_over_low", over["load"])
    verdict.figure("low", low_report["load"])
    verdict.claim(
        "p99 of HIGH over LOW, over p99 alone, <= 2",
        over_p99 / alone_p99,
        over_p99 <= 2 * alone_p99,
    )
    refused = over["load"]["measured"] - count(over, "OK")
    verdict.claim("HIGH requests that were not served", refused, refused == 0)
    slowest_s = low_report["load"]["ttft_ms"]["max"] / 1e3
    verdict.claim(
        "seconds to the first token of the slowest LOW request <= 30", slowest_s, slowest_s <= 30
    )
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
