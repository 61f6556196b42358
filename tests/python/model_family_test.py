"""Tests random models of every family on texts, against recorded outputs of transformers.

tools/family_oracle.py recorded them: T5 1.0, v1.1 (Flan-T5), mT5, UMT5, LongT5, ByT5, MADLAD and
GPT-2, each with its kind of tokenizer. FAT5 is not in transformers: model_golden_test.py compares
it with its reference model.
"""

import json
import shutil

import numpy
import pytest

import quintet
from server_process import SOURCE, run_quintet

FAMILIES = SOURCE / "tests" / "data" / "families"
NAMES = sorted(folder.name for folder in FAMILIES.iterdir())
FILES_OF_TOKENIZER_TESTS = ("cases.jsonl", "config.json")


@pytest.fixture(scope="module", params=NAMES)
def family(request, tmp_path_factory):
    """Returns the folder of a model with its tokenizer, and the recorded outputs."""
    folder = tmp_path_factory.mktemp("families") / request.param
    shutil.copytree(FAMILIES / request.param, folder)
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    (folder / "record.json").unlink()
    if record["tokenizer"] is not None:
        for file in (SOURCE / "tests" / "data" / "tokenizers" / record["tokenizer"]).iterdir():
            if file.name not in FILES_OF_TOKENIZER_TESTS:
                shutil.copy(file, folder)
    return folder, record


@pytest.fixture(scope="module")
def model(family):
    with quintet.Model(family[0], device="cpu", cache_memory=64) as loaded:
        yield loaded


def kept(ids: list[int], wanted: list[int]) -> bool:
    """Whether `wanted` is `ids` with the padding that transformers adds to shorter sequences."""
    return wanted[: len(ids)] == ids and len(set(wanted[len(ids) :])) <= 1


def test_every_family_is_recorded():
    assert NAMES == ["byt5", "flan-t5", "gpt2", "longt5", "madlad", "mt5", "t5", "umt5"]


def test_generated_texts(family, model):
    record = family[1]
    texts = [entry["text"] for entry in record["texts"]]
    for entry in record["texts"]:
        assert model.tokenize(entry["text"]).ids == entry["ids"]
    different = set()
    for number, options in enumerate(record["searches"]):
        beams = "num_beams" in options
        results = model.generate(texts, return_scores=beams, **options)
        for result, entry in zip(results, record["texts"], strict=True):
            wanted = entry["searches"][number]
            assert len(result.sequences) == len(wanted["ids"])
            for i, sequence in enumerate(result.sequences):
                assert kept(sequence.token_ids, wanted["ids"][i]), (options, entry["text"])
                assert sequence.text == wanted["texts"][i]
                different.add(sequence.text)
                if beams:
                    limit = max(1e-4, 2e-6 * abs(wanted["scores"][i]))
                    assert abs(sequence.score - wanted["scores"][i]) <= limit, options
    assert len(different) > 10


def test_the_command_line_writes_the_same_bytes(family, model):
    folder, record = family
    texts = [entry["text"] for entry in record["texts"]]
    written = run_quintet(
        "generate",
        "--model",
        str(folder),
        "--num-beams",
        "4",
        "--max-new-tokens",
        "16",
        "--device",
        "cpu",
        stdin="".join(f"{text}\n" for text in texts),
    ).decode()
    results = model.generate(texts, num_beams=4, max_new_tokens=16)
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    expected = ["".join(escapes.get(c, c) for c in result.text) for result in results]
    assert written.split("\n") == [*expected, ""]


def test_embeddings_and_scores(family, model):
    record = family[1]
    texts = [entry["text"] for entry in record["texts"]]
    targets = [[entry["target"]["ids"]] for entry in record["texts"]]
    for result, entry in zip(model.score(texts, targets), record["texts"], strict=True):
        got = [token.logprob for token in result.targets[0].tokens]
        assert numpy.abs(numpy.subtract(got, entry["target"]["log_probs"])).max() < 1e-4
    if model.info().encoder_layers > 0:
        wanted = numpy.array([entry["mean"] for entry in record["texts"]])
        error = numpy.abs(model.encode(texts, pooling="mean") - wanted).max()
        assert error <= 1e-5 * numpy.abs(wanted).max()
