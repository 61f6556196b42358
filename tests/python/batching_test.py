"""Tests that requests batched into one step do not change each other's answers."""

import concurrent.futures

import grpc
import pytest

from quintet.rpc import Failure
from quintet.wire import pb
from server_process import eventually, words

Code = grpc.StatusCode


def at_once(calls) -> list:
    """Runs the calls concurrently and returns the answer or the error of each."""

    def run(call):
        try:
            return call()
        except grpc.RpcError as error:
            return Failure.of(error)

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_a_mixed_batch_equals_each_alone(client):
    """Runs a batch of 32 requests: greedy search, 3 and 7 beams, and sampling.

    Row 39 of tests/README.md.
    """
    options = [
        {},
        {"num_beams": 3},
        {},
        {"num_beams": 7, "num_return_sequences": 2},
        {"do_sample": True, "seed": "5", "temperature": 2.0},
    ]
    requests = [
        (word, {**options[i % len(options)], "max_new_tokens": 40, "logprobs": True})
        for i, word in enumerate(words(32))
    ]
    alone = [client.generate(*request).sequences for request in requests]
    for _ in range(3):
        together = at_once(
            [lambda request=request: client.generate(*request) for request in requests]
        )
        assert [answer.sequences for answer in together] == alone


POISONS = {
    "nothing": (pb.GenerateRequest(), Code.INVALID_ARGUMENT),
    # The input is the end-of-sequence token alone.
    "empty text": (pb.GenerateRequest(input=pb.Input(text="")), Code.OK),
    "no ids": (pb.GenerateRequest(input=pb.Input(token_ids=pb.TokenIds())), Code.INVALID_ARGUMENT),
    "NUL": (pb.GenerateRequest(input=pb.Input(text="a\0b\0")), Code.OK),
    "bad UTF-8": (b"\x12\x04\x0a\x02\xc3\x28", Code.INVALID_ARGUMENT),  # input { text: "\303(" }
    "1 MB word": (pb.GenerateRequest(input=pb.Input(text="a" * (1 << 20))), Code.INVALID_ARGUMENT),
    "1 MB word, cut": (
        pb.GenerateRequest(
            input=pb.Input(text="a" * (1 << 20)),
            call=pb.CallOptions(truncate=True),
            decoding=pb.DecodingOptions(max_new_tokens=8),
        ),
        Code.OK,
    ),
    "spaces": (pb.GenerateRequest(input=pb.Input(text=" " * 100_000)), Code.OK),
    "one id too many": (
        pb.GenerateRequest(input=pb.Input(token_ids=pb.TokenIds(ids=[5] * 4097))),
        Code.INVALID_ARGUMENT,
    ),
}


@pytest.mark.parametrize("poison, code", POISONS.values(), ids=POISONS.keys())
def test_a_poisoned_request_among_31_good_ones(client, poison, code):
    """An invalid request in a batch leaves the results of the valid ones bitwise equal.

    Log-probabilities are compared too. Row 21 of tests/README.md.
    """
    good, decoding = words(31), {"logprobs": True}
    alone = [client.generate(word, decoding).sequences for word in good]
    raw = client.channel.unary_unary(
        "/quintet.v1.Inference/Generate",
        request_serializer=lambda message: message,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    message = poison if isinstance(poison, bytes) else poison.SerializeToString()
    calls = [lambda word=word: client.generate(word, decoding) for word in good]
    calls.insert(15, lambda: raw(message, timeout=60))
    answers = at_once(calls)
    answer = answers.pop(15)
    assert (answer.code if isinstance(answer, Failure) else Code.OK) == code
    assert [answer.sequences for answer in answers] == alone


def test_64_clients_at_once(server, client):
    """64 clients, each with a connection of its own, make calls of every kind at the same time.

    The answers must equal those of a single client.
    """
    many = words(64)

    def answers(own, word: str) -> tuple:
        return (
            own.generate(word).sequences,
            own.encode([word]).embeddings,
            own.score(word, ["W AE1"]).scores,
        )

    alone = {word: answers(client, word) for word in many}
    accepted = server.metric("quintet_requests_accepted_total")

    def run(word: str) -> int:
        wrong = 0
        with server.client(channel_options=(("grpc.use_local_subchannel_pool", 1),)) as own:
            for _ in range(5):
                wrong += answers(own, word) != alone[word]
                wrong += list(own.stream(word))[-1].complete.sequences != alone[word][0]
        return wrong

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        assert sum(pool.map(run, many)) == 0
    assert eventually(
        lambda: server.metric("quintet_requests_accepted_total") == accepted + 64 * 20
    )
    assert eventually(
        lambda: (
            server.metric("quintet_requests_running") == 0
            and server.metric("quintet_requests_waiting") == 0
        )
    )
