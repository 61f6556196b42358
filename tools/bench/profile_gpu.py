#!/usr/bin/env python3
"""Breaks down the time of a decode step on a GPU. There is one row for every model, batch size and
number of beams that has a goal in GOALS (milliseconds per step). A row that misses its goal also
shows the time of each kind of op.

Models of the real shapes with random weights in bf16; 128 input tokens, 64 output tokens, as in
peers_gpu.py. For each row, in milliseconds per step:
- the time of the whole call divided by its number of steps (quintet bench), and the goal;
- encode: the part of the call that is spent encoding the inputs (for GPT-2: prefill);
- GPU: the time of the decoder step's CUDA graph launched alone, with the mean number of keys
  (bench_steps_gpu), and the time saved by leaving out each kind of op. Ops overlap, so these times
  do not add up;
- host: the time in which the host does not wait for the GPU, if quintet bench reports it;
- rest: the whole call minus encode and GPU, for example the host round trip of beam search between
  steps.

usage: profile_gpu.py --quintet build/quintet --steps build/tools/bench_steps_gpu --work DIR
           [--models ...] [--all] [--out FILE]
"""

import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from batching_gpu import checkpoint  # noqa: E402
from runs import (  # noqa: E402
    add_timeout_and_out,
    bench,
    flag_parser,
    flags_of,
    json_report,
    limits_for,
    write_report,
)

SOURCE_TOKENS, NEW_TOKENS = 128, 64
GOALS = {  # model: {(batch, beams): ms per step}
    "t5-small": {(1, 1): 0.20, (128, 1): 0.40},
    "t5-base": {
        (1, 1): 0.35,
        (8, 1): 0.40,
        (32, 1): 0.50,
        (128, 1): 0.90,
        (1, 4): 0.45,
        (8, 4): 0.55,
        (32, 4): 0.90,
    },
    "gpt2": {
        (1, 1): 0.25,
        (8, 1): 0.28,
        (32, 1): 0.40,
        (128, 1): 0.90,
        (8, 4): 0.50,
        (32, 4): 0.90,
    },
    "flan-t5-xl": {(1, 1): 1.20, (32, 1): 1.80, (128, 1): 4.00, (32, 4): 2.80},
}
KINDS_SHOWN = 5


def whole_calls(args, model, directory, beams):
    """Measures whole calls of the model with quintet bench. Returns one row for each batch size
    that has a goal with this number of beams, and the commit of the build."""
    batches = [batch for batch, row_beams in GOALS[model] if row_beams == beams]
    if not batches:
        return [], None
    report = bench(
        args.quintet,
        args.timeout,
        model=directory,
        device="cuda",
        dtype="bf16",
        mode="encode-first,generate",
        batch=batches,
        num_beams=beams,
        input_tokens=SOURCE_TOKENS,
        new_tokens=NEW_TOKENS,
        repetitions=args.repetitions,
        warmup=2,
        **limits_for(max(batches), SOURCE_TOKENS, beams),
        cache_memory=16384,
    )
    encodes = {
        row["batch"]: row["wall_ms"] for row in report["rows"] if row["mode"] == "encode-first"
    }
    rows = []
    for row in report["rows"]:
        if row["mode"] != "generate":
            continue
        goal = GOALS[model][(row["batch"], beams)]
        whole = row["wall_ms"] / NEW_TOKENS
        rows.append(
            dict(
                model=model,
                batch=row["batch"],
                beams=beams,
                goal_ms=goal,
                ms=whole,
                met=whole <= goal,
                encode_ms=encodes[row["batch"]] / NEW_TOKENS,
                host_us=row.get("host_us_per_step"),
            )
        )
    return rows, report["conditions"]["commit"]


def add_steps(args, model, rows):
    """Adds to each row the GPU time of the whole step, and of the step without each kind of op."""
    flags = flags_of(
        dict(
            models=model,
            shapes=[f"{row['batch']}x{row['beams']}" for row in rows],
            source=SOURCE_TOKENS,
            keys=NEW_TOKENS // 2,
            measure=True,
            parts=True,
        )
    )
    report = json_report([args.steps, *flags], args.timeout)
    for row, step in zip(rows, report["results"], strict=True):
        row["gpu_ms"] = step["us"] / 1e3
        row["rest_ms"] = row["ms"] - row["encode_ms"] - row["gpu_ms"]
        kinds = [
            dict(kind=kind, ops=part["count"], us=part["count"] * part["us_each"])
            for kind, part in step["parts"].items()
        ]
        row["kinds"] = sorted(kinds, key=lambda kind: -kind["us"])
    return report["device"]


def show(row):
    name = f"{row['model']} {row['batch']}" + (f"x{row['beams']}" if row["beams"] > 1 else "")
    host = f" host {row['host_us']:4.0f} us" if row["host_us"] is not None else ""
    line = (
        f"{name:16s} {row['ms']:6.3f} ms, goal {row['goal_ms']:5.2f} "
        f"{'met   ' if row['met'] else 'missed'} encode {row['encode_ms']:5.3f}{host}"
    )
    if "gpu_ms" in row:
        kinds = ", ".join(
            f"{kind['kind']} {kind['ops']}x {kind['us']:.0f}" for kind in row["kinds"][:KINDS_SHOWN]
        )
        line += f" GPU {row['gpu_ms']:5.3f} rest {row['rest_ms']:6.3f} | us: {kinds}"
    print(line, flush=True)


def main():
    parser = flag_parser(__doc__)
    parser.add_argument("--quintet", default="build/quintet")
    parser.add_argument("--steps", default="build/tools/bench_steps_gpu")
    parser.add_argument("--work", required=True, help="directory for the checkpoints")
    parser.add_argument("--models", nargs="+", default=list(GOALS), choices=list(GOALS))
    parser.add_argument(
        "--all", action="store_true", help="also break down rows that meet their goals"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    out = "also write the report as JSON to this file; current after each model"
    add_timeout_and_out(parser, 60, "process", out)
    args = parser.parse_args()
    begin = time.monotonic()
    os.makedirs(args.work, exist_ok=True)
    report = dict(rows=[], failed=[])
    for model in args.models:
        rows = []
        try:
            directory = checkpoint(model, args.work)
            for beams in (1, 4):
                measured, commit = whole_calls(args, model, directory, beams)
                rows += measured
                report["commit"] = commit or report.get("commit")
            apart = [row for row in rows if args.all or not row["met"]]
            if apart:
                report["device"] = add_steps(args, model, apart)
        except (RuntimeError, subprocess.TimeoutExpired) as error:  # the other models continue
            report["failed"].append(f"{model}: {error}")
            print(f"# {report['failed'][-1]}", file=sys.stderr, flush=True)
        report["rows"] += rows
        for row in rows:
            show(row)
        write_report(args.out, report)
    print(
        f"{sum(row['met'] for row in report['rows'])} of {len(report['rows'])} goals met, "
        f"{time.monotonic() - begin:.0f} s"
    )
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
