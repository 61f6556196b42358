"""Tests jobs over lines: whole commands from standard input to the output file.

The results of a line must not depend on how the job's threads interleave, and an interrupted job
must leave a prefix of its output that --resume completes.
"""

import gzip
import os
import pty
import random
import re
import signal
import subprocess
import time

import pytest

from server_process import BINARY, G2P, words

LINES = [word for word in words(2000)]
SUMMARY = re.compile(r"(\d+) lines, (\d+) tokens in [\d.]+ s: [\d.]+ lines/s, \d+ tokens/s, 0 fail")


def generate(*arguments: object, stdin: bytes, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [BINARY, "generate", "--model", str(G2P), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    return done


def text_of(lines) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture(scope="module")
def expected() -> bytes:
    """The output for LINES."""
    return generate(stdin=text_of(LINES)).stdout


@pytest.fixture
def job(tmp_path):
    """Starts a job over LINES that writes to a file of the given name."""
    source = tmp_path / "lines.txt"
    source.write_bytes(text_of(LINES))
    started = []

    def start(name: str, *arguments: str) -> tuple[subprocess.Popen, object]:
        output = tmp_path / name
        with source.open("rb") as lines:
            started.append(
                subprocess.Popen(
                    [BINARY, "generate", "--model", str(G2P), "--output-file", str(output)]
                    + list(arguments),
                    stdin=lines,
                    stderr=subprocess.PIPE,
                )
            )
        return started[-1], output

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_results_do_not_depend_on_the_batch(expected):
    few = LINES[:200]
    alone = generate("--max-running", 1, stdin=text_of(few)).stdout
    assert alone == b"".join(expected.splitlines(keepends=True)[: len(few)])
    assert generate("--max-running", 17, stdin=text_of(LINES)).stdout == expected


def test_a_failed_line_costs_only_itself(expected):
    mixed = list(LINES[:300])
    mixed[100] = "x" * (9 << 20)  # too long
    done = generate(stdin=text_of(mixed), code=1)
    rows, wanted = done.stdout.splitlines(), expected.splitlines()[:300]
    assert rows[100] == b""
    assert rows[:100] + rows[101:] == wanted[:100] + wanted[101:]
    assert b"line 101: the line is longer than" in done.stderr
    assert b"1 of 300 lines failed" in done.stderr


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz", "out.txt.zst"])
def test_an_output_file_has_the_same_lines(name, expected, tmp_path):
    path = tmp_path / name
    assert generate("--output-file", path, stdin=text_of(LINES)).stdout == b""
    if name.endswith(".gz"):
        assert gzip.decompress(path.read_bytes()) == expected
    elif name.endswith(".zst"):
        # Another job reads the compressed file as its input. It must read the same lines as from
        # the uncompressed output.
        assert path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
        again = generate(stdin=path.read_bytes()).stdout
        assert again == generate(stdin=expected).stdout
    else:
        assert path.read_bytes() == expected


def test_gzip_input_is_recognised(expected):
    assert generate(stdin=gzip.compress(text_of(LINES))).stdout == expected
    done = generate(stdin=gzip.compress(text_of(LINES))[:-100], code=1)
    assert b"reading standard input: the compressed data ends early" in done.stderr


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_is_resumed_byte_for_byte(job, expected, name, end):
    chance = random.Random(f"{name} {end}")
    process, output = job(name)
    while not output.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(chance.uniform(0.0, 0.5))
    process.send_signal(end)
    errors = process.communicate(timeout=60)[1].decode()
    if process.returncode != 0:  # it may have been faster
        assert process.returncode == (-signal.SIGKILL if end == signal.SIGKILL else 130), errors
    if name == "out.txt":
        part = output.read_bytes()
        assert expected.startswith(part)
        if end != signal.SIGKILL:
            assert part == b"" or part.endswith(b"\n")
    process, output = job(name, "--resume")
    errors = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 0, errors
    whole = output.read_bytes()
    assert (gzip.decompress(whole) if name.endswith(".gz") else whole) == expected


def test_resuming_a_finished_job_changes_nothing(job, expected):
    for arguments in ((), ("--resume",)):
        process, output = job("out.txt", *arguments)
        errors = process.communicate(timeout=120)[1].decode()
        assert process.returncode == 0, errors
        assert output.read_bytes() == expected
    assert "0 lines" in errors


def test_resume_numbers_json_lines_from_the_start(tmp_path):
    path = tmp_path / "out.json"
    flags = ("--output", "json", "--output-file", path)
    generate(*flags, stdin=text_of(LINES[:50]))
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:20]) + b'{"line":21')
    generate(*flags, "--resume", stdin=text_of(LINES[:50]))
    assert path.read_bytes() == whole


def test_resume_refuses_another_input(tmp_path):
    path = tmp_path / "out.txt"
    generate("--output-file", path, stdin=text_of(LINES[:50]))
    whole = path.read_bytes()
    done = generate("--output-file", path, "--resume", stdin=text_of(LINES[:20]), code=2)
    assert b"has the results of 50 lines, standard input has only 20" in done.stderr
    assert path.read_bytes() == whole


def test_the_summary_and_quiet():
    summary = SUMMARY.search(generate(stdin=text_of(LINES[:100])).stderr.decode())
    assert summary and summary[1] == "100" and int(summary[2]) > 100
    assert generate("--quiet", stdin=text_of(LINES[:100])).stderr == b""


def test_a_terminal_shows_lines_of_the_total(tmp_path):
    source = tmp_path / "lines.txt"
    source.write_bytes(text_of(LINES * 3))
    ours, theirs = pty.openpty()
    with source.open("rb") as lines:
        process = subprocess.Popen(
            [BINARY, "generate", "--model", str(G2P), "--num-beams", "4"],
            stdin=lines,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 1 << 16):
            shown += data
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    bars = re.findall(rb"\r\x1b\[K(\d+)/(\d+) lines \((\d+) %\)[^\r]* left", shown)
    assert bars and all(int(total) == len(LINES) * 3 for _, total, _ in bars)
    for done, total, share in bars:
        assert int(share) == int(done) * 100 // int(total)
    # The progress bar is erased before the summary is printed.
    assert re.search(rb"\r\x1b\[K[^\r]*6000 lines, \d+ tokens in", shown), shown[-300:]
