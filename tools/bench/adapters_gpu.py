#!/usr/bin/env python3
"""Measures what LoRA adapters cost on a GPU, in bf16: without an adapter, with one for all inputs,
and with another one for each input; beside PEFT with the same weights and shapes in the same run.

Needs torch with CUDA, transformers and, for PEFT's rows, peft. Nothing is downloaded: checkpoints
with random weights of the real shapes (peers.py) and random adapters of rank 16 on all linear
layers are made on the GPU and written under --work. All adapters of a run have the same values, but
each is loaded by itself.

Shapes: "decode" encodes 32 inputs of 128 tokens and generates exactly 64 tokens for each, greedily;
ms/step is the time of the whole call divided by 64. "encode" computes the first hidden states of 32
inputs of 512 tokens. Quintet's three variants alternate; a figure is the median of all its
repetitions.

usage: adapters_gpu.py --quintet build/quintet --work DIR --out DIR [--models ...] [--rounds 3]
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time

from peers import SHAPES, random_ids, versions
from peers_gpu import load_model
from runs import bench, conditions_of

ROWS, SOURCE_TOKENS, NEW_TOKENS, ENCODE_TOKENS, RANK = 32, 128, 64, 512, 16
VARIANTS = {"none": 0, "one": 1, "each": ROWS}  # number of adapters
SHAPES_MEASURED = {
    "decode": {
        "mode": "generate",
        "batch": ROWS,
        "input_tokens": SOURCE_TOKENS,
        "new_tokens": NEW_TOKENS,
        "num_beams": 1,
    },
    "encode": {"mode": "encode-first", "batch": ROWS, "input_tokens": ENCODE_TOKENS},
}


def make_adapter(model, directory):
    """Writes a random adapter in PEFT's format for all linear layers, unless it exists."""
    import torch
    from safetensors.torch import save_file

    if os.path.exists(os.path.join(directory, "adapter_config.json")):
        return directory
    os.makedirs(directory, exist_ok=True)
    tensors, targets = {}, set()
    for name, module in model.named_modules():
        if name == "lm_head" or not isinstance(module, torch.nn.Linear):
            continue
        key = f"base_model.model.{name}"
        for part, shape in (
            ("lora_A", (RANK, module.in_features)),
            ("lora_B", (module.out_features, RANK)),
        ):
            values = torch.randn(shape, device="cuda") * 0.02
            tensors[f"{key}.{part}.weight"] = values.to(torch.bfloat16).cpu()
        targets.add(name.rsplit(".", 1)[-1])
    save_file(tensors, os.path.join(directory, "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": sorted(targets),
    }
    with open(os.path.join(directory, "adapter_config.json"), "w") as file:
        json.dump(config, file)
    return directory


def quintet_ms(args, directory, adapter, shape, adapters):
    flags = dict(SHAPES_MEASURED[shape])
    report = bench(
        args.quintet,
        args.timeout,
        model=directory,
        device="cuda",
        dtype=args.dtype,
        adapter=[adapter] * adapters or None,
        repetitions=args.repetitions,
        warmup=2,
        max_running=ROWS,
        max_input_tokens=ENCODE_TOKENS,
        max_batch_tokens=ROWS * ENCODE_TOKENS,
        **flags,
    )
    return report["rows"][0]["all_wall_ms"], conditions_of(report, "version", "commit", "cpu")


def peft_ms(model, name, shape, adapters, repetitions):
    """Times of PEFT; `adapters` is 1, or ROWS (adapter_names of the batch)."""
    import torch

    flags = SHAPES_MEASURED[shape]
    names = [f"a{i}" for i in range(ROWS)]
    mixed = {"adapter_names": names} if adapters == ROWS else {}
    if adapters == 1:
        model.set_adapter("a0")
    times = []
    for seed in range(1 + repetitions):
        drawn = dict(batch=ROWS, input_tokens=flags["input_tokens"])
        ids = torch.tensor(random_ids(drawn, SHAPES[name][1]["vocab_size"], seed), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.inference_mode():
            if shape == "encode":
                model(
                    input_ids=ids,
                    decoder_input_ids=ids[:, :1],
                    **mixed,
                )
            else:
                model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    min_new_tokens=NEW_TOKENS,
                    max_new_tokens=NEW_TOKENS,
                    pad_token_id=0,
                    **mixed,
                )
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return times[1:]


def with_peft(model, adapter):
    """The model with ROWS copies of the adapter, or None if peft is missing."""
    try:
        import peft
    except ImportError as error:
        print(f"# PEFT is not measured: {error}", file=sys.stderr)
        return None
    wrapped = peft.PeftModel.from_pretrained(model, adapter, adapter_name="a0")
    for i in range(1, ROWS):
        wrapped.load_adapter(adapter, adapter_name=f"a{i}")
    return wrapped.to(model.dtype).eval()


def measure(args, name):
    model, directory = load_model(name, args.work)
    adapter = make_adapter(model, os.path.join(args.work, name + "-adapter"))
    rows = {
        (shape, variant): {"model": name, "shape": shape, "adapters": variant, "quintet_ms": []}
        for shape in SHAPES_MEASURED
        for variant in VARIANTS
    }
    for _ in range(args.rounds):
        for (shape, variant), row in rows.items():
            times, conditions = quintet_ms(args, directory, adapter, shape, VARIANTS[variant])
            row["quintet_ms"] += times
    wrapped = with_peft(model, adapter)
    for (shape, variant), row in rows.items():
        base = statistics.median(rows[shape, "none"]["quintet_ms"])
        row["over_none"] = statistics.median(row["quintet_ms"]) / base
        if wrapped is not None and variant != "none":
            row["peft_ms"] = peft_ms(wrapped, name, shape, VARIANTS[variant], 2)
        steps = NEW_TOKENS if shape == "decode" else 1
        print(
            f"{name:12s} {shape:7s} {variant:5s} "
            f"{statistics.median(row['quintet_ms']) / steps:9.3f} {row['over_none']:6.2f}x "
            f"{statistics.median(row.get('peft_ms') or [0]) / steps:9.3f}",
            flush=True,
        )
    del model, wrapped
    gc.collect()
    return list(rows.values()), conditions


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quintet", default="build/quintet")
    parser.add_argument("--work", required=True, help="folder for checkpoints and adapters")
    parser.add_argument("--out", required=True, help="directory for adapters_gpu.json")
    parser.add_argument("--models", nargs="+", default=["t5-base", "flan-t5-xl"])
    parser.add_argument("--dtype", default="bf16", help="weight type of Quintet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=240, help="of one run of quintet, seconds")
    args = parser.parse_args()
    import torch

    os.makedirs(args.work, exist_ok=True)
    os.makedirs(args.out, exist_ok=True)
    report = {
        "versions": versions(),
        "device": torch.cuda.get_device_name(),
        "dtype": args.dtype,
        "rank": RANK,
        "rows": [],
    }
    print(f"{'model':12s} {'shape':7s} adapters  quintet  ratio      PEFT  (ms, decode: ms/step)")
    for name in args.models:
        rows, report["quintet"] = measure(args, name)
        report["rows"] += rows
        with open(os.path.join(args.out, "adapters_gpu.json"), "w") as file:
            json.dump(report, file, indent=1)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
