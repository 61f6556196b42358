#!/usr/bin/env python3
"""Attention with and without T5's bias on a GPU: bench_attention_gpu against torch in the same run.

    attention_torch.py --bench build/tools/bench_attention_gpu --out attention.json [--peers cudnn,flash,...] [--shapes 64x512x0,...]

Forward alone, bf16, 16 heads, 16,384 tokens in all, TFLOP/s by 4 batch heads n^2 head_dim (half of it when causal). Peers: cudnn and
flash (no bias), cudnn_matrix and efficient_matrix (the bias as a bf16 matrix, one for the batch), flex (FlexAttention, the bias looked
up in a table by distance; compiled for each shape). Their outputs are checked against each other before they are timed.
"""

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import tempfile

HEADS, TOTAL, SATURATION = 16, 16384, 128
SHAPES = [(64, 512, False), (64, 2048, False), (64, 8192, False), (64, 16384, False), (64, 2048, True), (64, 16384, True),
          (128, 512, False), (128, 2048, False), (128, 8192, False), (128, 16384, True)]
PEERS = ("cudnn", "flash", "cudnn_matrix", "efficient_matrix", "flex")


def seconds(call):
    """Median of replays of a graph of calls that last about ten milliseconds."""
    import torch

    def timed(work):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end)

    call()
    torch.cuda.synchronize()
    calls = min(20, max(1, int(0.01 / timed(call))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return statistics.median([timed(graph.replay) for _ in range(12)][2:]) / calls


def peer_calls(dim, n, causal, wanted):
    """Name -> function that returns the output, with the bias where the name says so."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch = TOTAL // n
    q, k, v = ((torch.rand(batch, n, 3, HEADS, dim, device="cuda") * 2 - 1).to(torch.bfloat16).permute(2, 0, 3, 1, 4)[i] for i in range(3))
    table = torch.rand(HEADS, 2 * SATURATION + 1, device="cuda") * 2 - 1
    scale = 0.125
    calls = {}

    def sdpa(backend, mask, is_causal):
        def call():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)
        return call

    if "cudnn" in wanted:
        calls["cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION, None, causal)
    if "flash" in wanted:
        calls["flash"] = sdpa(SDPBackend.FLASH_ATTENTION, None, causal)
    if "cudnn_matrix" in wanted or "efficient_matrix" in wanted:
        at = torch.arange(n, device="cuda")
        delta = at[None, :] - at[:, None]
        matrix = table.to(torch.bfloat16)[:, delta.clamp(-SATURATION, SATURATION) + SATURATION]
        if causal:
            matrix.masked_fill_(delta > 0, -math.inf)
        matrix = matrix[None].expand(batch, -1, -1, -1)
        del delta
        if "cudnn_matrix" in wanted:
            calls["cudnn_matrix"] = sdpa(SDPBackend.CUDNN_ATTENTION, matrix, False)
        if "efficient_matrix" in wanted:
            calls["efficient_matrix"] = sdpa(SDPBackend.EFFICIENT_ATTENTION, matrix, False)
    if "flex" in wanted:
        def bias(score, b, h, i, j):
            return score + table[h, torch.clamp(j - i, -SATURATION, SATURATION) + SATURATION]

        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cuda") if causal else None
        dense = [t.contiguous() for t in (q, k, v)]
        for options in ({}, dict(BLOCK_M=64, BLOCK_N=64, num_stages=2)):  # the first do not fit everywhere
            compiled = torch.compile(functools.partial(flex_attention, score_mod=bias, block_mask=mask, scale=scale, kernel_options=options), dynamic=False)
            try:
                compiled(*dense)
            except RuntimeError:
                continue
            calls["flex"] = lambda: compiled(*dense)
            break
    return calls


def check(outputs):
    """Peers of the same function agree."""
    for group in (("cudnn", "flash"), ("cudnn_matrix", "efficient_matrix", "flex")):
        known = [name for name in group if name in outputs]
        for name in known[1:]:
            a, b = outputs[known[0]].float(), outputs[name].float()
            error = ((a - b).norm() / a.norm()).item()
            if not error < 2e-2:
                raise SystemExit(f"{name} differs from {known[0]} by {error:.3g}")


def measure_peers(shapes, wanted):
    import torch

    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.accumulated_recompile_limit = 1000
    torch.manual_seed(1)
    results = {}
    for dim, n, causal in shapes:
        flops = 4 * TOTAL * n * HEADS * dim / (2 if causal else 1)
        row = {}
        for names in (("cudnn", "flash"), ("cudnn_matrix", "efficient_matrix", "flex")):
            outputs = {}
            for name, call in peer_calls(dim, n, causal, [w for w in wanted if w in names]).items():
                try:
                    outputs[name] = call()
                    row[name] = 1e-12 * flops / seconds(call)
                except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                    print(f"{name} at {dim} {n} {causal}: {str(error).splitlines()[0]}")
            check(outputs)
            del outputs
            torch.cuda.empty_cache()
        results[dim, n, causal] = row
        print(dim, n, "causal" if causal else "full", {k: round(t) for k, t in row.items()}, flush=True)
    return results


def measure_own(bench):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bench.json")
        subprocess.run([bench, "--filter", f"prefill bf16 heads {HEADS} ", "--json", path], check=True, stdout=subprocess.DEVNULL)
        with open(path) as file:
            return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/tools/bench_attention_gpu")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--shapes", help="head_dim x n x causal, separated by commas; the table of ten without it")
    parser.add_argument("--commit", default="", help="recorded in the file")
    parser.add_argument("--out", help="also write the results to this file")
    args = parser.parse_args()
    shapes = SHAPES
    if args.shapes:
        shapes = [(int(d), int(n), c == "1") for d, n, c in (text.split("x") for text in args.shapes.split(","))]
    own = measure_own(args.bench)
    rates = {row["name"]: 1e-12 * row["flops"] / (1e-6 * row["us"]) for row in own["results"]}
    for name, rate in rates.items():
        print(f"{name:52s} {rate:8.1f} TFLOP/s", flush=True)
    peers = measure_peers(shapes, args.peers.split(","))

    import torch

    rows = []
    names = [name for name in PEERS if name in args.peers.split(",")]
    print("TFLOP/s".ljust(22) + "".join(name.rjust(18) for name in ["quintet none", "quintet table", "ratio", *names]))
    for dim, n, causal in shapes:
        shape = f"dim {dim} n {n} {'causal' if causal else 'full'}"
        none, table = (rates[f"prefill bf16 heads {HEADS} {shape} {bias}"] for bias in ("none", "table"))
        row = dict(head_dim=dim, n=n, causal=causal, quintet_none=none, quintet_table=table, **peers[dim, n, causal])
        rows.append(row)
        cells = [f"{none:.0f}", f"{table:.0f}", f"{table / none:.3f}", *(f"{row[name]:.0f}" if name in row else "-" for name in names)]
        print(shape.ljust(22) + "".join(cell.rjust(18) for cell in cells))
    if args.out:
        document = dict(device=own["device"], date=own["date"], commit=args.commit, paths=own["paths"], torch=torch.__version__, dtype="bf16", heads=HEADS,
                        tokens=TOTAL, unit="TFLOP/s", matrix_tflop_per_s=own["matrix_tflop_per_s"], copy_gb_per_s=own["copy_gb_per_s"], results=rows)
        with open(args.out, "w") as file:
            file.write(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
