#!/usr/bin/env python3
"""Compares the GPU memory that `quintet inspect` predicts with the memory that loading and running
the model uses.

The models have real shapes and random weights. Used memory is the free memory of the device before
the load minus the free memory after the run (device_bytes in the report of `quintet bench`); it
includes libraries, kernels and captured CUDA graphs. --max-memory is set to the prediction, so that
the KV cache gets its predicted size. The exit code is 0 if every prediction is within 5 % of the
used memory, otherwise 1.

usage: memory_gpu.py --quintet build/quintet --work DIR [--models t5-base flan-t5-xl]
           [--dtypes bf16 int8] [--out FILE]
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from batching_gpu import checkpoint  # noqa: E402
from runs import bench, bench_parser, flags_of, run, write_report  # noqa: E402

GOAL = 0.05


def main():
    parser = bench_parser(__doc__, "directory for the checkpoints")
    parser.add_argument("--models", nargs="+", default=["t5-base", "flan-t5-xl"])
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "int8"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--input-tokens", type=int, default=512)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--out", help="also write the results as JSON to this file")
    args = parser.parse_args()
    rows = []
    for model in args.models:
        directory = checkpoint(model, args.work)
        for dtype in args.dtypes:
            shape = dict(
                device=args.device,
                dtype=dtype,
                batch=args.batch,
                input_tokens=args.input_tokens,
            )
            predict = flags_of(dict(shape, output_tokens=args.output_tokens, output="json"))
            inspected = run([args.quintet, "inspect", directory, *predict], args.timeout)
            memory = json.loads(inspected)["memory"]
            report = bench(
                args.quintet,
                args.timeout,
                model=directory,
                mode="generate",
                **shape,
                new_tokens=args.output_tokens,
                repetitions=1,
                warmup=1,
                max_running=args.batch,
                max_input_tokens=args.input_tokens,
                max_batch_tokens=min(4096, args.batch * args.input_tokens),
                max_memory=-(-memory["total_bytes"] // 2**20),
            )
            taken = report["device_bytes"]
            row = dict(
                model=model,
                dtype=dtype,
                predicted=memory,
                taken_bytes=taken,
                error=memory["total_bytes"] / taken - 1,
            )
            rows.append(row)
            print(
                f"{model:12s} {dtype:5s} predicted {memory['total_bytes'] / 2**20:9.1f} MiB  "
                f"taken {taken / 2**20:9.1f} MiB  {100 * row['error']:+6.2f} %  "
                f"{'holds' if abs(row['error']) <= GOAL else 'DOES NOT HOLD'}",
                flush=True,
            )
    write_report(args.out, rows)
    return 0 if all(abs(row["error"]) <= GOAL for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
