#!/usr/bin/env python3
"""Measures the speed of sampling and logits processors on a GPU, relative to greedy decoding and
compared with transformers in the same run.

The models have real shapes and random bf16 weights, the same for both engines. A call encodes 32
inputs of 128 random tokens (GPT-2's prompts) and decodes exactly 64 tokens of each, once with each
of the decoding options in DECODINGS. Figures are medians of whole calls; tokens/s count generated
tokens. The exit code is 0 if the host works for at most 50 us per step in every call without beam
search, otherwise 1. The host's time is host_us_per_step of quintet bench: the time in which the
host does not wait for the GPU.

usage: sampling_gpu.py --quintet build/quintet --work DIR [--models gpt2 t5-base]
           [--peer-repetitions 0] [--out FILE]
"""

import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from batching_gpu import checkpoint  # noqa: E402
from peers import SHAPES, generate, random_ids  # noqa: E402
from runs import (  # noqa: E402
    add_timeout_and_out,
    bench_parser,
    bench_with,
    conditions_of,
    limits_for,
    write_report,
)

INPUT_TOKENS, NEW_TOKENS = 128, 64
GOAL_HOST_US = 50.0
# Sets of decoding options. Each option is a flag of quintet bench and, under the same name, an
# argument of transformers' generate.
DECODINGS = {
    "greedy": {},
    "greedy, penalty": dict(repetition_penalty=1.2),
    "top-k 50, top-p 0.9, penalty": dict(
        do_sample=True, top_k=50, top_p=0.9, repetition_penalty=1.2
    ),
    "top-p 0.9 of the whole vocabulary": dict(do_sample=True, top_k=0, top_p=0.9),
    "4 beams, top-k 50, top-p 0.9, penalty": dict(
        num_beams=4, do_sample=True, top_k=50, top_p=0.9, repetition_penalty=1.2
    ),
}


def quintet_row(args, directory, decoding):
    """Runs quintet bench with one set of decoding options. Returns its row and the whole report."""
    report = bench_with(
        args,
        directory,
        mode="generate",
        batch=args.batch,
        input_tokens=INPUT_TOKENS,
        new_tokens=NEW_TOKENS,
        **limits_for(args.batch, INPUT_TOKENS, decoding.get("num_beams", 1)),
        cache_memory=args.cache_mib,
        repetitions=args.repetitions,
        warmup=2,
        **decoding,
    )
    return report["rows"][0], report


class Peer:
    """Measures transformers with the same checkpoint on the same device."""

    def __init__(self, name, directory, args):
        import torch
        import transformers

        family, sizes = SHAPES[name]
        model_class = (
            transformers.T5ForConditionalGeneration
            if family == "t5"
            else transformers.GPT2LMHeadModel
        )
        self.torch, self.args, self.vocab = torch, args, sizes["vocab_size"]
        self.model = (
            model_class.from_pretrained(directory)
            .to(args.device, torch.float32 if args.dtype == "f32" else torch.bfloat16)
            .eval()
        )
        self.prompt = 1 if family == "t5" else INPUT_TOKENS
        self.call_ms({}, seed=0)  # warm-up: libraries load their kernels

    def call_ms(self, decoding, seed):
        ids = self.torch.tensor(
            random_ids(dict(batch=self.args.batch, input_tokens=INPUT_TOKENS), self.vocab, seed),
            device=self.args.device,
        )
        begin = time.perf_counter()
        with self.torch.inference_mode():
            mask = self.torch.ones_like(ids)
            out = generate(self.model, ids, mask, NEW_TOKENS, **decoding).cpu()
        assert out.shape[1] - self.prompt == NEW_TOKENS, out.shape
        return 1e3 * (time.perf_counter() - begin)

    def wall_ms(self, decoding):
        return statistics.median(
            self.call_ms(decoding, seed) for seed in range(1, 1 + self.args.peer_repetitions)
        )


def show(row):
    peer = (
        f"{row['transformers_wall_ms']:9.1f} ms {row['over_transformers']:6.1f}x"
        if "transformers_wall_ms" in row
        else ""
    )
    host = (
        f"host {row['host_us_per_step']:5.1f} us a step"
        if row["host_us_per_step"] is not None
        else ""
    )
    print(
        f"{row['model']:10s} {row['name']:38s} {row['wall_ms']:8.2f} ms "
        f"{row['tokens_per_s']:8.0f} tokens/s {host} {peer}",
        flush=True,
    )


def measure(model, args, report):
    """Measures one model and adds its rows to `report`. Returns whether the host works for at most
    GOAL_HOST_US per step in all rows without beam search."""
    directory = checkpoint(model, args.work)
    peer = Peer(model, directory, args) if args.peer_repetitions > 0 else None
    holds = True
    for name, decoding in DECODINGS.items():
        measured, own_report = quintet_row(args, directory, decoding)
        row = dict(
            model=model,
            name=name,
            decoding=decoding,
            wall_ms=measured["wall_ms"],
            tokens_per_s=1e3 * args.batch * NEW_TOKENS / measured["wall_ms"],
            host_us_per_step=measured.get("host_us_per_step"),
        )
        if peer:
            row["transformers_wall_ms"] = peer.wall_ms(decoding)
            row["over_transformers"] = row["transformers_wall_ms"] / row["wall_ms"]
        if row["host_us_per_step"] is not None and "num_beams" not in decoding:
            holds = holds and row["host_us_per_step"] <= GOAL_HOST_US
        report["conditions"] = conditions_of(
            own_report, "version", "commit", "cpu", "cores", "system", "threads", "device"
        )
        report["rows"].append(row)
        show(row)
        write_report(args.out, report)  # after each row, since a run may be interrupted
    return holds


def main():
    parser = bench_parser(__doc__, "directory for the checkpoints")
    parser.add_argument("--models", nargs="+", default=["gpt2", "t5-base"], choices=list(SHAPES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cache-mib", type=int, default=8192, help="KV cache of Quintet, in MiB")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--peer-repetitions", type=int, default=1, help="measured runs of transformers; 0 = none"
    )
    out = "also write the report as JSON to this file; current after each row"
    add_timeout_and_out(parser, 60, "process of Quintet", out)
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    report = dict(
        dtype=args.dtype,
        batch=args.batch,
        input_tokens=INPUT_TOKENS,
        new_tokens=NEW_TOKENS,
        weights="random, of the real shapes",
        repetitions=args.repetitions,
        goal_host_us_per_step=GOAL_HOST_US,
        rows=[],
    )
    held = [measure(model, args, report) for model in args.models]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
