"""Tests quintet.Model on sentence-transformers directories, against that library's vectors."""

import asyncio
import sys

import pytest

import quintet
from sentence_test import NAMES, TOLERANCE, difference, models, recorded  # noqa: F401
from server_process import Server


# Arguments of sentence-transformers' encode under the names of Model.encode.
RENAMED = {"normalize_embeddings": "normalize"}


def options_of(call: dict) -> dict:
    return {RENAMED.get(name, name): value for name, value in call["arguments"].items()}


@pytest.mark.parametrize("name", NAMES)
def test_vectors_equal_those_of_sentence_transformers(models, name):  # noqa: F811
    record = recorded(name)
    assert record["calls"]
    with quintet.Model(models[name], device="cpu", cache_memory=64) as model:
        for call in record["calls"]:
            options = options_of(call)
            found = model.encode(record["texts"], **options)
            assert difference(found.tolist(), call["vectors"]) <= TOLERANCE, options
            one = model.encode(record["texts"][0], **options)
            assert one.shape == (len(call["vectors"][0]),)


def test_clients_have_the_same_prompts(models):  # noqa: F811
    prompted = 0
    with Server(*models.values()) as server:
        for name, folder in models.items():
            record = recorded(name)
            with (
                quintet.Model(folder, device="cpu", cache_memory=64) as model,
                quintet.Client(server.target, model=folder.name) as client,
            ):
                assert client.info().prompt_names == model.info().prompt_names
                for call in record["calls"]:
                    options = options_of(call)
                    prompted += "prompt" in options or "prompt_name" in options
                    found = client.encode(record["texts"], **options)
                    assert difference(found.tolist(), call["vectors"]) <= TOLERANCE, options
    assert prompted > 2


def test_prompts_that_are_wrong(models):  # noqa: F811
    with (
        Server(models["default-prompt"]) as server,
        quintet.Model(models["default-prompt"], device="cpu", cache_memory=64) as model,
        quintet.Client(server.target) as client,
    ):
        names = ", ".join(model.info().prompt_names)
        assert names
        for one in (model, client):
            for error, words, options in (
                (TypeError, "prompt: expected a str or None, got int", {"prompt": 1}),
                (TypeError, "prompt_name: expected a str or None", {"prompt_name": ["query"]}),
                (
                    quintet.InvalidArgumentError,
                    f"prompt_name: expected one of {names}, got absent",
                    {"prompt_name": "absent"},
                ),
                (
                    quintet.InvalidArgumentError,
                    "prompt: cannot be combined with prompt_name",
                    {"prompt": "a", "prompt_name": "query"},
                ),
                (quintet.InvalidArgumentError, "prompt: .*surrogate", {"prompt": "\udc80"}),
            ):
                with pytest.raises(error, match=words):
                    one.encode(["a", "b"], **options)
            with pytest.raises(quintet.InvalidArgumentError, match="needs inputs that are text"):
                one.encode([[5, 6]], prompt="a")


def test_async_models_and_clients_take_prompts(models):  # noqa: F811
    folder = models["default-prompt"]

    async def rows(target: str):
        async with (
            quintet.AsyncModel(folder, device="cpu", cache_memory=64) as model,
            quintet.AsyncClient(target) as client,
        ):
            return [await one.encode("b", prompt="query: ") for one in (model, client)]

    with Server(folder) as server, quintet.Model(folder, device="cpu", cache_memory=64) as model:
        expected = model.encode("query: b", prompt="")
        for found in asyncio.run(rows(server.target)):
            assert difference([found.tolist()], [expected.tolist()]) <= TOLERANCE


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
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # nothing is downloaded
        with pytest.raises(quintet.Error, match="hf download me/absent"):
            quintet.Model("me/absent")
    finally:
        snapshot.rename(models[NAMES[0]])
