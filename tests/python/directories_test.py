"""Tests 40 model directories as people have them: hub caches, sentence-transformers, foreign
formats, damage. Each row of DIRECTORIES says how a directory is made from the shipped model, and
whether `quintet` loads it (exit code 0) or rejects it (exit code 3).

`pytest -rP` prints the table of outcomes.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from server_process import BINARY, CASES, G2P, SOURCE

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOADS = "loads"


class Place:
    """A scratch folder with a copy of the shipped model, and an empty hub cache."""

    def __init__(self, root: Path):
        self.root, self.folder = root, root / "model"
        self.hub = root / "hub"
        shutil.copytree(G2P, self.folder)
        self.argument = str(self.folder)

    def write(self, name: str, content: bytes | str = b"x") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink()

    def rename(self, old: str, new: str) -> None:
        (self.folder / old).rename(self.folder / new)

    def replace(self, *, weights: str) -> None:
        """Removes model.safetensors and creates the file `weights` instead."""
        self.remove("model.safetensors")
        self.write(weights)

    def config(self, **fields) -> None:
        path = self.folder / "config.json"
        content = json.loads(path.read_text())
        content.update(fields)
        path.write_text(json.dumps(content))

    def cut(self, name: str, size: int) -> None:
        with (self.folder / name).open("r+b") as file:
            file.truncate(size)

    def cache(self, name: str = "acme/tiny", ref: str | None = "main") -> Path:
        """Moves the model into the hub cache, in the layout of huggingface_hub.

        Returns the path of the snapshot.
        """
        repository = self.hub / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        blobs = repository / "blobs"
        shutil.move(self.folder, blobs)
        for file in blobs.iterdir():
            (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
        if ref:
            (repository / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
            (repository / "refs" / ref).write_text(COMMIT)
        self.argument = name
        return snapshot

    def sentence(self, name: str) -> None:
        """A directory of sentence-transformers."""
        shutil.rmtree(self.folder)
        shutil.copytree(SOURCE / "tests" / "data" / "sentence" / name, self.folder)
        for file in ("config.json", "model.safetensors"):
            shutil.copy(CASES / "t5-encoder" / file, self.folder)
        shutil.copy(G2P / "spiece.model", self.folder)


def cached(revision: str = "", **options):
    def make(place: Place) -> None:
        place.cache(**options)
        place.argument += revision

    return make


def snapshot_itself(place: Place) -> None:
    place.argument = str(place.cache())


def cache_link_outside(place: Place) -> None:
    snapshot = place.cache()
    (snapshot / "config.json").unlink()
    shutil.copy(G2P / "config.json", place.root / "outside.json")
    (snapshot / "config.json").symlink_to(place.root / "outside.json")


def cache_without_blob(place: Place) -> None:
    place.cache()
    (place.hub / "models--acme--tiny" / "blobs" / "model.safetensors").unlink()


def cache_without_weights(place: Place) -> None:
    (place.cache() / "model.safetensors").unlink()


def repository_folder(place: Place) -> None:
    place.cache()
    place.argument = str(place.hub / "models--acme--tiny")


def link_to_weights(place: Place) -> None:
    place.rename("model.safetensors", "../blob")
    (place.folder / "model.safetensors").symlink_to(place.root / "blob")


def adapter_beside_model(place: Place) -> None:
    place.write("adapter_config.json", "{}")


def trainer_output(place: Place) -> None:
    shutil.copytree(place.folder, place.root / "run" / "checkpoint-500")
    place.argument = str(place.root / "run")


def file_instead(place: Place) -> None:
    place.argument = str(place.folder / "model.safetensors")


def argument(text: str):
    def make(place: Place) -> None:
        place.argument = text

    return make


def sentence_with(file: str, **fields):
    def make(place: Place) -> None:
        place.sentence("sentence-t5")
        path = place.folder / file
        content = json.loads(path.read_text())
        (content[2] if isinstance(content, list) else content).update(fields)
        path.write_text(json.dumps(content))

    return make


def only(weights: str):
    return lambda place: place.replace(weights=weights)


def shards(*, index: bool):
    def make(place: Place) -> None:
        place.rename("model.safetensors", "model-00001-of-00001.safetensors")
        if index:
            place.write(
                "model.safetensors.index.json",
                '{"weight_map": {"shared.weight": "../model-00001-of-00001.safetensors"}}',
            )

    return make


def quantized(place: Place) -> None:
    place.config(quantization_config={"quant_method": "bitsandbytes"})


# Each row: a name, the function that makes the directory, and the outcome, which is LOADS or a part
# of the error message. A fourth element is a part of a warning that must be printed.
DIRECTORIES = [
    ("save_pretrained directory", lambda place: None, LOADS),
    ("hub id", cached(), LOADS),
    ("hub id without an organization", cached(name="tiny"), LOADS),
    ("hub id @ branch", cached("@dev", ref="dev"), LOADS),
    ("hub id @ commit", cached(f"@{COMMIT}", ref=None), LOADS),
    ("hub id @ pull request", cached("@refs/pr/1", ref="refs/pr/1"), LOADS),
    ("snapshot of links into blobs", snapshot_itself, LOADS),
    ("hub id, revision not in the cache", cached("@v2"), "hf download acme/tiny --revision v2"),
    ("hub id, not in the cache", argument("acme/absent"), "hf download acme/absent"),
    ("hub id, blob missing", cache_without_blob, "complete the download with: hf download acme"),
    ("hub id, weights not downloaded", cache_without_weights, "complete the download with"),
    ("hub id, link leaves the cache", cache_link_outside, "is a symbolic link that leaves"),
    ("repository folder of the cache", repository_folder, "pass the repository's id"),
    ("malformed id", argument("acme/../etc"), "not the id of a Hugging Face model"),
    ("weights linked from elsewhere", link_to_weights, "is a symbolic link; use a copy"),
    ("a file", file_instead, "pass the directory that holds config.json"),
    ("trainer output", trainer_output, "sub-directories: checkpoint-500"),
    ("empty config", lambda place: place.write("config.json", ""), "config.json: not JSON"),
    ("no config.json", lambda place: place.remove("config.json"), "no config.json"),
    ("another architecture", lambda p: p.config(model_type="bert"), "model_type"),
    ("PyTorch weights", only("pytorch_model.bin"), "save_pretrained(p, safe_serialization=True)"),
    ("sharded PyTorch weights", only("pytorch_model.bin.index.json"), "safe_serialization=True"),
    ("TensorFlow weights", only("tf_model.h5"), "from_tf=True"),
    ("Flax weights", only("flax_model.msgpack"), "from_flax=True"),
    ("GGUF", only("tiny-q4_k_m.gguf"), "a GGUF model is read from its file"),
    ("ONNX", only("encoder_model.onnx"), "ONNX models are not supported"),
    ("CTranslate2", only("model.bin"), "CTranslate2 model is not supported"),
    ("variant", only("model.fp16.safetensors"), "rename the file to model.safetensors"),
    ("PEFT adapter", only("adapter_model.safetensors"), "quintet convert BASE"),
    ("adapter beside the model", adapter_beside_model, LOADS, "the PEFT adapter is not applied"),
    ("shards without index", shards(index=False), "without model.safetensors.index.json"),
    ("shard name with ..", shards(index=True), "expected a plain name *.safetensors"),
    (
        "Git LFS pointer",
        lambda place: place.write(
            "model.safetensors", "version https://git-lfs.github.com/spec/v1"
        ),
        "is a Git LFS pointer",
    ),
    (
        "weights cut short",
        lambda place: place.cut("model.safetensors", 100_000),
        "model.safetensors",
    ),
    ("quantized by another tool", quantized, "quantization_config"),
    ("damaged tokenizer", lambda place: place.cut("tokenizer.json", 1003), "tokenizer.json"),
    ("sentence-transformers 6", lambda place: place.sentence("every-pooling"), LOADS),
    ("sentence-transformers 2", lambda place: place.sentence("sentence-t5"), LOADS),
    (
        "sentence-transformers, unknown module",
        sentence_with("modules.json", type="sentence_transformers.models.CNN"),
        "sentence_transformers.models.CNN is not supported",
    ),
    (
        "sentence-transformers, wrong width",
        sentence_with("2_Dense/config.json", in_features=32),
        "in_features: expected 64",
    ),
]


def test_there_are_40_directories():
    assert len({row[0] for row in DIRECTORIES}) == len(DIRECTORIES) >= 40


@pytest.mark.parametrize("row", DIRECTORIES, ids=[row[0] for row in DIRECTORIES])
def test_outcome(row, tmp_path):
    name, make, outcome, *warnings = row
    place = Place(tmp_path)
    make(place)
    environment = {**os.environ, "HF_HUB_CACHE": str(place.hub), "HF_HOME": "/nonexistent"}
    done = subprocess.run(
        [BINARY, "encode", place.argument, "--quiet"],
        input=b"phoneme\n",
        capture_output=True,
        timeout=120,
        check=False,
        env=environment,
    )
    error = done.stderr.decode()
    assert done.returncode == (0 if outcome == LOADS else 3), error
    if outcome == LOADS:
        assert json.loads(done.stdout)["embedding"]
        assert all(warning in error for warning in warnings), error
        assert bool(error) == bool(warnings), error
    else:
        assert outcome in error, error
        assert error.startswith(f"quintet: {place.argument}: ") and error.count("\n") == 1
    print(f"| {name} | {outcome} |")
