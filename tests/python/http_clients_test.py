"""Tests the HTTP API's routes of TEI, TGI and vLLM with Hugging Face's clients and curl, and
compares answers with gRPC."""

import json
import math
import struct
import subprocess

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from text_generation import Client

from http_api import HttpServer
from server_process import G2P

WORD = "wagner"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("config") / "serve.toml"
    file.write_text(
        "[models.g2p]\n"
        'rerank = "{query} {document}"\n'
        'rerank-true = "A"\n'
        'rerank-false = "B"\n'
        "[models.t5-v1_1]\n"
        'rerank = "{document}"\n'
        'rerank-target = "{query}"\n',
        encoding="utf-8",
    )
    return file


@pytest.fixture(scope="module")
def server(config, tiny_models):
    models = [G2P, *(tiny_models[name] for name in ("t5-v1_1", "t5-encoder", "t5-seqcls"))]
    with HttpServer(*models, config=config, cache_memory=32) as running:
        yield running
    assert running.process.returncode == 0


@pytest.fixture(scope="module")
def one(tiny_models):
    """A server with one encoder, as TEI has one model."""
    with HttpServer(tiny_models["t5-encoder"]) as running:
        yield running


@pytest.fixture(scope="module")
def g2p():
    with HttpServer(G2P) as running:
        yield running


def vectors(client, inputs, **options) -> list[np.ndarray]:
    answer = client.encode(inputs, **options)
    return [np.frombuffer(e.values, "<f4").reshape(e.rows, e.columns) for e in answer.embeddings]


def bits(values) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_inference_client_generates(g2p):
    with g2p.client() as client:
        expected = client.generate(WORD).sequences[0]
    url = f"http://127.0.0.1:{g2p.api_port}"
    inference = InferenceClient(url, timeout=60)
    assert inference.text_generation(WORD) == expected.text
    detailed = inference.text_generation(WORD, details=True)
    assert detailed.generated_text == expected.text
    assert detailed.details.finish_reason == "eos_token"
    assert [token.id for token in detailed.details.tokens] == list(expected.token_ids)
    chunks = list(inference.text_generation(WORD, stream=True))
    assert "".join(chunks) == expected.text
    events = list(inference.text_generation(WORD, stream=True, details=True))
    assert events[-1].generated_text == expected.text
    assert events[-1].details.generated_tokens == len(expected.token_ids)


def test_inference_client_embeds(one):
    with one.client() as client:
        (expected,) = vectors(client, [WORD], normalize=True)
    inference = InferenceClient(f"http://127.0.0.1:{one.api_port}", timeout=60)
    found = inference.feature_extraction(WORD)
    assert bits(np.ravel(found)) == expected.tobytes()


def test_text_generation_client(g2p):
    with g2p.client() as client:
        expected = client.generate(WORD, {"max_new_tokens": 20}).sequences[0]
        beams = client.generate(WORD, {"num_beams": 2, "num_return_sequences": 2})
    tgi = Client(f"http://127.0.0.1:{g2p.api_port}", timeout=60)
    answer = tgi.generate(WORD)
    assert answer.generated_text == expected.text
    assert [token.id for token in answer.details.tokens] == list(expected.token_ids)
    text = "".join(event.token.text for event in tgi.generate_stream(WORD))
    assert text == expected.text
    with pytest.raises(Exception, match="temperature"):
        tgi.generate(WORD, temperature=0.001)
    answer = g2p.post("/generate", {"inputs": WORD, "parameters": {"best_of": 2, "details": True}})
    assert answer.json()["generated_text"] == beams.sequences[0].text
    (other,) = answer.json()["details"]["best_of_sequences"]
    assert other["generated_text"] == beams.sequences[1].text


def test_curl(g2p):
    with g2p.client() as client:
        expected = client.generate(WORD).sequences[0].text
    command = ["curl", "-sS", "-m", "60", "--json", json.dumps({"inputs": WORD})]
    for path, texts in (("/generate", 1), ("/generate_stream", 1)):
        url = f"http://127.0.0.1:{g2p.api_port}{path}"
        answer = subprocess.run([*command, url], capture_output=True, check=True, text=True)
        assert answer.stdout.count(json.dumps(expected)) >= texts, answer.stdout


def test_embed(server, one):
    with one.client() as client:
        plain = vectors(client, [WORD, "bach"])
        unit = vectors(client, [WORD, "bach"], normalize=True)
        rows = vectors(client, [WORD, "bach"], pooling="NONE")
    inputs = {"inputs": [WORD, "bach"]}
    assert [bits(v) for v in one.post("/embed", inputs).json()] == [v.tobytes() for v in unit]
    found = one.post("/embed", {**inputs, "normalize": False}).json()
    assert [bits(v) for v in found] == [v.tobytes() for v in plain]
    found = one.post("/embed_all", inputs).json()
    assert [[bits(r) for r in m] for m in found] == [[r.tobytes() for r in m] for m in rows]
    sparse = one.post("/embed_sparse", inputs)
    assert sparse.status == 409 and "sparse" in sparse.json()["error"]
    # A server with several models needs a name.
    assert server.post("/embed", inputs).status == 400
    named = server.post("/embed", {**inputs, "model": "t5-encoder"})
    assert [bits(v) for v in named.json()] == [v.tobytes() for v in unit]


def test_similarity(one):
    with one.client() as client:
        a, b, c = (v[0].astype(float) for v in vectors(client, [WORD, "bach", "mozart"]))
    cosine = [x @ a / math.sqrt((x @ x) * (a @ a)) for x in (b, c)]
    found = one.post(
        "/similarity", {"inputs": {"source_sentence": WORD, "sentences": ["bach", "mozart"]}}
    )
    assert found.json() == pytest.approx(cosine, abs=1e-12)
    bad = one.post("/similarity", {"inputs": {"source_sentence": WORD, "sentences": []}})
    assert bad.status == 400 and bad.json()["error"].startswith("inputs.sentences:")


def test_tokenize_and_decode(g2p):
    text = "wágner"
    with g2p.client() as client:
        expected = client.tokenize(text).tokens
        ids = [token.id for token in expected]
        decoded = client.detokenize(ids).text
    (tokens,) = g2p.post("/tokenize", {"inputs": text}).json()
    assert [token["id"] for token in tokens] == ids
    encoded = text.encode()
    for token, wire in zip(tokens, expected):
        if not token["special"]:
            piece = encoded[wire.begin_byte : wire.end_byte].decode()
            assert text[token["start"] : token["stop"]] == piece
    assert g2p.post("/decode", {"ids": ids}).json() == [decoded]
    assert g2p.post("/decode", {"ids": [ids, ids[:3]]}).json()[0] == decoded
    refused = g2p.post("/decode", {"ids": [[5], [99999]]})
    assert refused.status == 400 and refused.json()["error"].startswith("ids[1]")


def test_predict_and_classify(server):
    with server.client(call={"model": "t5-seqcls"}) as client:
        labels = client.classify([WORD]).results[0].labels
    best = sorted(labels, key=lambda label: -label.logit)
    body = {"model": "t5-seqcls", "inputs": WORD}
    found = server.post("/predict", body).json()
    assert [label["label"] for label in found] == [label.label for label in best]
    assert bits([label["score"] for label in found]) == bits([l.probability for l in best])
    found = server.post("/predict", {**body, "inputs": [WORD, WORD], "raw_scores": True}).json()
    assert len(found) == 2
    assert bits([label["score"] for label in found[1]]) == bits([l.logit for l in best])
    answer = server.post("/classify", {"model": "t5-seqcls", "input": WORD}).json()
    assert answer["data"][0]["label"] == best[0].label
    assert bits(answer["data"][0]["probs"]) == bits([label.probability for label in labels])
    headless = server.post("/predict", {"model": "g2p", "inputs": WORD})
    assert headless.status == 409


def test_rerank_by_the_probability_of_a_target(server):
    documents = ["bach", "mozart", "wagner"]
    with server.client(call={"model": "g2p"}) as client:
        a, b = ([token.id for token in client.tokenize(text).tokens][:-1] for text in ("A", "B"))
        expected = []
        for document in documents:
            scores = client.score(f"{WORD} {document}", [a, b]).scores
            expected.append(1 / (1 + math.exp(scores[1].log_prob - scores[0].log_prob)))
    body = {"model": "g2p", "query": WORD}
    order = sorted(range(3), key=lambda i: -expected[i])
    found = server.post("/rerank", {**body, "texts": documents, "return_text": True}).json()
    assert [item["index"] for item in found] == order
    assert [item["score"] for item in found] == [expected[i] for i in order]
    assert [item["text"] for item in found] == [documents[i] for i in order]
    documents[0] = {"text": "bach"}
    answer = server.post("/v1/rerank", {**body, "documents": documents, "top_n": 2}).json()
    assert [item["index"] for item in answer["results"]] == order[:2]
    assert answer["results"][0]["relevance_score"] == expected[order[0]]
    pairs = {"model": "g2p", "text_1": WORD, "text_2": ["bach", "mozart", "wagner"]}
    scores = server.post("/score", pairs).json()["data"]
    assert [item["score"] for item in scores] == expected


def test_rerank_by_the_likelihood_of_the_query(server):
    with server.client(call={"model": "t5-v1_1"}) as client:
        target = [token.id for token in client.tokenize(WORD).tokens][:-1]
        score = client.score("bach", [target]).scores[0]
    body = {"model": "t5-v1_1", "query": WORD, "texts": ["bach"]}
    (found,) = server.post("/rerank", body).json()
    assert found["score"] == score.log_prob / score.tokens


def probabilities(client, prompts, labels, softmax) -> list[float]:
    found = []
    for prompt in prompts:
        scores = client.score(prompt, [[label] for label in labels]).scores
        shares = [math.exp(score.log_prob) for score in scores]
        found.append(shares[0] / sum(shares) if softmax else shares[0])
    return found


@pytest.mark.parametrize("model", ["g2p", "gpt2"])
@pytest.mark.parametrize("softmax", [True, False])
def test_generative_scoring(scoring, model, softmax):
    """Scores the first output token of an encoder-decoder or of a causal model."""
    items, labels = ["bach", "mozart", "x"], [20, 7, 33]
    with scoring.client(call={"model": model}) as client:
        after = probabilities(client, [WORD + item for item in items], labels, softmax)
        before = probabilities(client, [item + WORD for item in items], labels, softmax)
        one = probabilities(client, [WORD + "x"], labels[:1], softmax)
        ids = probabilities(client, [[5, 6, 7, 8], [5, 6, 9]], labels, softmax)
        tokens = sum(len(client.tokenize(WORD + item).tokens) for item in items)
    body = {"model": model, "query": WORD, "label_token_ids": labels, "apply_softmax": softmax}
    answer = scoring.post(
        "/generative_scoring", {**body, "items": items, "request_id": "r1"}
    ).json()
    assert (answer["object"], answer["model"]) == ("list", model)
    assert answer["id"] == "generative-scoring-r1"
    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    assert [one["score"] for one in answer["data"]] == pytest.approx(after, rel=1e-12)
    assert answer["usage"]["prompt_tokens"] == tokens
    answer = scoring.post("/generative_scoring", {**body, "items": items, "item_first": True})
    assert [o["score"] for o in answer.json()["data"]] == pytest.approx(before, rel=1e-12)
    single = {**body, "items": ["x"], "label_token_ids": labels[:1]}
    (found,) = scoring.post("/generative_scoring", single).json()["data"]
    assert found["score"] == pytest.approx(1.0 if softmax else one[0], rel=1e-12)
    answer = scoring.post("/generative_scoring", {**body, "query": [5, 6], "items": [[7, 8], [9]]})
    assert [o["score"] for o in answer.json()["data"]] == pytest.approx(ids, rel=1e-12)


@pytest.fixture(scope="module")
def scoring(tiny_models):
    with HttpServer(G2P, tiny_models["gpt2"], tiny_models["t5-encoder"]) as running:
        yield running


@pytest.mark.parametrize(
    "change, status, param",
    [
        ({"label_token_ids": []}, 400, "label_token_ids"),
        ({"label_token_ids": None}, 400, "label_token_ids"),
        ({"label_token_ids": 5}, 400, "label_token_ids"),
        ({"label_token_ids": [5] * 65}, 400, "label_token_ids"),
        ({"label_token_ids": [5, 128]}, 400, "label_token_ids[1]"),
        ({"label_token_ids": [5, -1]}, 400, "label_token_ids[1]"),
        ({"label_token_ids": ["a"]}, 400, "label_token_ids[0]"),
        ({"items": []}, 400, "items"),
        ({"items": "a"}, 400, "items"),
        ({"items": ["a"] * 65}, 400, "items"),
        ({"items": ["a", [5]]}, 400, "items[1]"),
        ({"query": ["a"]}, 400, "query"),
        ({"query": "a" * 4_000_000, "items": ["b"] * 64}, 400, "query"),
        ({"query": "a" * (1 << 20), "items": ["b"]}, 400, "items[0]"),
        ({"query": [5] * 4096, "items": [[5]]}, 400, "items[0]"),
        ({"apply_softmax": 1}, 400, "apply_softmax"),
        ({"model": "t5-encoder"}, 409, None),
        ({"model": "none"}, 404, "model"),
    ],
)
def test_bad_generative_scoring(scoring, change, status, param):
    body = {"model": "g2p", "query": "a", "items": ["b"], "label_token_ids": [5], **change}
    answer = scoring.post("/generative_scoring", body)
    assert answer.status == status, answer.body
    assert answer.json()["error"]["param"] == param, answer.body


def test_score_of_embeddings_and_a_model_that_cannot_rerank(server, one):
    cosine = one.post("/similarity", {"inputs": {"source_sentence": WORD, "sentences": ["bach"]}})
    score = one.post("/score", {"text_1": WORD, "text_2": "bach"}).json()["data"][0]["score"]
    assert score == pytest.approx(cosine.json()[0], abs=1e-12)
    refused = one.post("/rerank", {"query": WORD, "texts": ["bach"]})
    assert refused.status == 409 and "rerank" in refused.json()["error"]


def test_info_health_and_openapi(server, one):
    info = one.fetch("GET", "/info").json()
    assert info["model_id"] == "t5-encoder" and "embedding" in info["model_type"]
    assert server.fetch("GET", "/info").status == 400
    named = server.fetch("GET", "/info?model=t5-seqcls").json()
    assert "classifier" in named["model_type"]
    assert one.fetch("GET", "/health").json() == {"status": "ok"}
    document = one.fetch("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method == "get":
                assert one.fetch("GET", path.replace("{id}", "t5-encoder")).status == 200, path
                continue
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            # The server must know every documented field: if the field is known, a value of the
            # wrong type is rejected with an error other than "unknown field".
            for name in schema["properties"]:
                answer = one.post(path, {name: {"no": ["such", "type"]}})
                assert b"unknown field" not in answer.body, (path, name)
            assert b"unknown field" in one.post(path, {"nonsense": 1}).body, path
