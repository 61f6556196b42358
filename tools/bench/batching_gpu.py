#!/usr/bin/env python3
"""Compares continuous batching on a GPU with static batching (one batch at a time) of the same
requests. Each run is one process of quintet bench engine.

Requests: 16 to 512 input tokens, exactly 8 to 128 output tokens, every fourth with 4 beams, drawn
from one seed. Model: T5-base's shape with random weights in bf16.
Static: all requests are present from the start. They are submitted in batches of equal size; a
batch ends when its longest request ends. Several sizes are measured; the best one is the baseline.
Continuous: the same requests arrive as a Poisson process. In one run they arrive faster than they
can be served; its throughput must reach 85 % of the baseline's. In further runs they arrive at
--loads times the baseline's rate; these give the latencies.
TTFT is measured from a request's scheduled time to its first tokens, ITL between messages of one
stream; beam searches stream the tokens on which all beams agree.

usage: batching_gpu.py --quintet build/quintet --work DIR [--model t5-base] [--out FILE]
"""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import runs  # noqa: E402
from peers import build_model, tokens_of  # noqa: E402

GOAL = 0.85
PERCENTILES = ("p50", "p99")


def checkpoint(name, work):
    """Returns the directory of the model `name` with random weights. The first call creates it."""
    directory = os.path.join(work, name)
    if not os.path.exists(directory + ".done"):
        import torch

        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = build_model(name).to(torch.bfloat16)
        model.save_pretrained(directory)
        with open(os.path.join(directory, "tokenizer.json"), "w") as file:
            json.dump(tokenizer(model.config.vocab_size), file)
        with open(os.path.join(directory, "tokenizer_config.json"), "w") as file:
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, file)
        open(directory + ".done", "w").close()
    return directory


def tokenizer(vocab):
    """Returns the contents of a tokenizer.json with one word for each id. Without a tokenizer the
    engine does not stream."""
    words = tokens_of(vocab)
    metaspace = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "always",
        "split": True,
    }
    special = [
        dict(
            id=i,
            content=words[i],
            single_word=False,
            lstrip=False,
            rstrip=False,
            normalized=False,
            special=True,
        )
        for i in range(3)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": metaspace,
        "post_processor": None,
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": 2,
            "byte_fallback": False,
            "vocab": [
                [word if i < 3 else "\u2581" + word, 0.0 if i < 3 else -float(i)]
                for i, word in enumerate(words)
            ],
        },
    }


def run(args, directory, *, rate, static_batch=0):
    """Runs quintet bench engine at one request rate and returns its report."""
    flags = dict(
        model=directory,
        device=args.device,
        dtype=args.dtype,
        max_running=args.max_running,
        max_input_tokens=512,
        max_batch_tokens=args.max_batch_tokens,
        cache_memory=args.cache_mib,
        request_rate=rate,
        static_batch=static_batch,
        warmup=args.warmup,
        requests=args.requests,
        seed=args.seed,
        input_tokens="16:512",
        output_tokens="8:128",
        beam_share=0.25,
        num_beams=4,
        output="json",
    )
    return runs.json_report([args.quintet, "bench", "engine", *runs.flags_of(flags)], args.timeout)


def show(name, report):
    load = report["load"]
    row = dict(
        name=name,
        requests_per_s=load["requests_per_s"],
        output_tokens_per_s=load["output_tokens_per_s"],
        codes=load["codes"],
        ttft_ms=load["ttft_ms"],
        itl_ms=load["itl_ms"],
        e2e_ms=load["e2e_ms"],
    )
    latencies = "  ".join(
        f"{kind.upper()} p50 {row[kind + '_ms']['p50']:8.1f} p99 {row[kind + '_ms']['p99']:8.1f} ms"
        for kind in ("ttft", "itl")
    )
    print(
        f"{name:34s} {row['requests_per_s']:7.1f} requests/s {row['output_tokens_per_s']:9.0f} "
        f"tokens/s  {latencies}",
        flush=True,
    )
    return row


def main():
    parser = runs.bench_parser(__doc__, "directory for the checkpoint")
    parser.add_argument("--model", default="t5-base")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument(
        "--max-running",
        type=int,
        default=256,
        help="maximum number of sequences decoded concurrently",
    )
    parser.add_argument("--max-batch-tokens", type=int, default=16384)
    parser.add_argument("--cache-mib", type=int, default=16384)
    parser.add_argument(
        "--batches",
        type=int,
        nargs="+",
        default=[64, 128, 256],
        help="sizes of the static batches, in requests",
    )
    parser.add_argument(
        "--loads",
        type=float,
        nargs="+",
        default=[0.5, 0.8],
        help="request rates for the latencies, as fractions of the best static rate",
    )
    parser.add_argument("--requests", type=int, default=2500)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    runs.add_timeout_and_out(parser, 60, "load")
    args = parser.parse_args()
    directory = checkpoint(args.model, args.work)
    static, everything = [], 1e5  # requests/s: all requests arrive at once
    for batch in args.batches:
        report = run(args, directory, rate=everything, static_batch=batch)
        static.append(dict(show(f"one batch of {batch} at a time", report), batch=batch))
    best = max(static, key=lambda row: row["output_tokens_per_s"])
    continuous = []
    for load in [1.5] + args.loads:
        name = (
            f"continuous, {load:.2f} of that rate"
            if load < 1
            else "continuous, more than it can serve"
        )
        report = run(args, directory, rate=load * best["requests_per_s"])
        continuous.append(dict(show(name, report), load=load))
    ratio = continuous[0]["output_tokens_per_s"] / best["output_tokens_per_s"]
    print(
        f"throughput of continuous batching over the best static batch ({best['batch']}): "
        f"{ratio:.2f}, goal {GOAL}: "
        f"{'holds' if ratio >= GOAL else 'DOES NOT HOLD'}"
    )
    document = dict(
        conditions=report["conditions"],
        configuration=report["configuration"],
        model=args.model,
        static=static,
        continuous=continuous,
        best_static_batch=best["batch"],
        over_best_static=ratio,
    )
    runs.write_report(args.out, document)
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
