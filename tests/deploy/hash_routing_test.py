"""HAProxy and Envoy with our configurations balance by a hash of the input."""

import contextlib
import hashlib

import pytest
import quintet

from balancer_test import answers, certificate, envoy
from proxied_traces_test import haproxy
from rpc_client import RpcClient
from server_process import G2P, Server, eventually

__all__ = ["certificate"]  # a fixture
# So many that one server gets all of them once in a million runs: Envoy's hashes depend on ports.
WORDS = [first + rest for first in "bdfhlmnprt" for rest in ("eat", "ale")]
REPEATS = 3


def by_hash(config: dict) -> None:
    """Leaves only the last policy of Envoy's configuration."""
    policies = config["static_resources"]["clusters"][0]["load_balancing_policy"]["policies"]
    del policies[:-1]


HAPROXY_BY_HASH = {
    "    balance leastconn\n": "",
    "#balance hdr": "balance hdr",
    "#hash-type": "hash-type",
    "#hash-balance-factor": "hash-balance-factor",
}


@pytest.mark.parametrize("proxy", ["haproxy", "envoy"])
def test_equal_inputs_reach_one_server(proxy, certificate, tmp_path):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(G2P)) for _ in range(2)]
        port, _ = stack.enter_context(
            haproxy(servers, certificate, tmp_path, HAPROXY_BY_HASH)
            if proxy == "haproxy"
            else envoy(servers, tmp_path, change=by_hash)
        )
        client = stack.enter_context(RpcClient(f"127.0.0.1:{port}", timeout_s=60.0))
        model = stack.enter_context(quintet.Client(f"127.0.0.1:{port}"))
        assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()

        def accepted() -> list[float]:
            return [
                server.metric("quintet_requests_accepted_total", rpc="Generate")
                for server in servers
            ]

        def spread() -> bool:
            before = accepted()
            for _ in range(20):
                client.generate("phoneme")
            return all(now > then for now, then in zip(accepted(), before, strict=True))

        # Without the metadata, calls go to both servers as soon as the proxy has checked them.
        assert eventually(spread, 30)
        chosen = []  # the server of each word
        for word in WORDS:
            before = accepted()
            digest = hashlib.sha256(word.encode()).hexdigest()[:16]
            # quintet.Client sends the same metadata by itself.
            for _ in range(REPEATS):
                client.stub.Generate(
                    client.generate_request(word),
                    metadata=[("quintet-input-hash", digest)],
                    timeout=60,
                )
                model.generate(word)
            calls = [now - then for now, then in zip(accepted(), before, strict=True)]
            assert sorted(calls) == [0, 2 * REPEATS]
            chosen.append(calls.index(2 * REPEATS))
        assert set(chosen) == {0, 1}
