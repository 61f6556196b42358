"""Tests of the load balancer files.

haproxy checks its file and runs in front of a server; the Envoy file is only parsed.
"""

import sys

import grpc
import pytest
import yaml

from deploy_files import listening, run, text
from quintet_rpc import Client, Tls
from server_process import SOURCE, eventually

sys.path.insert(0, str(SOURCE / "tools" / "reliability"))
import frames  # noqa: E402


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Certificate and key of localhost in one PEM file, the format of HAProxy."""
    folder = tmp_path_factory.mktemp("certs")
    run(
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        folder / "key.pem",
        "-out",
        folder / "cert.pem",
    )
    (folder / "quintet.pem").write_bytes(
        (folder / "cert.pem").read_bytes() + (folder / "key.pem").read_bytes()
    )
    return folder


def replaced(config: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in config, old
        config = config.replace(old, new)
    return config


def configuration(certificate, server, plain_port: int, tls_port: int) -> str:
    """Returns our configuration with local paths and ports and only one of the three servers."""
    config = replaced(
        text("haproxy/haproxy.cfg"),
        {
            "/etc/haproxy/certs": str(certificate),
            "bind :443": f"bind 127.0.0.1:{tls_port}",
            "127.0.0.1:50050": f"127.0.0.1:{plain_port}",
            "maxconn 20000": "maxconn 100",
            "port 9464": f"port {server.http_port}",
            "quintet-1:50051": server.target,
        },
    )
    return (
        "\n".join(
            line
            for line in config.splitlines()
            if "quintet-2" not in line and "quintet-3" not in line
        )
        + "\n"
    )


def test_haproxy_accepts_the_file(certificate, tmp_path):
    config = replaced(text("haproxy/haproxy.cfg"), {"/etc/haproxy/certs": str(certificate)})
    for name in ("quintet-1:", "quintet-2:", "quintet-3:"):
        config = replaced(config, {name: "127.0.0.1:"})
    (tmp_path / "haproxy.cfg").write_text(config)
    printed = run("/usr/sbin/haproxy", "-c", "-f", tmp_path / "haproxy.cfg")
    assert "[WARNING]" not in printed


def haproxy(server, certificate, folder):
    def command(plain_port, tls_port):
        (folder / "haproxy.cfg").write_text(
            configuration(certificate, server, plain_port, tls_port)
        )
        return ["/usr/sbin/haproxy", "-db", "-f", folder / "haproxy.cfg"]

    return listening(2, command, folder / "log")


def streamed(client) -> str:
    return "".join(answer.chunk.text for answer in client.stream("phoneme"))


def answers(client) -> bool:
    try:
        return bool(client.generate("phoneme").sequences)
    except grpc.RpcError:
        return False


def test_calls_through_haproxy(server, certificate, tmp_path):
    with server.client() as direct:
        expected = direct.generate("phoneme").sequences[0].text
    with haproxy(server, certificate, tmp_path) as (plain_port, tls_port):
        with Client(f"127.0.0.1:{plain_port}", timeout_s=60.0) as client:
            assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()
            assert client.generate("phoneme").sequences[0].text == expected
            assert streamed(client) == expected
        with Client(
            f"localhost:{tls_port}", timeout_s=60.0, tls=Tls(ca=str(certificate / "cert.pem"))
        ) as client:
            assert client.generate("phoneme").sequences[0].text == expected
            assert streamed(client) == expected


def test_haproxy_lets_only_the_service_through(server, certificate, tmp_path):
    with (
        haproxy(server, certificate, tmp_path) as (plain_port, _),
        grpc.insecure_channel(f"127.0.0.1:{plain_port}") as channel,
    ):
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert eventually(lambda: served(health), 30), (tmp_path / "log").read_text()
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(
                b"", timeout=10
            )
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED  # HTTP 404


def status_of_raw_call(port: int, *fields: tuple[str, str]) -> bytes:
    """Sends a call with the raw metadata `fields`.

    Returns its grpc-status, or b"" without a response.
    """
    with frames.connect(port) as connection:
        block = frames.header_block(
            frames.request_fields("/grpc.health.v1.Health/Check", more=fields)
        )
        connection.sendall(
            frames.frame(frames.SETTINGS, 1, 0)
            + frames.headers_frames(1, block)
            + frames.message_frame(1, b"")
        )
        received = b""
        try:
            while b"grpc-status" not in received:
                part = connection.recv(1 << 16)
                if not part:
                    break
                received += part
        except TimeoutError:
            pass
        return received.partition(b"grpc-status")[2][1:2]


def test_haproxy_keeps_back_what_the_servers_grpc_mishandles(server, certificate, tmp_path):
    with (
        haproxy(server, certificate, tmp_path) as (plain_port, _),
        Client(f"127.0.0.1:{plain_port}", timeout_s=60.0) as client,
    ):
        assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()
        assert status_of_raw_call(plain_port, ("x-small", "a" * 4000)) == b"0"
        # More than 8 KB would corrupt the HPACK table of a shared connection (CVE-2023-32731).
        assert status_of_raw_call(plain_port, ("x-large", "a" * 7000)) == b""
        # The value is not base64: gRPC closes the connection (CVE-2023-32732).
        assert status_of_raw_call(int(server.target.rpartition(":")[2]), ("x-bin", "!!!")) not in (
            b"",
            b"0",
        )
        assert status_of_raw_call(plain_port, ("x-bin", "!!!")) == b"0"
        assert answers(client)


def served(health) -> bool:
    try:
        return health(b"", timeout=10) == b"\x08\x01"  # SERVING
    except grpc.RpcError:
        return False


def test_envoy():
    config = yaml.safe_load(text("envoy/envoy.yaml"))
    (cluster,), (listener,) = (
        config["static_resources"]["clusters"],
        config["static_resources"]["listeners"],
    )
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert {route["match"]["prefix"] for route in routes} == {
        "/quintet.v1.Inference/",
        "/grpc.health.v1.Health/",
    }
    assert {route["route"]["cluster"] for route in routes} == {cluster["name"]}
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    assert endpoint["address"]["socket_address"]["port_value"] == 50051
    assert endpoint["health_check_config"]["port_value"] == 9464
    assert cluster["health_checks"][0]["http_health_check"]["path"] == "/readyz"
