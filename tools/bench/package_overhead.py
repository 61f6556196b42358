#!/usr/bin/env python3
"""Measures how much longer the Python package takes than the command line for the same lines.

    tools/bench/package_overhead.py [--lines N] [--encode-lines N] [--repeats N] [--out FILE]

The package is that of build/python. Every job runs in its own process. A second process that does
the same without any lines measures the time of loading, which is subtracted. A job of the package
is compared with another job that does the same work, its base: the base of a call of quintet.Model
is the command; the base of 32 threads, each of which makes one call per line, is one call with all
lines. In each repeat all jobs run one after the other. The script prints, and writes to FILE as
JSON, the median CPU time (user and system) and wall time of each job, and the medians of the ratios
of these times to those of the base in the same repeat.
"""

import argparse
import datetime
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = SOURCE / "build"
sys.path.insert(0, str(SOURCE / "tools" / "reliability"))
from serving import machine

HEAD = """
import sys, threading, quintet
model = quintet.Model(sys.argv[1], device="cpu")
lines = open(sys.argv[2], encoding="utf-8").read().splitlines()
"""
ONE_CALL = HEAD + "model.generate(lines)"
THREADS = (
    HEAD
    + """
def work(first):
    for line in lines[first::32]:
        model.generate(line)
threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
)
ENCODE = HEAD + "model.encode(lines)"
QUINTET = [str(BUILD / "quintet")]
COMMAND_FLAGS = ["--device", "cpu", "--quiet"]
JOBS = {  # name: (the command without model and lines, the base)
    "quintet generate": ([*QUINTET, "generate", *COMMAND_FLAGS, "--model"], None),
    "Model.generate": ([sys.executable, "-c", ONE_CALL], "quintet generate"),
    "32 threads": ([sys.executable, "-c", THREADS], "Model.generate"),
    "quintet encode": ([*QUINTET, "encode", "--output", "f32", *COMMAND_FLAGS, "--model"], None),
    "Model.encode": ([sys.executable, "-c", ENCODE], "quintet encode"),
}


def run(command: list[str], lines: pathlib.Path) -> tuple[float, float]:
    """Returns the CPU and wall seconds of a process that processes the lines of a file: a command
    reads them from standard input, a Python program opens the file by its name."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with lines.open("rb") as stdin:
        subprocess.run(
            command if command[0] == QUINTET[0] else [*command, str(lines)],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            check=True,
            env={**os.environ, "PYTHONPATH": str(BUILD / "python")},
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.monotonic() - begin


def measure(arguments: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Runs every job once per repeat. Returns for each job one pair (CPU seconds, wall seconds) per
    repeat, from which the time of loading has been subtracted."""
    words = (SOURCE / "tests" / "data" / "g2p" / "test.tsv").read_text(encoding="utf-8")
    texts = [line.split("\t")[0] for line in words.splitlines()]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in JOBS}
    with tempfile.TemporaryDirectory() as folder:

        def file_of(count: int) -> pathlib.Path:
            path = pathlib.Path(folder, str(count))
            repeated = (texts * (count // len(texts) + 1))[:count]
            path.write_text("".join(f"{text}\n" for text in repeated), encoding="utf-8")
            return path

        empty = file_of(0)
        for _ in range(arguments.repeats):
            for name, (command, _) in JOBS.items():
                full = file_of(arguments.encode_lines if "encode" in name else arguments.lines)
                loading = run([*command, arguments.model], empty)
                whole = run([*command, arguments.model], full)
                times[name].append((whole[0] - loading[0], whole[1] - loading[1]))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=40_000, help="of generate")
    parser.add_argument("--encode-lines", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default=str(SOURCE / "deploy" / "models" / "g2p"))
    parser.add_argument("--out", type=pathlib.Path, help="JSON file to write")
    arguments = parser.parse_args()
    times = measure(arguments)
    jobs = {}
    for name, (_, base) in JOBS.items():
        cpu, wall = (list(column) for column in zip(*times[name], strict=True))
        job = {"cpu_s": statistics.median(cpu), "wall_s": statistics.median(wall)}
        ratios = ""
        if base is not None:
            job["base"] = base
            pairs = list(zip(times[name], times[base], strict=True))
            for i, key in enumerate(("cpu_ratio", "wall_ratio")):
                job[key] = statistics.median(own[i] / other[i] for own, other in pairs)
            ratios = f"{job['cpu_ratio']:.3f} {job['wall_ratio']:.3f} of {base}"
        jobs[name] = job
        print(f"{name:18} CPU {job['cpu_s']:7.2f} s  wall {job['wall_s']:7.2f} s  {ratios}")
    if arguments.out is not None:
        report = {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "conditions": machine(),
            "model": pathlib.Path(arguments.model).name,
            "lines": arguments.lines,
            "encode_lines": arguments.encode_lines,
            "repeats": arguments.repeats,
            "jobs": jobs,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
