#!/usr/bin/env python3
"""Times decoder steps on a GPU with keys and values of the activations' type (--cache-dtype auto)
and of fp8, in alternation on one machine.

A step's time is the difference of the medians of two runs with few and with many new tokens,
divided by the difference of these numbers, so that encoding does not count. Models have the shapes
of T5-base and XL and random weights (random_t5.py). Needs only the standard library.

usage: cache_types_gpu.py --quintet build/quintet --work DIR [--out FILE] [--models t5-base t5-xl]
"""

import pathlib
import statistics
import sys

import random_t5
from runs import add_timeout_and_out, bench_parser, bench_with, conditions_of, write_report

CACHE_TYPES = ("auto", "fp8")
# (rows, lengths of their inputs). XL with 128 rows of 4,096 tokens does not fit into 141 GB.
SHAPES = {
    "t5-base": [(32, (128, 1024, 4096)), (128, (128, 1024, 4096))],
    "t5-xl": [(32, (128, 1024, 4096)), (128, (128, 1024))],
}


def run_times(args, directory, rows, lengths, cache_type, new_tokens):
    """Returns {length of the inputs: [ms of each run]}, and the conditions."""
    report = bench_with(
        args,
        directory,
        mode="generate",
        batch=rows,
        input_tokens=list(lengths),
        new_tokens=new_tokens,
        repetitions=args.repetitions,
        cache_dtype=cache_type,
    )
    times = {row["input_tokens"]: row["all_wall_ms"] for row in report["rows"]}
    return times, conditions_of(report, "version", "commit", "device", "dtype")


def step_ms(few, many, args):
    steps = args.many - args.few
    return (statistics.median(many) - statistics.median(few)) / steps


def measure(args, name, directory, report):
    for rows, lengths in SHAPES[name]:
        times = {}
        for cache_type in CACHE_TYPES:
            for new_tokens in (args.few, args.many):
                times[cache_type, new_tokens], report["conditions"] = run_times(
                    args, directory, rows, lengths, cache_type, new_tokens
                )
        for length in lengths:
            row = dict(model=name, rows=rows, input_tokens=length)
            for cache_type in CACHE_TYPES:
                few, many = (times[cache_type, n][length] for n in (args.few, args.many))
                row[f"{cache_type}_ms"] = step_ms(few, many, args)
                row[f"{cache_type}_all_ms"] = dict(few=few, many=many)
            row["ratio"] = row["fp8_ms"] / row["auto_ms"]
            report["rows"].append(row)
        write_report(args.out, report)  # after each shape: a run may be interrupted


def main():
    parser = bench_parser(__doc__, "folder for the checkpoints")
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--few", type=int, default=32, help="new tokens of the short runs")
    parser.add_argument("--many", type=int, default=160, help="new tokens of the long runs")
    parser.add_argument("--repetitions", type=int, default=3)
    add_timeout_and_out(parser, 120, "run of quintet bench")
    args = parser.parse_args()
    report = dict(few=args.few, many=args.many, conditions={}, rows=[])
    for name in args.models:
        directory = pathlib.Path(args.work) / name
        if not (directory / "model.safetensors").exists():
            random_t5.write(directory, name)
        measure(args, name, directory, report)
    print("model     rows  input   auto ms/step   fp8 ms/step   fp8/auto")
    for row in report["rows"]:
        print(
            f"{row['model']:9s} {row['rows']:4d} {row['input_tokens']:6d} {row['auto_ms']:14.3f} "
            f"{row['fp8_ms']:13.3f} {row['ratio']:10.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
