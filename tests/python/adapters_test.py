"""Tests of LoRA adapters that requests choose: the outputs that PEFT recorded, and the adapters of
a server through every interface."""

import asyncio
import concurrent.futures
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils

import quintet
from adapter_files import make_adapter
from admin_client import POOL, AdminServer
from http_api import HttpServer
from server_process import BINARY, G2P, SOURCE, eventually, run_quintet, words

RECORDED = SOURCE / "tests" / "data" / "adapters"
OPTIONS = {"num_beams": 2, "max_new_tokens": 24}
TGI_OPTIONS = {"best_of": 2, "max_new_tokens": 24}


def kept(ids: list[int], wanted: list[int]) -> bool:
    """Whether `wanted` is `ids` with the padding that transformers adds to shorter sequences."""
    return wanted[: len(ids)] == ids and len(set(wanted[len(ids) :])) <= 1


@pytest.mark.parametrize("name", ["t5-qv", "flan-all", "umt5-regex", "kohya"])
def test_decodes_equal_those_of_peft(name):
    record = json.loads((RECORDED / name / "record.json").read_text())
    path = RECORDED / name
    if name == "kohya":
        path /= "adapter.safetensors"
    base = SOURCE / "tests" / record["base"]
    with quintet.Model(base, device="cpu", cache_memory=64, adapters={"recorded": path}) as model:
        assert model.info().adapters == ["recorded"]
        different = 0
        for search in record["searches"]:
            results = model.generate(record["inputs"], adapter="recorded", **search["options"])
            plain = model.generate(record["inputs"], **search["options"])
            for result, other, ids in zip(results, plain, search["ids"], strict=True):
                assert kept(result.sequences[0].token_ids, ids), search["options"]
                different += other.sequences[0].token_ids != result.sequences[0].token_ids
        assert different > 0
        with pytest.raises(quintet.NotFoundError, match="no adapter other; it has: recorded"):
            model.generate(record["inputs"], adapter="other")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(folder / name, seed) for name, seed in (("one", 1), ("two", 2))}


@pytest.fixture(scope="module")
def model(adapters):
    with quintet.Model(G2P, device="cpu", cache_memory=64, adapters=adapters) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def texts(model):
    """Returns the texts that the model generates for words(8), by adapter (None: without one)."""
    return {
        name: [result.text for result in model.generate(words(8), adapter=name, **OPTIONS)]
        for name in (None, "one", "two")
    }


def test_adapters_of_a_loaded_model_change(adapters, texts, tmp_path):
    with quintet.Model(G2P, device="cpu", cache_memory=64, adapters=adapters) as model:

        def text(name):
            return model.generate(words(1)[0], adapter=name, **OPTIONS).text

        model.load_adapter("three", adapters["one"])
        assert model.info().adapters == ["one", "two", "three"]
        assert text("three") == texts["one"][0]
        model.load_adapter("three", make_adapter(tmp_path / "new", 3))
        assert text("three") not in {texts[name][0] for name in texts}
        model.unload_adapter("one")
        with pytest.raises(quintet.NotFoundError, match="no adapter one; it has: two, three"):
            text("one")
        with pytest.raises(quintet.NotFoundError, match="no adapter one"):
            model.unload_adapter("one")
        large = make_adapter(tmp_path / "large", 5, rank=9)
        with pytest.raises(quintet.FailedPreconditionError, match="load the model with adapters="):
            model.load_adapter("large", large)
        with pytest.raises(quintet.InvalidArgumentError, match="contains ':'"):
            model.load_adapter("a:b", adapters["one"])
        with pytest.raises(quintet.NotFoundError, match="no such directory"):
            model.load_adapter("none", tmp_path / "none")
        with pytest.raises(TypeError, match="path: expected a str or a path, got int"):
            model.load_adapter("five", 5)
        with pytest.raises(TypeError, match="name: expected a str, got int"):
            model.load_adapter(5, adapters["one"])
        with pytest.raises(TypeError, match="name: expected a str, got NoneType"):
            model.unload_adapter(None)
        assert model.info().adapters == ["two", "three"]
        assert text("two") == texts["two"][0] and text(None) == texts[None][0]
    with quintet.Model(G2P, device="cpu", cache_memory=64) as plain:
        with pytest.raises(quintet.FailedPreconditionError, match="loaded without adapters"):
            plain.load_adapter("one", adapters["one"])
    with pytest.raises(quintet.FailedPreconditionError, match="closed"):
        plain.load_adapter("one", adapters["one"])


def test_an_asynchronous_model_changes_adapters(model, adapters, texts):
    async def run():
        async with quintet.AsyncModel(model) as shared:
            await shared.load_adapter("again", adapters["two"])
            result = await shared.generate(words(1)[0], adapter="again", **OPTIONS)
            await shared.unload_adapter("again")
            return result.text

    assert asyncio.run(run()) == texts["two"][0]
    assert model.info().adapters == ["one", "two"]


@pytest.fixture(scope="module")
def server(adapters, tmp_path_factory):
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    lines = "".join(f'{name} = "{path}"\n' for name, path in adapters.items())
    config.write_text(f"[models.g2p.adapters]\n{lines}")
    with HttpServer(G2P, config=config) as running:
        yield running
    assert running.process.returncode == 0


def test_many_adapters_in_a_batch_give_the_results_of_each_alone(tmp_path):
    # 33 threads call at the same time: 32 of them with an adapter each, of ranks 1 to 16, and one
    # without an adapter.
    adapters = {f"a{i}": make_adapter(tmp_path / f"a{i}", i, rank=1 + i % 16) for i in range(32)}
    names = [None, *adapters]
    options = {"num_beams": 2, "max_new_tokens": 40, "min_new_tokens": 30, "return_scores": True}
    with quintet.Model(G2P, device="cpu", cache_memory=256, adapters=adapters) as model:

        def results(name):
            (result,) = model.generate(words(1), adapter=name, **options)
            return [(sequence.token_ids, sequence.score) for sequence in result.sequences]

        alone = [results(name) for name in names]
        assert len({str(result) for result in alone}) == len(names)
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            for _ in range(3):
                assert list(pool.map(results, names)) == alone


def test_adapters_change_the_texts(texts):
    assert texts[None] != texts["one"] != texts["two"] != texts[None]


def test_the_command_line(adapters, texts):
    flags = ["--model", str(G2P), "--num-beams", "2", "--max-new-tokens", "24"]
    flags += ["--adapter", str(adapters["two"])]
    written = run_quintet("generate", *flags, stdin="".join(f"{word}\n" for word in words(8)))
    assert written.decode().splitlines() == texts["two"]


def test_the_command_of_the_client(server, texts):
    command = [sys.executable, str(SOURCE / "tools" / "client.py"), "generate", *words(8)]
    command += ["--target", server.target, "--num-beams", "2", "--max-new-tokens", "24"]
    written = subprocess.run([*command, "--adapter", "two"], capture_output=True, check=True)
    assert written.stdout.decode().splitlines() == texts["two"]


def test_clients_of_the_server(server, texts):
    with quintet.Client(server.target) as client:
        assert client.info().adapters == ["one", "two"]
        assert client.list_models()[0].adapters == ["one", "two"]
        for name, expected in texts.items():
            results = client.generate(words(8), adapter=name, **OPTIONS)
            assert [result.text for result in results] == expected
        with pytest.raises(quintet.NotFoundError, match="no adapter three; it has: one, two"):
            client.generate("a", adapter="three")
        rows = client.encode(["phoneme", "phoneme"], adapter="one")
        assert np.array_equal(rows[0], rows[1])
        assert not np.array_equal(rows, client.encode(["phoneme", "phoneme"]))
        # The encoder cache holds the states of this text without an adapter and with each adapter.
        # The request must use the states for its own adapter.
        cached = client.generate(words(1)[0], adapter="one", **OPTIONS)
        assert cached.text == texts["one"][0]
        scores = client.score("phoneme", ["F OW1"], adapter="one").logprobs
        assert scores[0] != client.score("phoneme", ["F OW1"]).logprobs[0]
    with quintet.Client(server.target, model="g2p:two") as client:
        assert client.generate(words(8), **OPTIONS)[3].text == texts["two"][3]
        with pytest.raises(quintet.InvalidArgumentError, match="names another adapter"):
            client.generate("a", adapter="one")
    with quintet.Client(server.target, model="g2p:three") as client:
        with pytest.raises(quintet.NotFoundError, match="no adapter three"):
            client.generate("a")
    with quintet.Client(server.target, model="other:one") as client:
        with pytest.raises(quintet.NotFoundError, match="no model of this name"):
            client.generate("a")
    count = 'quintet_adapter_requests_total{adapter="one"'
    assert eventually(lambda: any(count in line for line in server.get("/metrics")[1].splitlines()))


def test_kserve(server, texts):
    def infer(adapter):
        text = triton.InferInput("text_input", [1], "BYTES")
        text.set_data_from_numpy(np.array([words(1)[0].encode()], dtype=object))
        parameters = OPTIONS | ({"adapter": adapter} if adapter else {})
        answer = client.infer("g2p", [text], parameters=parameters)
        return answer.as_numpy("text_output")[0].decode()

    with triton.InferenceServerClient(server.target) as client:
        for name in texts:
            assert infer(name) == texts[name][0]
        for name in ("g2p", "g2p:one", "g2p:two"):
            assert client.is_model_ready(name)
        assert not client.is_model_ready("g2p:three") and not client.is_model_ready("other:one")
        with pytest.raises(tritonclient.utils.InferenceServerException, match="no adapter three"):
            infer("three")


def test_the_http_api(server, texts):
    client = server.openai()
    listed = {model.id for model in client.models.list().data}
    assert listed == {"g2p", "g2p:one", "g2p:two"}
    assert client.models.retrieve("g2p:one").id == "g2p:one"
    beams = {"use_beam_search": True, "n": 1, "best_of": 2}
    for name in texts:
        model = f"g2p:{name}" if name else "g2p"
        answer = client.completions.create(
            model=model, prompt=words(8), max_tokens=24, extra_body=beams
        )
        assert [choice.text for choice in answer.choices] == texts[name]
        assert answer.model == model
        generate = {"inputs": words(1)[0], "parameters": {"adapter_id": name, **TGI_OPTIONS}}
        if name is None:
            del generate["parameters"]["adapter_id"]
        assert server.post("/generate", generate).json()["generated_text"] == texts[name][0]
    assert client.embeddings.create(model="g2p:one", input="a").model == "g2p:one"
    assert server.post("/v1/completions", {"prompt": "a"}).json()["model"] == "g2p"
    unknown = server.post("/v1/completions", {"model": "g2p", "adapter": "x", "prompt": "a"})
    assert unknown.status == 404 and "no adapter x" in unknown.json()["error"]["message"]
    typed = server.post("/v1/completions", {"model": "g2p", "adapter": 5, "prompt": "a"})
    assert typed.status == 400


ACTIONS = POOL.FindEnumTypeByName("quintet.admin.v1.ModelChange.Action").values_by_name


class ChangingAdapters:
    """A server whose adapters change, and take turns in its only adapter slot."""

    def __init__(self, folder, adapters):
        self.folder, self.adapters = folder, {name: str(path) for name, path in adapters.items()}
        self.server = AdminServer(folder, self._models(), cache_memory=64)

    def _models(self):
        return {"g2p": (str(G2P), {"adapters": self.adapters, "adapter-slots": 1})}

    def change(self, **adapters):
        """Sets the paths of the named adapters (None: removes the adapter) and reloads the
        configuration. Returns the name of the action that the server took, and the failure."""
        for name, path in adapters.items():
            self.adapters.pop(name, None)
            if path is not None:
                self.adapters[name] = str(path)
        self.server.configure(self._models())
        (change,) = self.server.admin("ReloadConfiguration").changes
        names = {value.number: name for name, value in ACTIONS.items()}
        return names[change.action].removeprefix("ACTION_"), change.failure


@pytest.fixture()
def changing(tmp_path, adapters):
    server = ChangingAdapters(tmp_path, adapters)
    with server.server:
        yield server


def test_adapters_change_without_loading_the_model_again(changing, texts, adapters, tmp_path):
    with quintet.Client(changing.server.target) as client:

        def text(name):
            return client.generate(words(1)[0], adapter=name, **OPTIONS).text

        assert [text(name) for name in ("one", "two", None, "one")] == [
            texts[name][0] for name in ("one", "two", None, "one")
        ]
        assert changing.change() == ("UNCHANGED", "")
        three = make_adapter(tmp_path / "three", 3)
        assert changing.change(three=three) == ("ADAPTERS_CHANGED", "")
        assert client.info().adapters == ["one", "two", "three"]
        assert text("three") not in {texts[name][0] for name in texts}
        # First the name "one" gets another path; then the path of "three" gets other files.
        assert changing.change(one=adapters["two"]) == ("ADAPTERS_CHANGED", "")
        assert text("one") == texts["two"][0]
        shutil.rmtree(three)
        shutil.copytree(adapters["one"], three)
        assert changing.change() == ("ADAPTERS_CHANGED", "")
        assert text("three") == texts["one"][0]
        assert changing.change(one=None, two=None) == ("ADAPTERS_CHANGED", "")
        with pytest.raises(quintet.NotFoundError, match="no adapter one; it has: three"):
            text("one")
        assert text("three") == texts["one"][0]
        assert changing.change(three=None) == ("ADAPTERS_CHANGED", "")
        with pytest.raises(quintet.NotFoundError, match="it has: none"):
            text("three")
        assert changing.server.listed().version == 1
        assert "quintet_adapter_requests_total" not in changing.server.get("/metrics")[1]


def test_an_adapter_that_needs_more_room_loads_the_model_again(changing, texts, tmp_path):
    large = make_adapter(tmp_path / "large", 5, rank=9)
    with quintet.Client(changing.server.target) as client:
        assert changing.change(large=large) == ("REPLACED", "")
        assert changing.server.listed().version == 2
        assert client.generate(words(1)[0], adapter="one", **OPTIONS).text == texts["one"][0]
        other = client.generate(words(1)[0], adapter="large", **OPTIONS).text
        assert other not in {texts[name][0] for name in texts}
        assert changing.change(large=None) == ("ADAPTERS_CHANGED", "")
        assert changing.server.listed().version == 2


def test_an_adapter_that_cannot_be_read_changes_nothing(changing, texts, tmp_path):
    broken = make_adapter(tmp_path / "broken", 7)
    weights = broken / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with quintet.Client(changing.server.target) as client:
        action, failure = changing.change(one=broken, four=broken)
        assert action == "ADAPTERS_CHANGED" and failure.startswith("adapter one: broken: ")
        assert str(tmp_path) not in failure
        assert client.info().adapters == ["one", "two"]
        assert client.generate(words(1)[0], adapter="one", **OPTIONS).text == texts["one"][0]


def test_calls_with_more_adapters_than_slots_take_turns(changing, texts):
    names = [name for name in texts for _ in range(8)]
    with quintet.Client(changing.server.target) as client:
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            results = pool.map(
                lambda i: client.generate(words(8)[i % 8], adapter=names[i], **OPTIONS).text,
                range(len(names)),
            )
        assert list(results) == [texts[name][i % 8] for i, name in enumerate(names)]


def test_the_number_of_slots_is_checked(tmp_path):
    config = tmp_path / "serve.toml"
    config.write_text('[models.g2p]\nadapter-slots = "many"\n')
    command = [BINARY, "serve", str(G2P), "--config", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert 'adapter-slots: expected 0 (automatic) to 1024, got "many"' in result.stderr
