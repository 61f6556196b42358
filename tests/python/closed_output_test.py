"""Tests commands whose reader closes the pipe (`quintet ... | head -1`).

They exit with the code for a failed output and print a message that names the error.
"""

import os
import subprocess

import pytest

from server_process import BINARY, G2P


def run_into_closed_pipe(*arguments: object, stdin: str = "") -> tuple[int, str]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [BINARY, *map(str, arguments)],
            input=stdin.encode(),
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    "arguments, stdin",
    [
        (["--help"], ""),
        (["--version"], ""),
        (["serve", "--help"], ""),
        (["serve", "--model", G2P, "--print-config"], ""),
        (["completion", "bash"], ""),
        (["inspect", G2P], ""),
        (["inspect", G2P, "--output", "json"], ""),
        (["bench", "--model", G2P], ""),
        (["bench", "engine", "--model", G2P, "--concurrency", "1", "--requests", "1"], ""),
        (["generate", "--model", G2P], "hello\n" * 50),
        (["generate", "--model", G2P, "--output", "json"], "hello\n"),
        (["encode", "--model", G2P], "hello\n"),
        (["score", "--model", G2P], "hello\tHH\n"),
    ],
    ids=lambda value: " ".join(map(str, value[:2])) if isinstance(value, list) else "",
)
def test_a_closed_pipe_is_a_failed_output(arguments, stdin):
    code, text = run_into_closed_pipe(*arguments, stdin=stdin)
    assert "writing standard output: Broken pipe" in text
    assert code == 1


def test_classify_too(tiny_models):
    code, text = run_into_closed_pipe(
        "classify", "--model", tiny_models["t5-seqcls"], stdin="hello\n"
    )
    assert "writing standard output: Broken pipe" in text
    assert code == 1


def test_a_conversion_whose_report_is_not_read_is_whole(tmp_path):
    code, text = run_into_closed_pipe("convert", "--model", G2P, "--out", tmp_path / "out")
    assert "writing standard output: Broken pipe" in text
    assert code == 1
    done = subprocess.run(
        [BINARY, "generate", "--model", str(tmp_path / "out")],
        input=b"hello\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
