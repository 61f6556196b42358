#!/usr/bin/env python3
"""Measures how long a command takes that processes one line: from process start to its output line
and to its exit.

The line is "phoneme", the model g2p, with 4 beams and the default device. Several binaries run in
alternation. The first run of each has an empty cache of measured GEMM choices; it is reported
separately ("cold") and, because it may also be the first to read files from disk, is no measure of
the cache alone.

usage: start_up.py --out FILE [--repeats N] BINARY...
"""

import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from runs import flag_parser, run, write_report

MODEL = pathlib.Path(__file__).resolve().parents[2] / "deploy/models/g2p"


def run_once(binary: str, cache: str) -> tuple[float, float]:
    """Returns the seconds from process start to the output line, and to the exit."""
    begin = time.monotonic()
    with subprocess.Popen(
        [binary, "generate", "--model", MODEL, "--num-beams", "4", "--quiet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "QUINTET_CACHE_DIR": cache},
    ) as process:
        process.stdin.write(b"phoneme\n")
        process.stdin.close()
        line = process.stdout.readline()
        answered = time.monotonic() - begin
        process.wait()
        ended = time.monotonic() - begin
    if line != b"F OW1 N IY0 M\n" or process.returncode != 0:
        raise RuntimeError(f"{binary} wrote {line!r} and returned {process.returncode}")
    return answered, ended


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="report (JSON)")
    parser.add_argument("--repeats", type=int, default=8, help="runs of each binary")
    parser.add_argument("binaries", nargs="+", metavar="BINARY")
    args = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as caches:
        cache_of = {binary: f"{caches}/{i}" for i, binary in enumerate(args.binaries)}
        for binary, cache in cache_of.items():
            rows[binary] = {
                "version": run([binary, "--version"]).splitlines()[0],
                "cold": run_once(binary, cache),
                "runs": [],
            }
        for _ in range(args.repeats):
            for binary, cache in cache_of.items():
                rows[binary]["runs"].append(run_once(binary, cache))
    for binary, row in rows.items():
        answers, exits = zip(*row["runs"], strict=True)
        row["median_answer_s"] = statistics.median(answers)
        row["median_exit_s"] = statistics.median(exits)
        print(
            f"{binary}: answer after {row['median_answer_s']:.3f} s "
            f"({min(answers):.3f} to {max(answers):.3f}), exit after {row['median_exit_s']:.3f} s; "
            f"cold {row['cold'][0]:.3f} and {row['cold'][1]:.3f} s"
        )
    write_report(args.out, {"cores": os.cpu_count(), "rows": rows})


if __name__ == "__main__":
    main()
