#!/usr/bin/env python3
"""Row 36: reading /metrics ten times a second costs at most 0.5 % of the throughput. Closed loops with and without the reader take turns;
the figure is the median of the ratios of neighbours, and its spread is given, since it bounds what can be told."""
import os
import statistics

from serving import LOAD_CORE, SERVER_CORE, Samples, Server, Verdict, arguments, load


def main() -> int:
    args = arguments(__doc__, rounds=8, seconds=6.0, concurrency=32)
    verdict = Verdict("scrape", 36, "10 Hz scrape")
    os.sched_setaffinity(0, {int(LOAD_CORE)})  # the reader's own work is not the server's
    rates = {"with": [], "without": []}
    reads = 0
    with Server(args.model, core=SERVER_CORE) as server:
        def measure():
            return load(server.target, core=LOAD_CORE, concurrency=args.concurrency, warmup=100, duration=args.seconds, input_tokens="4:16",
                        output_tokens="16:64")

        measure()  # warm
        for turn in range(args.rounds):
            for kind in ("with", "without") if turn % 2 else ("without", "with"):
                if kind == "with":
                    with Samples(lambda: server.get("/metrics")[0], 0.1) as samples:
                        report = measure()
                    reads += samples.values.count(200)
                else:
                    report = measure()
                rates[kind].append(report["load"]["output_tokens_per_s"])
    verdict.conditions(report)
    ratios = [a / b for a, b in zip(rates["with"], rates["without"])]
    loss = 1 - statistics.median(ratios)
    verdict.figure("tokens_per_s", rates)
    verdict.figure("ratios", ratios)
    verdict.figure("standard error of the mean ratio", statistics.stdev(ratios) / len(ratios) ** 0.5)
    verdict.figure("reads", reads)
    verdict.claim("share of the throughput lost <= 0.005", loss, loss <= 0.005)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
