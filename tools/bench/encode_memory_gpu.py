#!/usr/bin/env python3
"""Compares the memory and time of encoding one long input on a GPU in bf16: Quintet and
transformers' encoder, in the same run.

The model has T5-base's shape and random weights; --model long-t5-local-base and
long-t5-tglobal-base are LongT5's. The inputs have 8k, 16k, 32k and 64k random tokens and are
encoded one at a time.
Quintet: memory is all device memory of the process, weights included (device_bytes of `quintet
bench`); all of it is allocated at load. Time is that of the whole call, without copying the hidden
states to the host.
transformers: memory is torch's peak of allocated memory, weights included; time is the encoder's.
Each length runs in its own process, which may run out of memory or exceed --timeout.
The exit code is 0 if Quintet's memory grows linearly with the length and transformers fails or is
slower at the longest input, otherwise 1. Linear means: between any two successive lengths, the
bytes per additional token differ by at most 10 % from those between the first two.

usage: encode_memory_gpu.py --quintet build/quintet --work DIR
           [--model t5-base] [--lengths 8192 16384 32768 65536] [--out FILE]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from batching_gpu import checkpoint  # noqa: E402
from peers import versions  # noqa: E402
from runs import (  # noqa: E402
    add_timeout_and_out,
    bench_parser,
    bench_with,
    conditions_of,
    flags_of,
    limits_for,
    write_report,
)

STRAIGHT = 0.1


def own(args, directory, tokens):
    report = bench_with(
        args,
        directory,
        mode="encode-first",
        batch=1,
        input_tokens=tokens,
        **limits_for(1, tokens),
        repetitions=args.repetitions,
        warmup=1,
    )
    return dict(ms=report["rows"][0]["wall_ms"], bytes=report["device_bytes"]), report


def peer(args, directory, tokens):
    """Runs transformers in a process of its own. Returns that process's results, or the reason why
    there are none."""
    flags = flags_of(
        dict(
            peer=directory,
            lengths=tokens,
            repetitions=args.repetitions,
            work=args.work,
            device=args.device,
        )
    )
    try:
        run = subprocess.run(
            [sys.executable, __file__, *flags], capture_output=True, text=True, timeout=args.timeout
        )
    except subprocess.TimeoutExpired:
        return dict(error=f"more than {args.timeout:.0f} s")
    lines = run.stdout.strip().splitlines()
    return (
        json.loads(lines[-1])
        if run.returncode == 0 and lines
        else dict(error=run.stderr.strip()[-300:])
    )


def run_peer(directory, tokens, repetitions, device):
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    kind = "LongT5EncoderModel" if config.model_type == "longt5" else "T5EncoderModel"
    loaded = getattr(transformers, kind).from_pretrained(directory, dtype=torch.bfloat16)
    model = loaded.to(device).eval()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for seed in range(repetitions + 1):
        ids = torch.randint(
            100,
            model.config.vocab_size,
            (1, tokens),
            device=device,
            generator=torch.Generator(device).manual_seed(seed),
        )
        torch.cuda.synchronize()
        begin = time.perf_counter()
        try:
            with torch.inference_mode():
                model(input_ids=ids, attention_mask=torch.ones_like(ids))
            torch.cuda.synchronize()
        except torch.OutOfMemoryError as error:
            return dict(
                error="out of memory: " + str(error).split(". ")[1],
                bytes=torch.cuda.max_memory_allocated(),
            )
        times.append(1e3 * (time.perf_counter() - begin))
    return dict(ms=statistics.median(times[1:]), bytes=torch.cuda.max_memory_allocated())


def show(row):
    def cell(figures):
        if "error" in figures:
            return figures["error"][:60]
        return f"{figures['ms']:10.1f} ms {figures['bytes'] / 2**20:10.1f} MiB"

    print(
        f"{row['tokens']:7d} tokens  quintet {cell(row['quintet'])}   transformers "
        f"{cell(row['transformers'])}",
        flush=True,
    )


def main():
    parser = bench_parser(__doc__, "directory for the checkpoint")
    parser.add_argument("--model", default="t5-base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--dtype", default="bf16", help="weight type of Quintet; transformers runs in bf16"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 16384, 32768, 65536])
    parser.add_argument("--repetitions", type=int, default=3)
    add_timeout_and_out(parser, 60, "length of one engine")
    parser.add_argument(
        "--peer", metavar="DIR", help=argparse.SUPPRESS
    )  # this process runs transformers
    args = parser.parse_args()
    if args.peer:
        print(json.dumps(run_peer(args.peer, args.lengths[0], args.repetitions, args.device)))
        return 0
    directory = checkpoint(args.model, args.work)
    rows = []
    for tokens in sorted(args.lengths):
        figures, report = own(args, directory, tokens)
        rows.append(
            dict(tokens=tokens, quintet=figures, transformers=peer(args, directory, tokens))
        )
        show(rows[-1])
    slopes = [
        (b["quintet"]["bytes"] - a["quintet"]["bytes"]) / (b["tokens"] - a["tokens"])
        for a, b in zip(rows, rows[1:])
    ]
    linear = all(abs(slope / slopes[0] - 1) <= STRAIGHT for slope in slopes)
    last = rows[-1]
    behind = "error" in last["transformers"] or last["transformers"]["ms"] > last["quintet"]["ms"]
    print(
        "bytes a further token: "
        + ", ".join(f"{slope:.0f}" for slope in slopes)
        + f": {'linear' if linear else 'NOT LINEAR'}"
    )
    print(
        f"{last['tokens']} tokens: transformers {'fails or is slower' if behind else 'IS FASTER'}"
    )
    document = dict(
        conditions=conditions_of(report, "version", "commit", "cpu", "system", "device", "dtype"),
        versions=versions(),
        model=args.model,
        rows=rows,
        bytes_per_token=slopes,
    )
    write_report(args.out, document)
    return 0 if linear and behind else 1


if __name__ == "__main__":
    sys.exit(main())
