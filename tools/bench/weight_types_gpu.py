#!/usr/bin/env python3
"""Compares the weight types of T5 encoders on a GPU: time of encoding, and error against f32.

Each model is a T5 encoder of the real shape with random weights in bf16, written under --work. As
in trained models, activations have outliers: 1 % of the channels of the hidden states are made 50
times larger than the others, then all hidden states are scaled so that the largest is 60,000. All
weight types use this one checkpoint.

- Time: the median in milliseconds of `quintet bench --mode encode-first`, and of transformers'
  encoder in bf16 on inputs of the same shape (with --compile also under torch.compile).
- Error: compares the hidden states of `quintet encode` with transformers' last hidden states in
  f32, for the same weights and 2,048 random tokens. Reports the cosine of the two vectors of a
  token: the median and the worst of all tokens.

usage: weight_types_gpu.py --quintet build/quintet --work DIR [--models ...] [--types ...]
           [--out FILE]
"""

import gc
import json
import os
import pathlib
import statistics
import time

from peers import T5_SIZES, t5_sizes, versions
from runs import bench, bench_parser, conditions_of, limits_for, run, write_report

MODELS = {
    "t5-base": dict(T5_SIZES["t5-base"], shapes=[(32, 512)]),
    "flan-t5-xl": dict(T5_SIZES["flan-t5-xl"], shapes=[(1, 128), (1, 512), (32, 512), (4, 4096)]),
    "t5-xxl": dict(
        t5_sizes(d_model=4096, d_ff=10240, layers=24, heads=64, feed_forward_proj="gated-gelu"),
        shapes=[(1, 128), (1, 512), (8, 512)],
    ),
    "tiny-t5": dict(
        t5_sizes(d_model=128, d_kv=32, d_ff=256, layers=2, heads=4, feed_forward_proj="gated-gelu"),
        shapes=[(2, 64)],
    ),
}
VOCAB, INPUTS, TOKENS = 32128, 4, 512
OUTLIERS, FACTOR, LARGEST = 0.01, 50.0, 60000.0


def add_outliers(model, ids):
    """Makes a random OUTLIERS share of the channels of the hidden states FACTOR times larger, then
    scales all hidden states so that the largest value is LARGEST."""
    import torch

    d = model.config.d_model
    generator = torch.Generator("cuda").manual_seed(7)
    channels = torch.randperm(d, device="cuda", generator=generator)[: max(1, round(d * OUTLIERS))]

    def scale(factor, columns):
        model.shared.weight[:, columns] *= factor
        for block in model.encoder.block:
            block.layer[0].SelfAttention.o.weight[columns] *= factor
            block.layer[1].DenseReluDense.wo.weight[columns] *= factor

    scale(FACTOR, channels)
    states = model(input_ids=ids[:1], output_hidden_states=True).hidden_states[:-1]
    scale(LARGEST / max(float(s.abs().max()) for s in states), slice(None))


def make_model(name, work, ids):
    """Returns (the model on the GPU in bf16, its directory, its last hidden states in f32)."""
    import torch
    import transformers

    sizes = {key: value for key, value in MODELS[name].items() if key != "shapes"}
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.device("cuda"), torch.inference_mode():
        config = transformers.T5Config(vocab_size=VOCAB, **sizes)
        model = transformers.T5EncoderModel(config).eval()
        add_outliers(model, ids)
        model.to(torch.bfloat16).float()  # rounds the weights
        states = [model(input_ids=row[None]).last_hidden_state[0].cpu() for row in ids]
        model.to(torch.bfloat16)
    directory = os.path.join(work, name)
    model.save_pretrained(directory)
    return model, directory, torch.cat(states)


def quintet_states(args, directory, dtype, ids):
    import numpy
    import torch

    out = os.path.join(args.work, "states.npy")
    lines = "".join(json.dumps({"token_ids": row.tolist()}) + "\n" for row in ids)
    command = [args.quintet, "encode", "--model", directory, "--device", "cuda", "--dtype", dtype]
    command += ["--input", "json", "--output", "npy", "--output-file", out, "--pooling", "none"]
    run([*command, "--quiet"], args.timeout, lines)
    return torch.from_numpy(numpy.load(out))


def cosines(states, reference):
    import torch

    values = torch.nn.functional.cosine_similarity(states.double(), reference.double(), dim=-1)
    return dict(median=float(values.median()), worst=float(values.min()))


def transformers_ms(encoder, shape, repetitions):
    import torch

    times = []
    for seed in range(repetitions + 2):
        generator = torch.Generator("cuda").manual_seed(seed)
        ids = torch.randint(100, VOCAB, shape, device="cuda", generator=generator)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.inference_mode():
            encoder(input_ids=ids, attention_mask=torch.ones_like(ids))
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[2:])


def quintet_ms(args, directory, dtype, shapes):
    """Returns ({shape: ms}, the conditions of the run)."""
    times = {}
    for tokens in sorted({tokens for _, tokens in shapes}):
        batches = [batch for batch, of in shapes if of == tokens]
        report = bench(
            args.quintet,
            args.timeout,
            model=directory,
            device="cuda",
            dtype=dtype,
            mode="encode-first",
            batch=batches,
            input_tokens=tokens,
            repetitions=args.repetitions,
            warmup=2,
            **limits_for(max(batches), tokens),
        )
        for row in report["rows"]:
            times[row["batch"], tokens] = row["wall_ms"]
    return times, conditions_of(report, "version", "commit", "cpu")


def measure(args, name, report):
    import torch

    generator = torch.Generator("cuda").manual_seed(3)
    ids = torch.randint(100, VOCAB, (INPUTS, TOKENS), device="cuda", generator=generator)
    model, directory, reference = make_model(name, args.work, ids)
    peers = {"transformers": model.encoder}
    if args.compile:
        peers["torch.compile"] = torch.compile(model.encoder)
    shapes = MODELS[name]["shapes"]
    for peer, encoder in peers.items():
        times = {shape: transformers_ms(encoder, shape, args.repetitions) for shape in shapes}
        add_row(args, report, name, peer, "bf16", times, None)
    del model, encoder, peers
    gc.collect()
    torch.cuda.empty_cache()
    for dtype in args.types:
        error = cosines(quintet_states(args, directory, dtype, ids.cpu()), reference)
        times, report["quintet"] = quintet_ms(args, directory, dtype, shapes)
        add_row(args, report, name, "quintet", dtype, times, error)


def add_row(args, report, model, engine, dtype, times, error):
    row = dict(model=model, engine=engine, dtype=dtype, cosine=error)
    row["ms"] = {f"{batch}x{tokens}": ms for (batch, tokens), ms in times.items()}
    report["rows"].append(row)
    cells = "  ".join(f"{shape} {ms:8.2f}" for shape, ms in row["ms"].items())
    cosine = f"cosine {error['median']:.5f} {error['worst']:.5f}" if error else ""
    print(f"{model:11s} {engine:13s} {dtype:10s} {cells}  {cosine}", flush=True)
    write_report(args.out, report)


def main():
    parser = bench_parser(__doc__, "folder for the checkpoints (10 GB for t5-xxl)")
    parser.add_argument("--models", nargs="+", default=list(MODELS)[:3], choices=list(MODELS))
    parser.add_argument(
        "--types", nargs="+", default=["bf16", "fp8", "int8", "fp8-w8a8", "int8-w8a8"]
    )
    parser.add_argument("--compile", action="store_true", help="also time torch.compile (minutes)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=200, help="for one run, in seconds")
    parser.add_argument("--out", help="also write the results as JSON to this file")
    args = parser.parse_args()
    import torch

    pathlib.Path(args.work).mkdir(parents=True, exist_ok=True)
    report = dict(versions=versions(), device=torch.cuda.get_device_name(), rows=[])
    for name in args.models:
        measure(args, name, report)


if __name__ == "__main__":
    main()
