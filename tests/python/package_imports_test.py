"""Tests that quintet shares a process with packages that bring C++ libraries of their own: protobuf
and Abseil (grpc, grpc_tools, sentencepiece), OpenMP and CUDA (torch). Each package is imported and
used once before and once after quintet."""

import importlib.util

import pytest

from server_process import G2P, SOURCE, run_python

QUINTET = f"""
import quintet
model = quintet.Model({str(G2P)!r}, device="cpu", cache_memory=64)
assert model.generate("phoneme", num_beams=4).text == "F OW1 N IY0 M"
"""
# For each package, code that calls its native library, and protobuf if the package contains it.
OTHERS = {
    "grpc": """
import grpc, quintet
client = quintet.Client("127.0.0.1:1", attempts=1)
try:
    client.generate("a", timeout=1)
except quintet.Error:
    pass
""",
    "sentencepiece": f"""
import sentencepiece
pieces = sentencepiece.SentencePieceProcessor(model_file={str(G2P / "spiece.model")!r})
assert pieces.decode(pieces.encode("phoneme")) == "phoneme"
""",
    # grpc_tools contains a copy of libprotobuf. It initialises a GNU_UNIQUE symbol, which every
    # copy of libprotobuf that is loaded later would share.
    "grpc_tools": f"""
import os
from grpc_tools import protoc
os.chdir({str(SOURCE / "proto")!r})
arguments = ["protoc", "-I.", "--descriptor_set_out=/dev/null", "quintet/v1/inference.proto"]
assert protoc.main(arguments) == 0
os.chdir("/")
""",
    "torch": """
import torch
assert (torch.ones(64, 64) @ torch.ones(64, 64)).sum() == 64**3
""",
}


def run(code: str) -> None:
    done = run_python(code, timeout_s=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", OTHERS)
def test_quintet_runs_beside_another_package(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    run(OTHERS[name] + QUINTET)
    run(QUINTET + OTHERS[name])
    run("".join(["import quintet._engine\n", OTHERS[name], QUINTET, OTHERS[name]]))


def test_quintet_runs_among_all_of_them():
    found = [OTHERS[name] for name in OTHERS if importlib.util.find_spec(name) is not None]
    assert found
    run("".join([*found, QUINTET, *reversed(found)]))


def test_the_extension_loads_no_library_of_protobuf():
    """Static variables of libprotobuf are shared by all releases of it that a process loads."""
    run(
        QUINTET
        + """
mapped = open("/proc/self/maps").read()
assert "_engine" in mapped and "libprotobuf" not in mapped, mapped
"""
    )
