"""Tests that every RPC returns bitwise the same answers as the command line."""

import json
import math
import struct

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from google.protobuf.descriptor_pool import DescriptorPool

from quintet.wire import POOL, SERVICE, pb
from rpc_client import vectors
from server_process import G2P, SOURCE, Server, run_quintet, words

WORDS = words(24)


def bits(value: float) -> bytes:
    return struct.pack("<f", value)


def lines(*arguments: str, stdin: list[str]) -> list[dict]:
    output = run_quintet(
        *arguments, "--output", "json", stdin="".join(line + "\n" for line in stdin)
    )
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="module")
def tiny(tiny_models):
    """Runs one server that serves all tiny models."""
    with Server(*tiny_models.values()) as running:
        yield running
    assert running.process.returncode == 0


# ---- generate ----


@pytest.mark.parametrize(
    "flags, decoding",
    [
        ([], {}),
        (
            ["--num-beams", "4", "--num-return-sequences", "2", "--return-scores"],
            {"num_beams": 4, "num_return_sequences": 2, "return_scores": True},
        ),
        (
            ["--do-sample", "--seed", "7", "--top-k", "5", "--temperature", "1.5"],
            {"do_sample": True, "seed": "7", "top_k": 5, "temperature": 1.5},
        ),
        (
            ["--logprobs", "--top-logprobs", "2", "--max-new-tokens", "9"],
            {"logprobs": True, "top_logprobs": 2, "max_new_tokens": 9},
        ),
        (
            ["--num-beams", "3", "--early-stopping", "first", "--length-penalty", "0.5"],
            {"num_beams": 3, "early_stopping": "EARLY_STOPPING_FIRST", "length_penalty": 0.5},
        ),
    ],
    ids=["greedy", "beams", "sampling", "logprobs", "first"],
)
def test_generate_equals_the_command_line(client, flags, decoding):
    expected = lines("generate", "--model", str(G2P), *flags, stdin=WORDS)
    for word, line in zip(WORDS, expected, strict=True):
        answer = client.generate(word, decoding)
        assert [s.text for s in answer.sequences] == [s["text"] for s in line["sequences"]]
        assert [s.index for s in answer.sequences] == list(range(len(answer.sequences)))
        for got, want in zip(answer.sequences, line["sequences"], strict=True):
            assert list(got.token_ids) == want["token_ids"]
            assert (
                pb.FinishReason.Name(got.finish_reason)
                == "FINISH_REASON_" + want["finish_reason"].upper()
            )
            assert ("score" in want) == got.HasField("score")
            assert bits(got.score) == bits(want.get("score", 0.0))
            for token, want_token in zip(got.logprobs, want.get("logprobs", []), strict=True):
                assert token.token_id == want_token["token_id"]
                assert bits(token.log_prob) == bits(want_token["logprob"])
                assert [(t.token_id, bits(t.log_prob)) for t in token.top] == [
                    (t["token_id"], bits(t["logprob"])) for t in want_token["top"]
                ]
        assert answer.info.usage.input_tokens == line["usage"]["input_tokens"]
        assert answer.info.usage.output_tokens == line["usage"]["output_tokens"]


def test_token_ids_in_place_of_text(client):
    ids = [token.id for token in client.tokenize("wagner").tokens]
    assert client.generate(ids).sequences == client.generate("wagner").sequences


def test_text_and_ids_only_where_wanted(client):
    sequence = client.generate("wagner", {"return_text": False}).sequences[0]
    assert sequence.text == "" and len(sequence.token_ids) > 0
    sequence = client.generate("wagner", {"return_token_ids": False}).sequences[0]
    assert sequence.text == "W AE1 G N ER0" and len(sequence.token_ids) == 0


def test_what_every_answer_carries(server):
    with server.client(call={"request_id": "a.b-c_9", "priority": "PRIORITY_HIGH"}) as client:
        info = client.generate("wagner").info
        assert (info.model, info.request_id) == ("g2p", "a.b-c_9")
        assert info.timing.total_us >= info.timing.first_token_us > 0
    with server.client() as client:
        ids = {client.generate("wagner").info.request_id for _ in range(3)}
    assert len(ids) == 3 and "" not in ids


def test_a_seed_is_returned_and_repeats_the_sample(client):
    decoding = {"do_sample": True, "temperature": 3.0, "num_return_sequences": 4}
    first = client.generate("wagner", decoding)
    again = client.generate("wagner", {**decoding, "seed": str(first.seed)})
    assert again.sequences == first.sequences and again.seed == first.seed
    assert client.generate("wagner", decoding).seed != first.seed


def test_a_second_call_of_an_input_reuses_its_encoded_state(client):
    client.generate("reusable")
    usage = client.generate("reusable", {"num_beams": 2}).info.usage
    assert usage.cached_tokens == usage.input_tokens > 0


# ---- encode, score, classify ----


@pytest.mark.parametrize("pooling", ["NONE", "MEAN", "FIRST", "LAST"])
def test_encode_equals_the_command_line(client, pooling):
    for normalize in (False, True):
        flags = ["--pooling", pooling.lower(), "--output", "f32"] + (
            ["--normalize"] if normalize else []
        )
        expected = run_quintet(
            "encode", "--model", str(G2P), *flags, stdin="".join(word + "\n" for word in WORDS)
        )
        answer = client.encode(WORDS, pooling=pooling, normalize=normalize)
        assert b"".join(embedding.values for embedding in answer.embeddings) == expected
        for word, embedding in zip(WORDS, answer.embeddings, strict=True):
            assert embedding.columns == 256
            assert embedding.rows == (len(client.tokenize(word).tokens) if pooling == "NONE" else 1)


def test_encode_in_half_precision(client):
    exact = vectors(client.encode(["wagner"]).embeddings[0])[0]
    for name, relative in (("FP16", 2**-11), ("BF16", 2**-8)):
        embedding = client.encode(["wagner"], vector_type=name).embeddings[0]
        assert len(embedding.values) == 2 * 256
        for got, want in zip(vectors(embedding)[0], exact, strict=True):
            assert math.isclose(got, want, rel_tol=relative, abs_tol=1e-7)


def test_encode_stream_answers_every_item_once(client):
    many = words(300)
    expected = [
        embedding.values
        for start in range(0, 300, 50)
        for embedding in client.encode(many[start : start + 50]).embeddings
    ]
    answers = list(client.encode_stream(many))
    assert sorted(answer.item_id for answer in answers) == list(range(300))
    for answer in answers:
        assert answer.embedding.values == expected[answer.item_id]


def test_score_equals_the_command_line(client):
    targets = ["W AE1 G N ER0", "B AE1 G N ER0", "W"]
    line = lines(
        "score", "--model", str(G2P), "--top-logprobs", "3", stdin=["\t".join(["wagner", *targets])]
    )[0]
    answer = client.score("wagner", targets, top_logprobs=3)
    assert answer.scores[0].log_prob > max(answer.scores[1].log_prob, answer.scores[2].log_prob)
    for got, want in zip(answer.scores, line["targets"], strict=True):
        assert got.log_prob == want["logprob"]
        assert got.tokens == len(want["tokens"]) == len(got.logprobs)
        for token, want_token in zip(got.logprobs, want["tokens"], strict=True):
            assert (token.token_id, bits(token.log_prob)) == (
                want_token["token_id"],
                bits(want_token["logprob"]),
            )
            assert [(t.token_id, bits(t.log_prob)) for t in token.top] == [
                (t["token_id"], bits(t["logprob"])) for t in want_token["top"]
            ]


def test_labels_of_sequences(tiny, tiny_models):
    expected = lines("classify", "--model", str(tiny_models["t5-seqcls"]), stdin=WORDS)
    with tiny.client(call={"model": "t5-seqcls"}) as client:
        results = client.classify(WORDS).results
    for result, line in zip(results, expected, strict=True):
        assert [(l.label, bits(l.logit), bits(l.probability)) for l in result.labels] == [
            (l["label"], bits(l["logit"]), bits(l["probability"])) for l in line["labels"]
        ]
        assert math.isclose(sum(label.probability for label in result.labels), 1.0, rel_tol=1e-5)


def test_labels_of_tokens(tiny, tiny_models):
    expected = lines("classify", "--model", str(tiny_models["t5-tokcls"]), stdin=WORDS)
    with tiny.client(call={"model": "t5-tokcls"}) as client:
        results = client.classify(WORDS).results
    for word, result, line in zip(WORDS, results, expected, strict=True):
        for token, want in zip(result.tokens, line["tokens"], strict=True):
            assert (token.token_id, token.begin_byte, token.end_byte) == (
                want["token_id"],
                want["begin_byte"],
                want["end_byte"],
            )
            assert token.end_byte <= len(word)
            assert token.labels[0].label == want["label"]
            logits = {label.label: bits(label.logit) for label in token.labels}
            assert [logits[f"LABEL_{i}"] for i in range(7)] == [
                bits(logit) for logit in want["logits"]
            ]


def test_labels_of_tokens_that_come_as_ids(tiny):
    with tiny.client(call={"model": "t5-tokcls"}) as client:
        by_text = client.classify([WORDS[0]]).results[0].tokens
        ids = [token.token_id for token in by_text]
        by_ids = client.classify([ids]).results[0].tokens
    assert [token.token_id for token in by_ids] == ids
    assert [token.labels[0] for token in by_ids] == [token.labels[0] for token in by_text]


def test_answers_to_questions(tiny, tiny_models):
    context = "the quick brown fox jumps over the lazy dog"
    expected = lines(
        "classify",
        "--model",
        str(tiny_models["t5-qa"]),
        "--top-k",
        "3",
        "--max-answer-tokens",
        "8",
        stdin=[f"{word}\t{context}" for word in WORDS],
    )
    with tiny.client(call={"model": "t5-qa"}) as client:
        results = client.classify(
            WORDS, [context] * len(WORDS), top_k=3, max_answer_tokens=8
        ).results
    for result, line in zip(results, expected, strict=True):
        assert len(result.answers) == 3
        for answer, want in zip(result.answers, line["answers"], strict=True):
            assert (answer.text, answer.begin_byte, answer.end_byte) == (
                want["text"],
                want["begin_byte"],
                want["end_byte"],
            )
            assert answer.text == context[answer.begin_byte : answer.end_byte]
            assert bits(answer.score) == bits(want["probability"])


def test_an_encoder_alone(tiny, tiny_models):
    expected = run_quintet(
        "encode", "--model", str(tiny_models["t5-encoder"]), "--output", "f32", stdin="wagner\n"
    )
    with tiny.client(call={"model": "t5-encoder"}) as client:
        assert client.encode(["wagner"]).embeddings[0].values == expected
        assert client.info().head == "encoder"


def test_gpt2(tiny, tiny_models):
    prompts = ["hello", "the quick brown fox"]
    expected = lines(
        "generate",
        "--model",
        str(tiny_models["gpt2"]),
        "--max-new-tokens",
        "20",
        "--echo",
        stdin=prompts,
    )
    with tiny.client(call={"model": "gpt2"}) as client:
        for prompt, line in zip(prompts, expected, strict=True):
            sequence = client.generate(prompt, {"max_new_tokens": 20, "echo": True}).sequences[0]
            assert list(sequence.token_ids) == line["sequences"][0]["token_ids"]
            assert sequence.text == line["sequences"][0]["text"]
            assert sequence.text.startswith(prompt)


@pytest.mark.parametrize(
    "flags, options",
    [
        ([], {}),
        (["--sliding-window", "3"], {"sliding_window": 3}),
        (["--prefix-lm"], {"prefix_lm": True}),
    ],
)
def test_what_tokens_see_in_scores_of_gpt2(tiny, tiny_models, flags, options):
    prompt, targets = "the quick brown", [" fox", " ox", " fo"]
    expected = lines(
        "score", "--model", str(tiny_models["gpt2"]), *flags, stdin=["\t".join([prompt, *targets])]
    )[0]["targets"]
    with tiny.client(call={"model": "gpt2"}) as client:
        scores = client.score(prompt, targets, **options).scores
        for got, want in zip(scores, expected, strict=True):
            assert [bits(token.log_prob) for token in got.logprobs] == [
                bits(token["logprob"]) for token in want["tokens"]
            ]
        if options:  # the options change the score
            assert [score.log_prob for score in scores] != [
                score.log_prob for score in client.score(prompt, targets).scores
            ]


# ---- tokens, information, health, reflection ----


def test_tokens_and_back(client):
    for word in WORDS:
        tokens = client.tokenize(word).tokens
        assert (
            tokens[0].piece == "\u2581"  # word start
            and tokens[-1].id == 1  # end of sequence
        )
        assert "".join(word[token.begin_byte : token.end_byte] for token in tokens[1:]) == word
        assert client.detokenize([token.id for token in tokens]).text == word
    with_specials = client.detokenize(
        [token.id for token in client.tokenize("a").tokens], skip_special_tokens=False
    )
    assert with_specials.text == "a</s>"


def test_model_information(client):
    info = client.info()
    inspected = json.loads(run_quintet("inspect", str(G2P), "--output", "json"))
    assert (info.model, info.family, info.head, info.dtype) == (
        "g2p",
        "t5",
        "language model",
        "f32",
    )
    assert info.parameters == inspected["parameters"]
    assert (info.vocab, info.d_model, info.encoder_layers, info.decoder_layers) == (128, 256, 4, 4)
    assert list(info.eos_token_ids) == [1] and (info.pad_token_id, info.decoder_start_token_id) == (
        0,
        0,
    )
    assert (
        info.limits.max_queue_requests,
        info.limits.max_queue_tokens,
        info.limits.max_running_sequences,
    ) == (
        256,
        262144,
        256,
    )
    assert (info.limits.max_message_bytes, info.limits.max_text_bytes) == (4 << 20, 1 << 20)
    assert (info.limits.default_timeout_ms, info.limits.max_timeout_ms) == (60_000, 600_000)
    assert str(SOURCE) not in str(info)
    assert not info.labels


def test_several_models_each_by_its_name(tiny, tiny_models):
    for name in tiny_models:
        with tiny.client(call={"model": name}) as client:
            info = client.info()
            assert info.model == name
            assert len(info.labels) == {"t5-seqcls": 5, "t5-tokcls": 7}.get(name, 0)


def test_health(server):
    with server.client() as client:
        assert client.health() == client.health(SERVICE) == "SERVING"
        stub = health_pb2_grpc.HealthStub(client.channel)
        with pytest.raises(grpc.RpcError) as unknown:
            stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=10)
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=10)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    assert server.get("/healthz") == (200, "ok\n")
    assert server.get("/readyz") == (200, "ok\n")


def test_reflection_tells_the_contract(client):
    database = ProtoReflectionDescriptorDatabase(client.channel)
    assert {SERVICE, "grpc.health.v1.Health", "xds.service.orca.v3.OpenRcaService"} <= set(
        database.get_services()
    )
    service = DescriptorPool(database).FindServiceByName(SERVICE)
    ours = POOL.FindServiceByName(SERVICE)
    assert [method.name for method in service.methods] == [method.name for method in ours.methods]
    for method, expected in zip(service.methods, ours.methods, strict=True):
        assert [f.name for f in method.input_type.fields] == [
            f.name for f in expected.input_type.fields
        ]
        assert (method.client_streaming, method.server_streaming) == (
            expected.client_streaming,
            expected.server_streaming,
        )
