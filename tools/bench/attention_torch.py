#!/usr/bin/env python3
"""Compares attention with and without a bias on a GPU: Quintet's bench_attention_gpu and torch, in
the same run.

    attention_torch.py --bench build/tools/bench_attention_gpu --out attention.json
        [--peers cudnn,flash,...] [--shapes 64x512x0,...]

Forward only, bf16, 16 heads, 16,384 tokens in total. TFLOP/s count 4 * batch * heads * n^2 *
head_dim operations, half of that when causal. Quintet is measured without a bias, with T5's bias
(table), and at some shapes with ALiBi and FIRE. Peers:
- cudnn and flash: no bias;
- cudnn_matrix and efficient_matrix: T5's bias as a bf16 matrix, the same for the whole batch;
- flex: FlexAttention, which looks up T5's bias in a table by distance; compiled for each shape.
The outputs of peers that compute the same function are compared with each other; Quintet's are not
compared. FlexAttention is compiled before it is timed, in parallel processes that share a cache.
The file is rewritten after each shape, so an interrupted run keeps its results so far.
"""

import argparse
import concurrent.futures
import functools
import math
import os
import statistics
import subprocess
import sys
import time

from runs import flag_parser, json_report, write_report

HEADS, TOTAL, SATURATION, SCALE = 16, 16384, 128, 0.125
SHAPES = [
    (64, 512, False),
    (64, 2048, False),
    (64, 8192, False),
    (64, 16384, False),
    (64, 2048, True),
    (64, 16384, True),
    (128, 512, False),
    (128, 2048, False),
    (128, 8192, False),
    (128, 16384, True),
]
BIASES = (
    "none",
    "table",
    "alibi",
    "fire",
)  # Biases of Quintet; the last two only for shapes that bench_attention_gpu measures
PEERS = ("cudnn", "flash", "cudnn_matrix", "efficient_matrix", "flex")
SAME = (
    ("cudnn", "flash"),
    ("cudnn_matrix", "efficient_matrix"),
)  # peers that are one function of torch
# Tiles of FlexAttention for each head_dim: (queries, keys, stages, warps). They were the fastest of
# nine configurations, which included torch's default.
FLEX_TILES = {64: ((128, 32, 3, 4),), 128: ((128, 64, 3, 8),)}


def gpu_seconds(work):
    """Returns the GPU time of work() in seconds."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end)


def median_seconds(work, calls, warm_up):
    """Returns the median GPU time of `calls` calls of work() in seconds, after `warm_up` calls."""
    return statistics.median([gpu_seconds(work) for _ in range(warm_up + calls)][warm_up:])


def seconds(call):
    """Returns the time of one call in seconds: the median time of a CUDA graph of several calls
    (about 10 ms in total), divided by their number."""
    import torch

    call()
    torch.cuda.synchronize()
    calls = min(20, max(1, int(0.01 / gpu_seconds(call))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return median_seconds(graph.replay, calls=10, warm_up=2) / calls


def shape_name(shape):
    dim, n, causal = shape
    return f"dim {dim} n {n} {'causal' if causal else 'full'}"


class Inputs:
    """Random queries, keys, values and bias of one shape."""

    def __init__(self, shape):
        import torch

        self.dim, self.n, self.causal = shape
        torch.manual_seed(1)
        qkv = (
            (torch.rand(TOTAL // self.n, self.n, 3, HEADS, self.dim, device="cuda") * 2 - 1)
            .to(torch.bfloat16)
            .permute(2, 0, 3, 1, 4)
        )
        self.q, self.k, self.v = qkv[0], qkv[1], qkv[2]
        self.table = torch.rand(HEADS, 2 * SATURATION + 1, device="cuda") * 2 - 1

    def sdpa(self, name):
        """Returns a function that computes attention with one of torch's SDPA backends. Names that
        end in "_matrix" include the bias as a matrix."""
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = {
            "cudnn": SDPBackend.CUDNN_ATTENTION,
            "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION,
        }[name.split("_")[0]]
        matrix = self.matrix() if name.endswith("_matrix") else None

        def call():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    self.q,
                    self.k,
                    self.v,
                    attn_mask=matrix,
                    is_causal=self.causal and matrix is None,
                    scale=SCALE,
                )

        return call

    @functools.lru_cache(maxsize=1)
    def matrix(self):
        import torch

        at = torch.arange(self.n, device="cuda", dtype=torch.int32)
        delta = at[None, :] - at[:, None]
        matrix = self.table.to(torch.bfloat16)[:, delta.clamp(-SATURATION, SATURATION) + SATURATION]
        if self.causal:
            matrix.masked_fill_(delta > 0, -math.inf)
        return matrix[None].expand(TOTAL // self.n, -1, -1, -1)

    def flex(self, tiles):
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        # The table has one entry for every distance, so that neighbouring distances read adjacent
        # entries. Two variants take 2 to 4 times as long: a table of 257 entries, indexed by the
        # clamped distance, and a table in bf16.
        distances = (
            torch.arange(1 - self.n, self.n, device="cuda").clamp(-SATURATION, SATURATION)
            + SATURATION
        )
        table = self.table[:, distances].contiguous()

        def bias(score, b, h, i, j):
            return score + table[h, j - i + (self.n - 1)]

        mask = (
            create_block_mask(lambda b, h, i, j: i >= j, None, None, self.n, self.n, device="cuda")
            if self.causal
            else None
        )
        options = (
            dict(zip(("BLOCK_M", "BLOCK_N", "num_stages", "num_warps"), tiles)) if tiles else {}
        )
        q, k, v = (t.contiguous() for t in (self.q, self.k, self.v))
        compiled = torch.compile(
            functools.partial(
                flex_attention, score_mod=bias, block_mask=mask, scale=SCALE, kernel_options=options
            ),
            dynamic=False,
        )
        return lambda: compiled(q, k, v)


def check(name, output, expected):
    error = ((output.float() - expected.float()).norm() / expected.float().norm()).item()
    if not error < 2e-2:
        raise SystemExit(f"{name} differs from its peer by {error:.3g}")


def measure_sdpa(shape, wanted, rates):
    """Measures torch's SDPA peers and stores their TFLOP/s in `rates`; leaves out peers that fail.
    Returns an output that was computed with the bias, or None."""
    import torch

    inputs, flops, expected = Inputs(shape), flops_of(shape), None
    for group in SAME:
        expected = None
        for name in (name for name in group if name in wanted):
            try:
                call = inputs.sdpa(name)
                output = call()
                rates[name] = 1e-12 * flops / seconds(call)
            except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                print(f"{name} at {shape_name(shape)}: {str(error).splitlines()[0]}", flush=True)
                continue
            if expected is not None:
                check(name, output, expected)
            expected = output
    return expected


def measure_flex(shape, expected, rates):
    import torch

    inputs = Inputs(shape)
    for tiles in FLEX_TILES[shape[0]]:
        try:
            call = inputs.flex(tiles)
            output = call()
            rate = 1e-12 * flops_of(shape) / seconds(call)
        except Exception as error:  # of several types, if the tiles do not fit
            print(f"flex {tiles} at {shape_name(shape)}: {type(error).__name__}", flush=True)
            continue
        if expected is not None:
            check("flex", output, expected)
        if rate > rates.get("flex", 0):
            rates.update(flex=rate, flex_tiles=tiles)


def flops_of(shape):
    dim, n, causal = shape
    return 4 * TOTAL * n * HEADS * dim / (2 if causal else 1)


def prepare_torch():
    import torch

    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.accumulated_recompile_limit = 1000
    torch._inductor.config.assert_indirect_indexing = (
        False  # FlexAttention is slow with bounds checks of each index
    )


def compile_flex(shape):
    """Compiles FlexAttention for one shape, in a process of its own, and leaves the compiled
    kernels in torch's cache on disk."""
    prepare_torch()
    inputs = Inputs(shape)
    for tiles in FLEX_TILES[shape[0]]:
        try:
            inputs.flex(tiles)()
        except Exception:  # the measurement reports the error
            pass


def compile_all(shapes, limit):
    """Compiles FlexAttention for all shapes in parallel processes. Kills those that have not
    finished after about `limit` seconds."""
    begin = time.monotonic()

    def run(shape):
        text = "x".join(str(int(x)) for x in shape)
        left = max(1.0, limit - (time.monotonic() - begin))
        try:
            subprocess.run(
                [sys.executable, __file__, "--compile", text],
                timeout=left,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pass

    with concurrent.futures.ThreadPoolExecutor(
        min(len(shapes), max(1, (os.cpu_count() or 2) - 2))
    ) as pool:
        list(pool.map(run, shapes))
    print(f"FlexAttention compiled in {time.monotonic() - begin:.0f} s", flush=True)


def measure_own(bench, shapes):
    """Runs bench_attention_gpu on the shapes, without a bias and with each bias that it measures
    for a shape. Returns its report."""
    filters = [f"prefill bf16 heads {HEADS} {shape_name(shape)} " for shape in shapes]
    return json_report([bench, "--filter", *filters])


def parse_shape(text):
    dim, n, causal = text.split("x")
    return int(dim), int(n), causal == "1"


def document_of(own, commit, **fields):
    """Returns a report that contains `fields` and the conditions in `own`, which is a report of
    bench_attention_gpu."""
    import torch

    return dict(
        device=own["device"],
        date=own["date"],
        commit=commit,
        paths=own["paths"],
        torch=torch.__version__,
        dtype="bf16",
        heads=HEADS,
        **fields,
    )


def replace_report(path, document):
    """Replaces the file `path` in one step, so that it is complete at any time; does nothing if
    `path` is empty or None."""
    if path:
        write_report(path + ".part", document)
        os.replace(path + ".part", path)


class Report:
    """Collects one row of results for each shape and rewrites the file after every change."""

    def __init__(self, own, args):
        rates = {row["name"]: 1e-12 * row["flops"] / (1e-6 * row["us"]) for row in own["results"]}
        self.path = args.out
        self.rows = {}
        for shape in args.shapes:
            names = {
                bias: f"prefill bf16 heads {HEADS} {shape_name(shape)} {bias}" for bias in BIASES
            }
            row = {f"quintet_{bias}": rates[name] for bias, name in names.items() if name in rates}
            self.rows[shape] = dict(
                head_dim=shape[0],
                n=shape[1],
                causal=shape[2],
                **row,
                ratio=row["quintet_table"] / row["quintet_none"],
            )
        self.document = document_of(
            own,
            args.commit,
            tokens=TOTAL,
            unit="TFLOP/s",
            matrix_tflop_per_s=own["matrix_tflop_per_s"],
            copy_gb_per_s=own["copy_gb_per_s"],
            results=list(self.rows.values()),
        )
        self.write()

    def write(self):
        replace_report(self.path, self.document)

    def print(self, peers):
        names = [
            *(f"quintet_{bias}" for bias in BIASES),
            "ratio",
            *(name for name in PEERS if name in peers),
        ]
        print("TFLOP/s".ljust(22) + "".join(name.rjust(18) for name in names))
        for shape, row in self.rows.items():
            cells = [
                "-"
                if name not in row
                else f"{row[name]:.3f}"
                if name == "ratio"
                else f"{row[name]:.0f}"
                for name in names
            ]
            print(shape_name(shape).ljust(22) + "".join(cell.rjust(18) for cell in cells))


def main():
    parser = flag_parser(__doc__)
    parser.add_argument("--bench", default="build/tools/bench_attention_gpu")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument(
        "--shapes", help="HEAD_DIMxNxCAUSAL, separated by commas (default: all ten shapes)"
    )
    parser.add_argument(
        "--compile-seconds",
        type=float,
        default=90,
        help="time limit for compiling FlexAttention beforehand, in seconds",
    )
    parser.add_argument("--commit", default="", help="commit id that is written to the file")
    parser.add_argument("--out", help="also write the results as JSON to this file")
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compile:
        return compile_flex(parse_shape(args.compile))
    args.shapes = [parse_shape(text) for text in args.shapes.split(",")] if args.shapes else SHAPES
    peers = args.peers.split(",")
    report = Report(measure_own(args.bench, args.shapes), args)
    prepare_torch()
    expected = {}
    for shape, row in report.rows.items():
        output = measure_sdpa(shape, peers, row)
        expected[shape] = None if output is None else output.cpu()
        report.write()
        print(
            shape_name(shape), {name: round(row[name]) for name in PEERS if name in row}, flush=True
        )
    if "flex" in peers:
        compile_all(args.shapes, args.compile_seconds)
        for shape, row in report.rows.items():
            output = expected[shape]
            measure_flex(shape, None if output is None else output.cuda(), row)
            report.write()
            print(
                shape_name(shape),
                "flex",
                round(row.get("flex", 0)),
                row.get("flex_tiles"),
                flush=True,
            )
    report.print(peers)


if __name__ == "__main__":
    main()
