#!/usr/bin/env python3
"""Measures how much the encoding of long inputs slows running streams down: the 99th percentile of
the time between tokens at half load, with and without concurrently arriving inputs of 2,048 tokens.
The model has T5-small's shape and random weights, unless --model is given.

Half load is half of the requests per second that a closed loop with --max-running requests reaches.
The long inputs arrive at the rate that would keep an otherwise idle engine busy for --long-share of
the time. The engine has one thread on its own core; the clients use the other core. The exit code
is 0 if, with the server's default --prefill-share, the long inputs raise that percentile to at most
twice its value, some of them were answered and no request failed. The result for --prefill-share 0
(no limit) is reported for comparison.
usage: pace.py [--model DIR] [--out DIR] ...
"""

import contextlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reliability"))
import random_t5  # noqa: E402
from serving import (  # noqa: E402
    LOAD_CORE,
    SERVER_CORE,
    Load,
    Server,
    Verdict,
    arguments,
    failures,
    load,
)

DEFAULT = "default"


def measure(model: str, share, args) -> dict:
    """Measures one value of --prefill-share. Returns the reports of the loads without and with long
    inputs, and the parameters of both."""
    flags = {} if share == DEFAULT else {"prefill_share": share}
    streams = dict(
        core=LOAD_CORE,
        warmup=20,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        timeout=300,
    )
    inputs = dict(core=LOAD_CORE, input_tokens=args.long_tokens, output_tokens=2, timeout=300)
    with Server(
        model,
        core=LOAD_CORE,
        engine_core=SERVER_CORE,
        max_running=args.max_running,
        encoder_cache_bytes=0,
        **flags,
    ) as server:
        capacity = load(
            server.target, concurrency=args.max_running, duration=args.seconds / 3, **streams
        )["load"]["requests_per_s"]
        alone_s = (
            load(server.target, concurrency=1, requests=3, **inputs)["load"]["e2e_ms"]["p50"] / 1e3
        )
        streams["request_rate"] = capacity / 2
        quiet = load(server.target, duration=args.seconds, **streams)
        long_load = Load(
            server.target,
            request_rate=args.long_share / alone_s,
            burstiness=4,
            duration=args.seconds + 6,
            **inputs,
        )
        loaded = load(server.target, duration=args.seconds, **streams)
        long = long_load.stop()
    return {
        "server": server.flags,
        "capacity_requests_per_s": capacity,
        "long input alone, s": alone_s,
        "quiet": quiet["load"],
        "with long inputs": loaded["load"],
        "long inputs": long["load"],
        "configuration": quiet["configuration"],
        "conditions": quiet["conditions"],
        "failures": failures(quiet) + failures(loaded) + failures(long),
    }


def main() -> int:
    args = arguments(
        __doc__,
        model="",
        seconds=30.0,
        max_running=16,
        input_tokens="8:32",
        output_tokens="16:64",
        long_tokens=2048,
        long_share=0.25,
    )
    verdict = Verdict("pace", None, "pace of running streams while long inputs arrive")
    with contextlib.ExitStack() as stack:
        model = args.model or stack.enter_context(random_t5.directory())
        runs = {share: measure(model, share, args) for share in (DEFAULT, 0)}
    for share, run in runs.items():
        verdict.conditions({"conditions": run.pop("conditions")})
        verdict.figure(f"prefill share {share}", run)
        ratio = run["with long inputs"]["itl_ms"]["p99"] / run["quiet"]["itl_ms"]["p99"]
        encoded = run["long inputs"]["codes"].get("OK", {}).get("count", 0)
        if share == DEFAULT:
            verdict.claim(
                "p99 between tokens with long inputs over that without <= 2", ratio, ratio <= 2
            )
            verdict.claim("long inputs that were answered", encoded, encoded > 0)
            verdict.claim("requests that failed", run["failures"], run["failures"] == 0)
        else:
            verdict.figure(
                "p99 between tokens with long inputs over that without, encoding not limited", ratio
            )
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
