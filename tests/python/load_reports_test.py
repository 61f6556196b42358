"""Load reports (ORCA), read by a stub and by gRPC's balancer weighted_round_robin."""

import json
import threading

import grpc
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
