"""Tests --device: which device the value auto selects and what the log says about it, and the error
if the chosen GPU does not exist."""

import os
import subprocess

import pytest

from server_process import BINARY, G2P, Server

MODEL = ["--model", str(G2P)]
COMMANDS = [
    ["generate", *MODEL],
    ["encode", *MODEL, "--output", "json"],
    ["score", *MODEL],
    ["inspect", *MODEL],
    ["bench", *MODEL, "--batch", "1", "--input-tokens", "2", "--new-tokens", "2"],
]


def run(*command: str, gpu: bool = False) -> subprocess.CompletedProcess:
    """Runs a subcommand without QUINTET_DEVICE in the environment. Unless `gpu` is true, hides all
    GPUs from it."""
    environment = {name: value for name, value in os.environ.items() if name != "QUINTET_DEVICE"}
    if not gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run(
        [BINARY, *command],
        input="phoneme\tF OW1 N\n" if command[0] == "score" else "phoneme\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


@pytest.fixture(scope="module")
def gpu() -> str:
    """The name of the first GPU, as `inspect` logs it."""
    logged = run("inspect", *MODEL, gpu=True).stderr
    if "device auto: cuda (" not in logged:
        pytest.skip("no GPU")
    return logged.split("device auto: cuda (")[1].split(")")[0]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_without_a_gpu_auto_is_the_cpu_and_the_log_says_so(command):
    done = run(*command)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "device auto: " in line]
    assert "device auto: cpu (" in line and line.endswith("), dtype f32")
    assert "no NVIDIA GPU was found" in line or "this build has no CUDA" in line
    given = run(*command, "--device", "cpu")
    assert given.returncode == 0, given.stderr
    assert "device auto" not in given.stderr
    if command[0] not in ("bench", "inspect"):  # inspect shows the memory that is free now
        assert given.stdout == done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("name", ["gpu", "cuda", "gpu:1"])
def test_a_gpu_that_is_not_there(command, name):
    done = run(*command, "--device", name)
    assert done.returncode == 2
    canonical = name.replace("gpu", "cuda")
    assert done.stderr.strip() in (
        f"quintet: --device {canonical}: no NVIDIA GPU was found; use --device cpu",
        f"quintet: --device {canonical}: this build has no CUDA: nvcc was not found when it was "
        "configured; use --device cpu",
    )


def test_names_of_devices():
    for name in ("tpu", "gpus", "cuda:", "cuda:-1", "gpu:x", ""):
        done = run("generate", *MODEL, "--device", name)
        assert done.returncode == 2, name
        assert (
            "--device: expected auto, cpu, cuda, cuda:N, cuda:N,M or cuda:all, got " in done.stderr
        ), name
    shown = run("generate", *MODEL, "--print-config").stdout
    assert '# device = "auto"' in shown and " on cpu: max-running" in shown
    assert 'device = "cuda"' in run("generate", "--device", "gpu", "--print-config").stdout


def test_serve_says_which_device_auto_is(monkeypatch):
    monkeypatch.delenv("QUINTET_DEVICE")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with Server(G2P) as server:
        log = server.log()
    assert "model g2p: device auto: cpu (" in log and "), dtype f32" in log
    with Server(G2P, device="cpu") as server:
        assert "device auto" not in server.log()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_with_a_gpu_auto_is_the_gpu_in_bf16(command, gpu):
    done = run(*command, gpu=True)
    assert done.returncode == 0, done.stderr
    assert f"device auto: cuda ({gpu}), dtype bf16" in done.stderr
    given = run(*command, "--device", "gpu", gpu=True)
    assert "device auto" not in given.stderr
    if command[0] not in ("bench", "inspect"):  # inspect shows the memory that is free now
        assert given.stdout == done.stdout


def test_with_a_gpu_serve_runs_on_it(gpu, monkeypatch):
    monkeypatch.delenv("QUINTET_DEVICE")
    with Server(G2P) as server:
        assert f"device auto: cuda ({gpu}), dtype bf16" in server.log()
        assert server.metric("quintet_gpu_memory_bytes") > 0
