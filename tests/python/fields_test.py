"""Tests invalid values of every float, integer, enum and id field of a request.

The server rejects each request before it reaches the engine. The error names the field and contains
no part of the prompt, no path and no pointer."""

import re

import grpc
import pytest

from quintet.rpc import Failure
from quintet.wire import pb
from server_process import SOURCE, Server, failure_of

PROMPT = "zanzibarprompt"
SAMPLE, BEAMS = {"do_sample": True}, {"num_beams": 4}
NAN, INFINITY = float("nan"), float("inf")
NOT_NUMBERS = [NAN, INFINITY, -INFINITY]
TOO_LARGE = 2**31

# Per field: the other options that it needs to have an effect, and its invalid values. NaN and
# infinities are tested in addition.
FLOATS = {
    "length_penalty": (BEAMS, [-10.1, 10.1]),
    "patience": ({**BEAMS, "early_stopping": "EARLY_STOPPING_FIRST"}, [-1.0, 0.0, 4.1]),
    "temperature": (SAMPLE, [-1.0, 0.009, 100.1]),
    "top_p": (SAMPLE, [-0.1, 0.0, 1.1]),
    "typical_p": (SAMPLE, [-0.1, 0.0, 1.1]),
    "min_p": (SAMPLE, [-0.1, 1.0]),
    "repetition_penalty": ({}, [-1.0, 0.0, 10.1]),
}
INTEGERS = {
    "max_new_tokens": ({}, [0, 4097]),
    "min_new_tokens": ({}, [257]),
    "num_beams": ({}, [0, 33]),
    "num_return_sequences": (BEAMS, [0, 5]),
    "top_k": (SAMPLE, []),
    "no_repeat_ngram_size": ({}, [65]),
    "top_logprobs": ({"logprobs": True}, [21]),
}
IDS = {
    "forced_bos_token_id": 128,
    "decoder_start_token_id": 128,
    "pad_token_id": 128,
    "suppress_tokens": [5, 128],
    "begin_suppress_tokens": [5, 128],
    "forced_eos_token_ids": [1, 128],
    "eos_token_ids": [1, 128],
    "bad_words_ids": [pb.TokenIds(ids=[5]), pb.TokenIds(ids=[5, 128])],
    "decoder_prefix": pb.Input(token_ids=pb.TokenIds(ids=[5, 128])),
}
# Invalid combinations of fields, and the field that the error names.
TOGETHER = [
    ({"min_new_tokens": 10, "max_new_tokens": 9}, "min_new_tokens"),
    ({"min_new_tokens": 1, "ignore_eos": True}, "min_new_tokens"),
    ({"num_return_sequences": 2}, "num_return_sequences"),
    ({"do_sample": True, "num_return_sequences": 17}, "num_return_sequences"),
    ({"num_beams": 4, "patience": 2.0}, "patience"),
    ({"eos_token_ids": [5], "ignore_eos": True}, "eos_token_ids"),
    ({"include_stop": True}, "include_stop"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"return_scores": True}, "return_scores"),
    ({"forced_bos_token_id": 5, "decoder_prefix": pb.Input(text="W")}, "forced_bos_token_id"),
    ({"seed": 1}, "seed"),
    ({"top_k": 5}, "top_k"),
    ({"top_p": 0.5}, "top_p"),
    ({"min_p": 0.5}, "min_p"),
    ({"typical_p": 0.5}, "typical_p"),
    ({"temperature": 1.0}, "temperature"),
    ({"length_penalty": 1.0}, "length_penalty"),
    ({"early_stopping": "EARLY_STOPPING_NEVER"}, "early_stopping"),
    ({"patience": 1.0}, "patience"),
    ({"early_stopping": 9, "num_beams": 4}, "early_stopping"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ["a" * 257]}, "stop"),
    ({"suppress_tokens": [5] * 1025}, "suppress_tokens"),
    ({"begin_suppress_tokens": [5] * 1025}, "begin_suppress_tokens"),
    ({"forced_eos_token_ids": [5] * 17}, "forced_eos_token_ids"),
    ({"eos_token_ids": [5] * 17}, "eos_token_ids"),
    ({"bad_words_ids": [pb.TokenIds(ids=[5])] * 257}, "bad_words_ids"),
    ({"bad_words_ids": [pb.TokenIds(ids=[5] * 33)]}, "bad_words_ids"),
    ({"bad_words_ids": [pb.TokenIds()]}, "bad_words_ids"),
    ({"decoder_prefix": pb.Input()}, "decoder_prefix"),
]


def cases():
    for name, (others, values) in FLOATS.items():
        for value in NOT_NUMBERS + values:
            yield {**others, name: value}, name
    for name, (others, values) in INTEGERS.items():
        for value in values + [TOO_LARGE, 2**32 - 1]:
            yield {**others, name: value}, name
    for name, value in IDS.items():
        yield {name: value}, name
    yield from TOGETHER


def check_words(found: Failure) -> None:
    """The error contains only field names, numbers and limits."""
    for text in (found.message, *(description for _, description in found.fields)):
        assert PROMPT not in text
        assert "/" not in text and str(SOURCE) not in text
        assert not re.search(r"0x[0-9a-f]+", text)
        assert len(text) < 300


def refused(server, call, field: str) -> None:
    accepted = server.metric("quintet_requests_accepted_total")
    found = Failure.of(failure_of(call))
    assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"), found
    assert [re.sub(r"\.token_ids\.ids\[\d+\]$", "", name) for name, _ in found.fields] == [field], (
        found
    )
    # The request did not reach the engine.
    assert server.metric("quintet_requests_accepted_total") == accepted
    check_words(found)


def test_the_lists_above_name_every_field():
    named = {name for options, _ in cases() for name in options}
    free = {
        "return_text",
        "return_token_ids",
        "skip_special_tokens",
        "echo",
    }  # every value is valid
    assert named | free == {field.name for field in pb.DecodingOptions.DESCRIPTOR.fields}


@pytest.mark.parametrize(
    "options, field", list(cases()), ids=lambda value: str(value)[:60].replace("\n", " ")
)
def test_decoding_options(server, client, options, field):
    refused(
        server, lambda: client.generate(PROMPT, pb.DecodingOptions(**options)), f"decoding.{field}"
    )


@pytest.mark.parametrize(
    "call, field",
    [
        (lambda c: c.generate([5, 128]), "input"),
        (lambda c: c.generate([TOO_LARGE]), "input"),
        (lambda c: c.encode([PROMPT, [128]]), "inputs[1]"),
        (lambda c: list(c.encode_stream([[128]])), "input"),
        (lambda c: c.score([128], [PROMPT]), "input"),
        (lambda c: c.score(PROMPT, [[128]]), "targets[0]"),
        (lambda c: c.detokenize([128]), "token_ids[0]"),
    ],
)
def test_ids_of_inputs(server, client, call, field):
    refused(server, lambda: call(client), field)


def test_ids_and_numbers_of_classify(tiny_models):
    with Server(tiny_models["t5-qa"]) as server, server.client() as client:
        refused(server, lambda: client.classify([[192]], [PROMPT]), "inputs[0]")
        refused(server, lambda: client.classify([PROMPT], []), "pairs")
        refused(server, lambda: client.classify([PROMPT], [[5]]), "pairs[0]")
        refused(server, lambda: client.classify([PROMPT], [PROMPT], top_k=21), "top_k")
        refused(server, lambda: client.classify([PROMPT] * 65, [PROMPT] * 65), "inputs")


@pytest.mark.parametrize(
    "field, value", [("pooling", 9), ("vector_type", 9), ("pad_mode", 9), ("pad_to", 2**32 - 1)]
)
def test_options_of_encode(server, client, field, value):
    request = pb.EncodeRequest(
        inputs=[pb.Input(text=PROMPT)], options=pb.EncodeOptions(**{field: value})
    )
    refused(server, lambda: client.stub.Encode(request, timeout=10), f"options.{field}")


def test_the_words_of_other_failures(server):
    with server.client(call={"model": PROMPT}) as client:
        check_words(Failure.of(failure_of(lambda: client.generate(PROMPT))))
    with server.client(call={"request_id": PROMPT + "/"}) as client:
        check_words(Failure.of(failure_of(lambda: client.generate(PROMPT))))
    with server.client() as client:
        check_words(Failure.of(failure_of(lambda: client.classify([PROMPT]))))
        check_words(Failure.of(failure_of(lambda: client.generate(PROMPT * 1000))))
    assert PROMPT not in server.log()
