#!/usr/bin/env python3
"""What the Python package costs compared with the command line: the same lines through both.

    tools/bench/package_overhead.py [--lines N] [--repeats N] [--model DIR]

Every job is a process of its own, and the time of the same process without lines (loading) is
subtracted. Printed for each job: the smallest CPU time (user and system) and wall time of its
repeats, and the ratio of each to its base: the command for Model, one call for 32 threads that call
with one line each. On a machine with other load compare the CPU times.
"""

import argparse
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = SOURCE / "build"
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


def run(command: list[str], lines: pathlib.Path) -> tuple[float, float]:
    """CPU and wall seconds of a process that reads the lines from standard input or by name."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with lines.open("rb") as stdin:
        subprocess.run(
            command,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            check=True,
            env={**os.environ, "PYTHONPATH": str(BUILD / "python")},
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default=str(SOURCE / "deploy" / "models" / "g2p"))
    arguments = parser.parse_args()
    words = (SOURCE / "tests" / "data" / "g2p" / "test.tsv").read_text(encoding="utf-8")
    texts = [line.split("\t")[0] for line in words.splitlines()]
    texts = (texts * (arguments.lines // len(texts) + 1))[: arguments.lines]
    quintet = [str(BUILD / "quintet")]
    flags = ["--model", arguments.model, "--device", "cpu", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        full, empty = pathlib.Path(folder, "lines"), pathlib.Path(folder, "none")
        full.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        empty.write_text("")

        def python(code: str, lines: pathlib.Path) -> list[str]:
            return [sys.executable, "-c", code, arguments.model, str(lines)]

        jobs = {  # name: the job, the same without lines, and the job it is compared with
            "quintet generate": (lambda f: [*quintet, "generate", *flags], None),
            "Model.generate": (lambda f: python(ONE_CALL, f), "quintet generate"),
            "32 threads": (lambda f: python(THREADS, f), "Model.generate"),
            "quintet encode": (
                lambda f: [*quintet, "encode", "--output", "f32", *flags],
                None,
            ),
            "Model.encode": (lambda f: python(ENCODE, f), "quintet encode"),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for _ in range(arguments.repeats):
            for name, (command, _) in jobs.items():
                loading, whole = run(command(empty), empty), run(command(full), full)
                times[name].append((whole[0] - loading[0], whole[1] - loading[1]))
    best = {name: tuple(map(min, zip(*each, strict=True))) for name, each in times.items()}
    for name, (_, base) in jobs.items():
        cpu, wall = best[name]
        ratios = f"{cpu / best[base][0]:.2f} {wall / best[base][1]:.2f}" if base else ""
        print(f"{name:18} CPU {cpu:7.2f} s  wall {wall:7.2f} s  {ratios}")


if __name__ == "__main__":
    main()
