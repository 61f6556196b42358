"""Sends the same requests through every front end: the RPCs of quintet.v1 and KServe and the routes
of the HTTP API. Texts are equal, and every failure has the code of the table in server/README.md.
"""

import hashlib
import re
import threading

import grpc
import pytest

import fields_test
from front_ends import FRONT_ENDS, Call, Completions, Quintet, Tgi, plain
from http_api import HttpServer
from server_process import G2P, KEY, WRONG_KEY, eventually, words

Code = grpc.StatusCode
PROMPT = fields_test.PROMPT
ENDLESS = {"ignore_eos": True, "max_new_tokens": 4000}
# Options that turn sampling on without do_sample, because clients expect it (server/HTTP.md).
SAMPLES_ALONE = {
    Completions: {"temperature"},
    Tgi: {"temperature", "top_k", "top_p", "typical_p"},
}


@pytest.fixture(scope="module")
def server():
    with HttpServer(G2P, max_message_bytes=1 << 21) as running:
        yield running
    assert running.process.returncode == 0


@pytest.fixture(params=FRONT_ENDS, ids=lambda front: front.name)
def front(request):
    return request.param


def test_texts_are_equal(server, front):
    options = [
        {},
        {"num_beams": 3},
        {"do_sample": True, "temperature": 0.7, "seed": 4},
        {"stop": ["AE1"], "max_new_tokens": 6},
        {"do_sample": True, "temperature": 0},
        {"do_sample": True, "temperature": 0, "seed": 4, "top_k": 3},
    ]
    for word in words(6):
        for some in options:
            greedy = some.get("temperature") == 0
            expected = FRONT_ENDS[0].call(server, Call(word, {} if greedy else some))
            found = front.call(server, Call(word, some))
            assert (found.code, found.text) == (Code.OK, expected.text), (word, some, found)


def bad_options(front):
    """The rows of fields_test.py that are errors in this front end."""
    alone = next((names for kind, names in SAMPLES_ALONE.items() if isinstance(front, kind)), set())
    for options, field in fields_test.cases():
        if front.unknown & set(options):
            continue
        if not isinstance(front, Quintet):
            if None in map(plain, options.values()):
                continue  # null is an absent option
            if (
                len(options) == 1
                and set(options) <= alone
                and (options, field) in fields_test.TOGETHER
            ):
                continue
        yield options, field


def test_the_table_of_bad_options(server, front):
    """Each gives INVALID_ARGUMENT with the field as the client spells it, and starts no request."""
    accepted = server.metric("quintet_requests_accepted_total")
    seen = 0
    for options, field in bad_options(front):
        found = front.call(server, Call(PROMPT, options))
        where = (front.name, options, found)
        assert found.code == Code.INVALID_ARGUMENT, where
        if "not JSON" not in found.message:  # NaN and infinities are not
            assert found.field.startswith(front.prefix + field), where
        assert PROMPT not in found.message and "/" not in found.message, where
        assert not re.search(r"0x[0-9a-f]+", found.message), where
        seen += 1
    assert seen > 80
    assert server.metric("quintet_requests_accepted_total") == accepted


@pytest.mark.parametrize(
    "call, code",
    [
        (Call([]), Code.INVALID_ARGUMENT),
        (Call([5, 128]), Code.INVALID_ARGUMENT),
        (Call([2**32 - 1]), Code.INVALID_ARGUMENT),
        (Call([5] * 4097), Code.INVALID_ARGUMENT),
        (Call("a" * ((1 << 20) + 1)), Code.INVALID_ARGUMENT),
        (Call(model="other"), Code.NOT_FOUND),
        (Call(model="m" * 129), Code.INVALID_ARGUMENT),
        (Call(options=ENDLESS, timeout_s=0.2), Code.DEADLINE_EXCEEDED),
        (Call("a" * (1 << 21)), Code.RESOURCE_EXHAUSTED),  # above --max-message-bytes
    ],
    ids=lambda value: str(value)[:60],
)
def test_failures(server, front, call, code):
    found = front.call(server, call)
    assert found.code == code, found
    assert len(found.message) < 600
    assert eventually(lambda: server.metric("quintet_requests_running") == 0)


def test_heads_that_are_missing(tiny_models):
    with HttpServer(tiny_models["t5-encoder"]) as server:
        for front in FRONT_ENDS:
            assert front.call(server, Call()).code == Code.FAILED_PRECONDITION, front.name


def test_requests_that_can_never_fit():
    with HttpServer(G2P, max_running=4) as server:
        for front in FRONT_ENDS:
            found = front.call(server, Call(options={"num_beams": 5}))
            assert found.code == Code.INVALID_ARGUMENT, (front.name, found)


def test_a_full_queue():
    with HttpServer(G2P, max_running=1, max_queue=1) as server, server.client() as client:
        blocking = [client.stream("a", ENDLESS)]
        next(blocking[0])
        blocking.append(client.stream("a", ENDLESS))
        assert eventually(lambda: server.metric("quintet_requests_waiting") == 1)
        for front in FRONT_ENDS:
            found = front.call(server, Call())
            assert found.code == Code.RESOURCE_EXHAUSTED and found.retry, (front.name, found)
            assert "queue full" in found.message
        for call in blocking:
            call.cancel()


def test_keys_and_priorities(tmp_path):
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    low = "sk-low-key-1234"
    digests = [hashlib.sha256(key.encode()).hexdigest() for key in (KEY, low)]
    file.write_text(f"{digests[0]}\n{digests[1]} low\n")
    with HttpServer(G2P, api_key_file=file) as server:
        for front in FRONT_ENDS:
            for call, code in (
                (Call(), Code.UNAUTHENTICATED),
                (Call(key=WRONG_KEY), Code.PERMISSION_DENIED),
                (Call(key=low, priority="normal"), Code.PERMISSION_DENIED),
                (Call(key=low), Code.OK),
                (Call(key=KEY, priority="high"), Code.OK),
            ):
                found = front.call(server, call)
                assert found.code == code, (front.name, call, found)


def test_draining():
    """A draining server finishes what runs and rejects new calls with UNAVAILABLE."""
    running = Call("a", {"ignore_eos": True, "max_new_tokens": 1500})
    for front in FRONT_ENDS[::2]:
        with HttpServer(G2P, drain_timeout=60) as server:
            answers = []
            thread = threading.Thread(target=lambda: answers.append(front.call(server, running)))
            thread.start()
            assert eventually(lambda: server.metric("quintet_requests_running") == 1)
            server.process.terminate()
            assert eventually(lambda: server.get("/readyz")[0] == 503)
            refused = front.call(server, Call())
            thread.join(60)
            assert refused.code == Code.UNAVAILABLE and refused.retry, (front.name, refused)
            assert answers[0].code == Code.OK, (front.name, answers)
            assert server.process.wait(60) == 0
