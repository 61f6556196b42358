#!/usr/bin/env python3
"""Measures the time of decoding and encoding with LoRA adapters, in bf16 on a GPU or in f32 on a
CPU: without an adapter, with one adapter for all inputs, and with a different adapter for each
input. PEFT runs the same weights and shapes for comparison.

Needs torch, transformers and, for PEFT's rows, peft. Nothing is downloaded: checkpoints with random
weights of the real shapes (peers.py) and random adapters of rank 16 on all linear layers are made
and written under --work. All adapters of a run have the same values, but each is loaded by itself.

Shapes: "decode" encodes 32 inputs of 128 tokens and generates exactly 64 tokens for each, greedily;
ms/step is the time of the whole call divided by 64. "encode" encodes 32 inputs of 512 tokens (on a
CPU 128); Quintet returns the hidden state of each input's first token, PEFT also runs one decoder
step. Quintet's three variants alternate; a figure is the median of all its repetitions.

usage: adapters.py --quintet build/quintet --work DIR --out DIR [--device cpu] [--models ...]
"""

import gc
import json
import os
import statistics
import sys
import time

from peers import SHAPES, build_model, generate, random_ids, versions
from runs import bench, bench_parser, conditions_of, limits_for, write_report

ROWS, SOURCE_TOKENS, NEW_TOKENS, RANK = 32, 128, 64, 16
ENCODE_TOKENS = {"cuda": 512, "cpu": 128}
DTYPE = {"cuda": "bf16", "cpu": "f32"}  # of Quintet's weights and of PEFT
VARIANTS = {"none": 0, "one": 1, "each": ROWS}  # number of adapters


def shapes_of(device):
    return {
        "decode": {
            "mode": "generate",
            "batch": ROWS,
            "input_tokens": SOURCE_TOKENS,
            "new_tokens": NEW_TOKENS,
            "num_beams": 1,
        },
        "encode": {
            "mode": "encode-first",
            "batch": ROWS,
            "input_tokens": ENCODE_TOKENS[device],
        },
    }


def load_model(name, args):
    """Creates the model and writes its checkpoint to WORK/NAME-DTYPE unless it exists. Returns the
    model and that directory."""
    import torch

    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    with torch.device(args.device):
        model = build_model(name).to(dtype)
    directory = os.path.join(args.work, f"{name}-{DTYPE[args.device]}")
    if not os.path.exists(directory + ".done"):
        model.save_pretrained(directory)
        open(directory + ".done", "w").close()
    return model, directory


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
            values = torch.randn(shape, device=model.device) * 0.02
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
    flags = shapes_of(args.device)[shape]
    tokens = ENCODE_TOKENS[args.device]
    report = bench(
        args.quintet,
        args.timeout,
        model=directory,
        device=args.device,
        dtype=DTYPE[args.device],
        threads=args.threads,
        adapter=[adapter] * adapters or None,
        repetitions=args.repetitions,
        warmup=2 if args.device == "cuda" else 1,
        **limits_for(ROWS, tokens),
        **flags,
    )
    return report["rows"][0]["all_wall_ms"], conditions_of(report, "version", "commit", "cpu")


def peft_ms(model, name, shape, adapters, args):
    """Returns the times of PEFT's measured calls in milliseconds. `adapters`: 1, or ROWS for a
    different adapter in each row."""
    import torch

    flags = shapes_of(args.device)[shape]
    names = [f"a{i}" for i in range(ROWS)]
    mixed = {"adapter_names": names} if adapters == ROWS else {}
    if adapters == 1:
        model.set_adapter("a0")
    times = []
    for seed in range(1 + args.peft_repetitions):
        drawn = {"batch": ROWS, "input_tokens": flags["input_tokens"]}
        ids = random_ids(drawn, SHAPES[name][1]["vocab_size"], seed)
        ids = torch.tensor(ids, device=args.device)
        synchronize(args.device)
        begin = time.perf_counter()
        with torch.inference_mode():
            if shape == "encode":
                model(input_ids=ids, decoder_input_ids=ids[:, :1], **mixed)
            else:
                generate(model, ids, torch.ones_like(ids), NEW_TOKENS, **mixed)
        synchronize(args.device)
        times.append(1e3 * (time.perf_counter() - begin))
    return times[1:]


def synchronize(device):
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


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
    model, directory = load_model(name, args)
    adapter = make_adapter(model, os.path.join(args.work, name + "-adapter"))
    rows = {
        (shape, variant): {"model": name, "shape": shape, "adapters": variant, "quintet_ms": []}
        for shape in shapes_of(args.device)
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
            row["peft_ms"] = peft_ms(wrapped, name, shape, VARIANTS[variant], args)
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
    parser = bench_parser(__doc__, "folder for checkpoints and adapters")
    parser.add_argument("--out", required=True, help="directory for adapters_DEVICE.json")
    parser.add_argument("--device", choices=sorted(DTYPE), default="cuda")
    parser.add_argument("--threads", type=int, default=2, help="on a CPU")
    parser.add_argument("--models", nargs="+", default=["t5-base", "flan-t5-xl"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--peft-repetitions", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=240, help="of one run of quintet, seconds")
    args = parser.parse_args()
    import torch

    if args.device == "cuda":
        args.threads = None
    else:
        torch.set_num_threads(args.threads)
    os.makedirs(args.work, exist_ok=True)
    os.makedirs(args.out, exist_ok=True)
    report = {
        "versions": versions(),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "threads": args.threads,
        "dtype": DTYPE[args.device],
        "rank": RANK,
        "rows": [],
    }
    print(f"{'model':12s} {'shape':7s} adapters  quintet  ratio      PEFT  (ms, decode: ms/step)")
    for name in args.models:
        rows, report["quintet"] = measure(args, name)
        report["rows"] += rows
        write_report(os.path.join(args.out, f"adapters_{args.device}.json"), report)
        if args.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
