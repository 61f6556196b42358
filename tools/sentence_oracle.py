#!/usr/bin/env python3
"""Records sentence-transformers directories and their vectors for tests/python/sentence_test.py.

Needs torch and sentence-transformers (recorded with 6.2.0, transformers 5.23.0). Writes the modules
of each case to tests/data/sentence/CASE, and its vectors to vectors.json in that folder. The files
of the T5 model itself are left out; the test copies them from a golden case.

    python tools/sentence_oracle.py
"""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

SOURCE = pathlib.Path(__file__).resolve().parents[1]
TARGET = SOURCE / "tests" / "data" / "sentence"
TEXTS = ["phoneme", "a", "the quick brown fox jumps over the lazy dog", "", "zebra quintet serve"]
# Files of the T5 model itself. They are not written, because the test copies them from a golden
# case.
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "README.md")
FLOAT = {"dtype": torch.float32}
OLD_TYPES = {
    "Transformer": "sentence_transformers.models.Transformer",
    "Pooling": "sentence_transformers.models.Pooling",
    "Dense": "sentence_transformers.models.Dense",
    "Normalize": "sentence_transformers.models.Normalize",
}


def base_model(folder: pathlib.Path) -> None:
    """Copies the T5 encoder of a golden case and the shipped model's tokenizer to `folder`."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(SOURCE / "tests" / "golden" / "cases" / "t5-encoder" / name, folder)
    shutil.copy(SOURCE / "deploy" / "models" / "g2p" / "spiece.model", folder)


def dense(width: int, out: int, **options) -> Dense:
    return Dense(width, out, **options)


def cases(width: int) -> dict:
    """Returns {case: (modules after the Transformer module, options of the model,
    max_seq_length)}."""
    every = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    identity = torch.nn.Identity()
    return {
        "sentence-t5": (
            [
                Pooling(width, "mean"),
                dense(width, width, bias=False, activation_function=identity),
                Normalize(),
            ],
            {},
            12,
        ),
        "every-pooling": ([Pooling(width, every), Normalize()], {}, 64),
        "activations": (
            [
                Pooling(width, ("mean", "max")),
                dense(2 * width, 48, activation_function=torch.nn.GELU()),
                dense(48, 40, activation_function=torch.nn.SiLU(), use_residual=True),
                dense(40, 40, activation_function=torch.nn.ReLU(), use_residual=True),
                dense(40, 24, activation_function=torch.nn.Sigmoid()),
                dense(24, 24),
            ],
            {"truncate_dim": 20},
            64,
        ),
        "instructor": (
            [
                Pooling(width, ("mean", "cls", "weightedmean"), include_prompt=False),
                dense(3 * width, 32, activation_function=identity),
                Normalize(),
            ],
            {"prompts": {"query": "ask this: ", "title": "the title "}},
            64,
        ),
        "default-prompt": (
            [Pooling(width, "mean")],
            {"prompts": {"p": "prefix "}, "default_prompt_name": "p"},
            64,
        ),
    }


# Sets of keyword arguments. In every case, encode is called once with each set.
CALLS = [{}, {"normalize_embeddings": True}, {"prompt": "some prompt "}]
NAMED = {"instructor": ["query", "title", "document"], "default-prompt": ["p", "query"]}


def keep_modules(saved: pathlib.Path, target: pathlib.Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(saved, target)
    for name in MODEL_FILES:
        (target / name).unlink(missing_ok=True)
    for file in target.glob("*token*"):
        file.unlink()


def to_old_form(folder: pathlib.Path) -> None:
    """Rewrites modules.json and the configuration of the Pooling module to the format of
    sentence-transformers before 5.4."""
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    for module in modules:
        module["type"] = OLD_TYPES[module["type"].rsplit(".", 1)[1]]
    path.write_text(json.dumps(modules, indent=2) + "\n")
    path = folder / "1_Pooling" / "config.json"
    new = json.loads(path.read_text())
    modes = new["pooling_mode"]
    old = {"word_embedding_dimension": new["embedding_dimension"]}
    for field, mode in (
        ("cls_token", "cls"),
        ("mean_tokens", "mean"),
        ("max_tokens", "max"),
        ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ):
        old[f"pooling_mode_{field}"] = mode in ([modes] if isinstance(modes, str) else modes)
    path.write_text(json.dumps(old, indent=2) + "\n")


def record(name: str, modules: list, options: dict, length: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        base, saved = pathlib.Path(scratch, "base"), pathlib.Path(scratch, "saved")
        base.mkdir()
        base_model(base)
        transformer = Transformer(str(base), max_seq_length=length, model_kwargs=FLOAT)
        model = SentenceTransformer(modules=[transformer, *modules], device="cpu", **options)
        model.save(str(saved))
        if name == "sentence-t5":
            to_old_form(saved)
        config = saved / "sentence_bert_config.json"
        config.write_text(json.dumps({"max_seq_length": length, "do_lower_case": False}) + "\n")
        keep_modules(saved, TARGET / name)
        shutil.copytree(TARGET / name, base, dirs_exist_ok=True)
        loaded = SentenceTransformer(str(base), device="cpu", model_kwargs=FLOAT)
        calls = CALLS + [{"prompt_name": prompt} for prompt in NAMED.get(name, [])]
        results = [
            {"arguments": call, "vectors": loaded.encode(TEXTS, batch_size=2, **call).tolist()}
            for call in calls
        ]
        path = TARGET / name / "vectors.json"
        path.write_text(json.dumps({"texts": TEXTS, "calls": results}) + "\n", encoding="utf-8")
        print(f"{name}: {len(results[0]['vectors'][0])} columns, {len(calls)} calls")


def main() -> int:
    torch.manual_seed(20)
    config = json.loads((SOURCE / "tests/golden/cases/t5-encoder/config.json").read_text())
    for name, (modules, options, length) in cases(config["d_model"]).items():
        record(name, modules, options, length)
    return 0


if __name__ == "__main__":
    sys.exit(main())
