"""Writes files of tests/fuzz/corpus, for the scripts that make them."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"


def write(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
