"""Tests the output of `encode --pooling none`: numpy reads the file of all rows (hidden states) and
the file of offsets, which says at which row each input line begins."""

import json
import subprocess

import numpy
import pytest

from server_process import BINARY, G2P, run_quintet

LINES = ["phoneme", "a", "the quick brown fox", "quintet", "zebra"]
FLAGS = ["encode", "--model", str(G2P), "--quiet"]


def encode(*flags: str, pooling="none", lines=LINES, code=0) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [BINARY, *FLAGS, "--pooling", pooling, *flags],
        input="".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    return done


@pytest.fixture(scope="module")
def expected() -> list[numpy.ndarray]:
    """Returns the rows (hidden states) of each input line, read from the command's JSON output."""
    stdin = "".join(f"{line}\n" for line in LINES)
    text = run_quintet(*FLAGS, "--pooling", "none", "--output", "json", stdin=stdin)
    return [
        numpy.array(json.loads(line)["embeddings"], dtype=numpy.float32)
        for line in text.splitlines()
    ]


def check(rows: numpy.ndarray, offsets: numpy.ndarray, expected: list) -> None:
    assert offsets.dtype == numpy.int64 and offsets.shape == (len(expected) + 1,)
    assert offsets[0] == 0 and offsets[-1] == len(rows)
    split = numpy.split(rows, offsets[1:-1])
    assert len(split) == len(expected)
    for i, (found, wanted) in enumerate(zip(split, expected, strict=True)):
        numpy.testing.assert_array_equal(found, wanted)
        numpy.testing.assert_array_equal(rows[offsets[i] : offsets[i + 1]], wanted)


def test_the_offsets_are_beside_the_rows(tmp_path, expected):
    done = encode("--output", "npy", "--output-file", str(tmp_path / "states.npy"))
    assert done.stdout == b"" and done.stderr == b""
    assert sorted(file.name for file in tmp_path.iterdir()) == ["states.npy", "states.offsets.npy"]
    rows = numpy.load(tmp_path / "states.npy", mmap_mode="r")
    check(rows, numpy.load(tmp_path / "states.offsets.npy"), expected)
    assert len({len(line) for line in expected}) > 1


def test_raw_rows_and_another_name(tmp_path, expected):
    file, offsets = tmp_path / "states.f32", tmp_path / "where.npy"
    encode("--output", "f32", "--output-file", str(file))
    rows = numpy.fromfile(file, dtype="<f4").reshape(-1, 256)
    check(rows, numpy.load(tmp_path / "states.f32.offsets.npy"), expected)
    done = encode("--output", "f32", "--offsets-file", str(offsets))
    rows = numpy.frombuffer(done.stdout, dtype="<f4").reshape(-1, 256)
    check(rows, numpy.load(offsets), expected)
    # The offsets file exists and is longer than the new one. It is overwritten completely.
    encode("--output", "f32", "--offsets-file", str(offsets), lines=LINES[:2])
    assert numpy.load(offsets).shape == (3,)


def test_a_failed_line_has_one_row_of_nan(tmp_path, expected):
    lines = [LINES[0], "\udcff", LINES[1]]
    encode("--output", "npy", "--output-file", str(tmp_path / "a.npy"), lines=lines, code=1)
    rows, offsets = numpy.load(tmp_path / "a.npy"), numpy.load(tmp_path / "a.offsets.npy")
    nan = numpy.full((1, 256), numpy.nan, dtype=numpy.float32)
    check(rows, offsets, [expected[0], nan, expected[1]])


def test_no_lines(tmp_path):
    encode("--output", "npy", "--output-file", str(tmp_path / "a.npy"), lines=[])
    assert numpy.load(tmp_path / "a.npy").shape == (0, 256)
    assert numpy.load(tmp_path / "a.offsets.npy").tolist() == [0]


def test_hundreds_of_lines_keep_their_order(tmp_path):
    lines = ["ab" * (i % 7 + 1) for i in range(300)]
    encode("--output", "npy", "--output-file", str(tmp_path / "a.npy"), lines=lines)
    rows, offsets = numpy.load(tmp_path / "a.npy"), numpy.load(tmp_path / "a.offsets.npy")
    assert offsets.shape == (301,)
    first = numpy.split(rows, offsets[1:-1])
    for i, line in enumerate(first):
        numpy.testing.assert_array_equal(line, first[i % 7])


def test_other_outputs_have_none(tmp_path):
    encode("--output", "json", "--output-file", str(tmp_path / "a.json"))
    encode("--output", "npy", "--output-file", str(tmp_path / "b.npy"), pooling="mean")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "b.npy"]
    for output, pooling in (("json", "none"), ("npy", "mean")):
        flags = ["--output", output, "--offsets-file", str(tmp_path / "c.npy")]
        done = encode(*flags, pooling=pooling, code=2)
        assert b"--offsets-file: needs --pooling none and --output npy or f32" in done.stderr
    assert not (tmp_path / "c.npy").exists()


def test_without_a_name_the_log_warns():
    done = encode("--output", "f32")
    assert b"does not show where a line ends: set --output-file or --offsets-file" in done.stderr
    done = encode("--output", "f32", "--output-file", "/dev/null")
    assert b"does not show where a line ends" in done.stderr


def test_files_that_cannot_be_written(tmp_path):
    file = str(tmp_path / "a.npy")
    done = encode("--output", "npy", "--output-file", file, "--offsets-file", file, code=2)
    assert b"in use" in done.stderr
    missing = str(tmp_path / "none" / "a.npy")
    done = encode("--output", "f32", "--offsets-file", missing, code=2)
    assert missing.encode() in done.stderr
    done = encode("--output", "f32", "--offsets-file", "/dev/full", code=2)
    assert b"/dev/full" in done.stderr
