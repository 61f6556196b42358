#!/usr/bin/env python3
"""Runs the op tests on a GPU under compute-sanitizer's four tools, with the sm_90 kernels and with
the portable ones, in many concurrent processes on one GPU.

Each test case runs in its own process, slowest first. Short cases share a process, which is split
up if its result is anything but "clean". How long cases take is read from the report of an earlier
run (--earlier). With QUINTET_BRIEF_TESTS=1, which is set, tests use fewer sizes but reach the same
kernels. Test cases tagged [sweep] are left out: they run the same kernels at many more sizes and
take hours. --cases is a Catch2 filter that selects the cases.

The outcome "the library's" means that racecheck reports hazards inside cuBLASLt's own kernels
(LIBRARY) and nothing else. Shared-memory hazards are internal to a kernel, so the arguments that we
pass cannot cause one. (Excluding those kernels with --kernel-name-exclude ends in illegal accesses
with CUDA 13.0's compute-sanitizer.) Reports of the other tools about cuBLASLt's kernels do count as
findings: they would show that we passed a bad pointer or memory that we had not written.

Prints a line for each case and tool, then how many were clean, had findings, failed, or did not
finish within --seconds, the time limit of the whole run. Exits with 0 only if all outcomes are
"clean" or "the library's", and with 77 if there is no GPU.

usage: sanitize_gpu.py [--program build/tests/kernels_gpu_test] [--tools racecheck ...]
           [--paths sm_90 portable] [--seconds 480] [--out FILE]
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ["racecheck", "initcheck", "memcheck", "synccheck"]
PATHS = ["sm_90", "portable"]
LIBRARY = "nvjet_sm"  # how the names of cuBLASLt's kernels begin
GOOD = ("clean", "the library's")
FINDING = 99
UNKNOWN_SECONDS = 1000.0  # of a case that no earlier run finished: first
SHORT_SECONDS, GROUP_SECONDS = 12.0, 60.0


def list_cases(program, cases):
    """Returns the name of the GPU (None if there is none) and the names of the test cases."""
    run = subprocess.run(
        [program, "--list-test-names-only", cases], stdout=subprocess.PIPE, text=True, timeout=60
    )
    lines = run.stdout.splitlines()
    if not lines:
        sys.exit(f"{program} lists no test cases")  # it does not run
    if lines[0].startswith("skipped"):
        return None, []
    return lines[0].split(",")[0], [line for line in lines[1:] if line]


def catch_filter(name):
    """Escapes a test name for Catch2, where a comma means "or" and a bracket starts a tag."""
    return name.replace("\\", "\\\\").replace(",", "\\,").replace("[", "\\[")


def earlier_seconds(file):
    """Returns {(path, tool, case): seconds} of the cases that ended in an earlier run. If a case
    ended on only one path (sm_90 or portable kernels), its time is used for the other path, too."""
    if not file or not os.path.exists(file):
        return {}
    ended = [
        r
        for r in json.loads(pathlib.Path(file).read_text()).get("results", [])
        if r["outcome"] in (*GOOD, "finding")
    ]
    seconds = {(path, r["tool"], r["case"]): r["seconds"] for r in ended for path in PATHS}
    seconds.update({(r["path"], r["tool"], r["case"]): r["seconds"] for r in ended})
    return seconds


def clean_ones(file):
    """Returns {(path, tool, case)}: the cases whose outcome in an earlier report was "clean" or
    "the library's"."""
    if not file:
        return set()
    try:
        results = json.loads(pathlib.Path(file).read_text())["results"]
        return {(r["path"], r["tool"], r["case"]) for r in results if r["outcome"] in GOOD}
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(
            f"--rest-of {file}: expected a report that --out wrote, got {type(error).__name__}: "
            f"{error}"
        )


def groups_of(args, names, expected, done):
    """Returns [(path, tool, cases)], the processes to run, without the cases in `done`. The process
    with the longest expected time comes first; with args.shortest_first, the one with the
    shortest."""
    groups = []
    for path in args.paths:
        for tool in args.tools:
            short, sum_seconds = [], 0.0
            for name in names:
                if (path, tool, name) in done:
                    continue
                seconds = expected.get((path, tool, name), UNKNOWN_SECONDS)
                if seconds > SHORT_SECONDS:
                    groups.append((seconds, path, tool, [name]))
                    continue
                if sum_seconds + seconds > GROUP_SECONDS:
                    groups.append((sum_seconds, path, tool, short))
                    short, sum_seconds = [], 0.0
                short.append(name)
                sum_seconds += seconds
            if short:
                groups.append((sum_seconds, path, tool, short))
    order = {tool: i for i, tool in enumerate(TOOLS)}
    groups.sort(key=lambda group: (group[0] if args.shortest_first else -group[0], order[group[2]]))
    return [group[1:] for group in groups]


def run_cases(args, path, tool, names, end):
    """Runs the cases `names` in one process. Returns (outcome, seconds, output)."""
    left = min(args.seconds_each, end - time.monotonic())
    if left <= 1:
        return "did not finish", 0.0, ""
    environment = dict(
        os.environ,
        QUINTET_CUDA_PORTABLE="1" if path == "portable" else "0",
        QUINTET_BRIEF_TESTS="1",
    )
    flags = ["--tool", tool, "--error-exitcode", str(FINDING), "--print-limit", "0"]  # 0: all
    command = [args.sanitizer, *flags, args.program, ",".join(map(catch_filter, names))]
    begin = time.monotonic()
    # Run it in a new session, whose processes can be killed together: killing only the sanitizer
    # would leave the test program running.
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    try:
        text = run.communicate(timeout=left)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        return "did not finish", time.monotonic() - begin, ""
    return outcome_of(run.returncode, text, len(names)), time.monotonic() - begin, text[-4000:]


def only_in_library(text):
    """Returns true if racecheck's report is complete and all its hazards are in cuBLASLt's own
    kernels."""
    summary = re.search(r"RACECHECK SUMMARY: (\d+) hazards? displayed", text)
    if not summary or "Internal Sanitizer Error" in text or "Maximum number of hazards" in text:
        return False
    reports = re.findall(r"^=+ (?:Error|Warning): (.*)", text, re.MULTILINE)
    places = re.findall(r"\b(?:Read|Write) access at (\S+)", text)
    return (
        len(reports) == int(summary[1]) > 0
        and all(report.startswith("Race reported between ") for report in reports)
        and len(places) >= 2 * len(reports)
        and all(place.startswith(LIBRARY) for place in places)
    )


def outcome_of(code, text, cases):
    """Returns the outcome of a process that ran `cases` test cases, from its exit code and
    output."""
    passed = re.search(r"All tests passed .* in (\d+) test case", text)
    all_passed = passed is not None and int(passed[1]) == cases
    if code == FINDING:
        return "the library's" if all_passed and only_in_library(text) else "finding"
    if code != 0:
        return "failed"
    return "clean" if all_passed else "did not run"


def run_group(args, path, tool, names, end):
    """Runs the cases in one process; if that is not clean, runs each case in a process of its own.
    Returns the results of the cases."""
    outcome, seconds, output = run_cases(args, path, tool, names, end)
    if outcome != "clean" and len(names) > 1:
        return [result for name in names for result in run_group(args, path, tool, [name], end)]
    results = [
        dict(
            path=path, tool=tool, case=name, outcome=outcome, seconds=round(seconds / len(names), 1)
        )
        for name in names
    ]
    if outcome not in ("clean", "did not finish"):
        results[0]["output"] = output
    return results


def counts_of(results):
    counts = collections.Counter((r["path"], r["tool"], r["outcome"]) for r in results)
    return [
        dict(path=path, tool=tool, outcome=outcome, cases=count)
        for (path, tool, outcome), count in sorted(counts.items())
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", default=str(ROOT / "build/tests/kernels_gpu_test"))
    parser.add_argument("--tools", nargs="+", default=TOOLS, choices=TOOLS)
    parser.add_argument("--paths", nargs="+", default=PATHS, choices=PATHS)
    parser.add_argument("--cases", default="~[cpu]~[sweep]")
    parser.add_argument("--seconds", type=float, default=480, help="time limit for the whole run")
    parser.add_argument(
        "--seconds-each", type=float, default=300, help="time limit for one process"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="number of concurrent processes",
    )
    parser.add_argument(
        "--shortest-first",
        action="store_true",
        help="run the shortest cases first, to finish more cases within --seconds",
    )
    parser.add_argument(
        "--earlier",
        default=str(ROOT / "tools/bench/results/sanitizers_gpu_h200.json"),
        help="report of an earlier run",
    )
    parser.add_argument(
        "--rest-of",
        metavar="FILE",
        help=(
            "report of an unfinished run of the same program: what was clean or the library's "
            "is not repeated"
        ),
    )
    parser.add_argument("--out", help="also write the report as JSON to this file")
    args = parser.parse_args()
    args.sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(args.sanitizer, os.X_OK):
        sys.exit("compute-sanitizer is not here")
    gpu, names = list_cases(args.program, args.cases)
    if gpu is None:
        print("skipped: no GPU")
        return 77
    if not names:
        sys.exit("no test cases")

    done = clean_ones(args.rest_of)
    begin = time.monotonic()
    end = begin + args.seconds
    results = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [
            pool.submit(run_group, args, *group, end)
            for group in groups_of(args, names, earlier_seconds(args.earlier), done)
        ]
        for run in concurrent.futures.as_completed(runs):
            for result in run.result():
                results.append(result)
                print(
                    f"{result['outcome']:15s} {result['path']:9s} {result['tool']:10s} "
                    f"{result['seconds']:6.1f} s  {result['case']}",
                    flush=True,
                )
    seconds = time.monotonic() - begin
    for row in counts_of(results):
        print(f"{row['path']} {row['tool']}: {row['cases']} of {len(names)} cases {row['outcome']}")
    clean, good = (
        sum(r["outcome"] in outcomes for r in results) for outcomes in (("clean",), GOOD)
    )
    print(
        f"{clean} of {len(results)} clean (cases x tools x paths), {good - clean} the library's, "
        f"{seconds:.0f} s, {args.jobs} processes at once on "
        f"{gpu}"
    )
    if args.out:
        report = dict(
            device=gpu,
            seconds=round(seconds),
            processes=args.jobs,
            cases=args.cases,
            counts=counts_of(results),
            results=sorted(results, key=lambda r: (r["path"], r["tool"], r["case"])),
        )
        pathlib.Path(args.out).write_text(json.dumps(report, indent=1) + "\n")
    return 0 if good == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
