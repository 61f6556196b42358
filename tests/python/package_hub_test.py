"""Tests quintet.Model with ids of the Hugging Face hub: huggingface_hub downloads models that the
cache lacks from a local server that answers as the hub does."""

import fnmatch
import functools
import hashlib
import http.server
import json
import threading
import urllib.parse

import pytest

from quintet.hub import FILES
from server_process import G2P, free_port, run_python

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
READ = [
    "config.json",
    "model.safetensors",
    "spiece.model",
    "tokenizer.json",
    "tokenizer_config.json",
]
UNREAD = ["README.md", "pytorch_model.bin", "flax_model.msgpack", "transformer/model.safetensors"]


def content(file: str) -> bytes | None:
    if file in UNREAD:
        return b"unread"
    return (G2P / file).read_bytes() if file in READ else None


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves the shipped model as acme/tiny, at the branch main and the tag v9."""

    revisions = {"main": COMMIT, COMMIT: COMMIT, "v9": OTHER, OTHER: OTHER}

    def __init__(self, requested: list[str], *arguments):
        self.requested = requested
        super().__init__(*arguments)

    def log_message(self, *_) -> None:
        pass

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def refuse(self, code: str) -> None:
        self.answer(404, b"", X_Error_Code=code, X_Error_Message=f"the hub says {code}")

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        api, plain = "/api/models/acme/tiny", "/acme/tiny/resolve/"
        if path.startswith(f"{api}/tree/"):  # the list of files for huggingface_hub 2
            files = [
                {"type": "file", "path": f, "size": len(content(f)), "oid": "0" * 40}
                for f in READ + UNREAD
            ]
            self.answer(200, json.dumps(files).encode(), Content_Type="application/json")
        elif path.startswith(api):
            commit = self.revisions.get(path.removeprefix(api).removeprefix("/revision/") or "main")
            if commit is None:
                self.refuse("RevisionNotFound")
                return
            files = [{"rfilename": file} for file in READ + UNREAD]
            told = {"id": "acme/tiny", "sha": commit, "siblings": files}
            self.answer(200, json.dumps(told).encode(), Content_Type="application/json")
        elif path.startswith(plain):
            revision, file = path.removeprefix(plain).split("/", 1)
            body = content(file)
            if self.command == "GET":
                self.requested.append(file)
            etag = f'"{hashlib.sha256(body or b"").hexdigest()}"'
            self.answer(200, body or b"", ETag=etag, X_Repo_Commit=self.revisions[revision])
        else:
            self.refuse("RepoNotFound")

    do_HEAD = do_GET


@pytest.fixture
def hub():
    """Yields the address of a hub and the list of the files that were downloaded from it."""
    pytest.importorskip("huggingface_hub")
    requested: list[str] = []
    handler = functools.partial(Hub, requested)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requested
        server.shutdown()
        thread.join()


PROGRAM = """
import sys
if BLOCKED:
    sys.modules["huggingface_hub"] = None
import quintet
try:
    with quintet.Model(*ARGUMENTS, device="cpu", cache_memory=64, **OPTIONS) as model:
        print(model.info().model, model.generate("a").text)
except quintet.Error as error:
    print(type(error).__name__, error)
"""


def load(home, endpoint, name, blocked=False, offline=False, **options):
    """Loads a model in another process. Returns what it prints: the model's directory and its text
    for "a", or the error."""
    head = f"BLOCKED, ARGUMENTS, OPTIONS = {blocked!r}, ({name!r},), {options!r}\n"
    done = run_python(
        head + PROGRAM,
        HF_ENDPOINT=endpoint,
        HF_HOME=str(home),
        HF_HUB_CACHE="",
        HUGGINGFACE_HUB_CACHE="",
        HF_HUB_OFFLINE="1" if offline else "",
        HF_HUB_DISABLE_XET="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_ETAG_TIMEOUT="5",
        NO_PROXY="127.0.0.1",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def snapshot(home, commit=COMMIT):
    return home / "hub" / "models--acme--tiny" / "snapshots" / commit


def test_a_model_that_is_absent_is_downloaded_once(tmp_path, hub):
    endpoint, requested = hub
    assert load(tmp_path, endpoint, "acme/tiny") == f"{snapshot(tmp_path)} EY1"
    assert sorted(requested) == READ
    del requested[:]
    assert load(tmp_path, "http://127.0.0.1:1", "acme/tiny") == f"{snapshot(tmp_path)} EY1"
    assert load(tmp_path, endpoint, "acme/tiny", offline=True).endswith("EY1")
    assert requested == []


@pytest.mark.parametrize("name, options", [("acme/tiny@v9", {}), ("acme/tiny", {"revision": "v9"})])
def test_a_revision(tmp_path, hub, name, options):
    assert load(tmp_path, hub[0], name, **options) == f"{snapshot(tmp_path, OTHER)} EY1"


def test_an_incomplete_download_is_completed(tmp_path, hub):
    load(tmp_path, hub[0], "acme/tiny")
    (snapshot(tmp_path) / "model.safetensors").unlink()
    assert load(tmp_path, hub[0], "acme/tiny").endswith(" EY1")


def test_the_tokenizer_is_downloaded(tmp_path, hub):
    told = load(tmp_path, hub[0], str(G2P), tokenizer="acme/tiny")
    assert told == f"{G2P} EY1" and (snapshot(tmp_path) / "spiece.model").exists()


@pytest.mark.parametrize(
    "name, error",
    [
        ("acme/other", "NotFoundError acme/other: no such directory, and no such model on the"),
        ("acme/tiny@v8", "NotFoundError acme/tiny@v8: the model on the Hugging Face hub has no"),
    ],
)
def test_what_the_hub_does_not_have(tmp_path, hub, name, error):
    told = load(tmp_path, hub[0], name)
    assert told.startswith(error) and "404" in told and "\n" not in told


def test_a_hub_that_cannot_be_reached(tmp_path, hub):
    told = load(tmp_path, f"http://127.0.0.1:{free_port()}", "acme/tiny")
    assert told.startswith("UnavailableError acme/tiny: no such directory, and no such model in")
    assert "hf download acme/tiny (downloading it now has failed: " in told


@pytest.mark.parametrize("how", ["blocked", "offline"])
def test_without_a_download_the_error_has_the_command(tmp_path, hub, how):
    told = load(tmp_path, hub[0], "acme/tiny@v9", **{how: True})
    assert told.startswith("NotFoundError acme/tiny@v9: no such directory, and no such model in")
    assert told.endswith("download it with: hf download acme/tiny --revision v9")
    assert hub[1] == []


def test_the_files_of_a_download():
    read = [
        *READ,
        *("model-00001-of-00002.safetensors", "model.safetensors.index.json", "merges.txt"),
        *("modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"),
        *("model_index.json", "tokenizer_2/spiece.model", "text_encoder_2/config.json"),
        "text_encoder_2/model-00001-of-00002.safetensors",
    ]
    unread = [
        *UNREAD,
        *("model.fp16.safetensors", "flux1-dev.safetensors", "onnx/model.safetensors"),
        *("text_encoder/model.fp16.safetensors", "vae/config.json", "openvino/config.json"),
        *("2_Dense/pytorch_model.bin", "text_encoder/pytorch_model.bin"),
    ]
    chosen = [f for f in read + unread if any(fnmatch.fnmatch(f, pattern) for pattern in FILES)]
    assert chosen == read


def test_a_revision_needs_an_id(tmp_path):
    for name in (str(G2P), "acme/tiny@v9"):
        told = load(tmp_path, "http://127.0.0.1:1", name, revision="v9")
        assert told.startswith("InvalidArgumentError revision: ")
