#!/usr/bin/env python3
"""Measures a server on a GPU with many LoRA adapters: streams that choose among them, and adding
adapters while streams run.

The model has T5-base's shape and random bf16 weights; adapters have rank 16 on all linear layers.
All adapters of a run have the same values, but the server reads and stores each one separately. The
device has 64 slots for 1,000 adapters. Three closed loops alternate: streams without an adapter,
streams with the same adapter, and streams whose adapters are chosen by Zipf's law, so that many of
them are in no slot. Then adapters are added to the configuration one by one while streams run.

usage: many_adapters_gpu.py --work DIR [--out DIR]
QUINTET_BINARY: the program, build/quintet unless set.
"""

import os
import pathlib
import signal
import statistics
import sys
import time

sys.path[:0] = [
    str(pathlib.Path(__file__).resolve().parent),
    str(pathlib.Path(__file__).resolve().parent.parent / "reliability"),
]
from adapters import make_adapter  # noqa: E402
from peers import build_model  # noqa: E402
from serving import Load, Server, Verdict, arguments, core_halves, eventually, load  # noqa: E402

MODEL, SLOTS = "t5-base", 64


def files(work):
    """Writes the model and the adapter, unless they exist. Returns their directories."""
    directory, adapter = os.path.join(work, MODEL), os.path.join(work, f"{MODEL}-adapter")
    if not os.path.exists(directory + ".done"):
        import torch

        from batching_gpu import checkpoint

        checkpoint(MODEL, work)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            make_adapter(build_model(MODEL), adapter)
    return directory, adapter


class Configuration:
    def __init__(self, path, model, adapter):
        self.path, self.model, self.adapter, self.names = path, model, adapter, []

    def add(self, *names):
        self.names += names
        lines = [f'{name} = "{self.adapter}"' for name in self.names]
        text = f"[models.{MODEL}]\nadapter-slots = {SLOTS}\n[models.{MODEL}.adapters]\n"
        new = self.path.with_suffix(".new")
        new.write_text(text + "\n".join(lines) + "\n")
        os.replace(new, self.path)


def change_adapters(server, configuration, count):
    """Adds `count` adapters, one after the other. Returns for each the seconds until the server
    had read it."""
    seconds = []
    for turn in range(count):
        begin = time.monotonic()
        configuration.add(f"new{turn}")
        server.process.send_signal(signal.SIGHUP)
        there = f"has {len(configuration.names)} adapters"
        if eventually(lambda there=there: there in server.log(), 30) is None:
            raise RuntimeError(f"the adapter was not read:\n{server.log()[-2000:]}")
        seconds.append(time.monotonic() - begin)
        time.sleep(0.5)
    return seconds


def main() -> int:
    args = arguments(
        __doc__,
        work="",
        device="cuda",
        dtype="bf16",
        adapters=1000,
        concurrency=64,
        requests=2000,
        rounds=3,
        changes=20,
        input_tokens="16:256",
        output_tokens="16:64",
    )
    if not args.work:
        sys.exit("--work DIR is needed: the folder for the checkpoint and the adapter")
    work = pathlib.Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    model, adapter = files(args.work)
    configuration = Configuration(work / "many_adapters.toml", model, adapter)
    names = [f"a{i}" for i in range(args.adapters)]
    configuration.add(*names)
    server_cores, client_cores = core_halves()
    shape = dict(
        concurrency=args.concurrency,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        warmup=4 * args.concurrency,
        core=client_cores,
        channels=max(os.cpu_count() // 2, 1),
    )
    chosen = {"none": [], "one": names[:1], "zipf": names}
    reports = {kind: [] for kind in chosen}
    what = f"streams that choose among {args.adapters} adapters in {SLOTS} slots on a GPU"
    verdict = Verdict("many_adapters_gpu", None, what)
    begin = time.monotonic()
    with Server(
        model,
        core=server_cores,
        threads=0,
        config=str(configuration.path),
        device=args.device,
        dtype=args.dtype,
        max_running=256,
        cache_memory=8192,
        encoder_cache_bytes=0,
    ) as server:
        verdict.figure("seconds until the server was ready", round(time.monotonic() - begin, 2))
        verdict.figure("memory", [line for line in server.log().splitlines() if "serves" in line])
        for turn in range(args.rounds):
            for kind, adapters in chosen.items():
                some = {"adapters": adapters} if adapters else {}
                report = load(
                    server.target, requests=args.requests, seed=turn + 1, **some, **shape
                )["load"]
                reports[kind].append(report)
                print(kind, report["output_tokens_per_s"], report["codes"], flush=True)
        background = Load(server.target, duration=600, adapters=names, **shape)
        time.sleep(1)
        seconds = change_adapters(server, configuration, args.changes)
        changing = background.stop()
        verdict.figure("server", server.flags)
    verdict.conditions(changing)
    verdict.figure("configuration", changing["configuration"])
    reports["zipf, changing"] = [changing["load"]]
    medians = {
        kind: {
            "output_tokens_per_s": statistics.median(r["output_tokens_per_s"] for r in all_reports),
            **{
                f"{name}_{percentile}": statistics.median(r[name][percentile] for r in all_reports)
                for name in ("ttft_ms", "itl_ms")
                for percentile in ("p50", "p99")
            },
        }
        for kind, all_reports in reports.items()
    }
    for kind, figures in medians.items():
        print(f"{kind:15s}", {name: round(value, 2) for name, value in figures.items()})
    verdict.figure("medians", medians)
    verdict.figure("seconds_to_add_an_adapter", [round(value, 3) for value in seconds])
    failed = sum(
        report["measured"] - report["codes"].get("OK", {"count": 0})["count"]
        for all_reports in reports.values()
        for report in all_reports
    )
    verdict.claim("requests that failed", failed, failed == 0)
    ratio = medians["zipf"]["ttft_ms_p99"] / medians["one"]["ttft_ms_p99"]
    verdict.claim("p99 of the first token over that with one adapter <= 2", ratio, ratio <= 2)
    return verdict.finish(args.out)


if __name__ == "__main__":
    raise SystemExit(main())
