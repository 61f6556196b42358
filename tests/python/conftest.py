import json
import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

from server_process import CASES, G2P, Server  # noqa: E402


@pytest.fixture(scope="module")
def server():
    """A server with the shipped model and the defaults of server_process.Server."""
    with Server(G2P) as running:
        yield running
    assert running.process.returncode == 0


@pytest.fixture(scope="module")
def client(server):
    with server.client() as connected:
        yield connected


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """Folders of the golden checkpoints by name, each with a tokenizer.

    gpt2 has a byte-only vocabulary; all others use the tokenizer of g2p.
    """
    root = tmp_path_factory.mktemp("models")
    folders = {}
    for name in ("t5-encoder", "t5-seqcls", "t5-tokcls", "t5-qa", "t5-v1_1", "gpt2"):
        folder = root / name
        folder.mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(CASES / name / file, folder)
        if name == "gpt2":
            write_byte_vocabulary(folder)
        else:
            shutil.copy(G2P / "spiece.model", folder)
        folders[name] = folder
    return folders


def write_byte_vocabulary(folder: pathlib.Path) -> None:
    """Writes a vocabulary of GPT-2's 256 byte symbols, in byte order, without merges."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters, others = {byte: chr(byte) for byte in printable}, 0
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + others)
            others += 1
    vocabulary = {letters[byte]: byte for byte in range(256)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
