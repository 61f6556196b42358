#!/usr/bin/env python3
"""Measures the speedup of scoring many continuations of one prompt in one request instead of
separate requests, through the whole engine, on a GPU or a CPU.

The models have real shapes and random weights; GPT-2 gets more positions if prompt and continuation
need them. The same number of tokens is scored in three ways, each in its own process of `quintet
bench --mode score`:
- one request with all continuations;
- one request for each continuation, all submitted at once, so that the engine batches them;
- one request for each continuation, one after the other (computed as the time of one request times
  their number).
Figures are medians. GPT-2 computes a shared prompt once, in one packed pass under a column mask;
T5's encoder runs once, and the targets share its keys and values. The exit code is 0 if one request
takes at most an eighth of the time of the separate requests, both when these are batched and when
they run one after the other; otherwise it is 1.

usage: scoring_gpu.py --quintet build/quintet --work DIR [--device cpu] [--models gpt2 t5-base]
           [--out FILE]
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from peers import SHAPES, build_model  # noqa: E402
from runs import (  # noqa: E402
    add_timeout_and_out,
    bench_parser,
    bench_with,
    conditions_of,
    write_report,
)

GOAL = 8.0


def checkpoint(name, positions, work):
    """Returns the directory of the model `name` with random weights and at least `positions`
    positions. The first call creates it."""
    import torch

    family, sizes = SHAPES[name]
    if family == "gpt2":
        sizes["n_positions"] = max(sizes["n_positions"], positions)
    directory = os.path.join(work, f"{name}-{positions}")
    if not os.path.exists(directory + ".done"):
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            build_model(name).to(torch.bfloat16).save_pretrained(directory)
        open(directory + ".done", "w").close()
    return directory


def wall_ms(args, directory, *, requests, targets):
    """Returns the median time in milliseconds of `requests` requests that run at once, and the
    report of the run."""
    report = bench_with(
        args,
        directory,
        mode="score",
        batch=requests,
        input_tokens=args.prompt_tokens,
        targets=targets,
        target_tokens=args.target_tokens,
        max_running=64,
        max_batch_tokens=args.max_batch_tokens,
        repetitions=args.repetitions,
        warmup=args.warmup,
        threads=args.threads,
    )
    return report["rows"][0]["wall_ms"], report


def measure(name, args):
    directory = checkpoint(name, args.prompt_tokens + args.target_tokens, args.work)
    shared, report = wall_ms(args, directory, requests=1, targets=args.targets)
    together, _ = wall_ms(args, directory, requests=args.targets, targets=1)
    alone, _ = wall_ms(args, directory, requests=1, targets=1)
    row = dict(
        model=name,
        targets=args.targets,
        target_tokens=args.target_tokens,
        prompt_tokens=args.prompt_tokens,
        dtype=args.dtype,
        one_request_ms=shared,
        requests_at_once_ms=together,
        requests_one_by_one_ms=args.targets * alone,
        over_at_once=together / shared,
        over_one_by_one=args.targets * alone / shared,
    )
    least = min(row["over_at_once"], row["over_one_by_one"])
    print(
        f"{name:10s} {row['dtype']:5s} one request {shared:10.2f} ms  {args.targets} at once "
        f"{together:10.2f} ms {row['over_at_once']:6.2f}x  "
        f"one by one {row['requests_one_by_one_ms']:10.2f} ms {row['over_one_by_one']:6.2f}x  "
        f"goal {GOAL:.0f}x: "
        f"{'holds' if least >= GOAL else 'DOES NOT HOLD'}",
        flush=True,
    )
    return row, report


def main():
    parser = bench_parser(__doc__, "directory for the checkpoints")
    parser.add_argument("--models", nargs="+", default=["gpt2"], choices=list(SHAPES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", help="default: f32 on a CPU, bf16 on a GPU")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--targets", type=int, default=64)
    parser.add_argument("--target-tokens", type=int, default=32)
    parser.add_argument("--max-batch-tokens", type=int, default=4096)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    add_timeout_and_out(parser, 120, "way")
    args = parser.parse_args()
    args.dtype = args.dtype or ("f32" if args.device == "cpu" else "bf16")
    rows = []
    for name in args.models:
        row, report = measure(name, args)
        rows.append(row)
    kept = conditions_of(report, "version", "commit", "cpu", "cores", "system", "threads", "device")
    write_report(args.out, dict(conditions=kept, goal=GOAL, rows=rows))
    return 0 if all(min(row["over_at_once"], row["over_one_by_one"]) >= GOAL for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
