"""A trace collector for tests: it takes OTLP over HTTP with JSON, and parses it with the messages
of the package opentelemetry-proto."""

import base64
import contextlib
import gzip
import http.server
import json
import os
import threading
from collections.abc import Callable
from unittest import mock

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from server_process import eventually


def parse(body: bytes) -> ExportTraceServiceRequest:
    """Parses a request. OTLP writes ids in hexadecimal, where protobuf's JSON has base64."""

    def converted(value):
        if isinstance(value, list):
            return [converted(one) for one in value]
        if not isinstance(value, dict):
            return value
        ids = {"traceId": 16, "spanId": 8, "parentSpanId": 8}
        result = {}
        for key, one in value.items():
            if key in ids:
                assert one == one.lower() and len(one) == 2 * ids[key]
                one = base64.b64encode(bytes.fromhex(one)).decode()
            result[key] = converted(one)
        return result

    return json_format.ParseDict(converted(json.loads(body)), ExportTraceServiceRequest())


def attributes(owner) -> dict:
    """Returns the attributes of a span or of a resource."""
    found = {}
    for pair in owner.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        if kind == "array_value":
            value = [one.string_value for one in value.values]
        assert pair.key not in found
        found[pair.key] = value
    return found


class Collector:
    """`answer` returns the HTTP status of the response to request number 0, 1, ..."""

    def __init__(self, answer: Callable[[int], int] = lambda number: 200):
        self.bodies: list[bytes] = []
        self.headers: list[dict] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                number = len(collector.bodies)
                assert self.path == "/v1/traces"
                collector.headers.append(dict(self.headers))
                if self.headers["content-encoding"] == "gzip":
                    body = gzip.decompress(body)
                collector.bodies.append(body)
                with contextlib.suppress(OSError):  # the server may have stopped
                    self.send_response(answer(number))
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def requests(self) -> list[ExportTraceServiceRequest]:
        return [parse(body) for body in list(self.bodies)]

    def spans(self, trace_id: str | None = None) -> list[Span]:
        """Returns all spans so far, or those of one trace (in hexadecimal)."""
        return [
            span
            for request in self.requests()
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
            if trace_id is None or span.trace_id.hex() == trace_id
        ]

    def wait(self, trace_id: str, root: str) -> list[Span]:
        """Waits for the spans of a trace, whose outermost span is named `root`. The server exports
        the spans of a request together, after those of the RPCs that it made."""
        assert eventually(lambda: any(s.name == root for s in self.spans(trace_id))), trace_id
        return self.spans(trace_id)


@contextlib.contextmanager
def environment(endpoint: str, **variables: str):
    """Sets the variables of tracing for servers that are started meanwhile."""
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **variables}
    with mock.patch.dict(os.environ, settings):
        yield
