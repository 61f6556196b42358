"""A megabyte of one letter, the input that tokenizers fear: the right pieces, in time that grows with the length and not its square."""

import shutil
import time

import pytest

from quintet_rpc import Failure
from server_process import G2P, SOURCE, Server, failure_of

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_models):
    """A spiece.model of single characters, one of longer pieces, and byte-level BPE."""
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
    """Row 24; its 50 ms are for a quiet machine and are printed, not asserted."""
    with models.client(call={"model": model}) as client:
        short = client.tokenize("a" * 4096).tokens
        tokens = client.tokenize("a" * MEGABYTE).tokens
        at = 0
        for token in tokens:
            assert (
                token.begin_byte <= at
            )  # nothing left out; a piece for the beginning of a word shares its first letter
            at = max(at, token.end_byte)
        assert at == MEGABYTE
        # The same pieces all along: 256 times as many as of 4,096 letters, but for the ends.
        assert abs(len(tokens) - 256 * len(short)) <= 256 * 4
        assert {token.id for token in tokens[8:-8]} <= {token.id for token in short}

        def tokenizing_s(length: int) -> float:
            """Of a request that is refused for its length once it has been tokenized."""
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
            f"{model}: {len(tokens)} tokens, {times[MEGABYTE] * 1e3:.1f} ms for 1 MiB, {times[MEGABYTE // 8] * 1e3:.1f} ms for 128 KiB"
        )
        assert (
            times[MEGABYTE] < 32 * times[MEGABYTE // 8] + 0.05
        )  # linear: 8 times; quadratic: 64 times
