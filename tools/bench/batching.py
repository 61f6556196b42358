#!/usr/bin/env python3
"""Compares continuous batching with static batching (one batch at a time) on requests of mixed
lengths: the highest request rate that each sustains while the 99th percentile of the time from
scheduled arrival to response stays below a limit.

Both run on the same server. The client simulates static batching (bench serve --static-batch
--pad-static-batch): it holds requests until the previous batch has ended, then sends up to one
batch of them together. As on a server with static batching, the batch is a rectangle: inputs are
padded to the longest one, every row is computed until the longest row has ended, and only then are
the responses returned. The best of several batch sizes counts. The limit is twice the 99th
percentile of continuous batching at half of its capacity, but at least twice the time of the
longest request alone.
usage: batching.py [--model DIR] [--limit-ms ...] [--out DIR]
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reliability"))
from serving import LOAD_CORE, SERVER_CORE, Server, Verdict, arguments, failures, load  # noqa: E402


class Rates:
    """Runs loads that have the same request lengths but different request rates."""

    def __init__(self, server: Server, args):
        self._server, self._args = server, args
        self._shape = dict(
            core=LOAD_CORE,
            warmup=args.warmup,
            input_tokens=args.input_tokens,
            output_tokens=args.output_tokens,
        )

    def closed(self, concurrency: int, seconds: float) -> dict:
        return load(self._server.target, concurrency=concurrency, duration=seconds, **self._shape)

    def at(self, rate: float, batch: int) -> dict:
        held = dict(static_batch=batch, pad_static_batch=True) if batch else {}
        return load(
            self._server.target,
            request_rate=rate,
            duration=self._args.seconds,
            timeout=60,
            **held,
            **self._shape,
        )

    def best(self, high: float, batch: int, limit_ms: float) -> tuple[float, list[dict]]:
        """Searches by bisection below `high` for the highest rate at which no request fails and the
        99th percentile of the time is at most `limit_ms`. Returns this rate and the results of all
        probes."""
        low, probes = 0.0, []
        for _ in range(self._args.probes):
            rate = (low + high) / 2
            report = self.at(rate, batch)
            result = report["load"]
            kept = failures(report) == 0 and result["e2e_ms"]["p99"] <= limit_ms
            probes.append(
                {
                    "rate": rate,
                    "p99_ms": result["e2e_ms"].get("p99"),
                    "requests_per_s": result["requests_per_s"],
                    "kept": kept,
                }
            )
            low, high = (rate, high) if kept else (low, rate)
        return low, probes


def main() -> int:
    args = arguments(
        __doc__,
        limit_ms=0.0,
        seconds=9.0,
        warmup=20,
        probes=6,
        max_running=32,
        batches="16,32",
        input_tokens="8:64",
        output_tokens="4:128",
    )
    verdict = Verdict("batching", None, "continuous batching against one batch at a time")
    longest = args.output_tokens.split(":")[-1]
    with Server(
        args.model, core=SERVER_CORE, max_running=args.max_running, encoder_cache_bytes=0
    ) as server:
        rates = Rates(server, args)
        closed = rates.closed(args.max_running, args.seconds)
        capacity = closed["load"]["requests_per_s"]
        half = rates.at(capacity / 2, 0)["load"]["e2e_ms"]["p99"]
        alone = load(
            server.target,
            core=LOAD_CORE,
            concurrency=1,
            requests=10,
            input_tokens=args.input_tokens.split(":")[-1],
            output_tokens=longest,
        )["load"]["e2e_ms"]["max"]
        limit_ms = args.limit_ms or 2 * max(half, alone)
        best, probes = {}, {}
        for batch in [0] + [int(size) for size in args.batches.split(",")]:
            name = f"one batch of {batch} at a time" if batch else "continuous"
            best[name], probes[name] = rates.best(1.2 * capacity, batch, limit_ms)
    verdict.conditions(closed)
    verdict.figure("model", pathlib.Path(args.model).name)
    verdict.figure("server", server.flags)
    verdict.figure("configuration", closed["configuration"])
    verdict.figure("capacity_requests_per_s", capacity)
    verdict.figure("p99 at half of the capacity, ms", half)
    verdict.figure("longest request alone, ms", alone)
    verdict.figure("limit_ms", limit_ms)
    verdict.figure("requests_per_s", best)
    verdict.figure("probes", probes)
    best_static = max(rate for name, rate in best.items() if name != "continuous")
    ratio = best["continuous"] / best_static if best_static else float("inf")
    verdict.claim(
        "rate of continuous batching over the best of one batch at a time >= 2", ratio, ratio >= 2
    )
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
