"""Tests quintet.Model on sentence-transformers directories, against that library's vectors."""

import pytest

import quintet
from sentence_test import NAMES, TOLERANCE, difference, models, recorded  # noqa: F401


@pytest.mark.parametrize("name", NAMES)
def test_vectors_equal_those_of_sentence_transformers(models, name):  # noqa: F811
    record = recorded(name)
    calls = [c for c in record["calls"] if not {"prompt", "prompt_name"} & set(c["arguments"])]
    assert calls
    with quintet.Model(models[name], device="cpu", cache_memory=64) as model:
        for call in calls:
            normalize = bool(call["arguments"].get("normalize_embeddings"))
            found = model.encode(record["texts"], normalize=normalize)
            assert difference(found.tolist(), call["vectors"]) <= TOLERANCE
            one = model.encode(record["texts"][0], normalize=normalize)
            assert one.shape == (len(call["vectors"][0]),)


def test_a_hub_id_and_other_names_of_data_types(models, tmp_path, monkeypatch):  # noqa: F811
    hub = tmp_path / "models--me--small"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("0" * 40)
    snapshot = hub / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir()
    models[NAMES[0]].rename(snapshot)
    try:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        with quintet.Model("me/small", dtype="float32", device="cpu", cache_memory=64) as model:
            assert model.encode("phoneme").ndim == 1
        with pytest.raises(quintet.Error, match="hf download me/absent"):
            quintet.Model("me/absent")
    finally:
        snapshot.rename(models[NAMES[0]])
