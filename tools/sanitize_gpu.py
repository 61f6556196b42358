#!/usr/bin/env python3
"""The op tests on a GPU under compute-sanitizer's four tools, on sm_90's kernels and on the portable ones: each test case in a process of
its own, several at once on one card.

Prints a line for each case and tool, then how many were clean, found something, failed, or did not finish within --seconds in all. Ends with
0 only when all were clean, with 77 where there is no GPU. Cases tagged [sweep] take hours and others reach the same kernels: --cases says
which are run, as a Catch2 filter.

usage: sanitize_gpu.py [--program build/tests/kernels_gpu_test] [--tools racecheck ...] [--paths sm_90 portable] [--seconds 240] [--out FILE]
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

# Slowest first, so that the last to end is a short one.
TOOLS = ["racecheck", "initcheck", "memcheck", "synccheck"]
FINDING = 99


def list_cases(program, cases):
    """The test cases' names; None where there is no GPU."""
    run = subprocess.run([program, "--list-test-names-only", cases], stdout=subprocess.PIPE, text=True, timeout=60)
    lines = run.stdout.splitlines()
    if lines and lines[0].startswith("skipped"):
        return None
    return [line for line in lines[1:] if line]  # the first line names the GPU


def catch_filter(name):
    """Catch2 reads a comma as "or" and a bracket as a tag."""
    return name.replace("\\", "\\\\").replace(",", "\\,").replace("[", "\\[")


def run_case(args, sanitizer, path, tool, name, end):
    left = min(args.seconds_each, end - time.monotonic())
    result = dict(path=path, tool=tool, case=name, outcome="did not finish", seconds=0.0)
    if left <= 1:
        return result
    environment = dict(os.environ, QUINTET_CUDA_PORTABLE="1" if path == "portable" else "0")
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FINDING), args.program, catch_filter(name)]
    begin = time.monotonic()
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, timeout=left)
        text = run.stdout.decode(errors="replace")
        if run.returncode == 0:
            result["outcome"] = "did not run" if "No tests ran" in text else "clean"
        else:
            result["outcome"] = "finding" if run.returncode == FINDING else "failed"
            result["output"] = text[-4000:]
    except subprocess.TimeoutExpired:
        pass
    result["seconds"] = round(time.monotonic() - begin, 1)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(pathlib.Path(__file__).resolve().parent.parent / "build/tests/kernels_gpu_test"))
    parser.add_argument("--tools", nargs="+", default=TOOLS, choices=TOOLS)
    parser.add_argument("--paths", nargs="+", default=["sm_90", "portable"], choices=["sm_90", "portable"])
    parser.add_argument("--cases", default="~[cpu]~[sweep]")
    parser.add_argument("--seconds", type=float, default=240, help="for everything")
    parser.add_argument("--seconds-each", type=float, default=200, help="for one case under one tool")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at once")
    parser.add_argument("--out", help="also write the results as JSON to this file")
    args = parser.parse_args()
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(sanitizer, os.X_OK):
        sys.exit("compute-sanitizer is not here")
    names = list_cases(args.program, args.cases)
    if names is None:
        print("skipped: no GPU")
        return 77
    if not names:
        sys.exit("no test cases")

    end = time.monotonic() + args.seconds
    results = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [pool.submit(run_case, args, sanitizer, path, tool, name, end)
                for path in args.paths for tool in args.tools for name in names]
        for run in concurrent.futures.as_completed(runs):
            result = run.result()
            results.append(result)
            print(f"{result['outcome']:15s} {result['path']:9s} {result['tool']:10s} {result['seconds']:6.1f} s  {result['case']}", flush=True)
    summary = collections.Counter((r["path"], r["tool"], r["outcome"]) for r in results)
    for (path, tool, outcome), count in sorted(summary.items()):
        longest = max(r["seconds"] for r in results if (r["path"], r["tool"]) == (path, tool))
        print(f"{path} {tool}: {count} of {len(names)} cases {outcome}; longest case of the tool {longest:.0f} s")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(r["outcome"] == "clean" for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
