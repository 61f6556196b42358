"""Envoy with our configuration: load reports (ORCA) as weights, and servers that drain."""

import contextlib
import hashlib
import signal

import pytest

from balancer_test import answers, envoy, streamed
from load_reports_test import Load
from rpc_client import RpcClient
from server_process import G2P, KEY, Server, eventually

CALLS = 40  # of which equal weights give each of two servers 20


def no_reports(config: dict) -> None:
    """Removes the request for load reports from a configuration of Envoy."""
    (manager,) = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
    (host,) = manager["typed_config"]["route_config"]["virtual_hosts"]
    del host["request_headers_to_add"]


@pytest.mark.parametrize("rpc", ["Generate", "GenerateStream"])
def test_envoy_sends_a_loaded_server_fewer_calls(tmp_path, rpc):
    """Other clients load one of two servers. An Envoy that gets no reports sends both the same.

    The servers require an API key, which Envoy would not send with a call of OpenRcaService.
    """
    keys = tmp_path / "keys"
    keys.write_text(hashlib.sha256(KEY.encode()).hexdigest() + "\n")
    keys.chmod(0o600)
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(Server(G2P, max_running=4, api_key_file=keys)) for _ in range(2)
        ]

        def client_of_envoy(name: str, **options) -> RpcClient:
            folder = tmp_path / name
            folder.mkdir()
            port, _ = stack.enter_context(envoy(servers, folder, by_reports=True, **options))
            client = RpcClient(f"127.0.0.1:{port}", timeout_s=60.0, api_key=KEY)
            stack.enter_context(client)
            assert eventually(lambda: answers(client), 30), (folder / "log").read_text()
            return client

        balanced = client_of_envoy("reports")
        control = client_of_envoy("none", change=no_reports)
        loaded, idle = servers

        def share_of_idle(client: RpcClient) -> float:
            before = idle.metric("quintet_requests_accepted_total", rpc=rpc)
            for _ in range(CALLS):
                if rpc == "Generate":
                    client.generate("wagner")
                else:
                    streamed(client)
            return (idle.metric("quintet_requests_accepted_total", rpc=rpc) - before) / CALLS

        stack.enter_context(Load(loaded.target, 8, api_key=KEY))
        assert eventually(lambda: share_of_idle(balanced) > 0.75, 120)
        assert share_of_idle(control) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("by_reports", [False, True])
def test_envoy_excludes_a_draining_server(tmp_path, by_reports):
    """It does so soon after its start too, when Envoy's default is one check in 60 s."""
    with contextlib.ExitStack() as stack:
        leaving = stack.enter_context(Server(G2P, drain_delay=50))
        staying = stack.enter_context(Server(G2P))
        port, _ = stack.enter_context(envoy([leaving, staying], tmp_path, by_reports))
        client = RpcClient(f"127.0.0.1:{port}", timeout_s=60.0, attempts=1)
        stack.enter_context(client)
        assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()
        leaving.process.send_signal(signal.SIGTERM)

        def excluded() -> bool:
            before = leaving.metric("quintet_requests_accepted_total")
            for _ in range(20):
                client.generate("phoneme")
            return leaving.metric("quintet_requests_accepted_total") == before

        assert eventually(excluded, 40)
        leaving.process.kill()
        for _ in range(20):
            client.generate("phoneme")
