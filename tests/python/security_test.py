"""Tests API keys, TLS certificates and listen addresses."""

import hashlib
import pathlib
import subprocess

import grpc
import pytest

from quintet.rpc import Failure, Tls
from quintet.wire import SERVICE
from rpc_client import RpcClient
from server_process import (
    BINARY,
    G2P,
    KEY,
    OTHER_KEY,
    WRONG_KEY,
    Server,
    all_calls,
    failure_of,
    free_port,
)

Code = grpc.StatusCode


def test_api_keys_and_where_they_are_never_seen(key_file):
    """API keys appear in no log, metric or argument list (row 31 of tests/README.md)."""
    with Server(G2P, api_key_file=key_file) as server:
        with server.client() as nobody, server.client(api_key=WRONG_KEY) as stranger:
            for client, code in (
                (nobody, Code.UNAUTHENTICATED),
                (stranger, Code.PERMISSION_DENIED),
            ):
                for call in all_calls(client):
                    failure = Failure.of(failure_of(call))
                    assert (failure.code, failure.reason) == (code, "AUTH")
                    assert WRONG_KEY not in failure.message
                assert client.health(SERVICE) == "SERVING"  # load balancers have no key
        for key in (KEY, OTHER_KEY):
            with server.client(api_key=key) as client:
                assert client.generate("wagner").sequences[0].text == "W AE1 G N ER0"
        assert server.metric("quintet_requests_accepted_total") == 2
        seen = (
            server.get("/metrics")[1]
            + pathlib.Path(f"/proc/{server.process.pid}/cmdline").read_text()
        )
        assert server.stop() == 0
        seen += server.log()
    for key in (KEY, OTHER_KEY, WRONG_KEY):
        assert key not in seen and hashlib.sha256(key.encode()).hexdigest() not in seen


def test_a_key_is_not_sent_in_plain_text_to_another_machine():
    with pytest.raises(ValueError):
        RpcClient("quintet.test:50051", api_key=KEY)


def refused_to_start(*flags: str) -> str:
    listen = [] if "--listen" in flags else ["--listen", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(
        [BINARY, "serve", "--model", str(G2P), "--http-listen", "", *listen, *flags],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr.decode()
    return done.stderr.decode()


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "[::]", "192.0.2.1", "127example.test", "127.example.test"]
)
def test_other_machines_only_over_tls(address):
    """Listening beyond loopback needs TLS or --allow-plaintext (row 32 of tests/README.md)."""
    assert "--allow-plaintext" in refused_to_start("--listen", f"{address}:{free_port()}")


def test_keys_and_certificates_that_cannot_be_used(key_file, certificates, tmp_path):
    key_file.chmod(0o644)
    assert "0600" in refused_to_start("--api-key-file", str(key_file))
    empty = tmp_path / "empty"
    empty.touch(0o600)
    assert "--api-key-file" in refused_to_start("--api-key-file", str(empty))
    assert "--tls-key" in refused_to_start("--tls-cert", str(certificates["server.pem"]))
    assert "--tls-client-ca" in refused_to_start("--tls-client-ca", str(certificates["ca.pem"]))
    assert "--tls-cert" in refused_to_start(
        "--tls-cert", str(tmp_path / "none"), "--tls-key", str(certificates["server.key"])
    )


def test_mutual_tls_with_a_key(certificates, key_file):
    server_files = {
        "tls_cert": certificates["server.pem"],
        "tls_key": certificates["server.key"],
        "tls_client_ca": certificates["ca.pem"],
    }
    ours = Tls(
        str(certificates["ca.pem"]),
        str(certificates["client.pem"]),
        str(certificates["client.key"]),
        "quintet.test",
    )
    with Server(G2P, api_key_file=key_file, **server_files) as server:
        with server.client(tls=ours, api_key=KEY) as client:
            assert client.generate("wagner").sequences[0].text == "W AE1 G N ER0"
        for tls in (
            Tls(ours.ca, server_name="quintet.test"),
            Tls(ours.ca, ours.cert, ours.key, "other.test"),
            None,
        ):
            with server.client(tls=tls, api_key=KEY, timeout_s=10) as client:
                assert failure_of(lambda: client.generate("wagner")).code() == Code.UNAVAILABLE


def test_a_key_has_a_highest_priority(tmp_path):
    """A request above the highest priority of its key is rejected.

    A request without a priority runs at most at the highest priority of its key.
    """
    keys = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("any", "normal", "low")}
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text(f"{keys['any']}\n{keys['normal']} normal\n{keys['low']}\tlow\n")
    with Server(G2P, api_key_file=file) as server:
        for key, allowed in (
            ("any", ("LOW", "NORMAL", "HIGH")),
            ("normal", ("LOW", "NORMAL")),
            ("low", ("LOW",)),
        ):
            with server.client(api_key=key) as client:
                assert client.generate("a").sequences
            for priority in ("LOW", "NORMAL", "HIGH"):
                with server.client(
                    api_key=key, call={"priority": f"PRIORITY_{priority}"}
                ) as client:
                    if priority in allowed:
                        assert client.generate("a").sequences
                    else:
                        error = failure_of(lambda client=client: client.generate("a"))
                        assert error.code() == Code.PERMISSION_DENIED
                        assert "call.priority" in error.details()
