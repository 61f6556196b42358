#!/usr/bin/env python3
"""Measures how much longer the Python package takes than the command line for the same lines.

    tools/bench/package_overhead.py [--device DEVICE] [--lines N] [--encode-lines N] [--repeats N]
        [--model DIR] [--out FILE]

Measures the package of build/python and the command build/quintet. QUINTET_PACKAGE=installed
selects the installed package, QUINTET_BINARY another command. Every job runs in its own process,
which loads the model and processes one line before the measurement. The time of a command runs from
the first line sent to its standard input to the last byte of its output. The time of a job of the
package is the duration of the call. Each job is compared with its base, a job that does the same
work. In each repeat all jobs run one after the other. The script prints for each job, and writes to
FILE as JSON, the medians of wall time, CPU time (user and system), minor page faults and context
switches. It also reports the ratio of the job's wall time to the wall time of its base in the same
repeat: median, lowest and highest.

"32 threads" passes one line in each call, so that the engine has at most 32 lines at a time; "calls
of 32 lines" passes as many in each call of one thread, which then waits for the slowest of them.

The job "Model.encode, kept memory" runs Model.encode with glibc settings that keep freed memory in
the process, as the command does.
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools" / "reliability"))
from serving import QUINTET, machine

PACKAGE = (
    {}
    if os.environ.get("QUINTET_PACKAGE") == "installed"
    else {"PYTHONPATH": str(SOURCE / "build" / "python")}
)
# A program that loads a model, makes one call to warm up, and prints the FIGURES of {work}.
PROGRAM = """
import json, resource, sys, threading, time, quintet
model = quintet.Model(sys.argv[1], device=sys.argv[2])
lines = open(sys.argv[3], encoding="utf-8").read().splitlines()
model.{method}(lines[:1])
before, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
{work}
wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
print(json.dumps([wall, cpu, after.ru_minflt - before.ru_minflt, switches]))
"""
THREADS = """
def work(first):
    for line in lines[first::32]:
        model.generate(line)
threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
CALLS_OF_32 = """
for i in range(0, len(lines), 32):
    model.generate(lines[i : i + 32])
"""
KEEP_MEMORY = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824"
FIGURES = ("wall_s", "cpu_s", "page_faults", "context_switches")


def usage_of(pid: int) -> list[float]:
    """CPU seconds, minor page faults and context switches of a running process."""
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    switches = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            for line in (task / "status").read_text().splitlines():
                switches += int(line.split()[1]) if "ctxt_switches" in line else 0
    return [(int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), int(stat[7]), switches]


def run_command(
    flags: list[str], lines: bytes, measure_of: Callable[[bytes], int], per_line: int
) -> list[float]:
    """Returns the FIGURES of a command. `measure_of` returns the size of a part of the output, for
    example in bytes; `per_line` is the size of the output for one input line."""
    count = lines.count(b"\n")
    with subprocess.Popen(
        [QUINTET, *flags, "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)

        def read(wanted: int) -> None:
            while wanted > 0:
                part = os.read(process.stdout.fileno(), 1 << 20)
                if not part:
                    raise RuntimeError(f"{QUINTET} {' '.join(flags)} ended early")
                wanted -= measure_of(part)

        def write() -> None:
            process.stdin.write(lines)
            process.stdin.close()

        process.stdin.write(lines[: lines.index(b"\n") + 1])
        process.stdin.flush()
        read(per_line)
        before, begin = usage_of(process.pid), time.monotonic()
        writer = threading.Thread(target=write)
        writer.start()
        read(count * per_line)
        # Before the process ends, so that its exit is not counted.
        wall, after = time.monotonic() - begin, usage_of(process.pid)
        writer.join()
    return [wall, *(last - first for last, first in zip(after, before, strict=True))]


def run_package(
    model: str, device: str, lines: pathlib.Path, method: str, work: str, **environment: str
) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(method=method, work=work), model, device, lines],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, **PACKAGE, **environment},
    )
    return json.loads(done.stdout)


def jobs_of(arguments: argparse.Namespace, generate: pathlib.Path, encode: pathlib.Path) -> dict:
    """Returns {name of a job: (function that runs it once and returns its FIGURES, name of its
    base or None)}."""
    flags = ["--model", arguments.model, "--device", arguments.device]
    config = json.loads(pathlib.Path(arguments.model, "config.json").read_text(encoding="utf-8"))
    row_bytes = 4 * config["d_model"]

    def package(lines, method, work, **environment):
        return lambda: run_package(
            arguments.model, arguments.device, lines, method, work, **environment
        )

    return {
        "quintet generate": (
            lambda: run_command(
                ["generate", *flags], generate.read_bytes(), lambda part: part.count(b"\n"), 1
            ),
            None,
        ),
        "Model.generate": (
            package(generate, "generate", "model.generate(lines)"),
            "quintet generate",
        ),
        "32 threads": (package(generate, "generate", THREADS), "Model.generate"),
        "calls of 32 lines": (package(generate, "generate", CALLS_OF_32), "32 threads"),
        "quintet encode": (
            lambda: run_command(
                ["encode", "--output", "f32", *flags], encode.read_bytes(), len, row_bytes
            ),
            None,
        ),
        "Model.encode": (package(encode, "encode", "model.encode(lines)"), "quintet encode"),
        "Model.encode, kept memory": (
            package(encode, "encode", "model.encode(lines)", GLIBC_TUNABLES=KEEP_MEMORY),
            "quintet encode",
        ),
    }


def measure(arguments: argparse.Namespace) -> dict[str, dict]:
    words = (SOURCE / "tests" / "data" / "g2p" / "test.tsv").read_text(encoding="utf-8")
    texts = [line.split("\t")[0] for line in words.splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, count in (("generate", arguments.lines), ("encode", arguments.encode_lines)):
            repeated = (texts * (count // len(texts) + 1))[:count]
            files.append(pathlib.Path(folder, name))
            files[-1].write_text("".join(f"{text}\n" for text in repeated), encoding="utf-8")
        jobs = jobs_of(arguments, *files)
        figures: dict[str, list[list[float]]] = {name: [] for name in jobs}
        for _ in range(arguments.repeats):
            for name, (run, _) in jobs.items():
                figures[name].append(run())
    report = {}
    for name, (_, base) in jobs.items():
        medians = [statistics.median(column) for column in zip(*figures[name], strict=True)]
        report[name] = dict(zip(FIGURES, medians, strict=True))
        if base is not None:
            pairs = zip(figures[name], figures[base], strict=True)
            ratios = sorted(own[0] / other[0] for own, other in pairs)
            report[name] |= {
                "base": base,
                "wall_ratio": statistics.median(ratios),
                "wall_ratio_range": [ratios[0], ratios[-1]],
            }
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--lines", type=int, default=40_000, help="of generate")
    parser.add_argument("--encode-lines", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default=str(SOURCE / "deploy" / "models" / "g2p"))
    parser.add_argument("--out", type=pathlib.Path, help="JSON file to write")
    arguments = parser.parse_args()
    jobs = measure(arguments)
    for name, job in jobs.items():
        compared = ""
        if "base" in job:
            low, high = job["wall_ratio_range"]
            compared = f"{job['wall_ratio']:.3f} ({low:.3f} to {high:.3f}) of {job['base']}"
        print(
            f"{name:26} wall {job['wall_s']:7.3f} s  CPU {job['cpu_s']:7.2f} s  "
            f"{job['page_faults']:8.0f} faults  {job['context_switches']:8.0f} switches  {compared}"
        )
    if arguments.out is not None:
        report = {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "conditions": {**machine(), "device": arguments.device},
            "model": pathlib.Path(arguments.model).name,
            "lines": arguments.lines,
            "encode_lines": arguments.encode_lines,
            "repeats": arguments.repeats,
            "jobs": jobs,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
