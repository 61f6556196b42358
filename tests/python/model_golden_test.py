"""Tests quintet.Model against recorded outputs of transformers and FAT5 (tests/golden/README.md).

Covers every model family and head. Inputs are token ids; options of Hugging Face's generate are
passed unchanged.
"""

import json
import pathlib

import numpy
import pytest

import quintet
from server_process import CASES

NAMES = sorted(folder.name for folder in CASES.iterdir() if folder.is_dir())
TYPES = {"I64": numpy.int64, "F32": numpy.float32}


class Case:
    """One folder of recorded outputs."""

    def __init__(self, name: str):
        self.folder: pathlib.Path = CASES / name
        self.golden = json.loads((self.folder / "golden.json").read_text())
        data = (self.folder / "golden.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
        header.pop("__metadata__", None)
        self.tensors = {
            tensor: numpy.frombuffer(
                body[slice(*entry["data_offsets"])], TYPES[entry["dtype"]]
            ).reshape(entry["shape"])
            for tensor, entry in header.items()
        }
        ids = self.tensors["input_ids"]
        mask = self.tensors.get("attention_mask", numpy.ones_like(ids)) == 1
        self.inputs = [row[kept] for row, kept in zip(ids, mask, strict=True)]
        self.mask = mask
        self.tolerance = 5e-5 if name.startswith("fat5") else 1e-5

    def close(self, got, tensor: str) -> None:
        """Compares rows of tokens without padding with a recorded, padded tensor [rows, L, ...]."""
        golden = self.tensors[tensor]
        for row, values in enumerate(got):
            wanted = golden[row][self.mask[row]]
            error = numpy.abs(numpy.asarray(values, numpy.float32) - wanted).max()
            assert error <= self.tolerance * numpy.abs(golden).max(), (tensor, row, error)


@pytest.fixture(params=NAMES)
def case(request):
    return Case(request.param)


def test_hidden_states_and_labels(case):
    with quintet.Model(case.folder, device="cpu", cache_memory=16) as model:
        if "encoder_last_hidden_state" in case.tensors:
            case.close(model.encode(case.inputs, pooling="none"), "encoder_last_hidden_state")
        kind = case.golden["kind"]
        if kind == "seqcls":
            got = [[s.logit for s in r.labels] for r in model.classify(case.inputs)]
            error = numpy.abs(numpy.array(got) - case.tensors["logits"]).max()
            assert error <= case.tolerance * numpy.abs(case.tensors["logits"]).max()
        if kind == "tokcls":
            order = {name: i for i, name in enumerate(model.info().labels)}
            got = [
                [
                    [s.logit for s in sorted(token.labels, key=lambda s: order[s.label])]
                    for token in result.tokens
                ]
                for result in model.classify(case.inputs)
            ]
            case.close(got, "logits")


def matches(ids: list[int], recorded: list[int]) -> bool:
    """Returns whether `recorded` is `ids` followed by padding (copies of a single id)."""
    return recorded[: len(ids)] == ids and len(set(recorded[len(ids) :])) <= 1


def test_decodes(case):
    """The tokens equal those of generate in transformers; scores may differ by rounding."""
    if not case.golden.get("decodes"):
        pytest.skip("no recorded decodes")
    causal = case.golden["kind"] == "causal"
    inputs = [ids[:-1] if causal and len(ids) > 1 else ids for ids in case.inputs]
    compared = recorded = 0
    with quintet.Model(case.folder, device="cpu", cache_memory=64) as model:
        for decode in case.golden["decodes"]:
            options = dict(decode["options"])
            if not causal:  # the recorded models were called with a start token of their own
                options["decoder_start_token_id"] = decode["rows"][0]["sequences"][0][0]
            beams = options.get("num_beams", 1) > 1
            results = model.generate(inputs, echo=True, return_scores=beams, **options)
            for result, row in zip(results, decode["rows"], strict=True):
                recorded += len(row["sequences"])
                if row["smallest_gap"] is not None and row["smallest_gap"] < 1e-4:
                    continue  # a decision within the rounding error
                for i, sequence in enumerate(result.sequences):
                    assert matches(sequence.token_ids, row["sequences"][i]), (options, i)
                    if row["scores"]:
                        limit = max(1e-4, 2e-6 * abs(row["scores"][i]))
                        assert abs(sequence.score - row["scores"][i]) <= limit, (options, i)
                    compared += 1
    assert compared > recorded / 2
