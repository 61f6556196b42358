#!/usr/bin/env python3
"""Measures how much faster several GPUs of one process are than one of them: a job over lines
(`quintet generate`), and a server under load (`quintet serve`).

The model is the T5-base of job_models.py. A job repeats 4,000 lines; its time is that of its
summary, from the first line to the last, so the start of the process does not count. Its output
must not depend on the number of GPUs for the first 2,000 lines in f32. The load is a closed loop of
unary calls with as many beams as the job, in which every GPU has the same number of requests.
Server and client use one half of the machine's cores each.

usage: replicas_gpu.py --work DIR [--devices cuda:0,1] [--lines 400000] [--out DIR]
QUINTET_BINARY: the program, build/quintet unless set.
"""

import os
import pathlib
import re
import subprocess
import sys
import time

sys.path[:0] = [
    str(pathlib.Path(__file__).resolve().parent),
    str(pathlib.Path(__file__).resolve().parent.parent / "reliability"),
]
import job_models
from serving import QUINTET, Server, Verdict, arguments, core_halves, failures, load

ONE, GOAL = "cuda:0", 1.95
DIFFERENT_LINES, CHECKED_LINES = 4_000, 2_000


def generate(model, lines: pathlib.Path, device: str, *flags: str) -> tuple[bytes, str]:
    """Runs a job. Returns its output and its log."""
    command = [QUINTET, "generate", "--model", str(model), "--device", device, *flags]
    with open(lines, "rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, check=True)
    return done.stdout, done.stderr.decode()


def lines_per_s(log: str) -> tuple[float, float]:
    """The seconds and the lines/s of the summary of a job."""
    found = re.search(r"lines, \d+ tokens in ([\d.]+) s: ([\d.]+) lines/s, .* 0 failed", log)
    if found is None:
        raise RuntimeError(f"no summary without failures:\n{log[-1000:]}")
    return float(found[1]), float(found[2])


def measure_jobs(args, model, work, verdict) -> float:
    """Returns how many times as many lines/s the devices process as one of them."""
    texts = job_models.lines("t5-base", DIFFERENT_LINES, 4, 30)
    short, long = work / "short.txt", work / "long.txt"
    short.write_text("".join(f"{text}\n" for text in texts[:CHECKED_LINES]))
    long.write_text("".join(f"{text}\n" for text in texts) * (args.lines // len(texts)))
    flags = ("--max-new-tokens", "60", "--num-beams", str(args.beams))
    one, _ = generate(model, short, ONE, "--dtype", "f32", *flags)
    several, _ = generate(model, short, args.devices, "--dtype", "f32", *flags)
    pairs = zip(one.splitlines(), several.splitlines(), strict=True)
    different = sum(first != second for first, second in pairs)
    verdict.claim("output lines that differ", different, different == 0)
    speed = {}
    for device in (ONE, args.devices):
        seconds, speed[device] = lines_per_s(generate(model, long, device, *flags)[1])
        verdict.figure(f"job, {device}", {"seconds": seconds, "lines_per_s": speed[device]})
        print(f"job {device:12} {seconds:7.2f} s {speed[device]:10.1f} lines/s", flush=True)
    return speed[args.devices] / speed[ONE]


def measure_server(args, model, verdict) -> float:
    """Returns how many times as many tokens/s the devices generate as one of them."""
    server_cores, client_cores = core_halves()
    speed = {}
    for device in (ONE, args.devices):
        count = device.count(",") + 1
        with Server(
            model,
            core=server_cores,
            threads=0,
            device=device,
            cache_memory="auto",
            max_queue=4096 * count,
            max_queue_tokens=1 << 24,
            encoder_cache_bytes=0,
        ) as server:
            shape = dict(
                concurrency=args.concurrency * count,
                warmup=args.concurrency * count,
                requests=args.requests * count,
                input_tokens="8:60",
                output_tokens="16:60",
                unary=True,
                beam_share=1 if args.beams > 1 else 0,
                num_beams=args.beams,
                channels=max(os.cpu_count() // 2, 1),
            )
            begin = time.monotonic()
            report = load(server.target, core=client_cores, timeout=300, **shape)
            seconds = time.monotonic() - begin
        speed[device] = report["load"]["output_tokens_per_s"]
        verdict.figure(f"server, {device}", report["load"])
        verdict.claim(f"failed requests, {device}", failures(report), failures(report) == 0)
        print(f"server {device:9} {seconds:7.2f} s {speed[device]:10.0f} tokens/s", flush=True)
    return speed[args.devices] / speed[ONE]


def main() -> int:
    args = arguments(
        __doc__,
        work="",
        devices="cuda:0,1",
        lines=400_000,
        beams=4,
        concurrency=512,
        requests=60_000,
    )
    if not args.work:
        sys.exit("--work DIR is needed: the folder for the checkpoint and the lines")
    work = pathlib.Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    model = job_models.prepare("t5-base", work)
    verdict = Verdict("replicas_gpu", None, f"speed of {args.devices} compared with {ONE}")
    goal = GOAL / 2 * (args.devices.count(",") + 1)
    for kind, factor in (
        ("jobs", measure_jobs(args, model, work, verdict)),
        ("server", measure_server(args, model, verdict)),
    ):
        verdict.claim(f"{kind}, times as fast, {goal:.2f} wanted", round(factor, 3), factor >= goal)
    return verdict.finish(args.out)


if __name__ == "__main__":
    sys.exit(main())
