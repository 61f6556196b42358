"""Load reports (ORCA), read by a stub and by gRPC's balancer weighted_round_robin."""

import hashlib
import json
import threading

import grpc
import pytest
import quintet
from google.protobuf import message_factory
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

    def __init__(self, target: str, callers: int):
        self._stop = threading.Event()
        self._callers = [threading.Thread(target=self._run, args=[target]) for _ in range(callers)]

    def _run(self, target: str) -> None:
        with quintet.Client(target) as client:
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


def test_a_balancer_sends_a_loaded_server_less():
    with Server(G2P, max_running=4) as loaded, Server(G2P, max_running=4) as idle:
        config = {"loadBalancingConfig": [{"weighted_round_robin": BALANCER}]}
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
                    stub.Generate(request, timeout=30)
                return (served() - before) / 40

            assert eventually(lambda: share_of_idle() > 0.7, 60)
