"""Tests of tracing: W3C trace context on every front end, and the spans that a collector gets."""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time

import grpc
import pytest
import tritonclient.grpc as triton
from http_api import HttpServer
from kserve_requests import texts
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from quintet.wire import Stub, pb
from server_process import (
    BINARY,
    G2P,
    KEY,
    SOURCE,
    eventually,
    failure_of,
    free_port,
    run_quintet,
)
from trace_collector import Collector, attributes, environment

sys.path.insert(0, str(SOURCE / "tools" / "reliability"))
import frames

SECRET = "xylophonesecret"  # a text that no span may contain
GENERATE = "quintet.v1.Inference/Generate"


def make_ids() -> tuple[str, str]:
    return secrets.token_hex(16), secrets.token_hex(8)


def metadata(trace_id: str, span_id: str, flags: str = "01", **more: str) -> list[tuple[str, str]]:
    return [("traceparent", f"00-{trace_id}-{span_id}-{flags}"), *more.items()]


def logged_calls(server) -> list[dict]:
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["message"] == "call"]


def trace_ids_of_log(server) -> list[str]:
    return [call["trace_id"] for call in logged_calls(server)]


@pytest.fixture(scope="module")
def collector():
    with Collector() as running:
        yield running
        assert not any(SECRET.encode() in body for body in running.bodies)


@pytest.fixture(scope="module")
def server(collector):
    with environment(collector.endpoint):
        running = HttpServer(G2P, access_log=True)
    with running:
        yield running
    assert running.process.returncode == 0


@pytest.fixture(scope="module")
def stub(server):
    with grpc.insecure_channel(server.target) as channel:
        yield Stub(channel)


def generate_request(**decoding) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        call={"request_id": "traced"}, input={"text": SECRET}, decoding=decoding
    )


def check_family(spans: list[Span], root: str, phases: list[str]) -> Span:
    """Checks that `spans` are a span and its phases, in order and within it. Returns the span."""
    outer = next(span for span in spans if span.name == root)
    inner = [span for span in spans if span.parent_span_id == outer.span_id]
    assert [span.name for span in inner] == phases
    end = outer.start_time_unix_nano
    for span in inner:
        assert end <= span.start_time_unix_nano <= span.end_time_unix_nano
        end = span.end_time_unix_nano
        assert span.kind == Span.SPAN_KIND_INTERNAL and not attributes(span)
    assert end <= outer.end_time_unix_nano
    assert abs(time.time_ns() - outer.start_time_unix_nano) < 120e9
    assert len({span.span_id for span in spans}) == len(spans)
    return outer


def test_a_call_has_a_span_for_each_phase(server, collector, stub):
    trace_id, span_id = make_ids()
    before = time.time_ns()
    answer = stub.Generate(
        generate_request(num_beams=2, max_new_tokens=30),
        metadata=metadata(trace_id, span_id, tracestate="vendor=1, other@x=2"),
        timeout=60,
    )
    spans = collector.wait(trace_id, GENERATE)
    outer = check_family(spans, GENERATE, ["tokenize", "queue", "encode", "prefill", "decode"])
    assert len(spans) == 6
    assert before - 1e9 < outer.start_time_unix_nano
    assert outer.kind == Span.SPAN_KIND_SERVER
    assert outer.parent_span_id.hex() == span_id
    assert outer.flags == 0x301 and spans[1].flags == 0x101
    assert {span.trace_state for span in spans} == {"vendor=1,other@x=2"}
    assert outer.status.code == Status.STATUS_CODE_UNSET
    assert attributes(outer) == {
        "rpc.system": "grpc",
        "rpc.service": "quintet.v1.Inference",
        "rpc.method": "Generate",
        "rpc.grpc.status_code": 0,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "quintet",
        "gen_ai.request.model": "g2p",
        "gen_ai.request.max_tokens": 30,
        "quintet.request.num_beams": 2,
        "gen_ai.response.id": "traced",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": answer.info.usage.input_tokens,
        "gen_ai.usage.output_tokens": answer.info.usage.output_tokens,
    }
    timing = answer.info.timing
    took = {
        span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e3 for span in spans
    }
    assert took["tokenize"] == timing.tokenize_us and took["queue"] == timing.queue_us
    assert took["encode"] == timing.encode_us
    to_first_token = took["tokenize"] + took["queue"] + took["encode"] + took["prefill"]
    assert to_first_token == timing.first_token_us
    assert trace_id in trace_ids_of_log(server)


def test_the_resource_names_the_process(collector, stub):
    trace_id, span_id = make_ids()
    stub.Generate(generate_request(), metadata=metadata(trace_id, span_id), timeout=60)
    collector.wait(trace_id, GENERATE)
    resources = {
        json.dumps(attributes(of_resource.resource))
        for request in collector.requests()
        for of_resource in request.resource_spans
    }
    assert len(resources) == 1
    resource = json.loads(resources.pop())
    version = run_quintet("--version").decode().split()[1]
    assert resource["service.name"] == "quintet" and resource["service.version"].startswith(version)
    assert len(resource["service.instance.id"]) == 36


def test_other_methods(collector, stub):
    trace_id, span_id = make_ids()
    sent = {"metadata": metadata(trace_id, span_id), "timeout": 60}
    text = {"text": SECRET}
    stub.Encode(pb.EncodeRequest(inputs=[text, {"text": "b"}]), **sent)
    stub.Score(pb.ScoreRequest(input=text, targets=[{"text": "a"}]), **sent)
    stub.Tokenize(pb.TokenizeRequest(text=SECRET), **sent)
    list(stub.GenerateStream(generate_request(do_sample=True, temperature=0.5), **sent))
    list(stub.EncodeStream(iter([pb.EncodeStreamRequest(input=text)] * 3), **sent))
    with pytest.raises(grpc.RpcError):
        stub.Classify(pb.ClassifyRequest(inputs=[text]), **sent)
    spans = collector.wait(trace_id, "quintet.v1.Inference/Classify")
    outer = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    names = [span.name.rpartition("/")[2] for span in outer]
    # Each item of a stream is a call of its own.
    assert sorted(names) == sorted(
        ["Encode", "Score", "Tokenize", "GenerateStream", *["EncodeStream"] * 3, "Classify"]
    )
    assert {span.parent_span_id.hex() for span in outer} == {span_id}

    def phases(method: str) -> list[str]:
        (span,) = [span for span in outer if span.name.endswith(f"/{method}")]
        return [inner.name for inner in spans if inner.parent_span_id == span.span_id]

    assert phases("Encode") == ["tokenize", "queue", "encode"]
    assert phases("Score") == ["tokenize", "queue", "encode", "decode"]
    assert phases("Tokenize") == ["tokenize"]
    assert phases("GenerateStream") == ["tokenize", "queue", "encode", "prefill", "decode"]
    assert phases("Classify") == ["tokenize"]
    by_method = {span.name.rpartition("/")[2]: attributes(span) for span in outer}
    assert by_method["Encode"]["gen_ai.operation.name"] == "embeddings"
    assert by_method["GenerateStream"]["gen_ai.request.temperature"] == 0.5
    assert by_method["Classify"]["quintet.error.reason"] == "HEAD_MISSING"
    assert by_method["Classify"]["rpc.grpc.status_code"] == 9


def test_kserve(server, collector):
    trace_id, span_id = make_ids()
    with triton.InferenceServerClient(server.target) as client:
        client.infer("g2p", [texts(SECRET)], headers=dict(metadata(trace_id, span_id)))
    root = "inference.GRPCInferenceService/ModelInfer"
    outer = check_family(
        collector.wait(trace_id, root), root, ["tokenize", "queue", "encode", "prefill", "decode"]
    )
    assert outer.parent_span_id.hex() == span_id
    assert attributes(outer)["rpc.service"] == "inference.GRPCInferenceService"


@pytest.mark.parametrize("stream", [False, True])
def test_the_http_api(server, collector, stream):
    trace_id, span_id = make_ids()
    body = {"model": "g2p", "prompt": [SECRET, "b"], "stream": stream}
    headers = dict(metadata(trace_id, span_id, tracestate="vendor=1"))
    assert server.post("/v1/completions", body, **headers).status == 200
    spans = collector.wait(trace_id, "POST /v1/completions")
    (outer,) = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    assert outer.name == "POST /v1/completions" and outer.parent_span_id.hex() == span_id
    assert attributes(outer) == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
    }
    # One RPC for each prompt, in which the phases are.
    calls = [span for span in spans if span.parent_span_id == outer.span_id]
    assert {span.name for span in calls} == {"GenerateStream" if stream else "Generate"}
    assert len(calls) == 2 and len(spans) == 1 + 2 * 6
    assert {span.flags for span in calls} == {0x101}
    for call in calls:
        assert attributes(call)["gen_ai.request.model"] == "g2p"
        assert "rpc.system" not in attributes(call)
        assert outer.start_time_unix_nano <= call.start_time_unix_nano
        assert call.end_time_unix_nano <= outer.end_time_unix_nano
    assert trace_ids_of_log(server).count(trace_id) == 2


def test_a_rejected_request_of_the_http_api(server, collector):
    trace_id, span_id = make_ids()
    headers = dict(metadata(trace_id, span_id))
    assert server.post("/v1/completions", {"prompt": 7, "x": SECRET}, **headers).status == 400
    (span,) = collector.wait(trace_id, "POST /v1/completions")
    assert attributes(span)["http.response.status_code"] == 400
    assert span.status.code == Status.STATUS_CODE_UNSET  # an error of the client
    assert trace_id in trace_ids_of_log(server)


def test_an_rpc_that_is_rejected_before_its_message(collector, key_file):
    with environment(collector.endpoint):
        guarded = HttpServer(G2P, access_log=True, api_key_file=key_file)
    with guarded, grpc.insecure_channel(guarded.target) as channel:

        def rejected(code: str, *fields: tuple[str, str], path: str = f"/{GENERATE}") -> str:
            """Opens a stream without a message. Returns the id of its trace."""
            trace_id, span_id = make_ids()
            call = channel.stream_stream(path)(
                iter(()), metadata=[*metadata(trace_id, span_id), *fields], timeout=60
            )
            with pytest.raises(grpc.RpcError):
                next(call)
            assert call.code().name == code
            return trace_id

        for code, fields in {
            "UNAUTHENTICATED": [],
            "PERMISSION_DENIED": [("authorization", f"Bearer {SECRET}")],
        }.items():
            trace_id = rejected(code, *fields)
            (span,) = collector.wait(trace_id, GENERATE)
            assert span.kind == Span.SPAN_KIND_SERVER
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.status.code == Status.STATUS_CODE_UNSET  # an error of the client
            assert attributes(span) == {
                "rpc.system": "grpc",
                "rpc.service": "quintet.v1.Inference",
                "rpc.method": "Generate",
                "rpc.grpc.status_code": getattr(grpc.StatusCode, code).value[0],
                "quintet.error.reason": "AUTH",
            }
            assert trace_id in trace_ids_of_log(guarded)
        key = ("authorization", f"Bearer {KEY}")
        unknown = rejected("UNIMPLEMENTED", key, path=f"/{SECRET}/{SECRET}")
        assert eventually(lambda: unknown in trace_ids_of_log(guarded))
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        watches = [watch(b"", timeout=60) for _ in range(256)]  # the limit of a connection
        for call in watches:
            next(call)
        trace_id = rejected("RESOURCE_EXHAUSTED", key, path="/quintet.v1.Inference/EncodeStream")
        (span,) = collector.wait(trace_id, "quintet.v1.Inference/EncodeStream")
        assert attributes(span)["rpc.grpc.status_code"] == 8
        for call in watches:
            call.cancel()
    # The server has stopped, and has sent what was queued.
    assert collector.spans(unknown) == []


def test_a_deadline_is_an_error_of_the_span(collector, stub):
    trace_id, span_id = make_ids()
    request = generate_request(max_new_tokens=4000, min_new_tokens=4000)
    with pytest.raises(grpc.RpcError):
        stub.Generate(request, metadata=metadata(trace_id, span_id), timeout=0.2)
    spans = collector.wait(trace_id, GENERATE)
    (outer,) = [span for span in spans if span.name == GENERATE]
    # gRPC may cancel the call before the server's own clock reaches the deadline.
    if attributes(outer)["rpc.grpc.status_code"] == 4:
        assert outer.status.code == Status.STATUS_CODE_ERROR
        assert outer.status.message == "DECODING"
        assert attributes(outer)["error.type"] == "DEADLINE_EXCEEDED"
    else:
        assert attributes(outer)["rpc.grpc.status_code"] == 1


@pytest.mark.parametrize(
    "headers",
    [
        [("traceparent", "")],
        [("traceparent", SECRET * 100)],
        [("traceparent", "00-" + "0" * 32 + "-b7ad6b7169203331-01")],
        [("traceparent", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")],
        [("traceparent", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01")],
        [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x")],
        [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")] * 2,
        [("tracestate", SECRET + "=1")],
    ],
)
def test_bad_headers_are_ignored(server, collector, headers):
    before = len(trace_ids_of_log(server))
    # Raw frames: newer gRPC clients send only the last of several traceparents.
    peer = frames.Peer(int(server.target.rpartition(":")[2]))
    try:
        peer.open(1, frames.request_fields("/quintet.v1.Inference/Tokenize", more=headers))
        message = pb.TokenizeRequest(text="a").SerializeToString()
        peer.socket.sendall(frames.message_frame(1, message))
        peer.answer(1)
    finally:
        peer.close()
    text = "".join(f"{name}: {value}\r\n" for name, value in headers)
    body = b'{"inputs": "a"}'
    head = (
        f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{text}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.api_port), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200"), answer
    assert eventually(lambda: len(trace_ids_of_log(server)) == before + 2)
    for call in logged_calls(server)[before:]:
        assert call["code"] == "OK"
        trace_id = call["trace_id"]
        assert len(trace_id) == 32 and trace_id != "0af7651916cd43dd8448eb211c80319c"
        assert eventually(lambda trace_id=trace_id: collector.spans(trace_id))
        for span in collector.spans(trace_id):
            assert span.trace_state == ""


def test_a_bad_tracestate_alone_is_left_out(collector, stub):
    trace_id, span_id = make_ids()
    sent = metadata(trace_id, span_id, tracestate=f"{SECRET}=1,{SECRET}=2")
    stub.Tokenize(pb.TokenizeRequest(text="a"), metadata=sent, timeout=60)
    spans = collector.wait(trace_id, "quintet.v1.Inference/Tokenize")
    assert {span.trace_state for span in spans} == {""}


def test_one_percent_of_the_traces_and_those_of_callers():
    variables = {
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.01",
        "OTEL_SERVICE_NAME": "sampled",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=abc%3D",
    }
    with Collector() as collector, environment(collector.endpoint, **variables):
        with HttpServer(G2P) as server, grpc.insecure_channel(server.target) as channel:
            stub, request = Stub(channel), pb.TokenizeRequest(text="a")
            taken, left = [make_ids() for _ in range(20)], [make_ids() for _ in range(20)]
            for ids, flags in ((taken, "01"), (left, "00")):
                for trace_id, span_id in ids:
                    sent = metadata(trace_id, span_id, flags)
                    stub.Tokenize(request, metadata=sent, timeout=60)
            for _ in range(3000):
                stub.Tokenize(request, timeout=60)
            headers = dict(metadata(*left[0], "00"))
            assert server.post("/v1/completions", {"prompt": "a"}, **headers).status == 200
        # The server has stopped, and has sent what was queued.
        spans = [span for span in collector.spans() if span.kind == Span.SPAN_KIND_SERVER]
        with_caller = {span.trace_id.hex() for span in spans if span.parent_span_id}
        assert with_caller == {trace_id for trace_id, _ in taken}
        own = [span for span in spans if not span.parent_span_id]
        assert 5 <= len(own) <= 70  # 30 are expected, with a standard deviation of 5.4
        for headers in collector.headers:
            assert headers["x-key"] == "abc=" and headers["Content-Encoding"] == "gzip"
        resource = collector.requests()[0].resource_spans[0].resource
        assert attributes(resource)["service.name"] == "sampled"


def check_service(server, calls: int = 50) -> None:
    """Makes calls that must all succeed."""
    with server.client() as client:
        for _ in range(calls):
            client.tokenize("a")
        assert client.generate("phoneme").sequences[0].text


def test_a_collector_that_is_away():
    with environment(f"http://127.0.0.1:{free_port()}"), HttpServer(G2P) as server:
        check_service(server)
        assert eventually(
            lambda: server.metric("quintet_spans_dropped_total", reason="not_accepted") >= 106, 60
        )
        assert server.metric("quintet_spans_exported_total") == 0
        assert "does not accept spans" in server.log()
    assert server.process.returncode == 0


def test_a_collector_that_refuses():
    with (
        Collector(lambda _: 401) as collector,
        environment(collector.endpoint),
        HttpServer(G2P) as server,
    ):
        check_service(server)
        assert eventually(
            lambda: server.metric("quintet_spans_dropped_total", reason="not_accepted") >= 106
        )
        assert "does not accept spans, which are dropped: HTTP status 401" in server.log()


def test_a_collector_that_never_answers():
    release = threading.Event()

    def answer(_: int) -> int:
        release.wait(60)
        return 200

    with Collector(answer) as collector, environment(collector.endpoint):
        try:
            with HttpServer(G2P) as server:
                check_service(server, 3000)  # more spans than the queue holds
                assert eventually(
                    lambda: server.metric("quintet_spans_dropped_total", reason="queue_full") > 0
                )
                assert server.metric("quintet_spans_exported_total") == 0
            assert server.process.returncode == 0  # it stops all the same
        finally:
            release.set()


def test_a_collector_that_comes_back():
    with (
        Collector(lambda number: 503 if number == 0 else 200) as collector,
        environment(collector.endpoint),
        HttpServer(G2P) as server,
    ):
        check_service(server)
        assert eventually(lambda: server.metric("quintet_spans_exported_total") == 106)
        assert server.metric("quintet_spans_dropped_total") == 0
    assert len(collector.spans()) >= 106  # and those of the batch that was sent again


def test_tracing_is_off_by_default(tmp_path):
    with HttpServer(G2P, access_log=True) as server, server.client() as client:
        client.tokenize("a")
        trace_id, span_id = make_ids()
        request = pb.TokenizeRequest(text="a")
        client.stub.Tokenize(request, metadata=metadata(trace_id, span_id), timeout=60)
        # The log has the trace of the caller all the same, also where an API key is missing.
        assert eventually(lambda: trace_ids_of_log(server) == ["", trace_id])
        server.post("/tokenize", {"inputs": "a"}, **dict(metadata(trace_id, span_id)))
        failure_of(
            lambda: client.channel.unary_unary("/quintet.v1.Inference/None")(
                b"", metadata=metadata(trace_id, span_id)
            )
        )
        assert eventually(lambda: trace_ids_of_log(server) == ["", *[trace_id] * 3])
        assert server.metric("quintet_spans_exported_total") == 0


@pytest.mark.parametrize(
    "name, value",
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_SAMPLER", "xray"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nonexistent.pem"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(name, value):
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:1", name: value}
    done = subprocess.run(
        [BINARY, "serve", "--model", str(G2P), "--listen", f"127.0.0.1:{free_port()}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"{name}: " in done.stderr
