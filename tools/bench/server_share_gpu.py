#!/usr/bin/env python3
"""Measures the fraction of the engine's speed on a GPU that remains when requests go through the
server. The requests of batching_gpu.py run in a closed loop that keeps the queue filled,
alternately on an engine inside `quintet bench engine` and through `quintet serve` and a client,
both as streams and as unary calls.

The model has T5-base's shape and random bf16 weights. Server and engine use the first half of the
machine's cores, the client the other half. Neither engine throttles encoding for running streams or
caches encoder outputs. `bench engine` creates and streams its requests on the engine's own thread,
the server on other threads; hence unary calls through the server may be faster.

usage: server_share_gpu.py --work DIR [--model t5-base] [--out DIR]
QUINTET_BINARY: the program, build/quintet unless set.
"""

import os
import pathlib
import statistics
import sys
import time

sys.path[:0] = [
    str(pathlib.Path(__file__).resolve().parent),
    str(pathlib.Path(__file__).resolve().parent.parent / "reliability"),
]
from batching_gpu import checkpoint  # noqa: E402
from runs import flags_of, json_report  # noqa: E402
from serving import QUINTET, Server, Verdict, arguments, core_halves, load  # noqa: E402

GOAL = 0.92


def engine_report(cores, settings):
    command = ["taskset", "-c", cores, QUINTET, "bench", "engine", *flags_of(settings)]
    return json_report(command, timeout=120)


def main() -> int:
    args = arguments(
        __doc__,
        model="t5-base",
        work="",
        device="cuda",
        dtype="bf16",
        max_running=256,
        cache_memory=16384,
        rounds=3,
        requests=5000,
        input_tokens="16:512",
        output_tokens="8:128",
        beam_share=0.25,
    )
    if not args.work:
        sys.exit("--work DIR is needed: the folder for the checkpoint")
    server_cores, client_cores = core_halves()
    channels = os.cpu_count() // 2
    model = checkpoint(args.model, args.work)
    sizes = dict(
        device=args.device,
        dtype=args.dtype,
        max_running=args.max_running,
        max_input_tokens=512,
        max_batch_tokens=16384,
        cache_memory=args.cache_memory,
    )
    shape = dict(
        concurrency=2 * args.max_running,
        warmup=2 * args.max_running,
        requests=args.requests,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        beam_share=args.beam_share,
        num_beams=4,
    )
    tokens = {"engine": [], "streams": [], "whole answers": []}
    begin = time.monotonic()
    verdict = Verdict(
        "server_share_gpu",
        None,
        "share of the engine's own tokens/s on a GPU that the server keeps",
    )
    with Server(
        model,
        core=server_cores,
        threads=0,
        prefill_share=0,
        max_queue=4 * args.max_running,
        max_queue_tokens=1 << 22,
        **{**sizes, "encoder_cache_bytes": 0},
    ) as server:
        verdict.figure("seconds until the server was ready", round(time.monotonic() - begin, 2))
        for _ in range(args.rounds):
            reports = {
                "engine": engine_report(server_cores, dict(model=model, **sizes, **shape)),
                "streams": load(server.target, core=client_cores, channels=channels, **shape),
                "whole answers": load(
                    server.target, core=client_cores, channels=channels, unary=True, **shape
                ),
            }
            for kind, report in reports.items():
                tokens[kind].append(report["load"]["output_tokens_per_s"])
                print(
                    kind,
                    {
                        name: report["load"][name]
                        for name in ("requests_per_s", "output_tokens_per_s", "codes")
                    },
                    flush=True,
                )
        verdict.figure("server", server.flags)
    verdict.conditions(reports["streams"])
    verdict.figure("configuration", reports["streams"]["configuration"])
    verdict.figure("output_tokens_per_s", tokens)
    for kind in ("streams", "whole answers"):
        share = statistics.median(tokens[kind]) / statistics.median(tokens["engine"])
        verdict.claim(f"{kind}: share of the engine's tokens/s >= {GOAL}", share, share >= GOAL)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
