"""Tests the report of tools/sanitize_gpu.py for each outcome of a test case.

Shell scripts replace compute-sanitizer and the op tests.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/sanitize_gpu.py"

# A shell script that replaces the program of op tests. Its test case "bad" has findings under
# racecheck; "slow" does not finish on the portable path.
PROGRAM = """#!/bin/sh
if [ "$1" = --list-test-names-only ]; then \
printf 'A card, sm_90 paths\\nclean\\nwith, comma\\nbad\\nslow\\nfails\\n'; exit 0; fi
[ "$QUINTET_BRIEF_TESTS" = 1 ] || exit 3
case "$1" in *fails*) exit 42 ;; esac
case "$1,$TOOL" in *bad*racecheck) exit 99 ;; esac
case "$1,$QUINTET_CUDA_PORTABLE" in *slow*1) echo $$ >>"$PIDS"; sleep 60 ;; esac
cases=$(echo "$1" | sed 's/\\\\,//g' | tr ',' '\\n' | wc -l)
echo "All tests passed (7 assertions in $cases test cases)"
"""
SANITIZER = """#!/bin/sh
TOOL=$2; export TOOL; shift 6; "$@"
"""


def outcomes(tmp_path, *flags, earlier=(), program=PROGRAM):
    for name, text in (("program", program), ("compute-sanitizer", SANITIZER)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "earlier.json").write_text(json.dumps({"results": list(earlier)}))
    environment = dict(
        os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}", PIDS=str(tmp_path / "pids")
    )
    run = subprocess.run(
        [
            sys.executable,
            SCRIPT,
            "--program",
            tmp_path / "program",
            "--earlier",
            tmp_path / "earlier.json",
            "--jobs",
            "4",
            "--seconds",
            "200",
            "--out",
            tmp_path / "out.json",
            *flags,
        ],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
    )
    report = json.loads((tmp_path / "out.json").read_text())
    return run, {(r["path"], r["tool"], r["case"]): r["outcome"] for r in report["results"]}


def alive(pid):
    try:
        return pathlib.Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_way_to_end(tmp_path):
    run, outcome = outcomes(tmp_path, "--tools", "racecheck", "memcheck", "--seconds-each", "10")
    assert run.returncode == 1
    assert len(outcome) == 2 * 2 * 5
    assert (
        outcome["sm_90", "racecheck", "clean"]
        == outcome["portable", "memcheck", "with, comma"]
        == "clean"
    )
    assert (
        outcome["sm_90", "racecheck", "bad"] == "finding"
        and outcome["sm_90", "memcheck", "bad"] == "clean"
    )
    assert (
        outcome["sm_90", "memcheck", "slow"] == "clean"
        and outcome["portable", "memcheck", "slow"] == "did not finish"
    )
    assert outcome["sm_90", "memcheck", "fails"] == "failed"
    # Processes that timed out have been killed; otherwise they would occupy the GPU.
    for pid in (tmp_path / "pids").read_text().split():
        assert not alive(pid)
    assert "portable racecheck: 1 of 5 cases did not finish" in run.stdout


def test_short_cases_share_a_process_and_are_told_apart(tmp_path):
    earlier = [
        dict(path="sm_90", tool="racecheck", case=case, outcome="clean", seconds=2.0)
        for case in ("clean", "with, comma", "bad", "fails")
    ]
    _, outcome = outcomes(tmp_path, "--tools", "racecheck", "--paths", "sm_90", earlier=earlier)
    assert [
        outcome["sm_90", "racecheck", case] for case in ("clean", "with, comma", "bad", "fails")
    ] == ["clean", "clean", "finding", "failed"]


def test_only_what_was_not_clean_is_run_again(tmp_path):
    _, first = outcomes(tmp_path, "--tools", "racecheck", "--paths", "sm_90")
    assert len(first) == 5
    rest = tmp_path / "rest.json"
    (tmp_path / "out.json").rename(rest)
    _, again = outcomes(tmp_path, "--tools", "racecheck", "--paths", "sm_90", "--rest-of", rest)
    assert (
        again == {key: outcome for key, outcome in first.items() if outcome != "clean"}
        and len(again) == 2
    )


def test_a_report_to_go_on_from_that_is_none_is_an_error(tmp_path):
    outcomes(tmp_path, "--tools", "memcheck", "--paths", "sm_90")
    for text in (None, "no JSON", "[]", '{"results": [{"path": "sm_90"}]}'):
        file = tmp_path / "bad.json"
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        run = subprocess.run(
            [sys.executable, SCRIPT, "--program", tmp_path / "program", "--rest-of", file],
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}"),
            timeout=60,
        )
        assert (
            run.returncode == 1
            and "expected a report that --out wrote" in run.stderr
            and "Traceback" not in run.stderr
        )


HAZARD = """========= Error: Race reported between Read access at nvjet_sm90_tst_4x1+0xa60
=========     and Write access at {}+0x37c0 [320 hazards]
"""
PASSED = "All tests passed (7 assertions in 1 test case)\n"


def summary(hazards):
    return (
        f"========= RACECHECK SUMMARY: {hazards} hazards displayed ({hazards} errors, 0 warnings)\n"
    )


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            HAZARD.format("nvjet_sm90_tst_4x1")
            + HAZARD.format("nvjet_sm90_hsh")
            + PASSED
            + summary(2),
            "the library's",
        ),
        (
            HAZARD.format("nvjet_sm90_tst_4x1")
            + HAZARD.format("void quintet::Kernel<float>(float *)")
            + PASSED
            + summary(2),
            "finding",
        ),
        # The summary counts two hazards, but the report describes only one.
        (HAZARD.format("nvjet_sm90_tst_4x1") + PASSED + summary(2), "finding"),
        (HAZARD.format("nvjet_sm90_tst_4x1") + summary(1), "finding"),  # not PASSED
        (
            "========= Internal Sanitizer Error: x\n"
            + HAZARD.format("nvjet_sm90_tst_4x1")
            + PASSED
            + summary(1),
            "finding",
        ),
        (
            "========= Error: Barrier error detected at nvjet_sm90_tst_4x1\n" + PASSED + summary(1),
            "finding",
        ),
        (PASSED + summary(0), "finding"),
    ],
)
def test_only_hazards_inside_the_librarys_kernels_are_the_librarys(tmp_path, text, expected):
    (tmp_path / "text").write_text(text)
    program = PROGRAM.replace("\\nwith, comma\\nbad\\nslow\\nfails", "").replace(
        "cases=$", f"cat {tmp_path}/text; exit 99; cases=$"
    )
    run, outcome = outcomes(tmp_path, "--tools", "racecheck", "--paths", "sm_90", program=program)
    assert list(outcome.values()) == [expected]
    assert run.returncode == (0 if expected == "the library's" else 1)


def test_all_clean_is_0(tmp_path):
    run, outcome = outcomes(
        tmp_path, "--tools", "memcheck", program=PROGRAM.replace("\\nbad\\nslow\\nfails", "")
    )
    assert run.returncode == 0 and set(outcome.values()) == {"clean"} and len(outcome) == 2 * 2


def test_a_program_that_does_not_run_is_an_error(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no such library >&2\nexit 127\n")
    program.chmod(0o755)
    (tmp_path / "compute-sanitizer").write_text(SANITIZER)
    (tmp_path / "compute-sanitizer").chmod(0o755)
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    run = subprocess.run(
        [sys.executable, SCRIPT, "--program", program],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1 and "lists no test cases" in run.stderr
