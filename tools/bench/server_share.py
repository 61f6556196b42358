#!/usr/bin/env python3
"""Measures the fraction of the engine's speed that remains when requests go through the server. The
same requests run in closed loops that keep the queue filled, alternately on an engine inside
`quintet bench engine` and through `quintet serve` and a client. Measures the shipped model and a
model of T5-small's shape with random weights, or the model of --model.

In both cases the engine has one thread on its own core; the server's other threads and the client
share the other core. For comparison, a server with all its threads on the engine's core is
reported, too. Both engines run at most --max-running sequences, do not throttle encoding for
running streams, and do not cache encoder outputs. The exit code is 0 if the server reaches 0.92 of
the engine's tokens/s, and if `quintet bench engine` always got at least 0.95 of the time of its
core: other jobs on the machine would invalidate the result. (Jobs in the idle scheduling class
disturb the measurement, too: with Linux's autogroups, a session of such jobs gets as much CPU time
as any other session. `echo -20 > /proc/self/autogroup`, as root, gives a shell and its children
precedence over other sessions.)
usage: server_share.py [--model DIR] [--out DIR] ...
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reliability"))
import random_t5  # noqa: E402
from runs import flags_of  # noqa: E402
from serving import (  # noqa: E402
    G2P,
    LOAD_CORE,
    QUINTET,
    SERVER_CORE,
    Server,
    Verdict,
    arguments,
    load,
    spawn,
)

# Server flags with which the server behaves like bench engine: it does not slow down encoding in
# favour of running streams, and it does not cache encoder outputs, from which the next round would
# profit.
AS_ENGINE = dict(prefill_share=0, encoder_cache_bytes=0)


def engine(model: str, max_running: int, **flags) -> tuple[float, float]:
    """Runs quintet bench engine. Returns tokens/s and the fraction of its core that the process
    got."""
    settings = dict(model=model, threads=1, max_running=max_running, cache_memory=512, **flags)
    command = ["taskset", "-c", SERVER_CORE, QUINTET, "bench", "engine"]
    command += flags_of(dict(settings, output="json"))
    with tempfile.TemporaryFile() as output:
        begin = time.monotonic()
        child = spawn(command, stdout=output)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begin
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command)
        output.seek(0)
        return json.load(output)["load"]["output_tokens_per_s"], (
            usage.ru_utime + usage.ru_stime
        ) / wall


def measure(verdict: Verdict, name: str, model: str, args, requests: int) -> None:
    shape = dict(
        concurrency=2 * args.max_running,
        warmup=2 * args.max_running,
        requests=requests,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
    )
    tokens, shares = {"engine": [], "server": [], "server on one core": []}, []
    with contextlib.ExitStack() as stack:

        def serve(**placement):
            return stack.enter_context(
                Server(model, max_running=args.max_running, **AS_ENGINE, **placement)
            )

        servers = {
            "server": serve(core=LOAD_CORE, engine_core=SERVER_CORE),
            "server on one core": serve(core=SERVER_CORE),
        }
        for _ in range(args.rounds):
            speed, share = engine(model, args.max_running, **shape)
            tokens["engine"].append(speed)
            shares.append(share)
            for kind, server in servers.items():
                report = load(server.target, core=LOAD_CORE, **shape)
                tokens[kind].append(report["load"]["output_tokens_per_s"])
    verdict.conditions(report)
    verdict.figure(f"{name}: configuration", report["configuration"])
    verdict.figure(f"{name}: server", servers["server"].flags)
    verdict.figure(f"{name}: output_tokens_per_s", tokens)
    verdict.figure(f"{name}: share of its core that the baseline got", shares)
    medians = {kind: statistics.median(values) for kind, values in tokens.items()}
    verdict.figure(
        f"{name}: share of the engine's tokens/s on one core",
        medians["server on one core"] / medians["engine"],
    )
    verdict.claim(
        f"{name}: least share of its core that the baseline got >= 0.95",
        min(shares),
        min(shares) >= 0.95,
    )
    share = medians["server"] / medians["engine"]
    verdict.claim(f"{name}: share of the engine's tokens/s >= 0.92", share, share >= 0.92)


def main() -> int:
    args = arguments(
        __doc__,
        model="",
        rounds=5,
        max_running=32,
        requests=1200,
        requests_t5_small=120,
        input_tokens="4:24",
        output_tokens="8:64",
    )
    verdict = Verdict(
        "server_share", None, "share of the engine's own tokens/s that the server keeps"
    )
    if args.model:
        measure(verdict, pathlib.Path(args.model).name, args.model, args, args.requests)
    else:
        measure(verdict, "g2p", str(G2P), args, args.requests)
        with random_t5.directory() as model:
            measure(verdict, "t5-small", model, args, args.requests_t5_small)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
