#!/usr/bin/env python3
"""Compares log_softmax + topk of 128 x 32128 f32 logits on a GPU: Quintet's bench_kernels_gpu and
torch, in the same run.

    selection_torch.py --bench build/tools/bench_kernels_gpu --out selection.json

Both are measured with logits that are still in the L2 cache (hot), and with logits that are not,
because the calls rotate through inputs that together exceed the cache. Two selections are
measured: the 8 best logits of every row, and the 8 best of every 4 rows together, as in beam
search. torch is timed both as plain calls and as a CUDA graph; ratios are relative to the graph.
"""

from attention_torch import median_seconds
from runs import flag_parser, json_report, write_report

ROWS, VOCAB, K = 128, 32128, 8


def torch_times(group, hot):
    """Returns the microseconds of one call of torch: (as a plain call, in a CUDA graph)."""
    import torch

    copies = 1 if hot else 12  # copies of 16.4 MB
    logits = [torch.rand(ROWS, VOCAB, device="cuda") * 2 - 1 for _ in range(copies)]
    bias = torch.rand(ROWS, 1, device="cuda")

    def call(x):
        scores = torch.log_softmax(x, -1) + bias
        return torch.topk(scores.view(ROWS // group, group * VOCAB), K)

    def measure(run, calls):
        return 1e6 * median_seconds(run, calls=11, warm_up=2) / calls

    calls = 24

    def all_calls():
        for i in range(calls):
            call(logits[i % copies])

    all_calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_calls()
    return measure(all_calls, calls), measure(graph.replay, calls)


def own_times(bench):
    report = json_report([bench, "--filter", f"log_softmax+topk {ROWS}x{VOCAB} {K} of"])
    return {row["name"]: row["us"] for row in report["results"]}


def main():
    parser = flag_parser(__doc__)
    parser.add_argument("--bench", default="build/tools/bench_kernels_gpu")
    parser.add_argument("--out", help="also write the results as JSON to this file")
    args = parser.parse_args()
    import torch

    own = own_times(args.bench)
    rows = []
    print(f"{'case':28s} {'quintet us':>10s} {'torch us':>9s} {'as graph':>9s} {'ratio':>6s}")
    for group in (1, 4):
        for hot in (True, False):
            called, replayed = torch_times(group, hot)
            us = own[f"log_softmax+topk {ROWS}x{VOCAB} {K} of {group} rows{' hot' if hot else ''}"]
            rows.append(
                dict(
                    rows=ROWS,
                    vocab=VOCAB,
                    k=K,
                    rows_each=group,
                    hot=hot,
                    quintet_us=us,
                    torch_us=called,
                    torch_graph_us=replayed,
                    over_torch=replayed / us,
                )
            )
            print(
                f"{f'{K} of {group} rows' + (', hot' if hot else ''):28s} {us:10.2f} "
                f"{called:9.1f} {replayed:9.1f} {replayed / us:5.1f}x"
            )
    report = dict(device=torch.cuda.get_device_name(), torch=torch.__version__, results=rows)
    write_report(args.out, report)


if __name__ == "__main__":
    main()
