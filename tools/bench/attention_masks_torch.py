#!/usr/bin/env python3
"""Compares attention under column masks (FlashMask) on a GPU: Quintet's bench_attention_gpu and
torch's FlexAttention, in the same run.

    attention_masks_torch.py --bench build/tools/bench_attention_gpu --out masks.json

Forward only, bf16, 16 heads of 128, one mask shared by all heads. The mask families and their sizes
are those of MaskFamilies in bench_attention_gpu.cc. FlexAttention gets the same columns as a
mask_mod, with its block mask built beforehand; it is compiled once per length. Also measures how
Quintet's time depends on the fraction of visible pairs and tiles, for three families at 16,384
tokens (attention_masks_plot.py plots it). The file is rewritten after each measurement, so an
interrupted run keeps its results so far.
"""

from attention_torch import HEADS, document_of, median_seconds, replace_report
from runs import flag_parser, json_report

DIM, LEAST_TOKENS = 128, 16384
TILE = 128  # queries and keys


def families(n, part):
    """Returns {family: (causal, lower_begin, lower_end, upper_begin, upper_end)} for n keys. The
    last four are tensors [n] on the CPU: key j is hidden from the queries in [lower_begin[j],
    lower_end[j]) and in [upper_begin[j], upper_end[j])."""
    import torch

    j = torch.arange(n)
    none, end, zero = torch.full((n,), n), torch.full((n,), n), torch.zeros(n, dtype=torch.long)
    begin_of = j // part * part
    end_of = (begin_of + part).clamp(max=n)
    last = (n - 1) // part * part
    after = (j + part).clamp(max=n)
    far = (j + part + 1).clamp(max=n)
    is_global = j < 128
    return {
        "full": (False, none, end, zero, zero),
        "causal": (True, none, end, zero, zero),
        "causal window": (True, after, end, zero, zero),
        "window": (False, far, end, zero, (j - part).clamp(min=0)),
        "causal documents": (True, end_of, end, zero, zero),
        "documents": (False, end_of, end, zero, begin_of),
        "shared question": (True, torch.where(j < part, none, end_of), end, zero, zero),
        "global and window": (
            False,
            torch.where(is_global, none, far),
            end,
            torch.where(is_global, zero, zero + 128),
            torch.where(is_global, zero, (j - part).clamp(min=128)),
        ),
        "causal blocks": (
            True,
            torch.where(j >= last, none, end_of),
            torch.where(j >= last, end, zero + last),
            zero,
            zero,
        ),
        "prefix documents": (
            False,
            end_of,
            end,
            zero,
            torch.where(j - begin_of < part // 4, begin_of, j),
        ),
        "prefix": (False, none, end, zero, torch.where(j < n // 4, zero, j)),
        "dropped keys": (
            True,
            torch.where((j >= n // 4) & (j < n // 2), j, none),
            torch.where((j >= n // 4) & (j < n // 2), zero + n // 2, end),
            zero,
            zero,
        ),
        "eviction": (True, j + 1 + j * 7919 % (n - j), end, zero, zero),
    }


def tiles_seen(columns, n):
    """Returns the fraction of the (query, key) tiles of n tokens that contain a visible pair."""
    import torch

    causal, lower_begin, lower_end, upper_begin, upper_end = columns
    begin = torch.arange(0, n, TILE)[:, None]
    end = begin + TILE
    if causal:
        begin = torch.maximum(begin, torch.arange(n)[None])

    def within(first, last):
        return (torch.minimum(end, last) - torch.maximum(begin, first)).clamp(min=0)

    seen = (
        (end - begin).clamp(min=0) - within(lower_begin, lower_end) - within(upper_begin, upper_end)
    )
    return (seen > 0).view(n // TILE, n // TILE, TILE).any(2).float().mean().item()


def measure_flex(n):
    """Yields (family, microseconds)."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch = max(n, LEAST_TOKENS) // n
    q, k, v = (
        (torch.rand(batch, HEADS, n, DIM, device="cuda") * 2 - 1).to(torch.bfloat16)
        for _ in range(3)
    )
    columns = [torch.zeros(n, dtype=torch.int32, device="cuda") for _ in range(4)]
    lower_begin, lower_end, upper_begin, upper_end = columns

    def seen(b, h, i, j):
        lower = (i >= lower_begin[j]) & (i < lower_end[j])
        upper = (i >= upper_begin[j]) & (i < upper_end[j])
        return ~(lower | upper)

    compiled = torch.compile(flex_attention, dynamic=False)
    make_mask = torch.compile(create_block_mask, dynamic=False)
    for name, (causal, *values) in families(n, n // 8).items():
        if causal:  # the upper range, which causal families do not use
            values[3] = torch.arange(n)
        for column, value in zip(columns, values):
            column.copy_(value)
        mask = make_mask(seen, None, None, n, n, device="cuda")
        seconds = median_seconds(
            lambda: compiled(q, k, v, block_mask=mask, scale=0.125), calls=10, warm_up=3
        )
        yield name, 1e6 * seconds


def main():
    parser = flag_parser(__doc__)
    parser.add_argument("--bench", default="build/tools/bench_attention_gpu")
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--commit", default="", help="commit id that is written to the file")
    parser.add_argument("--out", help="also write the results as JSON to this file")
    args = parser.parse_args()
    own = json_report([args.bench, "--filter", "mask "])
    rows = {row["name"]: row for row in own["results"]}

    document = document_of(
        own, args.commit, head_dim=DIM, against_flex_attention=[], by_share_seen=[]
    )
    for name, row in rows.items():
        family, n, part = (
            name.removeprefix("mask ").replace(" n ", "|").replace(" part ", "|").split("|")
        )
        if int(n) != LEAST_TOKENS:
            continue
        share = row["flops"] / (4 * LEAST_TOKENS * LEAST_TOKENS * HEADS * DIM)
        tiles = tiles_seen(families(int(n), int(part))[family], int(n))
        document["by_share_seen"].append(
            dict(family=family, part=int(part), seen=share, tiles=tiles, quintet_us=row["us"])
        )
        print(
            f"{family:20s} {n:>6s} part {part:>5s} seen {share:6.4f}, tiles {tiles:6.4f} "
            f"{row['us']:11.1f} us"
        )
    replace_report(args.out, document)
    print(
        f"{'family':20s} {'n':>6s} {'seen':>6s} {'quintet us':>11s} {'TFLOP/s':>8s} "
        f"{'flex us':>10s} {'ratio':>6s}"
    )
    for n in [int(text) for text in args.lengths.split(",")]:
        for name, flex_us in measure_flex(n):
            row = rows[f"mask {name} n {n} part {n // 8}"]
            share = row["flops"] / (4 * max(n, LEAST_TOKENS) * n * HEADS * DIM)
            document["against_flex_attention"].append(
                dict(
                    family=name,
                    n=n,
                    seen=share,
                    quintet_us=row["us"],
                    flex_us=flex_us,
                    ratio=flex_us / row["us"],
                )
            )
            replace_report(args.out, document)
            print(
                f"{name:20s} {n:6d} {share:6.3f} {row['us']:11.1f} "
                f"{1e-6 * row['flops'] / row['us']:8.0f} {flex_us:10.1f} "
                f"{flex_us / row['us']:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
