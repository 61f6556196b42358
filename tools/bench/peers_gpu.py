#!/usr/bin/env python3
"""Compares Quintet with transformers on a GPU, in bf16: same shapes, same random weights, same run.

Needs torch with CUDA and transformers. Nothing is downloaded: checkpoints with random weights of
the real shapes are made on the GPU from transformers' own config classes and written under --work,
where Quintet loads them.

What a row measures, in milliseconds of wall time for the whole call:
- encode BxN: computing the encoder's final hidden states of B inputs of N random tokens.
  transformers' hidden states stay on the GPU; Quintet's are copied to the host.
  encode-first BxN: as encode, but Quintet copies only the hidden state of each input's first token
  to the host. With --compile, transformers' encoder is measured under torch.compile, too.
- generate B rows: encode 128 tokens and decode exactly 64 greedily or with 4 beams (end of sequence
  suppressed: min = max). GPT-2 takes the 128 tokens as its prompt. ms/step is the time of the whole
  call divided by 64.
Quintet runs each shape twice to warm up, since it captures a CUDA graph the second time;
transformers runs it once. Figures are medians of the measured runs. For each group (one model, one
kind of call) both engines are measured directly after each other. No group starts after --budget
seconds; missing rows are listed.

usage: peers_gpu.py --quintet build/quintet --work DIR --out DIR [--models ...] [--budget 420]
"""

import gc
import os
import statistics
import subprocess
import sys
import time

from peers import SHAPES, build_model, generate, label, random_ids, versions
from runs import bench, bench_parser, limits_for, write_report

SOURCE_TOKENS, NEW_TOKENS = 128, 64
# For each model, groups of calls that are measured together: (mode, input tokens, beams, batch
# sizes).
GROUPS = {
    "t5-small": [("generate", SOURCE_TOKENS, 1, [1, 128])],
    "t5-base": [
        ("generate", SOURCE_TOKENS, 1, [1, 8, 32, 128]),
        ("generate", SOURCE_TOKENS, 4, [1, 8, 32]),
        ("encode", 128, 1, [1]),
        ("encode", 512, 1, [32]),
        ("encode", 4096, 1, [4]),
        ("encode-first", 128, 1, [1]),
        ("encode-first", 512, 1, [32]),
        ("encode-first", 4096, 1, [4]),
    ],
    "gpt2": [
        ("generate", SOURCE_TOKENS, 1, [1, 8, 32, 128]),
        ("generate", SOURCE_TOKENS, 4, [8, 32]),
    ],
    "flan-t5-xl": [
        ("generate", SOURCE_TOKENS, 1, [1, 32, 128]),
        ("generate", SOURCE_TOKENS, 4, [32]),
        ("encode-first", 128, 1, [1]),
        ("encode-first", 512, 1, [32]),
        ("encode-first", 4096, 1, [4]),
    ],
    "tiny-t5": [
        ("generate", SOURCE_TOKENS, 1, [1, 8]),
        ("generate", SOURCE_TOKENS, 4, [2]),
        ("encode", 128, 1, [1]),
    ],
    "tiny-gpt2": [("generate", SOURCE_TOKENS, 1, [1, 8])],
}


def shapes_of(group):
    mode, tokens, beams, batches = group
    return [
        dict(
            mode=mode,
            name=mode,
            batch=batch,
            input_tokens=tokens,
            num_beams=beams,
            new_tokens=NEW_TOKENS if mode == "generate" else 0,
        )
        for batch in batches
    ]


def load_model(name, work):
    """Creates the model on the GPU and writes its checkpoint to work/NAME unless it exists. Returns
    the model and that directory."""
    import torch

    with torch.device("cuda"):
        model = build_model(name).to(torch.bfloat16)
    directory = os.path.join(work, name)
    if not os.path.exists(directory + ".done"):
        model.save_pretrained(directory)
        open(directory + ".done", "w").close()
    return model, directory


def transformers_ms(model, name, shape, args, compiled=False):
    """Returns the times of transformers' measured calls, in milliseconds."""
    import torch

    encode = shape["mode"] != "generate"
    encoder = torch.compile(model.encoder) if compiled else getattr(model, "encoder", None)
    times = []
    warmup = 1  # transformers captures no CUDA graph here
    for seed in range(warmup + args.repetitions):
        ids = torch.tensor(random_ids(shape, SHAPES[name][1]["vocab_size"], seed), device="cuda")
        mask = torch.ones_like(ids)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.inference_mode():
            if encode:
                encoder(input_ids=ids, attention_mask=mask)
            else:
                out = generate(model, ids, mask, NEW_TOKENS, num_beams=shape["num_beams"])
                prompt = 1 if SHAPES[name][0] == "t5" else shape["input_tokens"]
                assert out.shape[1] - prompt == NEW_TOKENS, out.shape
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return times[warmup:]


def quintet_ms(directory, group, args):
    """Runs quintet bench once for a group. Returns ({batch size: milliseconds of the measured
    calls}, the conditions of the run)."""
    mode, tokens, beams, batches = group
    report = bench(
        args.quintet,
        args.group_timeout,
        model=directory,
        device="cuda",
        dtype=args.dtype,
        mode=mode,
        batch=batches,
        input_tokens=tokens,
        num_beams=beams,
        new_tokens=NEW_TOKENS,
        repetitions=args.repetitions,
        warmup=args.warmup,
        **limits_for(max(batches), tokens, beams),
        cache_memory=args.cache_mib,
    )
    return {row["batch"]: row["all_wall_ms"] for row in report["rows"]}, report["conditions"]


def measure_group(model, name, directory, group, args):
    own, conditions, failure = {}, None, None
    try:
        own, conditions = quintet_ms(directory, group, args)
    except (
        RuntimeError,
        subprocess.TimeoutExpired,
    ) as error:  # the row contains the error; the others continue
        failure = str(error)
        print(f"# {failure}", file=sys.stderr, flush=True)
    rows = []
    for shape in shapes_of(group):
        row = dict(
            model=name,
            shape=label(shape),
            **shape,
            quintet_all_ms=own.get(shape["batch"], []),
            error=failure,
        )
        row["transformers_all_ms"] = transformers_ms(model, name, shape, args)
        if args.compile and shape["mode"] != "generate":
            row["compiled_all_ms"] = transformers_ms(model, name, shape, args, compiled=True)
        for engine in ("quintet", "transformers", "compiled"):
            times = row.get(engine + "_all_ms")
            row[engine + "_ms"] = statistics.median(times) if times else None
        for engine in ("transformers", "compiled"):
            both = row["quintet_ms"] and row[engine + "_ms"]
            row["over_" + engine] = row[engine + "_ms"] / row["quintet_ms"] if both else None
        rows.append(row)
        show(row)
    return rows, conditions


def show(row):
    steps = row["new_tokens"] or 1

    def cell(ms):
        return f"{ms / steps:9.3f}" if ms else f"{'-':>9s}"

    def ratio(value):
        return f"{value:7.2f}x" if value else f"{'-':>8s}"

    print(
        f"{row['model']:10s} {row['shape']:26s} {'ms/step' if row['new_tokens'] else 'ms':7s} "
        f"{cell(row['quintet_ms'])} "
        f"{cell(row['transformers_ms'])} {ratio(row['over_transformers'])} "
        f"{cell(row['compiled_ms'])} {ratio(row['over_compiled'])}",
        flush=True,
    )


def main():
    work = "folder for the checkpoints (6.5 GB for all); kept for the next run"
    parser = bench_parser(__doc__, work)
    parser.add_argument("--out", required=True, help="directory for peers_gpu.json")
    parser.add_argument(
        "--models",
        nargs="+",
        default=["t5-base", "t5-small", "gpt2", "flan-t5-xl"],
        choices=list(GROUPS),
    )
    parser.add_argument(
        "--dtype", default="bf16", help="weight type of Quintet; transformers runs in bf16"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--cache-mib", type=int, default=16384, help="KV cache of Quintet, in MiB")
    parser.add_argument(
        "--compile", action="store_true", help="also time encoders under torch.compile (minutes)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=420,
        help="no group of calls starts after this time, in seconds",
    )
    parser.add_argument(
        "--group-timeout",
        type=float,
        default=120,
        help="time limit for Quintet in a group, in seconds",
    )
    args = parser.parse_args()
    import torch

    begin = time.monotonic()
    os.makedirs(args.work, exist_ok=True)
    os.makedirs(args.out, exist_ok=True)
    report = dict(
        versions=versions(),
        device=torch.cuda.get_device_name(),
        dtype=args.dtype,
        repetitions=args.repetitions,
        skipped=[],
        rows=[],
    )
    print(
        f"{'model':10s} {'shape':26s} {'':7s} {'quintet':>9s} {'transf.':>9s} {'ratio':>8s} "
        f"{'compiled':>9s} {'ratio':>8s}"
    )
    for name in args.models:
        model = None
        for group in GROUPS[name]:
            if time.monotonic() - begin > args.budget:
                report["skipped"] += [f"{name} {label(shape)}" for shape in shapes_of(group)]
                continue
            if model is None:
                model, directory = load_model(name, args.work)
            rows, conditions = measure_group(model, name, directory, group, args)
            report["rows"] += rows
            if conditions:
                report["quintet"] = {k: conditions[k] for k in ("version", "commit", "cpu")}
            # After each row, since a run may be interrupted.
            write_report(os.path.join(args.out, "peers_gpu.json"), report)
        del model
        gc.collect()
        torch.cuda.empty_cache()
    if report["skipped"]:
        print("not measured:", ", ".join(report["skipped"]))
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
