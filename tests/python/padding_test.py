"""Tests the options pad_to and pad_mode of encode: the command line, Python in process, and every
interface of a server return the same states and refuse the same values."""

import json

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils

import quintet
from http_api import HttpServer
from kserve_requests import outputs, texts
from server_process import G2P, run_quintet, words

SERVER_CLASS = HttpServer
WORDS = [*words(3), "a" * 40]  # the last one has more tokens than PAD_TO
PAD_TO = 12


def states_of_the_command_line(mode: str) -> list[np.ndarray]:
    flags = ["--pooling", "none", "--pad-to", f"{PAD_TO}:{mode}", "--output", "json"]
    lines = "".join(f"{word}\n" for word in WORDS)
    written = run_quintet("encode", "--model", str(G2P), *flags, stdin=lines)
    return [np.float32(json.loads(line)["embeddings"]) for line in written.splitlines()]


@pytest.mark.parametrize("mode", ["attend", "zero"])
def test_every_interface_pads(model, server, mode):
    expected = states_of_the_command_line(mode)
    for word, states in zip(WORDS, expected, strict=True):
        tokens = len(model.tokenize(word).ids)
        assert states.shape[0] == PAD_TO
        assert np.any(states[-1]) == (mode == "attend" or tokens >= PAD_TO)
        assert mode == "attend" or not np.any(states[tokens:])
    options = {"pad_to": PAD_TO, "pad_mode": mode}
    with quintet.Client(server.target) as client:
        for one in (model, client):
            encoded = one.encode(WORDS, pooling="none", **options)
            assert all(np.array_equal(a, b) for a, b in zip(encoded, expected, strict=True))
    with triton.InferenceServerClient(server.target) as client:
        answer = client.infer(
            "g2p", [texts(*WORDS)], outputs=outputs("last_hidden_state"), parameters=options
        )
        assert np.array_equal(answer.as_numpy("last_hidden_state"), np.stack(expected))
    answer = server.post("/embed_all", {"inputs": WORDS, **options})
    assert np.array_equal(np.float32(answer.json()), np.stack(expected))


def test_padding_changes_attended_states(model):
    word = WORDS[0]
    plain = model.encode(word, pooling="none")
    tokens = len(plain)
    attended = model.encode(word, pooling="none", pad_to=PAD_TO)
    zeros = model.encode(word, pooling="none", pad_to=PAD_TO, pad_mode="zero")
    assert not np.allclose(attended[:tokens], plain)
    assert np.array_equal(zeros[:tokens], plain)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"pad_to": 5}, "pad_to: needs pooling none"),
        ({"pad_to": 10**6, "pooling": "none"}, "pad_to: 1000000 is not in [1, 4096]"),
        ({"pad_mode": "zero", "pooling": "none"}, "pad_mode: needs pad_to"),
    ],
)
def test_wrong_padding_is_refused(model, server, options, message):
    with quintet.Client(server.target) as client:
        for one in (model, client):
            with pytest.raises(quintet.InvalidArgumentError) as raised:
                one.encode("a", **options)
            assert message in str(raised.value)
    with triton.InferenceServerClient(server.target) as client:
        states = options.get("pooling") == "none"
        wanted = outputs("last_hidden_state" if states else "embedding")
        parameters = {name: value for name, value in options.items() if name != "pooling"}
        with pytest.raises(tritonclient.utils.InferenceServerException) as raised:
            client.infer("g2p", [texts("a")], outputs=wanted, parameters=parameters)
        assert "parameters." + message.split(":")[0] in str(raised.value)
    route = "/embed_all" if options.get("pooling") == "none" else "/embed"
    body = {name: value for name, value in options.items() if name != "pooling"}
    answer = server.post(route, {"inputs": "a", **body})
    assert answer.status == 400 and message in answer.json()["error"]


def test_values_of_other_types_are_refused(model):
    for options in ({"pad_to": -1}, {"pad_to": 2**40}, {"pad_mode": "mask", "pad_to": 5}):
        with pytest.raises(quintet.InvalidArgumentError):
            model.encode("a", pooling="none", **options)
    with pytest.raises(TypeError):
        model.encode("a", pooling="none", pad_to="5")
