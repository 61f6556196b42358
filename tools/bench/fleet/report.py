"""The report of a simulation: a JSON object, and a table printed from it."""

import collections
import dataclasses
import math
from collections.abc import Sequence

from fleet.replica import Code
from fleet.requests import Request
from fleet.scenario import Scenario


@dataclasses.dataclass(slots=True)
class Outcome:
    """How a request ended. Times are those of its last attempt; -1: that did not happen."""

    request: Request
    code: Code = Code.LOST
    attempts: int = 0
    started_s: float = -1.0
    first_s: float = -1.0
    end_s: float = -1.0


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums over all replicas of a fleet, from the start of a simulation until `at_s`."""

    at_s: float
    paid_s: float  # time of replicas that is paid, also while they start
    busy_s: float  # time in which engines worked
    row_s: float  # integral of the rows in steps over time
    queries: int  # of the encoder caches
    hits: int


def quantile(ascending: Sequence[float], share: float) -> float:
    """Returns the quantile by nearest rank, as `quintet bench serve` does: the smallest value v
    such that at least `share` of the values are <= v."""
    return ascending[max(math.ceil(share * len(ascending) - 1e-9), 1) - 1]


def distribution(values: list[float]) -> dict:
    """Returns {"count", "mean", "p50", "p90", "p99", "max"}; only "count" if there are none."""
    if not values:
        return {"count": 0}
    values = sorted(values)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {
        "count": len(values),
        "mean": math.fsum(values) / len(values),
        **{name: quantile(values, share) for name, share in shares.items()},
        "max": values[-1],
    }


def summarize(
    scenario: Scenario,
    outcomes: Sequence[Outcome],
    windows: Sequence[Totals],
    sizes: Sequence[int],
    failures: int,
) -> dict:
    """Returns the report. `windows`: the totals at the begin and the end of the measured window.
    `sizes`: the numbers of replicas that served, at equal distances in the window."""
    begin, end = windows
    seconds = max(end.at_s - begin.at_s, 1e-9)
    measured = [o for o in outcomes if o.request.at_s >= scenario.warmup_s]
    good = [o for o in measured if o.code == Code.OK]
    in_window = [o for o in outcomes if o.code == Code.OK and begin.at_s <= o.end_s <= end.at_s]
    tokens = sum(o.request.output_tokens for o in in_window)
    paid_s, busy_s = end.paid_s - begin.paid_s, end.busy_s - begin.busy_s
    cost = paid_s / 3600 * scenario.fleet.price_per_hour
    queries = end.queries - begin.queries
    overhead_ms = scenario.model.overhead_ms

    def latencies(times) -> dict:
        return distribution([seconds * 1e3 + overhead_ms for seconds in times])

    return {
        "sent": len(outcomes),
        "measured": len(measured),
        "codes": dict(collections.Counter(str(o.code) for o in measured)),
        "retries": sum(o.attempts - 1 for o in measured),
        "failures": failures,
        "window_s": seconds,
        "requests_per_s": len(in_window) / seconds,
        "output_tokens_per_s": tokens / seconds,
        "ttft_ms": latencies(o.first_s - o.request.at_s for o in good),
        "e2e_ms": latencies(o.end_s - o.request.at_s for o in good),
        "queue_ms": distribution([(o.started_s - o.request.at_s) * 1e3 for o in good]),
        "utilization": busy_s / paid_s if paid_s > 0 else 0.0,
        "rows_per_step": (end.row_s - begin.row_s) / busy_s if busy_s > 0 else 0.0,
        "encoder_cache_hit_rate": (end.hits - begin.hits) / queries if queries else 0.0,
        "replicas": {
            "mean": sum(sizes) / len(sizes) if sizes else 0.0,
            "min": min(sizes, default=0),
            "max": max(sizes, default=0),
        },
        "replica_hours": paid_s / 3600,
        "cost": cost,
        "cost_per_million_output_tokens": cost / tokens * 1e6 if tokens else 0.0,
    }


def show(report: dict) -> str:
    """Returns the report as a table."""
    codes = ", ".join(f"{code} {count}" for code, count in sorted(report["codes"].items()))
    replicas = report["replicas"]
    lines = [
        f"{report['sent']} requests sent, {report['measured']} measured in "
        f"{report['window_s']:.1f} s: {codes}; {report['retries']} retries, "
        f"{report['failures']} replicas failed",
        f"{report['requests_per_s']:.1f} requests/s, "
        f"{report['output_tokens_per_s']:.0f} output tokens/s",
        f"replicas {replicas['mean']:.1f} ({replicas['min']} to {replicas['max']}), engines busy "
        f"{100 * report['utilization']:.1f} % of the paid time, "
        f"{report['rows_per_step']:.1f} rows per step, encoder cache hits "
        f"{100 * report['encoder_cache_hit_rate']:.1f} %",
        f"{report['replica_hours']:.3f} replica hours, cost {report['cost']:.2f}, "
        f"{report['cost_per_million_output_tokens']:.4f} per million output tokens",
        f"{'ms':8} {'count':>8} {'mean':>9} {'p50':>9} {'p90':>9} {'p99':>9} {'max':>9}",
    ]
    for name in ("ttft", "e2e", "queue"):
        values = report[f"{name}_ms"]
        row = f"{name.upper():8} {values['count']:8d}"
        if values["count"]:
            row += "".join(f" {values[key]:9.2f}" for key in ("mean", "p50", "p90", "p99", "max"))
        lines.append(row)
    return "\n".join(lines)
