"""A server with the HTTP API, and helpers for its tests."""

import dataclasses
import contextlib
import http.client
import json

import numpy as np
import openai

from server_process import Server, free_port


def floats(values) -> list[float]:
    """Rounds numbers of JSON to 32-bit floats, the type in quintet.v1."""
    return [float(np.float32(value)) for value in values]


@dataclasses.dataclass
class Response:
    status: int
    headers: dict
    body: bytes

    def json(self):
        return json.loads(self.body)


class HttpServer(Server):
    def _start(self, models, flags: dict) -> None:
        self.api_port = free_port()
        api = {"http_api_listen": f"127.0.0.1:{self.api_port}"}
        super()._start(models, {**api, **flags})

    def openai(self, **options) -> openai.OpenAI:
        options = {"api_key": "none", "max_retries": 0, "timeout": 60, **options}
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.api_port}/v1", **options)

    def fetch(self, method: str, path: str, body: bytes | None = None, **headers) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.api_port, timeout=60)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            # A server that refuses a large body answers and closes before it has read all of it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body, names)
            answer = connection.getresponse()
            return Response(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def post(self, path: str, body, **headers) -> Response:
        """Sends `body` as JSON; sends bytes and text unchanged."""
        if isinstance(body, str):
            body = body.encode()
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        return self.fetch("POST", path, body, **{"Content_Type": "application/json", **headers})
