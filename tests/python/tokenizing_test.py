"""Tests tokenizing 1 MiB of one letter, the worst case of many tokenizers.

The pieces must be correct and the time linear in the length.
"""

import shutil
import time

import pytest

from quintet.rpc import Failure
from server_process import G2P, SOURCE, Server, failure_of

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_models):
    """Models with single-character pieces, with longer pieces, and with byte-level BPE."""
    root = tmp_path_factory.mktemp("long")
    folders = [shutil.copytree(G2P, root / "characters")]
    for name, model, files in (
        ("pieces", "t5-v1_1", "sp-unigram-nmt_nfkc"),
        ("byte-bpe", "gpt2", "gpt2"),
    ):
        folder = shutil.copytree(
            tiny_models[model],
            root / name,
            ignore=shutil.ignore_patterns("spiece.model", "vocab.json", "merges.txt"),
        )
        for file in (SOURCE / "tests" / "data" / "tokenizers" / files).iterdir():
            if file.name != "cases.jsonl":
                shutil.copy(file, folder)
        folders.append(folder)
    with Server(*folders) as server:
        yield server


@pytest.mark.parametrize("model", ["characters", "pieces", "byte-bpe"])
def test_a_megabyte_of_one_letter(models, model):
    """Tokenizes 1 MiB of one letter in linear time (row 24 of tests/README.md).

    The bound of 50 ms requires an idle machine; the time is printed, not asserted.
    """
    with models.client(call={"model": model}) as client:
        short = client.tokenize("a" * 4096).tokens
        tokens = client.tokenize("a" * MEGABYTE).tokens
        at = 0
        for token in tokens:
            # The spans of the tokens leave no gaps. They may overlap: the word-start piece can
            # share the first letter with the next piece.
            assert token.begin_byte <= at
            at = max(at, token.end_byte)
        assert at == MEGABYTE
        # Tokenizing one repeated letter gives a repeating sequence of tokens. For 256 times as many
        # letters there are 256 times as many tokens, except for a few at the ends.
        assert abs(len(tokens) - 256 * len(short)) <= 256 * 4
        assert {token.id for token in tokens[8:-8]} <= {token.id for token in short}

        def tokenizing_s(length: int) -> float:
            """Returns the time in seconds of a request that is tokenized and then rejected as too
            long."""
            began = time.monotonic()
            assert (
                Failure.of(failure_of(lambda: client.encode(["a" * length]))).reason
                == "INVALID_FIELD"
            )
            return time.monotonic() - began

        times = {
            length: min(tokenizing_s(length) for _ in range(5))
            for length in (MEGABYTE // 8, MEGABYTE)
        }
        print(
            f"{model}: {len(tokens)} tokens, {times[MEGABYTE] * 1e3:.1f} ms for 1 MiB, "
            f"{times[MEGABYTE // 8] * 1e3:.1f} ms for 128 KiB"
        )
        # For 8 times the length, linear time grows by a factor of 8, quadratic time by 64.
        assert times[MEGABYTE] < 32 * times[MEGABYTE // 8] + 0.05
