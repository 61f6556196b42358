#!/usr/bin/env python3
"""Measures the throughput of one server at saturation through each of its protocols: quintet.v1
over gRPC, KServe v2 over gRPC, and the HTTP API. For streams and for whole answers, the protocols
take turns for several rounds with the same requests, in closed loops that keep the server's queue
filled. Reports requests/s, output tokens/s and the server's CPU time per request, and the ratio to
quintet.v1. The claim is that each protocol reaches 85 % of quintet.v1's tokens/s.

The server uses the first half of the machine's cores; --clients processes of `quintet bench serve`
share the other half, so that no client is the bottleneck. Each round's load runs for --seconds.
With --prompts the requests are the lines of a file and the model ends each sequence; otherwise they
are random token ids with exact output lengths.

usage: protocols.py [--model DIR] [--device cuda] [--dtype bf16] [--out DIR] ...
QUINTET_BINARY: the program, build/quintet unless set. Needs only Python's standard library.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "reliability"))
from serving import (  # noqa: E402
    Server,
    Verdict,
    arguments,
    core_halves,
    failures,
    free_port,
    load_command,
    raise_files_limit,
    spawn,
)

GOAL = 0.85
PROTOCOLS = ("grpc", "kserve", "http")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process, of all its threads."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def run_load(commands: list[list[str]]) -> list[dict]:
    """Runs the clients at once and returns their reports."""
    outputs = [tempfile.TemporaryFile() for _ in commands]
    children = [spawn(command, stdout=out) for command, out in zip(commands, outputs)]
    reports = []
    for child, out, command in zip(children, outputs, commands):
        if child.wait(600):
            raise subprocess.CalledProcessError(child.returncode, command)
        out.seek(0)
        reports.append(json.load(out))
    return reports


def measure(server, address: str, protocol: str, args, cores: str, unary: bool) -> dict:
    """Returns the rates of one round, summed over the clients."""
    flags = dict(
        protocol=protocol,
        concurrency=args.concurrency // args.clients,
        warmup=args.concurrency // args.clients,
        duration=args.seconds,
        channels=args.channels,
    )
    if args.prompts:
        flags["prompts"] = args.prompts
    else:
        flags |= dict(input_tokens=args.input_tokens, output_tokens=args.output_tokens)
    if unary:
        flags["unary"] = True
    commands = [load_command(address, core=cores, seed=1 + i, **flags) for i in range(args.clients)]
    before = cpu_seconds(server.process.pid)
    reports = run_load(commands)
    used = cpu_seconds(server.process.pid) - before
    failed = sum(failures(report) for report in reports)
    if failed:
        raise RuntimeError(f"{protocol}: {failed} requests failed: {reports[0]['load']['codes']}")
    loads = [report["load"] for report in reports]
    return {
        "requests_per_s": sum(load["requests_per_s"] for load in loads),
        "output_tokens_per_s": sum(load["output_tokens_per_s"] for load in loads),
        # Divide by all requests, warm-up included: the CPU time includes them, too.
        "server_cpu_us_per_request": 1e6 * used / sum(load["answered"] for load in loads),
        "report": reports[0],
    }


def table(kind: str, rounds: dict) -> None:
    print(f"{kind:<14} {'requests/s':>12} {'tokens/s':>12} {'CPU us/request':>15} {'of grpc':>8}")
    base = statistics.median(one["output_tokens_per_s"] for one in rounds["grpc"])
    for protocol, measured in rounds.items():
        middle = {
            name: statistics.median(one[name] for one in measured)
            for name in ("requests_per_s", "output_tokens_per_s", "server_cpu_us_per_request")
        }
        print(
            f"{protocol:<14} {middle['requests_per_s']:>12.1f} "
            f"{middle['output_tokens_per_s']:>12.1f} "
            f"{middle['server_cpu_us_per_request']:>15.1f} "
            f"{middle['output_tokens_per_s'] / base:>8.3f}"
        )


def main() -> int:
    args = arguments(
        __doc__,
        device="cpu",
        dtype="",
        threads=0,
        max_running=256,
        cache_memory=1024,
        rounds=5,
        seconds=8.0,
        clients=4,
        channels=2,
        concurrency=512,
        input_tokens="4:24",
        output_tokens="8:64",
        prompts="",
        name="protocols",
    )
    raise_files_limit()
    server_cores, client_cores = core_halves()
    verdict = Verdict(args.name, None, "throughput of the protocols at saturation")
    http = f"127.0.0.1:{free_port()}"
    flags = dict(
        http_api_listen=http,
        device=args.device,
        threads=args.threads,
        max_running=args.max_running,
        cache_memory=args.cache_memory,
        max_queue=2 * args.concurrency,
        max_queue_tokens=1 << 22,
        # As in bench engine, do not throttle encoding, and do not cache encoder outputs, from which
        # later rounds would profit.
        prefill_share=0,
        encoder_cache_bytes=0,
    )
    if args.dtype:
        flags["dtype"] = args.dtype
    with Server(args.model, core=server_cores, **flags) as server:
        for kind, unary in (("streams", False), ("whole answers", True)):
            rounds: dict = {protocol: [] for protocol in PROTOCOLS}
            for index in range(args.rounds + 1):
                for protocol in PROTOCOLS:
                    address = http if protocol == "http" else server.target
                    one = measure(server, address, protocol, args, client_cores, unary)
                    report = one.pop("report")
                    if index > 0:  # the first round warms up the server
                        rounds[protocol].append(one)
            table(kind, rounds)
            verdict.figure(kind, rounds)
            base = statistics.median(one["output_tokens_per_s"] for one in rounds["grpc"])
            for protocol in PROTOCOLS[1:]:
                rate = statistics.median(one["output_tokens_per_s"] for one in rounds[protocol])
                verdict.claim(
                    f"{kind}: tokens/s of {protocol} against grpc >= {GOAL}",
                    rate / base,
                    rate / base >= GOAL,
                )
        verdict.conditions(report)
        verdict.figure("configuration", report["configuration"])
        verdict.figure("clients", args.clients)
        verdict.figure("server", server.flags)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
