#!/usr/bin/env python3
"""Compares the speed of two builds of Quintet on a GPU: the shapes of peers_gpu.py, the builds in
alternation on one machine.

Needs torch with CUDA and transformers, which create the checkpoints. For each shape a row gives the
median of each build over all its runs, their ratio, and the spread of the old build: the largest
deviation of a run's median from the median of all runs. A shape is slower if the ratio exceeds 1.02
and also 1 plus that spread; the exit code is 1 if any shape is slower.

usage: builds_gpu.py --old BINARY --new BINARY --work DIR --out FILE [--models ...] [--runs 3]
"""

import copy
import gc
import itertools
import statistics
import sys

from peers import label, versions
from peers_gpu import GROUPS, load_model, quintet_ms, shapes_of
from runs import flag_parser, write_report

LIMIT = 1.02


def measure(directory, group, args):
    """Runs both builds alternately, args.runs times each. Returns {build: {batch size: [the
    milliseconds of the calls, one list per run]}}, and the conditions of the last run of each
    build."""
    times = {"old": {}, "new": {}}
    conditions = {}
    for _ in range(args.runs):
        for build, binary in (("old", args.old), ("new", args.new)):
            own = copy.copy(args)
            own.quintet = binary
            calls, conditions[build] = quintet_ms(directory, group, own)
            for batch, ms in calls.items():
                times[build].setdefault(batch, []).append(ms)
    return times, conditions


def compare(name, shape, old, new):
    """Returns the row of the report for one shape. `old` and `new` contain, for each run of that
    build, the milliseconds of its calls."""
    medians = [statistics.median(run) for run in old]
    before = statistics.median(itertools.chain(*old))
    after = statistics.median(itertools.chain(*new))
    spread = max(abs(median / before - 1) for median in medians)
    ratio = after / before
    return dict(
        model=name,
        shape=label(shape),
        **shape,
        old_ms=before,
        new_ms=after,
        ratio=ratio,
        spread=spread,
        slower=ratio > max(LIMIT, 1 + spread),
        old_all_ms=old,
        new_all_ms=new,
    )


def main():
    parser = flag_parser(__doc__)
    parser.add_argument("--old", required=True, help="quintet of the build to compare with")
    parser.add_argument("--new", required=True, help="quintet of the build to judge")
    parser.add_argument("--work", required=True, help="folder for the checkpoints")
    parser.add_argument("--out", required=True, help="file for the JSON")
    parser.add_argument("--models", nargs="+", default=["t5-base", "t5-small", "gpt2"])
    parser.add_argument("--runs", type=int, default=3, help="runs of each build (default: 3)")
    args = parser.parse_args()
    args.dtype, args.repetitions, args.warmup = "bf16", 5, 2
    args.cache_mib, args.group_timeout = 16384, 120
    import torch

    report = {
        "versions": versions(),
        "device": torch.cuda.get_device_name(),
        "dtype": "bf16",
        "rows": [],
    }
    for name in args.models:
        model, directory = load_model(name, args.work)
        del model
        gc.collect()
        torch.cuda.empty_cache()
        for group in GROUPS[name]:
            times, conditions = measure(directory, group, args)
            report["builds"] = {
                build: {k: of[k] for k in ("version", "commit", "cpu")}
                for build, of in conditions.items()
            }
            for shape in shapes_of(group):
                batch = shape["batch"]
                row = compare(name, shape, times["old"][batch], times["new"][batch])
                report["rows"].append(row)
                print(
                    f"{name:10s} {row['shape']:26s} {row['old_ms']:9.2f} {row['new_ms']:9.2f} ms "
                    f"{row['ratio']:6.3f} spread {row['spread']:.3f}"
                    f"{'  SLOWER' if row['slower'] else ''}",
                    flush=True,
                )
            write_report(args.out, report)  # after each group: a run may be interrupted
    slower = [row["shape"] for row in report["rows"] if row["slower"]]
    print(f"slower: {len(slower)} of {len(report['rows'])} shapes")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
