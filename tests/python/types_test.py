"""Tests the type hints of the Python package with mypy --strict: the package itself, and programs
that use it rightly and wrongly."""

import os
import re
import subprocess
import sys

import pytest

from server_process import PACKAGE, SOURCE

CONFIG = """
[mypy]
strict = True
[mypy-grpc.*,google.*,tqdm.*,huggingface_hub.*,ray.*]
ignore_missing_imports = True
"""
# mypy must report an error in every line that ends with "# wrong", and in no other line.
PROGRAM = """
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypedDict
from typing_extensions import Unpack, assert_type
import numpy
import quintet
from quintet.options import GenerateOptions
from numpy.typing import NDArray

Rows = NDArray[numpy.float32]
model = quintet.Model("g2p", device="cpu", cache_memory=64)
client = quintet.Client("127.0.0.1:1", api_key="key", tls=quintet.Tls(ca="ca.pem"))
either: quintet.Methods = client if client.health() == "SERVING" else model
assert_type(model.generate("a", num_beams=4, early_stopping="never"), quintet.Generation)
assert_type(model.generate([1, 2], eos_token_id=[1]).token_ids, list[int])
assert_type(either.generate(["a", [1, 2]], on_error="return"), list[quintet.Generation])
assert_type(model.generate(iter(["a"])), Iterator[quintet.Generation])
assert_type(model.encode("a"), Rows)
assert_type(either.encode(["a"], normalize=True, pooling="mean"), Rows)
assert_type(model.encode("a", pooling="none"), Rows)
assert_type(model.encode(["a"], pooling="none"), list[Rows])
assert_type(model.encode(iter("ab"), prompt="query: "), Iterator[Rows])
assert_type(model.score("a", ["b", "c"]), quintet.Scores)
assert_type(client.score(["a"], [["b"]], top_logprobs=2), list[quintet.Scores])
assert_type(either.stream("a", num_beams=2).result, quintet.Generation)
assert_type(client.tokenize("a", request_id="a").ids, list[int])
assert_type(model.detokenize(numpy.array([1, 2]), skip_special_tokens=False), str)
with quintet.Client() as entered:
    assert_type(entered, quintet.Client)


def wrapper(text: str, **options: Unpack[GenerateOptions]) -> str:
    return model.generate(text, **options).text


async def work() -> None:
    async with quintet.AsyncModel(model) as own, quintet.AsyncClient(timeout=None) as far:
        assert_type(await own.generate("a"), quintet.Generation)
        assert_type(await far.generate(["a"], timeout=None), list[quintet.Generation])
        assert_type(await own.generate(iter("ab")), AsyncIterator[quintet.Generation])
        assert_type(await far.encode(["a"], vector_type="fp16"), Rows)
        async with own.stream("a") as stream:
            assert_type([chunk.text async for chunk in stream], list[str])
        assert_type(stream.result, quintet.Generation)


model.generate("a", num_beam=4)  # wrong
model.generate("a", num_beams="4")  # wrong
model.generate("a", early_stopping="always")  # wrong
model.encode("a", pooling="maximum")  # wrong
model.score("a")  # wrong
wrapper("a", beams=4)  # wrong
quintet.Model("a", devices="cpu")  # wrong
quintet.AsyncModel("a", device=0)  # wrong
quintet.Client("a", retries=4)  # wrong
"""


@pytest.fixture
def mypy(tmp_path):
    (tmp_path / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    source = {"MYPYPATH": str(SOURCE / "tools" / "python")} if PACKAGE else {}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *arguments],
            cwd=tmp_path,
            env={**os.environ, **source},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode in (0, 1) and done.stderr == "", done.stderr
        return done.stdout

    return run


def test_the_package_passes_mypy(mypy):
    assert mypy("-p", "quintet").startswith("Success")


def test_mypy_knows_the_types_and_options_of_the_methods(mypy, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    expected = {i for i, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    report = mypy("program.py")
    assert {int(line) for line in re.findall(r"program\.py:(\d+): error", report)} == expected, (
        report
    )
