#!/usr/bin/env python3
"""Row 36 of the acceptance table (README.md): reading /metrics ten times per second may cost at
most 0.5 % of the throughput.

The whole server is pinned to one core and kept busy, so its throughput is the inverse of the CPU
time per token. The kernel counts CPU time in nanoseconds, and unlike wall time CPU time does not
include other jobs on the machine. A closed loop of equal requests runs during the whole
measurement. The measurement is divided into slots of half a second and groups of four slots: one
slot without the reader of /metrics, two with it, one without. In each group a steady drift cancels
out. For each group the CPU time per token with the reader is divided by that without it. The result
is the trimmed mean of these ratios (without 10 % at each end). Its standard error must be small
enough to detect a change of half a per cent.
"""

import math
import os
import statistics
import time

from serving import LOAD_CORE, SERVER_CORE, Load, Server, Verdict, arguments


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time in seconds of all threads of a process, including ended threads
    (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def trimmed(values: list[float], share: float = 0.1) -> tuple[float, float]:
    """Returns the trimmed mean of `values`, without the fraction `share` of the values at each end,
    and its standard error (from the winsorised variance)."""
    ordered = sorted(values)
    cut = int(share * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    winsorised = [kept[0]] * cut + kept + [kept[-1]] * cut
    return statistics.mean(kept), statistics.stdev(winsorised) / (
        (1 - 2 * share) * math.sqrt(len(ordered))
    )


class Meter:
    """Measures a server's CPU time per generated token between two calls of `look`. Each call
    fetches /metrics once, in slots with and without the reader alike."""

    def __init__(self, server: Server):
        self._server = server
        self._last = self._read()

    def _read(self) -> tuple[float, float, float]:
        tokens = self._server.metrics()["quintet_generation_tokens_total"]
        return tokens, cpu_seconds(self._server.process.pid), time.monotonic()

    def look(self) -> dict[str, float]:
        before, self._last = self._last, self._read()
        tokens, cpu, wall = (now - then for now, then in zip(self._last, before))
        return {
            "cpu_us_per_token": 1e6 * cpu / tokens,
            "tokens_per_s": tokens / wall,
            "core_share": cpu / wall,
        }


def main() -> int:
    args = arguments(
        __doc__, fours=180, slot_seconds=0.5, concurrency=32, input_tokens="10", output_tokens="32"
    )
    verdict = Verdict("scrape", 36, "10 Hz scrape")
    os.sched_setaffinity(0, {int(LOAD_CORE)})  # the CPU time of the reader does not count
    slots, reads = {"with": [], "without": []}, 0
    with Server(args.model, core=SERVER_CORE) as server:
        steady = Load(
            server.target,
            core=LOAD_CORE,
            concurrency=args.concurrency,
            duration=5 * args.fours * args.slot_seconds + 60,
            input_tokens=args.input_tokens,
            output_tokens=args.output_tokens,
        )
        time.sleep(5)
        meter = Meter(server)
        for _ in range(args.fours):
            for kind in ("without", "with", "with", "without"):
                begin = time.monotonic()
                for tenth in range(round(10 * args.slot_seconds)):
                    time.sleep(max(0.0, begin + tenth / 10 - time.monotonic()))
                    if kind == "with":
                        reads += server.get("/metrics")[0] == 200
                time.sleep(max(0.0, begin + args.slot_seconds - time.monotonic()))
                slots[kind].append(meter.look())
        report = steady.stop()
    verdict.conditions(report)

    def ratios(name: str) -> list[float]:
        """Returns one number for each group of four time slots: the sum of the measurement
        `name` in the two slots in which /metrics was read, over that in the other two."""
        a, b = ([slot[name] for slot in slots[kind]] for kind in ("with", "without"))
        return [(a[i] + a[i + 1]) / (b[i] + b[i + 1]) for i in range(0, len(a), 2)]

    cost, error = trimmed(ratios("cpu_us_per_token"))
    loss = 1 - 1 / cost
    by_clock, clock_error = trimmed(ratios("tokens_per_s"))
    verdict.figure("configuration", report["configuration"])
    verdict.figure("slots", slots)
    verdict.figure("reads", reads)
    verdict.figure(
        "share of the core that the server got, median",
        statistics.median(s["core_share"] for s in slots["without"]),
    )
    verdict.figure(
        "by the clock: share of the tokens/s lost, and its standard error",
        [1 - by_clock, clock_error],
    )
    asked = 20 * args.fours * args.slot_seconds
    verdict.claim(
        "reads, of those that ten a second are, >= 0.9", reads / asked, reads >= 0.9 * asked
    )
    verdict.claim("standard error of the share lost <= 0.002", error, error <= 0.002)
    verdict.claim("share of the throughput lost <= 0.005", loss, loss <= 0.005)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
