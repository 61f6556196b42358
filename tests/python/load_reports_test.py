"""Load reports (ORCA), read by a stub and by gRPC's balancer weighted_round_robin."""

import base64
import hashlib
import json
import threading

import grpc
import pytest
import quintet
from google.protobuf import message_factory
from http_api import HttpServer
from server_process import G2P, Server, eventually

SERVICE = "xds.service.orca.v3.OpenRcaService"
REQUEST = message_factory.GetMessageClass(
    quintet.wire.POOL.FindMessageTypeByName("xds.service.orca.v3.OrcaLoadReportRequest")
)
BALANCER = {
    "enableOobLoadReport": True,
    "oobReportingPeriod": "1s",
    "blackoutPeriod": "0s",
    "weightUpdatePeriod": "0.5s",
}


class Load:
    """Keeps `callers` long requests of a server in progress."""

    def __init__(self, target: str, callers: int, api_key: str | None = None):
        self._stop = threading.Event()
        self._callers = [
            threading.Thread(target=self._run, args=[target, api_key]) for _ in range(callers)
        ]

    def _run(self, target: str, api_key: str | None) -> None:
        with quintet.Client(target, api_key=api_key) as client:
            while not self._stop.is_set():
                client.generate("wagner", max_new_tokens=200, min_new_tokens=200)

    def __enter__(self) -> None:
        for caller in self._callers:
            caller.start()

    def __exit__(self, *_) -> None:
        self._stop.set()
        for caller in self._callers:
            caller.join()


def test_reports_have_the_load_of_the_server():
    with (
        Server(G2P, max_running=2) as server,
        grpc.insecure_channel(server.target) as channel,
        Load(server.target, 5),
    ):
        stub = quintet.wire.Stub(channel, SERVICE)
        request = REQUEST(report_interval={"seconds": 1})
        for report in stub.StreamCoreMetrics(request, timeout=60):
            if report.application_utilization > 1 and report.rps_fractional > 0:
                break
        assert 0 < report.cpu_utilization and 0 < report.mem_utilization < 1
        assert report.eps == 0
        assert set(report.named_metrics) == {
            "kv_cache_usage_perc",
            "num_requests_running",
            "num_requests_waiting",
        }


@pytest.mark.parametrize("messages", [[b"\xff\xff"], []])
def test_a_bad_request_ends_its_stream_alone(server, messages):
    with grpc.insecure_channel(server.target) as channel:
        good = quintet.wire.Stub(channel, SERVICE).StreamCoreMetrics(REQUEST(), timeout=30)
        next(good)
        bad = channel.stream_stream(f"/{SERVICE}/StreamCoreMetrics")(iter(messages), timeout=10)
        with pytest.raises(grpc.RpcError) as failure:
            next(bad)
        assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        next(good)


@pytest.mark.parametrize("seconds", [-5, 0, 2**40])
def test_an_interval_out_of_range_becomes_the_nearest(server, seconds):
    with grpc.insecure_channel(server.target) as channel:
        request = REQUEST(report_interval={"seconds": seconds})
        timeout_s = 30 if seconds <= 0 else 3
        reports = quintet.wire.Stub(channel, SERVICE).StreamCoreMetrics(request, timeout=timeout_s)
        next(reports)
        if seconds <= 0:
            next(reports)
        else:
            with pytest.raises(grpc.RpcError) as failure:
                next(reports)
            assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_reports_need_a_key_where_calls_need_one(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(hashlib.sha256(b"right-key").hexdigest() + "\n")
    keys.chmod(0o600)
    with (
        Server(G2P, api_key_file=keys) as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        stub = quintet.wire.Stub(channel, SERVICE)
        with pytest.raises(grpc.RpcError) as failure:
            next(stub.StreamCoreMetrics(REQUEST(), timeout=10))
        assert failure.value.code() == grpc.StatusCode.UNAUTHENTICATED
        key = [("authorization", "Bearer right-key")]
        next(stub.StreamCoreMetrics(REQUEST(), timeout=10, metadata=key))


REPORT = message_factory.GetMessageClass(
    quintet.wire.POOL.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport")
)
ASKS = "endpoint-load-metrics-format"
NAMES = {"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"}


def trailers(call) -> dict:
    found = dict(call.trailing_metadata())
    return {name: value for name, value in found.items() if name.startswith("endpoint-load")}


def test_trailers_have_a_report_if_the_call_asks_for_one(server):
    with grpc.insecure_channel(server.target) as channel:
        stub = quintet.wire.Stub(channel)
        request = quintet.wire.pb.GenerateRequest(input={"text": "wagner"})
        _, plain = stub.Generate.with_call(request, timeout=60)
        assert trailers(plain) == {}
        stream = stub.GenerateStream(request, timeout=60, metadata=[(ASKS, "TEXT")])
        list(stream)
        text = trailers(stream)["endpoint-load-metrics"]
        assert text.startswith("TEXT ") and "named_metrics.num_requests_waiting=" in text
        request.call.model = "unknown"
        with pytest.raises(grpc.RpcError) as failure:
            stub.Generate(request, timeout=60, metadata=[(ASKS, "json")])
        text = trailers(failure.value)["endpoint-load-metrics"]
        assert set(json.loads(text.removeprefix("JSON "))["named_metrics"]) == NAMES
        for other in ("", "xml", "x" * 1000):
            _, ignored = stub.Tokenize.with_call(
                quintet.wire.pb.TokenizeRequest(text="a"), timeout=60, metadata=[(ASKS, other)]
            )
            assert trailers(ignored) == {}


def test_responses_of_the_http_api_have_a_report_if_the_request_asks_for_one():
    with HttpServer(G2P) as server:

        def headers(answer) -> dict:
            return {
                name.lower(): value
                for name, value in answer.headers.items()
                if name.lower().startswith("endpoint-load")
            }

        body = {"model": "g2p", "prompt": "wagner", "max_tokens": 5}
        assert headers(server.post("/v1/completions", body)) == {}
        asks = {ASKS: "json"}
        (value,) = headers(server.post("/v1/completions", body, **asks)).values()
        assert set(json.loads(value.removeprefix("JSON "))["named_metrics"]) == NAMES
        streamed = server.post("/v1/completions", {**body, "stream": True}, **{ASKS: "text"})
        assert headers(streamed)["endpoint-load-metrics"].startswith("TEXT ")
        binary = headers(server.post("/v1/completions", body, **{ASKS: "bin"}))
        report = REPORT.FromString(base64.b64decode(binary["endpoint-load-metrics-bin"]))
        assert set(report.named_metrics) == NAMES
        failed = server.post("/v1/completions", {"prompt": 7}, **asks)
        assert failed.status == 400 and headers(failed)


@pytest.mark.parametrize("trailers", [False, True])
def test_a_balancer_sends_a_loaded_server_less(trailers):
    """With `trailers` the balancer reads reports from the trailers of calls, which gRPC gives to
    balancers alone; otherwise from a stream of reports."""
    with Server(G2P, max_running=4) as loaded, Server(G2P, max_running=4) as idle:
        balancer = {**BALANCER, "enableOobLoadReport": not trailers}
        config = {"loadBalancingConfig": [{"weighted_round_robin": balancer}]}
        asks = [(ASKS, "bin")] if trailers else []
        channel = grpc.insecure_channel(
            f"ipv4:{loaded.target},{idle.target}", [("grpc.service_config", json.dumps(config))]
        )
        with channel, Load(loaded.target, 12):
            stub = quintet.wire.Stub(channel)
            request = quintet.wire.pb.GenerateRequest()
            request.input.text = "wagner"

            def served() -> float:
                return idle.metric("quintet_requests_accepted_total", rpc="Generate")

            def share_of_idle() -> float:
                before = served()
                for _ in range(40):
                    stub.Generate(request, timeout=30, metadata=asks)
                return (served() - before) / 40

            assert eventually(lambda: share_of_idle() > 0.7, 60)
