"""Tests every error in the table of server/README.md, with its google.rpc.Status details.

ENGINE_FAULT and BUG are not tested: no client can cause them on a CPU.
"""

import grpc
import pytest

from quintet.rpc import Failure
from quintet.wire import pb
from server_process import G2P, Server, all_calls, engine_calls, eventually, failure_of

Code = grpc.StatusCode
ENDLESS = {"ignore_eos": True, "max_new_tokens": 4000}


def failure(call) -> Failure:
    error = failure_of(call)
    found = Failure.of(error)
    trailers = dict(error.trailing_metadata() or ())
    details = trailers.get("grpc-status-details-bin", b"")
    assert len(details) <= 4096
    assert (found.retry_after_s is None) == ("grpc-retry-pushback-ms" not in trailers)
    if found.retry_after_s is not None:
        assert 0.05 <= found.retry_after_s <= 5
        assert round(found.retry_after_s * 1000) == int(trailers["grpc-retry-pushback-ms"])
    return found


@pytest.mark.parametrize(
    "call, field",
    [
        (lambda c: c.generate(pb.Input()), "input"),
        (lambda c: c.generate([]), "input"),
        (lambda c: c.generate([1] * 4097), "input"),
        (lambda c: c.generate("a" * (1 << 20) + "b"), "input.text"),
        (lambda c: c.generate("a", {"temperature": 0.5}), "decoding.temperature"),
        (lambda c: c.generate("a", {"num_beams": 33}), "decoding.num_beams"),
        (lambda c: c.generate("a", {"stop": [""]}), "decoding.stop"),
        (lambda c: c.stream("a", {"num_beams": 0}), "decoding.num_beams"),
        (lambda c: c.encode([]), "inputs"),
        (lambda c: c.encode(["a"] * 65), "inputs"),
        (lambda c: c.encode(["a", pb.Input()]), "inputs[1]"),
        (lambda c: list(c.encode_stream(["a", pb.Input()])), "input"),
        (lambda c: c.score("a", []), "targets"),
        (lambda c: c.score("a", ["b"] * 65), "targets"),
        (lambda c: c.score("a", ["b", pb.Input()]), "targets[1]"),
        (lambda c: c.score("a", ["b"], top_logprobs=21), "top_logprobs"),
        (lambda c: c.score("a", ["b"], sliding_window=4), "sliding_window"),
        (lambda c: c.score("a", ["b"], prefix_lm=True), "prefix_lm"),
        (lambda c: c.tokenize("a" * (1 << 20) + "b"), "text"),
        (lambda c: c.detokenize([5, 128]), "token_ids[1]"),
    ],
)
def test_bad_fields(client, call, field):
    found = failure(lambda: call(client))
    assert (found.code, found.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELD")
    assert [name for name, _ in found.fields] == [field]


@pytest.mark.parametrize(
    "call, field",
    [
        ({"model": "m" * 129}, "call.model"),
        ({"request_id": "r" * 65}, "call.request_id"),
        ({"request_id": "a b"}, "call.request_id"),
        ({"priority": 7}, "call.priority"),
    ],
)
def test_bad_call_options(server, call, field):
    with server.client(call=call) as client:
        *calls, info = all_calls(client)
        # GetModelInfo accepts no call option except the model name, so only the cases with an
        # invalid model name include it.
        for rpc in calls if "model" not in call else [*calls, info]:
            found = failure(rpc)
            assert (found.code, found.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELD")
            assert [name for name, _ in found.fields] == [field]


def test_the_request_id_comes_back_with_a_failure(server):
    with server.client(call={"request_id": "mine-1"}) as client:
        assert failure(lambda: client.generate("a", {"num_beams": 33})).request_id == "mine-1"


def test_unknown_model(server):
    with server.client(call={"model": "other"}) as client:
        for rpc in all_calls(client):
            found = failure(rpc)
            assert (found.code, found.reason, found.retry_after_s) == (
                Code.NOT_FOUND,
                "MODEL_NOT_FOUND",
                None,
            )


def test_heads_that_are_not_loaded(client, tiny_models):
    found = failure(lambda: client.classify(["a"]))
    assert (found.code, found.reason) == (Code.FAILED_PRECONDITION, "HEAD_MISSING")
    with Server(tiny_models["t5-encoder"], tiny_models["t5-seqcls"]) as server:
        for model in ("t5-encoder", "t5-seqcls"):
            with server.client(call={"model": model}) as other:
                for rpc in (
                    lambda: other.generate("a"),
                    lambda: other.stream("a"),
                    lambda: other.score("a", ["b"]),
                ):
                    found = failure(rpc)
                    assert (found.code, found.reason) == (Code.FAILED_PRECONDITION, "HEAD_MISSING")
        with server.client() as nameless:  # ambiguous: two models are loaded
            assert failure(lambda: nameless.encode(["a"])).code == Code.INVALID_ARGUMENT


def test_a_request_that_can_never_fit():
    with Server(G2P, max_running=4) as server, server.client() as client:
        found = failure(lambda: client.generate("a", {"num_beams": 5}))
        assert (found.code, found.reason) == (Code.INVALID_ARGUMENT, "INVALID_FIELD")


def test_a_full_queue():
    with Server(G2P, max_running=1, max_queue=1) as server, server.client() as client:
        running = client.stream("a", ENDLESS)
        next(running)
        waiting = client.stream("a", ENDLESS)
        assert eventually(lambda: server.metric("quintet_requests_waiting") == 1)
        for rpc in engine_calls(client):
            found = failure(rpc)
            assert (found.code, found.reason) == (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL")
            assert found.retry_after_s is not None
        running.cancel()
        waiting.cancel()
        assert eventually(lambda: server.metric("quintet_requests_waiting") == 0)
        assert client.generate("wagner").sequences[0].text == "W AE1 G N ER0"


def test_a_queue_that_is_full_of_tokens():
    """The error says that the limit on queued tokens was reached, not the limit on requests."""
    with Server(G2P, max_running=1, max_queue_tokens=40) as server, server.client() as client:
        running = client.stream("a", ENDLESS)
        next(running)
        waiting = client.stream([5] * 35, ENDLESS)
        assert eventually(lambda: server.metric("quintet_queue_tokens") == 35)
        found = failure(lambda: client.generate([5] * 6))
        assert (found.code, found.reason) == (Code.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert (
            "35 tokens" in found.message
            and "256 requests, 40 tokens" in found.message
            and "this call: requests 1, tokens 7" in found.message
        )
        running.cancel()
        waiting.cancel()


def test_draining():
    with Server(G2P) as server, server.client() as client:
        running = client.stream("a", {"ignore_eos": True, "max_new_tokens": 1500})
        next(running)
        server.process.terminate()
        assert eventually(lambda: server.get("/readyz")[0] == 503)
        assert client.health() == "NOT_SERVING"
        found = failure(lambda: client.generate("a"))
        assert (found.code, found.reason) == (Code.UNAVAILABLE, "NOT_READY")
        assert found.retry_after_s is not None
        *_, last = running  # running requests finish
        assert last.HasField("complete") and last.complete.info.usage.output_tokens == 1500
        assert server.stop() == 0


def test_deadlines_of_the_server():
    """Calls without a client deadline get the server's error.

    With a client deadline, gRPC reports its own error instead.
    """
    long = {"ignore_eos": True, "max_new_tokens": 20000}
    with (
        Server(
            G2P, max_running=1, default_timeout=0.5, limit_new_tokens=20000, cache_memory=512
        ) as server,
        server.client(timeout_s=None) as client,
    ):
        running = client.stub.GenerateStream(client.generate_request("a", long), timeout=50)
        next(running)
        found = failure(lambda: client.generate("a"))
        assert (found.code, found.reason) == (Code.DEADLINE_EXCEEDED, "QUEUED")
        running.cancel()
        found = failure(lambda: client.generate("a", long))
        assert (found.code, found.reason) == (Code.DEADLINE_EXCEEDED, "DECODING")


def test_calls_without_a_deadline_get_no_more_time_than_others_may_have():
    with Server(G2P, max_timeout=5) as server, server.client() as client:
        assert (
            client.info().limits.default_timeout_ms == client.info().limits.max_timeout_ms == 5000
        )


def test_deadline_of_the_client(server):
    with server.client(timeout_s=0.2) as client:
        assert failure(lambda: client.generate("a", ENDLESS)).code == Code.DEADLINE_EXCEEDED
        assert failure(lambda: client.stream("a", ENDLESS)).code == Code.DEADLINE_EXCEEDED
    assert eventually(lambda: server.metric("quintet_requests_running") == 0)


def test_cancelled(server, client):
    call = client.stream("a", ENDLESS)
    next(call)
    call.cancel()
    with pytest.raises(grpc.RpcError) as raised:
        next(call)
    assert raised.value.code() == Code.CANCELLED
    assert eventually(
        lambda: (
            server.metric("quintet_requests_running") == 0
            and server.metric("quintet_kv_cache_usage_ratio") == 0
        )
    )


def test_unknown_method(client):
    call = client.channel.unary_unary(
        "/quintet.v1.Inference/Nothing", request_serializer=bytes, response_deserializer=bytes
    )
    assert failure(lambda: call(b"", timeout=10)).code == Code.UNIMPLEMENTED


def test_bytes_that_are_no_message(client):
    for rpc in ("Generate", "Encode", "Score", "Classify", "Tokenize", "Detokenize"):
        call = client.channel.unary_unary(
            f"/quintet.v1.Inference/{rpc}", request_serializer=bytes, response_deserializer=bytes
        )
        found = failure(lambda: call(b"\xff\xff\xff", timeout=10))
        assert found.code == Code.INVALID_ARGUMENT, rpc
