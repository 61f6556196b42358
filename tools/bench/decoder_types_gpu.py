#!/usr/bin/env python3
"""Times decoder steps on a GPU with several types of weights (--dtype) or of keys and values in the
cache (--cache-dtype), in alternation on one machine.

A step's time is the difference of the medians of two runs with few and with many new tokens,
divided by the difference of these numbers, so that encoding does not count. Models have the shapes
of T5-base and XL and random weights (random_t5.py). Needs only the standard library.

usage: decoder_types_gpu.py cache|weights --quintet build/quintet --work DIR [--out FILE]
           [--models t5-base t5-xl]
"""

import argparse
import pathlib
import statistics
import sys

import random_t5
from runs import add_timeout_and_out, bench, bench_parser, conditions_of, write_report

# For each comparison: the flags of each type; for each model, (rows, lengths of their inputs).
TYPES = {
    "cache": {
        "auto": dict(dtype="bf16", cache_dtype="auto"),
        "fp8": dict(dtype="bf16", cache_dtype="fp8"),
    },
    "weights": {
        "bf16": dict(dtype="bf16"),
        "int8": dict(dtype="int8"),
        "fp8": dict(dtype="fp8"),
        "fp8 + fp8 cache": dict(dtype="fp8", cache_dtype="fp8"),
    },
}
STEPS = ((1, 4, 8, 16, 32, 64, 128), (128,))
SHAPES = {
    "cache": {  # XL with 128 rows of 4,096 tokens does not fit into 141 GB
        "t5-base": [((32, 128), (128, 1024, 4096))],
        "t5-xl": [((32,), (128, 1024, 4096)), ((128,), (128, 1024))],
    },
    "weights": {"t5-base": [STEPS], "t5-xl": [STEPS]},
}


def run_times(args, directory, shape, flags, new_tokens):
    """Returns {(rows, length of the inputs): [ms of each run]}, and the conditions."""
    rows, lengths = shape
    report = bench(
        args.quintet,
        args.timeout,
        model=directory,
        device="cuda",
        mode="generate",
        batch=list(rows),
        input_tokens=list(lengths),
        new_tokens=new_tokens,
        repetitions=args.repetitions,
        **flags,
    )
    times = {(row["batch"], row["input_tokens"]): row["all_wall_ms"] for row in report["rows"]}
    return times, conditions_of(report, "version", "commit", "device")


def measure(args, name, directory, shape, report):
    times = {}
    for label, flags in TYPES[args.compare].items():
        for tokens in (args.few, args.many):
            times[label, tokens], report["conditions"] = run_times(
                args, directory, shape, flags, tokens
            )
    for rows in shape[0]:
        for length in shape[1]:
            row = dict(model=name, rows=rows, input_tokens=length, ms={}, all_ms={})
            for label in TYPES[args.compare]:
                few, many = (times[label, n][rows, length] for n in (args.few, args.many))
                steps = args.many - args.few
                row["ms"][label] = (statistics.median(many) - statistics.median(few)) / steps
                row["all_ms"][label] = dict(few=few, many=many)
            report["rows"].append(row)
    write_report(args.out, report)  # after each shape: a run may be interrupted


def main():
    parser = bench_parser(__doc__, "folder for the checkpoints")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("compare", choices=list(TYPES))
    parser.add_argument("--models", nargs="+", default=["t5-base", "t5-xl"])
    parser.add_argument("--few", type=int, default=32, help="new tokens of the short runs")
    parser.add_argument("--many", type=int, default=160, help="new tokens of the long runs")
    parser.add_argument("--repetitions", type=int, default=3)
    add_timeout_and_out(parser, 120, "run of quintet bench")
    args = parser.parse_args()
    report = dict(compare=args.compare, few=args.few, many=args.many, conditions={}, rows=[])
    for name in args.models:
        directory = pathlib.Path(args.work) / name
        if not (directory / "model.safetensors").exists():
            random_t5.write(directory, name)
        for shape in SHAPES[args.compare][name]:
            measure(args, name, directory, shape, report)
    labels = list(TYPES[args.compare])
    print("model     rows  input" + "".join(f" {label:>16s}" for label in labels) + "  ms/step")
    for row in report["rows"]:
        values = "".join(f" {row['ms'][label]:16.3f}" for label in labels)
        print(f"{row['model']:9s} {row['rows']:4d} {row['input_tokens']:6d}{values}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
