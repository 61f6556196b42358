import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
sys.path.append(str(TOOLS / "bench"))  # for the package fleet

from server_process import CASES, G2P, KEY, OTHER_KEY, SMALL, Server  # noqa: E402
import quintet  # noqa: E402


@pytest.fixture(scope="module")
def server(request):
    """A server with the shipped model and the defaults of server_process.Server.

    A test file may set SERVER_CLASS to a class derived from it.
    """
    with getattr(request.module, "SERVER_CLASS", Server)(G2P) as running:
        yield running
    assert running.process.returncode == 0


@pytest.fixture(scope="module")
def client(server):
    with server.client() as connected:
        yield connected


@pytest.fixture(scope="module")
def model():
    """The shipped model in this process."""
    with quintet.Model(G2P, **SMALL) as loaded:
        yield loaded


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


@pytest.fixture
def key_file(tmp_path):
    """A file with the digests of KEY and OTHER_KEY."""
    file = tmp_path / "keys"
    file.write_text(
        "# two clients\n"
        + "".join(hashlib.sha256(key.encode()).hexdigest() + "\n" for key in (KEY, OTHER_KEY))
    )
    file.chmod(0o600)
    return file


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> dict[str, pathlib.Path]:
    """A certificate authority, and a server and a client certificate signed by it."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(
            ["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60
        )

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(
        "req",
        "-x509",
        *new_key,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-days",
        "2",
        "-subj",
        "/CN=test authority",
        "-addext",
        "keyUsage=critical,keyCertSign,cRLSign",  # Python 3.13 requires it
    )
    for name, alternative in (
        ("server", "DNS:quintet.test,IP:127.0.0.1"),
        ("client", "DNS:client.test"),
    ):
        openssl(
            "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        (folder / "extensions").write_text(
            f"subjectAltName={alternative}\n"
            "authorityKeyIdentifier=keyid\n"  # Python 3.13 requires it
        )
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-out",
            f"{name}.pem",
            "-days",
            "2",
            "-extfile",
            "extensions",
        )
    return {
        name: folder / name
        for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    }
