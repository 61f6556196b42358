#!/usr/bin/env python3
"""What the server keeps of the engine's own speed: the same requests in closed loops, first on an engine inside `quintet bench engine`, then
through `quintet serve` and a client, taking turns. The engine has one thread on one core, the client the other core.

Two servers are measured: one that may use both cores (its engine's thread is alone with gRPC's and the client's), and one that is pinned
to the engine's core with everything it does. usage: server_share.py [--model DIR] [--out DIR] ...
"""
import pathlib
import statistics
import subprocess
import sys
import json

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reliability"))
from serving import LOAD_CORE, QUINTET, SERVER_CORE, Server, Verdict, arguments, load  # noqa: E402


def engine(model, **flags) -> dict:
    command = ["taskset", "-c", SERVER_CORE, QUINTET, "bench", "engine", "--model", str(model), "--threads", "1", "--max-running", "256",
               "--cache-memory", "512", "--output", "json"]
    for name, value in flags.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> int:
    args = arguments(__doc__, name="g2p", rounds=5, concurrency=32, warmup=64, requests=1500, input_tokens="4:24", output_tokens="8:64")
    verdict = Verdict(f"server_share_{args.name}", None, "share of the engine's own tokens/s that the server keeps")
    shape = dict(concurrency=args.concurrency, warmup=args.warmup, requests=args.requests, input_tokens=args.input_tokens,
                 output_tokens=args.output_tokens)
    tokens = {"engine": [], "server": [], "server pinned": []}
    # As in bench engine: encoding is not held back for running streams, and no encoder output is kept for the next round.
    with Server(args.model, prefill_share=0, encoder_cache_bytes=0) as free, Server(args.model, core=SERVER_CORE, prefill_share=0, encoder_cache_bytes=0) as pinned:
        for _ in range(args.rounds):
            tokens["engine"].append(engine(args.model, **shape)["load"]["output_tokens_per_s"])
            for name, server in (("server", free), ("server pinned", pinned)):
                report = load(server.target, core=LOAD_CORE, **shape)
                tokens[name].append(report["load"]["output_tokens_per_s"])
    verdict.conditions(report)
    verdict.figure("configuration", report["configuration"])
    verdict.figure("server", free.flags)
    verdict.figure("output_tokens_per_s", tokens)
    for name in ("server", "server pinned"):
        share = statistics.median(tokens[name]) / statistics.median(tokens["engine"])
        verdict.claim(f"{name}: share of the engine's tokens/s >= 0.92", share, share >= 0.92)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
