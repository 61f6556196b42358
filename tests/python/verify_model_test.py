"""Tests tools/verify_model.py, the comparison of a checkpoint with transformers.

The comparisons need torch and transformers, which tools/python.sh does not install: they run with
the Python that QUINTET_TORCH_PYTHON names, or are skipped.
"""

import os
import shutil
import subprocess
import sys

import pytest

from server_process import BINARY, G2P, SOURCE

PYTHON = os.environ.get("QUINTET_TORCH_PYTHON", sys.executable)
HAS_TORCH = (
    subprocess.run([PYTHON, "-c", "import torch, transformers"], capture_output=True).returncode
    == 0
)
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch and transformers are not installed")


def verify(model, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            PYTHON,
            str(SOURCE / "tools" / "verify_model.py"),
            str(model),
            "--quintet",
            BINARY,
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def rows_of(report: str) -> dict[str, tuple[str, float, float, bool]]:
    """Returns the rows of a report by check: (what was compared, difference, tolerance, passed)."""
    rows = {}
    for line in report.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "check":
            name, compared, difference, tolerance, verdict = cells
            difference = float(difference.removesuffix(" differ"))
            assert verdict in ("passed", "**FAILED**")
            rows[name] = (compared, difference, float(tolerance), verdict == "passed")
            assert (difference <= float(tolerance)) == (verdict == "passed"), line
    return rows


def test_a_model_that_cannot_be_compared_is_exit_code_2(tmp_path):
    done = verify(tmp_path / "absent")
    assert done.returncode == 2 and "verify_model: " in done.stderr and done.stdout == ""


@needs_torch
@pytest.mark.parametrize("name", ["g2p", "t5-encoder", "t5-seqcls", "t5-tokcls", "t5-qa", "gpt2"])
def test_models_with_every_head_agree(tmp_path, tiny_models, name):
    model = G2P if name == "g2p" else tiny_models[name]
    report = tmp_path / "report.md"
    done = verify(model, "--report", str(report))
    assert done.returncode == 0, done.stderr + done.stdout
    text = report.read_text()
    assert ": agrees" in text and "passed" in text and "FAILED" not in text


@needs_torch
def test_a_difference_is_reported():
    done = verify(G2P, "--dtype", "int8")
    assert done.returncode == 1, done.stderr
    assert ": DIFFERS" in done.stdout
    rows = rows_of(done.stdout)
    assert rows["token ids"][3] and not rows["hidden states"][3]
    assert not all(passed for *_, passed in rows.values())


def hub_cache(root, name: str, revision: str) -> None:
    """A Hugging Face cache with the shipped model: files are links into blobs/, as the hub's
    library writes them."""
    repository = root / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("5" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / revision).write_text("5" * 40)
    for number, file in enumerate(sorted(path for path in G2P.iterdir() if path.is_file())):
        blob = f"{number:040}"
        shutil.copy(file, repository / "blobs" / blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob}")


@needs_torch
@pytest.mark.parametrize("revision", ["main", "v2"])
def test_a_hub_id_in_the_cache(tmp_path, revision):
    hub_cache(tmp_path / "hub", "me/phonemes", revision)
    name = "me/phonemes" if revision == "main" else f"me/phonemes@{revision}"
    offline = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = verify(name, **offline)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith(f"# {name}: agrees\n")
    rows = rows_of(done.stdout)
    assert list(rows) == [
        "greedy search",
        "beam search, 4 beams",
        "token ids",
        "log-probabilities",
        "5 most likely tokens",
        "hidden states",
    ]
    assert rows["token ids"][:2] == ("8 texts", 0)
    assert 0 < rows["hidden states"][1] < 1e-5 and rows["log-probabilities"][1] < 1e-4
    absent = verify("me/absent", **offline)
    assert absent.returncode == 2 and "me/absent: cannot be downloaded" in absent.stderr
