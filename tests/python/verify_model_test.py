"""Tests tools/verify_model.py, the comparison of a checkpoint with transformers.

The comparisons need torch and transformers, which tools/python.sh does not install: they run with
the Python that QUINTET_TORCH_PYTHON names, or are skipped.
"""

import os
import shutil
import subprocess
import sys

import pytest

from server_process import BINARY, CASES, G2P, SOURCE

PYTHON = os.environ.get("QUINTET_TORCH_PYTHON", sys.executable)
HAS_TORCH = (
    subprocess.run([PYTHON, "-c", "import torch, transformers"], capture_output=True).returncode
    == 0
)
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch and transformers are not installed")


def verify(model, *flags: str) -> subprocess.CompletedProcess:
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
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_model_that_cannot_be_compared_is_exit_code_2(tmp_path):
    done = verify(tmp_path / "absent")
    assert done.returncode == 2 and "verify_model: " in done.stderr and done.stdout == ""


@needs_torch
@pytest.mark.parametrize("name", ["g2p", "t5-encoder", "t5-seqcls"])
def test_the_shipped_models_agree(tmp_path, name):
    model = G2P
    if name != "g2p":
        model = tmp_path / name
        model.mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(CASES / name / file, model)
        shutil.copy(G2P / "spiece.model", model)
    report = tmp_path / "report.md"
    done = verify(model, "--report", str(report))
    assert done.returncode == 0, done.stderr + done.stdout
    text = report.read_text()
    assert ": agrees" in text and "passed" in text and "FAILED" not in text


@needs_torch
def test_a_difference_is_reported():
    done = verify(G2P, "--dtype", "int8")
    assert done.returncode == 1, done.stderr
    assert ": DIFFERS" in done.stdout and "**FAILED**" in done.stdout
