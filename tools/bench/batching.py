#!/usr/bin/env python3
"""Continuous batching against one batch at a time on mixed lengths: the highest rate of requests that each serves while the 99th
percentile of the time from due to done stays below one limit.

Both run on the same server. One batch at a time is simulated by the client: it holds back what falls due until the last batch has ended and
then sends up to a batch of it together (bench serve --static-batch). Each request counts as done when its own answer is there, not when
its batch ends, and the server wastes no work on padding or ended rows: kinder than a real server of that kind. Of several batch sizes the
best counts. usage: batching.py [--model DIR] [--limit-ms ...] [--out DIR]
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reliability"))
from serving import LOAD_CORE, SERVER_CORE, Server, Verdict, arguments, failures, load  # noqa: E402


def best_rate(server: Server, args, capacity: float, batch: int) -> tuple[float, list[dict]]:
    """The highest rate found by halving between 0 and 1.2 times the capacity; every probe made."""
    low, high, probes = 0.0, 1.2 * capacity, []
    for _ in range(args.probes):
        rate = (low + high) / 2
        report = load(server.target, core=LOAD_CORE, request_rate=rate, duration=args.seconds, warmup=args.warmup, static_batch=batch, timeout=60,
                      input_tokens=args.input_tokens, output_tokens=args.output_tokens)
        result = report["load"]
        kept = failures(report) == 0 and result["e2e_ms"]["p99"] <= args.limit_ms
        probes.append({"rate": rate, "p99_ms": result["e2e_ms"].get("p99"), "requests_per_s": result["requests_per_s"], "kept": kept})
        low, high = (rate, high) if kept else (low, rate)
    return low, probes


def main() -> int:
    args = arguments(__doc__, name="g2p", limit_ms=1000.0, seconds=12.0, warmup=20, probes=5, max_running=32, batches="16,32",
                     input_tokens="8:64", output_tokens="4:128")
    verdict = Verdict(f"batching_{args.name}", None, "continuous batching against one batch at a time")
    with Server(args.model, core=SERVER_CORE, max_running=args.max_running, encoder_cache_bytes=0) as server:
        closed = load(server.target, core=LOAD_CORE, concurrency=args.max_running, warmup=args.warmup, duration=args.seconds,
                      input_tokens=args.input_tokens, output_tokens=args.output_tokens)
        capacity = closed["load"]["requests_per_s"]
        rates, probes = {}, {}
        for batch in [0] + [int(size) for size in args.batches.split(",")]:
            name = f"one batch of {batch} at a time" if batch else "continuous"
            rates[name], probes[name] = best_rate(server, args, capacity, batch)
    verdict.conditions(closed)
    verdict.figure("server", server.flags)
    verdict.figure("limit_ms", args.limit_ms)
    verdict.figure("configuration", closed["configuration"])
    verdict.figure("capacity_requests_per_s", capacity)
    verdict.figure("requests_per_s", rates)
    verdict.figure("probes", probes)
    best_static = max(rate for name, rate in rates.items() if name != "continuous")
    ratio = rates["continuous"] / best_static if best_static else float("inf")
    verdict.claim("rate of continuous batching over the best of one batch at a time >= 2", ratio, ratio >= 2)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
