#!/usr/bin/env python3
"""Row 2 of the acceptance table (README.md): the load is twice what the server can handle. Goodput
must stay near its peak, rejections must be fast and carry a RetryInfo, every request must get
exactly one response, and memory must stay constant.

The server runs on one core, the clients on another. The server's capacity is the request rate that
a closed loop reaches with as many requests in flight as may run at once. The peak goodput is the
highest goodput of several open loops at rates around the capacity. A request counts as goodput if
it ends with OK within --limit-ms after its scheduled time.
"""

from serving import LOAD_CORE, SERVER_CORE, Samples, Server, Verdict, arguments, count, load, lost

SHARES = (0.8, 0.9, 1.0, 1.1, 1.2)


def main() -> int:
    args = arguments(
        __doc__,
        seconds=60.0,
        probe_seconds=8.0,
        limit_ms=250.0,
        max_running=32,
        max_queue=32,
        input_tokens="4:16",
        output_tokens="4:16",
    )
    verdict = Verdict("overload", 2, "twice the capacity")
    shape = dict(
        core=LOAD_CORE,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        goodput=[f"e2e:{args.limit_ms}"],
    )
    with Server(
        args.model, core=SERVER_CORE, max_running=args.max_running, max_queue=args.max_queue
    ) as server:
        closed = load(
            server.target,
            concurrency=args.max_running,
            warmup=200,
            duration=args.probe_seconds,
            **shape,
        )
        capacity = closed["load"]["requests_per_s"]
        peaks = {}
        for share in SHARES:
            report = load(
                server.target,
                request_rate=share * capacity,
                warmup=100,
                duration=args.probe_seconds,
                **shape,
            )
            peaks[share] = report["load"]
        peak = max(result["goodput"]["requests_per_s"] for result in peaks.values())
        with Samples(server.resident_bytes, 0.5) as memory:
            report = load(
                server.target,
                request_rate=2 * capacity,
                warmup=int(4 * capacity),
                duration=args.seconds,
                **shape,
            )
        result = report["load"]
        verdict.conditions(report)
        unaccounted, exit_code = server.unaccounted(), server.stop()
    refused = result["codes"].get("RESOURCE_EXHAUSTED", {"count": 0})
    goodput = result["goodput"]["requests_per_s"]
    verdict.figure("server", server.flags)
    verdict.figure("configuration", report["configuration"])
    verdict.figure("capacity_requests_per_s", capacity)
    verdict.figure("peak_goodput_requests_per_s", peak)
    verdict.figure(
        "goodput_by_share_of_capacity",
        {share: r["goodput"]["requests_per_s"] for share, r in peaks.items()},
    )
    verdict.figure("overload", result)
    verdict.claim("goodput over peak goodput >= 0.9", goodput / peak, goodput >= 0.9 * peak)
    verdict.claim("refusals were needed", refused["count"], refused["count"] > 0)
    if refused["count"]:
        p99 = refused["answered_ms"]["p99"]
        verdict.claim("p99 of refusals <= 20 ms", p99, p99 <= 20)
        verdict.claim(
            "refusals without RetryInfo",
            refused["count"] - refused["with_retry_info"],
            refused["count"] == refused["with_retry_info"],
        )
    others = result["measured"] - count(report, "OK") - refused["count"]
    verdict.claim("neither answered OK nor refused", others, others == 0)
    verdict.claim("requests without an answer", lost(report), lost(report) == 0)
    verdict.claim("accepted requests unaccounted for", unaccounted, unaccounted == 0)
    p99_ratio = result["e2e_ms"]["p99"] / peaks[0.9]["e2e_ms"]["p99"]
    verdict.claim(
        "p99 of the accepted over that at 0.9 of the capacity <= 1.5", p99_ratio, p99_ratio <= 1.5
    )
    growth = (memory.values[-1] - memory.values[len(memory.values) // 4]) / 2**20
    verdict.claim("MiB gained in the last three quarters <= 8", growth, growth <= 8)
    verdict.claim("exit code after SIGTERM", exit_code, exit_code == 0)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
