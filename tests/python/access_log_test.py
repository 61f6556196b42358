"""Tests --access-log: the server writes one JSON line for each call that has ended, with or without
an error. The line contains no text of the prompt or of the output."""

import hashlib
import json
import threading

import grpc
import pytest

from server_process import G2P, Server, eventually, failure_of

FIELDS = {
    "time",
    "level",
    "message",
    "request_id",
    "trace_id",
    "model",
    "method",
    "code",
    "reason",
    "input_tokens",
    "output_tokens",
    "queue_us",
    "total_us",
}
SECRET = "xylophonesecret"  # a text that no log may contain
LONG = {"max_new_tokens": 4000, "min_new_tokens": 4000}  # runs for seconds


def calls_of(server: Server) -> list[dict]:
    """Returns the lines that the server has written to its access log so far."""
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    calls = [line for line in lines if line["message"] == "call"]
    for call in calls:
        assert call.keys() == FIELDS
        assert 0 <= call["queue_us"] <= call["total_us"]
    return calls


def line_of(server: Server, request_id: str) -> dict:
    """Returns the access-log line of the call with this request id. Waits until it is written;
    fails if there are several."""
    assert eventually(lambda: any(c["request_id"] == request_id for c in calls_of(server)))
    (call,) = [call for call in calls_of(server) if call["request_id"] == request_id]
    return call


@pytest.fixture(scope="module", params=["text", "json"])
def server(request):
    flags = {"access_log": True, "log_format": request.param, "encoder_cache_bytes": 0}
    with Server(G2P, **flags) as running:
        yield running
        log = running.log()
        assert SECRET not in log and "127.0.0.1:" not in "".join(map(json.dumps, calls_of(running)))
    assert running.process.returncode == 0


def client_of(server: Server, request_id: str, timeout_s: float = 60.0, **call):
    return server.client(call={"request_id": request_id, **call}, timeout_s=timeout_s)


def test_calls_that_succeed(server):
    with client_of(server, "generate") as client:
        answer = client.generate(SECRET)
    call = line_of(server, "generate")
    assert (call["model"], call["method"], call["code"]) == ("g2p", "Generate", "OK")
    assert call["reason"] == "" and call["level"] == "info"
    usage = answer.info.usage
    assert (call["input_tokens"], call["output_tokens"]) == (
        usage.input_tokens,
        usage.output_tokens,
    )
    assert call["total_us"] >= answer.info.timing.total_us

    with client_of(server, "stream") as client:
        complete = list(client.stream(SECRET))[-1].complete
    call = line_of(server, "stream")
    assert (call["method"], call["code"]) == ("GenerateStream", "OK")
    assert call["output_tokens"] == complete.info.usage.output_tokens > 0

    with client_of(server, "encode") as client:
        client.encode([SECRET, "b"])
    call = line_of(server, "encode")
    assert (call["method"], call["code"], call["output_tokens"]) == ("Encode", "OK", 0)
    assert call["input_tokens"] > 2

    with client_of(server, "tokenize") as client:
        client.tokenize(SECRET)
    call = line_of(server, "tokenize")
    assert (call["method"], call["code"], call["queue_us"]) == ("Tokenize", "OK", 0)


def test_each_item_of_a_stream_has_a_line(server):
    before = len(calls_of(server))
    with server.client() as client:
        assert len(list(client.encode_stream([SECRET, "b", "c"]))) == 3
    assert eventually(lambda: len(calls_of(server)) == before + 3)
    items = calls_of(server)[before:]
    assert {item["method"] for item in items} == {"EncodeStream"}
    assert all(item["code"] == "OK" and item["input_tokens"] > 0 for item in items)
    assert len({item["request_id"] for item in items}) == 3


def test_a_call_without_an_id_gets_that_of_its_answer(server):
    with server.client() as client:
        request_id = client.generate("a").info.request_id
    assert line_of(server, request_id)["code"] == "OK"


@pytest.mark.parametrize(
    "name, call, decoding, code, reason, model",
    [
        ("range", {}, {"num_beams": 99}, "INVALID_ARGUMENT", "INVALID_FIELD", "g2p"),
        ("model", {"model": SECRET}, {}, "NOT_FOUND", "MODEL_NOT_FOUND", ""),
        ("head", {}, None, "FAILED_PRECONDITION", "HEAD_MISSING", "g2p"),
    ],
    ids=["an invalid option", "an unknown model", "a missing head"],
)
def test_calls_that_are_rejected(server, name, call, decoding, code, reason, model):
    with client_of(server, f"rejected-{name}", **call) as client:
        if decoding is None:
            failure_of(lambda: client.classify([SECRET]))
        else:
            failure_of(lambda: client.generate(SECRET, decoding=decoding))
    line = line_of(server, f"rejected-{name}")
    assert (line["code"], line["reason"], line["model"]) == (code, reason, model)
    assert (line["output_tokens"], line["queue_us"]) == (0, 0)


def test_an_id_that_is_not_valid_is_left_out(server):
    before = len(calls_of(server))
    for request_id in (f"{SECRET} with spaces", SECRET * 10):
        with client_of(server, request_id) as client:
            failure_of(lambda client=client: client.generate("a"))
    assert eventually(lambda: len(calls_of(server)) == before + 2)
    lines = calls_of(server)[before:]
    assert [line["request_id"] for line in lines] == ["", ""]
    assert {line["reason"] for line in lines} == {"INVALID_FIELD"}


def test_a_message_that_does_not_parse_and_an_unknown_method(server):
    before = len(calls_of(server))
    with grpc.insecure_channel(server.target) as channel:
        for method, message in (("Generate", b"\xff\xff"), (SECRET, b"")):
            call = channel.unary_unary(f"/quintet.v1.Inference/{method}")
            failure_of(lambda call=call, message=message: call(message))
    assert eventually(lambda: len(calls_of(server)) == before + 2)
    lines = calls_of(server)[before:]
    assert [(line["method"], line["code"], line["reason"]) for line in lines] == [
        ("Generate", "INVALID_ARGUMENT", "INVALID_FIELD"),
        ("", "UNIMPLEMENTED", "NO_METHOD"),
    ]


def test_a_stream_that_its_client_cancels(server):
    with client_of(server, "cancelled") as client:
        events = client.stream(SECRET, decoding=LONG)
        next(iter(events))
        events.cancel()
    line = line_of(server, "cancelled")
    assert (line["method"], line["code"], line["reason"]) == ("GenerateStream", "CANCELLED", "")
    assert 0 < line["output_tokens"] < 4000 and line["input_tokens"] > 0


def test_a_deadline_that_passes_while_decoding(server):
    with client_of(server, "late", timeout_s=0.3) as client:
        failure_of(lambda: client.generate(SECRET, decoding=LONG))
    line = line_of(server, "late")
    # gRPC cancels the call when the client's deadline passes. This cancellation may reach the
    # server before the server's own clock reaches the deadline; both outcomes are right.
    assert (line["code"], line["reason"]) in (
        ("DEADLINE_EXCEEDED", "DECODING"),
        ("CANCELLED", ""),
    )
    assert line["total_us"] >= 250_000


def test_a_call_that_waits_shows_its_time_in_the_queue():
    with (
        Server(G2P, access_log=True, max_running=1) as server,
        client_of(server, "first") as first,
        client_of(server, "second") as second,
    ):
        running = first.stream("a", decoding={"max_new_tokens": 400, "min_new_tokens": 400})
        next(iter(running))
        waiting = threading.Thread(target=lambda: second.generate("b"))
        waiting.start()
        list(running)
        waiting.join()
        ran, waited = line_of(server, "first"), line_of(server, "second")
        assert ran["output_tokens"] == 400
        assert waited["queue_us"] > ran["queue_us"]
        assert waited["total_us"] > waited["queue_us"] > 0


def test_calls_without_a_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(hashlib.sha256(b"right-key").hexdigest() + "\n")
    keys.chmod(0o600)
    with Server(G2P, access_log=True, api_key_file=keys) as server:
        for key in (None, "wrong-" + SECRET):
            with server.client(api_key=key) as client:
                failure_of(lambda client=client: client.generate(SECRET))
        with server.client(api_key="right-key", call={"request_id": "right"}) as client:
            client.generate(SECRET)
        assert line_of(server, "right")["code"] == "OK"
        refused = [call for call in calls_of(server) if call["reason"] == "AUTH"]
        assert [call["code"] for call in refused] == ["UNAUTHENTICATED", "PERMISSION_DENIED"]
        assert all(call["method"] == "Generate" and call["model"] == "" for call in refused)
        assert SECRET not in server.log() and "right-key" not in server.log()


def test_probes_and_reflection_have_no_line(server):
    before = len(calls_of(server))
    with server.client() as client:
        assert client.health() == "SERVING"
        client.generate("a")
    assert eventually(lambda: len(calls_of(server)) == before + 1)


def test_it_is_off_by_default():
    with Server(G2P) as server, server.client() as client:
        client.generate("a")
        assert calls_of(server) == []
