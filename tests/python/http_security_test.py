"""Tests API keys, TLS and listen addresses of the HTTP API."""

import http.client
import json
import ssl
import subprocess

import openai
import pytest

from http_api import HttpServer
from server_process import BINARY, G2P, KEY, WRONG_KEY, free_port

BODY = {"prompt": "wagner"}


def test_keys(key_file):
    with HttpServer(G2P, api_key_file=key_file) as server:
        assert server.openai(api_key=KEY).completions.create(model="g2p", prompt="a").choices
        with pytest.raises(openai.PermissionDeniedError):
            server.openai(api_key=WRONG_KEY).models.list()
        without = server.post("/v1/completions", BODY)
        assert without.status == 401
        assert without.headers["WWW-Authenticate"] == "Bearer"
        # A client without a key learns nothing about the routes.
        for path in ("/v1/models", "/nothing", "/openapi.json", "/metrics"):
            answer = server.fetch("GET", path)
            assert answer.status == 401 and b"/v1/" not in answer.body
        assert server.fetch("GET", "/health").status == 200
        assert server.fetch("GET", "/nothing", Authorization=f"Bearer {KEY}").status == 404
        assert server.metric("quintet_requests_rejected_total", reason="AUTH") >= 5
        assert KEY not in server.log() and WRONG_KEY not in server.log()


def exchange(server, context: ssl.SSLContext) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", server.api_port, context=context, timeout=30
    )
    try:
        headers = {"Content-Type": "application/json"}
        for _ in range(3):  # on one connection
            connection.request("POST", "/v1/completions", json.dumps(BODY), headers)
            answer = connection.getresponse()
            body = answer.read()
        return answer.status, body
    finally:
        connection.close()


def test_tls(certificates):
    files = {"tls_cert": certificates["server.pem"], "tls_key": certificates["server.key"]}
    context = ssl.create_default_context(cafile=certificates["ca.pem"])
    context.check_hostname = False
    with HttpServer(G2P, **files) as server:
        status, body = exchange(server, context)
        assert status == 200 and json.loads(body)["choices"][0]["text"]
        with pytest.raises(ssl.SSLError):
            exchange(server, ssl.create_default_context())
        with pytest.raises((http.client.HTTPException, OSError)):  # plaintext
            server.post("/v1/completions", BODY)
        old = ssl.create_default_context(cafile=certificates["ca.pem"])
        old.check_hostname = False
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, OSError)):
            exchange(server, old)
        curl = ["curl", "-sS", "-m", "30", "--http1.1", "--cacert", str(certificates["ca.pem"])]
        url = f"https://quintet.test:{server.api_port}/v1/completions"
        resolve = ["--resolve", f"quintet.test:{server.api_port}:127.0.0.1"]
        stream = json.dumps({**BODY, "stream": True})
        done = subprocess.run(
            [*curl, *resolve, "--json", stream, url], capture_output=True, check=True, text=True
        )
        assert done.stdout.endswith("data: [DONE]\n\n")
        assert exchange(server, context)[0] == 200


def test_client_certificates(certificates):
    files = {
        "tls_cert": certificates["server.pem"],
        "tls_key": certificates["server.key"],
        "tls_client_ca": certificates["ca.pem"],
    }
    context = ssl.create_default_context(cafile=certificates["ca.pem"])
    context.check_hostname = False
    with HttpServer(G2P, **files) as server:
        with pytest.raises((ssl.SSLError, http.client.HTTPException, OSError)):
            exchange(server, context)
        context.load_cert_chain(certificates["client.pem"], certificates["client.key"])
        assert exchange(server, context)[0] == 200


def test_listen_addresses():
    for address, text in (
        ("0.0.0.0:0", "--http-api-listen: an address other than loopback needs --tls-cert"),
        ("nonsense", "--http-api-listen: cannot listen on nonsense"),
    ):
        command = [BINARY, "serve", "--model", str(G2P), "--http-api-listen", address]
        done = subprocess.run(
            [*command, "--listen", f"127.0.0.1:{free_port()}", "--http-listen", ""],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2 and text in done.stderr, done.stderr
