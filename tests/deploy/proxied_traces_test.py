"""Traces of calls through HAProxy and two replicas, in the format of a real collector."""

import contextlib
import secrets

from balancer_test import answers, certificate, replaced
from deploy_files import listening, text
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from quintet.wire import pb
from rpc_client import RpcClient
from server_process import G2P, Server, eventually
from trace_collector import Collector, attributes, environment

__all__ = ["certificate"]  # a fixture
GENERATE = "quintet.v1.Inference/Generate"


def haproxy(servers, certificate, folder, others=None):
    """Runs HAProxy with our configuration in front of two servers.

    `others` maps further texts of the configuration to their replacements.
    """

    def command(plain_port, tls_port):
        changes = {
            "/etc/haproxy/certs": str(certificate),
            "bind :443": f"bind 127.0.0.1:{tls_port}",
            "127.0.0.1:50050": f"127.0.0.1:{plain_port}",
            "maxconn 20000": "maxconn 100",
            **(others or {}),
        }
        for number, server in enumerate(servers, 1):
            changes[f"quintet-{number}:50051 proto h2 check port 9464"] = (
                f"{server.target} proto h2 check port {server.http_port}"
            )
        config = replaced(text("haproxy/haproxy.cfg"), changes)
        lines = [line for line in config.splitlines() if "quintet-3" not in line]
        (folder / "haproxy.cfg").write_text("\n".join(lines) + "\n")
        return ["/usr/sbin/haproxy", "-db", "-f", folder / "haproxy.cfg"]

    return listening(2, command, folder / "log")


def test_a_trace_crosses_haproxy_to_either_replica(certificate, tmp_path):
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(Collector())
        with environment(collector.endpoint):
            servers = [stack.enter_context(Server(G2P)) for _ in range(2)]
        port, _ = stack.enter_context(haproxy(servers, certificate, tmp_path))
        client = stack.enter_context(RpcClient(f"127.0.0.1:{port}", timeout_s=60.0))
        assert eventually(lambda: answers(client), 30), (tmp_path / "log").read_text()
        callers = {}  # span ids by trace id
        request = pb.GenerateRequest(input={"text": "phoneme"})
        for _ in range(20):
            trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
            callers[trace_id] = span_id
            client.stub.Generate(
                request,
                metadata=[("traceparent", f"00-{trace_id}-{span_id}-01"), ("tracestate", "a=b")],
                timeout=60,
            )
        replicas = set()
        for trace_id, span_id in callers.items():
            spans = collector.wait(trace_id, GENERATE)
            (outer,) = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
            assert outer.parent_span_id.hex() == span_id and outer.trace_state == "a=b"
            assert [span.name for span in spans if span.parent_span_id == outer.span_id] == [
                "tokenize",
                "queue",
                "encode",
                "prefill",
                "decode",
            ]
        for exported in collector.requests():
            for of_resource in exported.resource_spans:
                resource = attributes(of_resource.resource)
                spans = of_resource.scope_spans[0].spans
                if any(span.trace_id.hex() in callers for span in spans):
                    replicas.add(resource["service.instance.id"])
        assert len(replicas) == 2
