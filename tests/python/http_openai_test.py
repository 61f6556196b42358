"""Tests the HTTP API's routes of OpenAI with OpenAI's client, and compares answers with gRPC."""

import base64
import concurrent.futures
import json
import struct

import numpy as np
import openai
import pytest

from server_process import G2P, eventually
from http_api import HttpServer, floats

SERVER_CLASS = HttpServer
WORD = "wagner"
ENDLESS = {"ignore_eos": True, "max_new_tokens": 4000}


@pytest.fixture(scope="module")
def api(server):
    return server.openai()


def test_completion_equals_grpc(api, client):
    expected = client.generate(WORD)
    answer = api.completions.create(model="g2p", prompt=WORD)
    assert answer.object == "text_completion" and answer.model == "g2p"
    assert answer.choices[0].text == expected.sequences[0].text
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == expected.info.usage.input_tokens
    assert answer.usage.completion_tokens == expected.info.usage.output_tokens


def test_prompts_of_every_form(api, client):
    ids = [token.id for token in client.tokenize(WORD).tokens]
    texts = [client.generate(word).sequences[0].text for word in (WORD, "bach")]
    for prompt in (WORD, ids):
        answer = api.completions.create(model="g2p", prompt=prompt)
        assert [choice.text for choice in answer.choices] == texts[:1]
    answer = api.completions.create(model="g2p", prompt=[WORD, "bach"])
    assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate(texts))
    other = [token.id for token in client.tokenize("bach").tokens]
    answer = api.completions.create(model="g2p", prompt=[ids, other])
    assert [choice.text for choice in answer.choices] == texts


def test_beams(api, client):
    expected = client.generate(WORD, {"num_beams": 4, "num_return_sequences": 3})
    texts = [sequence.text for sequence in expected.sequences]
    answer = api.completions.create(model="g2p", prompt=WORD, n=3, best_of=4)
    assert [choice.text for choice in answer.choices] == texts
    answer = api.completions.create(
        model="g2p", prompt=WORD, n=3, extra_body={"use_beam_search": True}
    )
    expected = client.generate(WORD, {"num_beams": 3, "num_return_sequences": 3})
    assert [choice.text for choice in answer.choices] == [s.text for s in expected.sequences]


def test_sampling(api, client):
    options = {"do_sample": True, "temperature": 1.5, "seed": 7, "num_return_sequences": 2}
    expected = client.generate(WORD, {**options, "top_p": 0.9})
    answer = api.completions.create(
        model="g2p", prompt=WORD, n=2, temperature=1.5, seed=7, top_p=0.9
    )
    assert [choice.text for choice in answer.choices] == [s.text for s in expected.sequences]
    # Temperature 0 is greedy, and options of sampling then have no effect.
    greedy = client.generate(WORD).sequences[0].text
    answer = api.completions.create(model="g2p", prompt=WORD, temperature=0, seed=7, top_p=0.5)
    assert answer.choices[0].text == greedy


def test_log_probabilities(api, client):
    expected = client.generate(WORD, {"logprobs": True, "top_logprobs": 2}).sequences[0]
    choice = api.completions.create(model="g2p", prompt=WORD, logprobs=2).choices[0]
    assert floats(choice.logprobs.token_logprobs) == [t.log_prob for t in expected.logprobs]
    for top, token in zip(choice.logprobs.top_logprobs, expected.logprobs):
        assert floats(top.values()) == [other.log_prob for other in token.top]
    offsets = choice.logprobs.text_offset
    assert offsets[0] == 0 and offsets == sorted(offsets)
    assert offsets[-1] <= len(choice.text)


def test_stream_equals_unary(api, client):
    for options in ({}, {"n": 2, "best_of": 3}, {"n": 3, "temperature": 1.0, "seed": 3}):
        whole = api.completions.create(model="g2p", prompt=[WORD, "bach"], **options)
        events = list(
            api.completions.create(
                model="g2p",
                prompt=[WORD, "bach"],
                stream=True,
                stream_options={"include_usage": True},
                **options,
            )
        )
        texts, reasons = {}, {}
        for event in events[:-1]:
            (choice,) = event.choices
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            reasons[choice.index] = choice.finish_reason
        assert texts == {choice.index: choice.text for choice in whole.choices}
        assert set(reasons.values()) <= {"stop", "length"}
        assert events[-1].usage == whole.usage and events[-1].choices == []
        assert len({event.id for event in events}) == 1


def test_token_ids_of_a_stream(server, client):
    """Each event has its new ids; together they are the ids of the unary response."""
    for options in ({}, {"num_beams": 3}, {"stop": ["AE1"]}, {"num_beams": 2, "n": 2}):
        body = {"prompt": WORD, "return_token_ids": True, **options}
        whole = server.post("/v1/completions", body).json()["choices"]
        stream = server.post("/v1/completions", {**body, "stream": True}).body.decode()
        ids = {choice["index"]: [] for choice in whole}
        for line in stream.split("\n\n"):
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    ids[choice["index"]] += choice["token_ids"]
        assert ids == {choice["index"]: choice["token_ids"] for choice in whole}, options
    expected = list(client.generate(WORD).sequences[0].token_ids)
    assert (
        server.post("/v1/completions", {"prompt": WORD, "return_token_ids": True}).json()[
            "choices"
        ][0]["token_ids"]
        == expected
    )


def test_a_stream_is_events_that_end_with_done(server):
    response = server.post("/v1/completions", {"prompt": WORD, "stream": True})
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    events = [line for line in response.body.decode().split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert all(json.loads(event[6:]) for event in events[:-1])


def test_stop_and_options_by_name(api, client):
    text = client.generate(WORD).sequences[0].text
    stop = text[3]
    answer = api.completions.create(model="g2p", prompt=WORD, stop=[stop], max_tokens=50)
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].stop_reason == stop
    answer = api.completions.create(
        model="g2p", prompt=WORD, extra_body={"return_token_ids": True, "max_new_tokens": 3}
    )
    expected = client.generate(WORD, {"max_new_tokens": 3})
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].token_ids == list(expected.sequences[0].token_ids)


def test_embeddings_equal_grpc_to_the_bit(api, client, server):
    vectors = client.encode([WORD, "bach"]).embeddings
    expected = [np.frombuffer(vector.values, "<f4") for vector in vectors]
    for encoding in ("float", "base64"):
        answer = server.post(
            "/v1/embeddings", {"input": [WORD, "bach"], "encoding_format": encoding}
        ).json()
        for index, item in enumerate(answer["data"]):
            assert item["index"] == index
            if encoding == "float":
                values = struct.pack(f"<{len(item['embedding'])}f", *item["embedding"])
            else:
                values = base64.b64decode(item["embedding"])
            assert values == expected[index].tobytes()
    # The client asks for base64 by default.
    answer = api.embeddings.create(model="g2p", input=WORD)
    assert np.array_equal(np.array(answer.data[0].embedding, np.float32), expected[0])
    assert answer.usage.prompt_tokens == len(client.tokenize(WORD).tokens)


def test_models(api):
    assert [model.id for model in api.models.list()] == ["g2p"]
    assert api.models.retrieve("g2p").owned_by == "quintet"
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("none")


def test_chat(server, tmp_path):
    with pytest.raises(openai.ConflictError, match="chat-message"):
        server.openai().chat.completions.create(
            model="g2p", messages=[{"role": "user", "content": WORD}]
        )
    config = tmp_path / "serve.toml"
    config.write_text('[models.g2p]\nchat-message = "{content}"\n', encoding="utf-8")
    with HttpServer(G2P, config=config) as chatting, chatting.client() as client:
        expected = client.generate(WORD).sequences[0].text
        api = chatting.openai()
        messages = [{"role": "user", "content": [{"type": "text", "text": WORD}]}]
        answer = api.chat.completions.create(
            model="g2p", messages=messages, logprobs=True, top_logprobs=2
        )
        assert answer.choices[0].message.content == expected
        assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
        stream = api.chat.completions.create(model="g2p", messages=messages, stream=True)
        deltas = [event.choices[0].delta for event in stream]
        assert "".join(delta.content or "" for delta in deltas) == expected
        assert deltas[0].role == "assistant"


@pytest.mark.parametrize(
    "body, status, param",
    [
        ({}, 400, "prompt"),
        ({"prompt": WORD, "nonsense": 1}, 400, "nonsense"),
        ({"prompt": WORD, "temperature": "hot"}, 400, "temperature"),
        ({"prompt": WORD, "temperature": 1e300}, 400, "temperature"),
        ({"prompt": WORD, "temperature": -1}, 400, "temperature"),
        ({"prompt": WORD, "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": WORD, "max_tokens": -1}, 400, "max_tokens"),
        ({"prompt": WORD, "max_tokens": 1.5}, 400, "max_tokens"),
        ({"prompt": WORD, "max_tokens": 2**40}, 400, "max_tokens"),
        ({"prompt": WORD, "n": 2}, 400, "n"),
        ({"prompt": WORD, "n": 0}, 400, "n"),
        ({"prompt": WORD, "n": 3, "best_of": 2}, 400, "best_of"),
        ({"prompt": WORD, "best_of": 33}, 400, "best_of"),
        ({"prompt": WORD, "logprobs": 21}, 400, "logprobs"),
        ({"prompt": WORD, "frequency_penalty": 0.5}, 400, "frequency_penalty"),
        ({"prompt": WORD, "suffix": "x"}, 400, "suffix"),
        ({"prompt": WORD, "stream_options": {"include_usage": True}}, 400, None),
        ({"prompt": [5, 999]}, 400, "prompt[1]"),
        ({"prompt": [[5], [999]]}, 400, "prompt[1][0]"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [WORD] * 65}, 400, "prompt"),
        ({"prompt": WORD, "model": "none"}, 404, "model"),
        ({"prompt": WORD, "request_id": "a/b"}, 400, "request_id"),
    ],
)
def test_bad_requests(server, body, status, param):
    response = server.post("/v1/completions", body)
    assert response.status == status, response.body
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    if param is not None:
        assert (error["param"] or "").startswith(param.split("[")[0]), error
    assert WORD not in error["message"]


def test_cancel(server, api):
    stream = api.completions.create(model="g2p", prompt=WORD, stream=True, extra_body=ENDLESS)
    next(iter(stream))
    assert server.metric("quintet_requests_running") == 1
    stream.close()
    assert eventually(
        lambda: (
            server.metric("quintet_requests_running") == 0
            and server.metric("quintet_open_calls") == 0
            and server.metric("quintet_kv_cache_usage_ratio") == 0
        )
    )
    with pytest.raises(openai.APITimeoutError):
        api.with_options(timeout=0.3, max_retries=0).completions.create(
            model="g2p", prompt=WORD, extra_body=ENDLESS
        )
    assert eventually(lambda: server.metric("quintet_open_calls") == 0)


def test_deadline(server, api):
    with pytest.raises(openai.InternalServerError) as raised:
        api.completions.create(
            model="g2p",
            prompt=WORD,
            extra_body=ENDLESS,
            extra_headers={"X-Request-Timeout": "0.2"},
        )
    assert raised.value.status_code == 504
    assert raised.value.code == "DECODING"


def test_many_at_once(api, client):
    expected = client.generate(WORD).sequences[0].text
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(
            pool.map(
                lambda _: api.completions.create(model="g2p", prompt=WORD).choices[0].text,
                range(100),
            )
        )
    assert answers == [expected] * 100
