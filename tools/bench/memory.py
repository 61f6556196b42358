#!/usr/bin/env python3
"""Measures the peak memory and the load speed of quintet on a CPU. Needs only the standard library.

usage: memory.py encode MODEL_DIR [--lengths 8192 16384 32768 65536] [--out FILE]
       memory.py load MODEL_DIR [--repetitions 5] [--out FILE]

encode: peak resident bytes while encoding one input of each length. MODEL_DIR has T5-small's shape
and is created by tools/bench/peers.py. Memory is linear if the bytes beyond those of the loaded
model grow in proportion to the length.
load: seconds and bytes per second of loading a directory that is in the page cache. Also the peak
of resident bytes while loading, divided by the bytes that are needed afterwards: those of the
weights plus those of a quintet process without a model. MODEL_DIR must be an output of quintet
convert.
"""

import os
import statistics
import subprocess
import sys

import runs

QUINTET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "quintet")


def bench(args, tokens, **flags):
    """Encodes one input of `tokens` tokens once, and returns the report."""
    return runs.bench(
        QUINTET,
        model=args.model,
        device="cpu",
        mode="encode",
        batch=1,
        input_tokens=tokens,
        max_batch_tokens=tokens,
        max_input_tokens=tokens,
        repetitions=1,
        warmup=0,
        threads=args.threads,
        **flags,
    )


def idle_bytes():
    """Returns the peak resident bytes of a quintet process that loads no model."""
    process = subprocess.Popen([QUINTET, "--version"], stdout=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_maxrss * 1024


def encode(args):
    rows = []
    print("tokens    peak bytes  beyond the load  bytes a token   seconds")
    for tokens in args.lengths:
        report = bench(args, tokens)
        conditions = report["conditions"]
        beyond = report["peak_bytes"] - conditions["peak_bytes_after_load"]
        seconds = report["rows"][0]["wall_ms"] / 1e3
        rows.append(
            dict(
                tokens=tokens,
                peak_bytes=report["peak_bytes"],
                beyond_load_bytes=beyond,
                seconds=seconds,
            )
        )
        print(
            f"{tokens:6d} {report['peak_bytes']:13d} {beyond:16d} {beyond / tokens:14.0f} "
            f"{seconds:9.1f}",
            flush=True,
        )
    return dict(conditions=conditions, rows=rows)


def load(args):
    idle = idle_bytes()
    seconds, peaks = [], []
    for _ in range(args.repetitions + 1):  # the first run fills the page cache
        report = bench(args, 1, dtype=args.dtype)
        seconds.append(report["conditions"]["load_seconds"])
        peaks.append(report["conditions"]["peak_bytes_after_load"])
    weights = report["conditions"]["weight_bytes"]
    files = sum(
        os.path.getsize(os.path.join(args.model, name))
        for name in os.listdir(args.model)
        if name.endswith(".safetensors")
    )
    median, peak = statistics.median(seconds[1:]), max(peaks)
    ratio = peak / (weights + idle)
    print(f"{files / 1e6:.0f} MB of files in {median:.3f} s: {files / median / 1e9:.2f} GB/s")
    print(f"peak {peak} bytes = {ratio:.3f} x ({weights} of weights + {idle} of an idle process)")
    return dict(
        conditions=report["conditions"],
        file_bytes=files,
        seconds=seconds[1:],
        bytes_per_s=files / median,
        peak_bytes=peak,
        idle_bytes=idle,
        peak_ratio=ratio,
    )


def main():
    parser = runs.flag_parser(__doc__)
    parser.add_argument("what", choices=["encode", "load"])
    parser.add_argument("model")
    parser.add_argument("--lengths", nargs="+", type=int, default=[8192, 16384, 32768, 65536])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out")
    args = parser.parse_args()
    report = {"encode": encode, "load": load}[args.what](args)
    runs.write_report(args.out, report)


if __name__ == "__main__":
    sys.exit(main())
