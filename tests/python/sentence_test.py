"""Tests directories of sentence-transformers against recorded vectors of that library.

tools/sentence_oracle.py recorded the vectors. As in that script, the directories are put together
from the modules in tests/data/sentence, a golden case and the tokenizer of the shipped model.
"""

import array
import json
import math
import shutil
import subprocess

import grpc
import pytest

from quintet.rpc import Failure
from quintet.wire import pb
from server_process import BINARY, CASES, G2P, SOURCE, Server

DATA = SOURCE / "tests" / "data" / "sentence"
NAMES = sorted(path.name for path in DATA.iterdir() if path.is_dir())
TOLERANCE = 1e-5


def recorded(name: str) -> dict:
    return json.loads((DATA / name / "vectors.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("sentence")
    folders = {}
    for name in NAMES:
        folder = root / name
        shutil.copytree(DATA / name, folder)
        (folder / "vectors.json").unlink()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(CASES / "t5-encoder" / file, folder)
        shutil.copy(G2P / "spiece.model", folder)
        folders[name] = folder
    return folders


def difference(rows: list[list[float]], expected: list[list[float]]) -> float:
    """Returns the largest difference, divided by the largest expected value if that exceeds 1."""
    assert [len(row) for row in rows] == [len(row) for row in expected]
    pairs = [pair for row, want in zip(rows, expected) for pair in zip(row, want)]
    return max(abs(a - b) for a, b in pairs) / max(1, *(abs(b) for _, b in pairs))


def floats(values: bytes) -> list[float]:
    return list(array.array("f", values))


def norms(rows: list[list[float]]) -> list[float]:
    return [math.sqrt(sum(value * value for value in row)) for row in rows]


def encode(folder, *flags: str, texts, code: int = 0) -> list[list[float]] | str:
    """Runs `quintet encode`, which must exit with `code`. Returns the embeddings if `code` is 0,
    otherwise the error output."""
    done = subprocess.run(
        [BINARY, "encode", str(folder), "--output", "json", "--quiet", *flags],
        input="".join(f"{text}\n" for text in texts).encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    if code != 0:
        return done.stderr.decode()
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [row for a in answers for row in a.get("embeddings", [a.get("embedding")])]


def flags_of(arguments: dict) -> list[str]:
    names = {"prompt": "--prompt", "prompt_name": "--prompt-name"}
    flags = ["--normalize"] if arguments.get("normalize_embeddings") else []
    for name, value in arguments.items():
        if name in names:
            flags += [names[name], value]
    return flags


@pytest.mark.parametrize("name", NAMES)
def test_vectors_equal_those_of_sentence_transformers(models, name):
    record = recorded(name)
    assert record["calls"]
    for call in record["calls"]:
        found = encode(models[name], *flags_of(call["arguments"]), texts=record["texts"])
        assert difference(found, call["vectors"]) <= TOLERANCE, call["arguments"]


def test_the_server_gives_the_same_vectors(models):
    with Server(*models.values()) as server, server.client() as client:
        for name, folder in models.items():
            record = recorded(name)
            for call in record["calls"]:
                arguments = call["arguments"]
                options = pb.EncodeOptions(normalize="normalize_embeddings" in arguments)
                for field in ("prompt", "prompt_name"):
                    if field in arguments:
                        setattr(options, field, arguments[field])
                request = pb.EncodeRequest(
                    call=pb.CallOptions(model=folder.name),
                    inputs=[pb.Input(text=text) for text in record["texts"]],
                    options=options,
                )
                answer = client.stub.Encode(request)
                found = [floats(embedding.values) for embedding in answer.embeddings]
                assert difference(found, call["vectors"]) <= TOLERANCE
            info = client.stub.GetModelInfo(pb.GetModelInfoRequest(model=folder.name))
            assert info.embedding_columns == len(found[0])
            assert "query" in info.prompt_names

        request.options.prompt_name, request.options.prompt = "query", "x"
        with pytest.raises(grpc.RpcError) as error:
            client.stub.Encode(request)
        assert "options.prompt: cannot be combined" in Failure.of(error.value).message
        request.options.ClearField("prompt")
        request.options.prompt_name = "nobody"
        with pytest.raises(grpc.RpcError) as error:
            client.stub.Encode(request)
        assert "options.prompt_name: expected one of" in Failure.of(error.value).message


def test_a_pooling_flag_replaces_the_pooling_module_only(models):
    """--pooling replaces the pooling module; the modules after it (Dense, Normalize) still run.

    With --pooling none no module runs: the command returns the hidden states."""
    texts = recorded("sentence-t5")["texts"]
    folder = models["sentence-t5"]
    assert encode(folder, texts=texts) == encode(folder, "--pooling", "mean", texts=texts)
    last = encode(folder, "--pooling", "last", texts=texts)
    assert norms(last) == pytest.approx([1] * len(texts), abs=1e-5)
    assert difference(last, encode(folder, texts=texts)) > 0.01
    states = encode(folder, "--pooling", "none", texts=["phoneme"])
    assert len(states) > 1 and len(states[0]) == 64
    assert norms(states) != pytest.approx([1] * len(states), abs=1e-2)


def test_convert_keeps_the_modules(models, tmp_path):
    folder = tmp_path / "packed"
    done = subprocess.run(
        [BINARY, "convert", str(models["sentence-t5"]), str(folder), "--dtype", "f32"],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    texts = recorded("sentence-t5")["texts"]
    assert encode(folder, texts=texts) == encode(models["sentence-t5"], texts=texts)


# Each row: a JSON file, a function that changes its content, and a part of the expected error.
WRONG = [
    (
        "modules.json",
        lambda m: m[2].update(type="sentence_transformers.models.LayerNorm"),
        "LayerNorm",
    ),
    ("modules.json", lambda m: m[2].update(type="custom.Dense"), "custom.Dense is not supported"),
    ("modules.json", lambda m: m[2].update(path="../2_Dense"), "path"),
    ("modules.json", lambda m: m[0].update(path="0_Transformer"), "0_Transformer"),
    ("modules.json", lambda m: m.pop(1), "expected Transformer, then Pooling"),
    ("modules.json", lambda m: m[1].pop("path"), "strings type and path"),
    ("1_Pooling/config.json", lambda c: c.update(word_embedding_dimension=63), "got 63"),
    ("1_Pooling/config.json", lambda c: c.update(pooling_mode="median"), "got median"),
    ("2_Dense/config.json", lambda c: c.update(in_features=32), "in_features"),
    ("2_Dense/config.json", lambda c: c.update(out_features=65), "linear.weight"),
    ("2_Dense/config.json", lambda c: c.update(bias=True), "no tensor linear.bias"),
    ("2_Dense/config.json", lambda c: c.update(activation_function="os.system"), "os.system"),
    ("2_Dense/config.json", lambda c: c.update(module_input_name="token_embeddings"), "token_emb"),
    ("sentence_bert_config.json", lambda c: c.update(max_seq_length=-1), "max_seq_length"),
    ("sentence_bert_config.json", lambda c: c.update(do_lower_case=True), "do_lower_case"),
    (
        "config_sentence_transformers.json",
        lambda c: c.update(default_prompt_name="nobody"),
        "default_prompt_name",
    ),
    (
        "config_sentence_transformers.json",
        lambda c: c.update(model_type="SparseEncoder"),
        "SparseEncoder",
    ),
]


@pytest.mark.parametrize("file, change, expected", WRONG)
def test_what_is_not_computed_is_refused(models, tmp_path, file, change, expected):
    folder = tmp_path / "model"
    shutil.copytree(models["sentence-t5"], folder)
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))
    error = encode(folder, texts=["a"], code=3)
    assert expected in error and file.split("/")[0] in error, error


def test_a_dense_module_in_pickle_form_is_refused_with_the_conversion(models, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(models["sentence-t5"], folder)
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    error = encode(folder, texts=["a"], code=3)
    assert "2_Dense/model.safetensors: no such file" in error and "torch.load" in error


def test_prompts_that_cannot_be_applied_are_usage_errors(models):
    folder = models["instructor"]
    assert "--prompt-name: expected one of document, query, title, got x" in encode(
        folder, "--prompt-name", "x", texts=["a"], code=2
    )
    assert "--prompt: cannot be combined with" in encode(
        folder, "--prompt-name", "query", "--prompt", "x", texts=["a"], code=2
    )
    assert "--prompt-name: the model has no prompts" in encode(
        G2P, "--prompt-name", "query", texts=["a"], code=2
    )
    line = '{"token_ids": [5]}'
    error = encode(folder, "--input", "json", "--prompt", "x ", texts=[line], code=1)
    assert "prompt: needs inputs that are text" in error
