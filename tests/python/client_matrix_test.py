"""Every client against every operation that it has: server/CLIENTS.md holds the same table.

Operations: a whole answer, a stream, a batch, an error with its code, a cancelled request, a
deadline, an API key, and TLS. Answers equal those of quintet.v1. tools/try_kserve.sh runs the
operations of the client of kserve, which needs packages of its own.
"""

import asyncio
import gc
import hashlib
import json
import math
import pathlib
import re
import shutil
import subprocess
import threading

import httpx
import httpx2
import huggingface_hub
import numpy
import openai
import pytest
import tei_client
import tei_client.models
import text_generation
import tritonclient.grpc as triton

from http_api import HttpServer
from kserve_requests import Stream, texts
from quintet.rpc import Failure, Tls
from server_process import G2P, KEY, SOURCE, WRONG_KEY, eventually, words

SERVER_CLASS = HttpServer
OPERATIONS = ("unary", "stream", "batch", "error", "cancel", "deadline", "key", "tls")
WORDS = words(4)
DEADLINE_S = 0.3


class MatrixClient:
    """A client for one server. Each operation of OPERATIONS that it has is a method, except "key"
    and "tls", whose test calls unary().

    `key` and `ca` are the API key and the certificate authority's file of a server with TLS.
    unary() and stream() return the text for WORDS[0]. error() and deadline() raise the client's
    exception; text() returns the text of an exception. cancel() starts an endless request, waits
    until it has begun, and cancels it.
    """

    name = ""
    error_text = "num_beams"  # in the error of a bad request
    deadline_text = ""  # in the error of a request whose deadline passes

    def __init__(self, server: HttpServer, key: str = "", ca: pathlib.Path | None = None):
        self.server, self.key, self.ca = server, key, ca
        scheme = "https" if ca else "http"
        self.url = f"{scheme}://127.0.0.1:{server.api_port}"

    def text(self, error: BaseException) -> str:
        return f"{type(error).__name__} {error} {error!r}"


class Grpcio(MatrixClient):
    name = "grpcio"
    deadline_text = "DEADLINE_EXCEEDED"

    def _client(self, **options):
        if self.ca:
            options["tls"] = Tls(ca=str(self.ca))
        return self.server.client(api_key=self.key or None, **options)

    def unary(self):
        with self._client() as client:
            return client.generate(WORDS[0]).sequences[0].text

    def stream(self):
        with self._client() as client:
            return "".join(event.chunk.text for event in client.stream(WORDS[0]))

    def batch(self):
        with self._client() as client:
            return [list(e.values) for e in client.encode(WORDS).embeddings]

    def error(self):
        with self._client() as client:
            client.generate("a", {"num_beams": 99})

    def cancel(self):
        with self._client() as client:
            call = client.stream("a", {"max_new_tokens": 20000})
            next(call)
            call.cancel()

    def deadline(self):
        with self._client(timeout_s=DEADLINE_S) as client:
            client.generate("a", {"max_new_tokens": 20000})

    def text(self, error):
        found = Failure.of(error)
        return f"{found.code} {found.message}"


class Tritonclient(MatrixClient):
    name = "tritonclient"
    deadline_text = "DEADLINE_EXCEEDED"

    def _client(self):
        options = {}
        if self.ca:
            options = {"ssl": True, "root_certificates": str(self.ca)}
        self.headers = {"authorization": f"Bearer {self.key}"} if self.key else None
        return triton.InferenceServerClient(self.server.target, **options)

    def _infer(self, *values, **options):
        with self._client() as client:
            options = {"client_timeout": 60, "headers": self.headers, **options}
            answer = client.infer("g2p", [texts(*values)], **options)
            return [text.decode() for text in answer.as_numpy("text_output")[:, 0]]

    def unary(self):
        return self._infer(WORDS[0])[0]

    def stream(self):
        with self._client() as client, Stream(client, headers=self.headers) as stream:
            stream.send([texts(WORDS[0])], "g2p", parameters={"stream": True})
            parts = [one.as_numpy("text_output") for one in stream.until_final()]
        return "".join(part.reshape(-1)[0].decode() for part in parts)

    def batch(self):
        return self._infer(*WORDS)

    def error(self):
        self._infer("a", parameters={"num_beams": 99})

    def cancel(self):
        with self._client() as client:
            ended = threading.Event()
            call = client.async_infer(
                "g2p",
                [texts("a")],
                lambda result, error: ended.set(),
                parameters={"max_new_tokens": 20000},
            )
            assert eventually(lambda: self.server.metric("quintet_requests_running") == 1)
            call.cancel()
            assert ended.wait(30)

    def deadline(self):
        self._infer("a", parameters={"max_new_tokens": 20000}, client_timeout=DEADLINE_S)


class Openai(MatrixClient):
    name = "openai"
    deadline_text = "504"

    def _client(self):
        options = {"http_client": httpx2.Client(verify=str(self.ca))} if self.ca else {}
        return openai.OpenAI(
            base_url=self.url + "/v1", api_key=self.key or "none", max_retries=0, **options
        )

    def _create(self, prompt, stream=False, extra_headers=None, **body):
        return self._client().completions.create(
            model="g2p", prompt=prompt, stream=stream, extra_headers=extra_headers, extra_body=body
        )

    def unary(self):
        return self._create(WORDS[0]).choices[0].text

    def stream(self):
        return "".join(event.choices[0].text for event in self._create(WORDS[0], stream=True))

    def batch(self):
        return [choice.text for choice in self._create(WORDS).choices]

    def error(self):
        self._create("a", num_beams=99)

    def cancel(self):
        stream = self._create("a", stream=True, max_new_tokens=20000)
        next(iter(stream))
        stream.close()

    def deadline(self):
        timeout = {"X-Request-Timeout": str(DEADLINE_S)}
        self._create("a", extra_headers=timeout, max_new_tokens=20000)

    def text(self, error):
        return f"{error} {getattr(error, 'status_code', '')}"


class HuggingfaceHub(MatrixClient):
    name = "huggingface_hub"
    error_text = "temperature"
    deadline_text = "timed out"

    def _client(self, timeout=60.0):
        return huggingface_hub.InferenceClient(self.url, token=self.key or "none", timeout=timeout)

    def unary(self):
        return self._client().text_generation(WORDS[0])

    def stream(self):
        return "".join(self._client().text_generation(WORDS[0], stream=True))

    def batch(self):
        """Returns the first word's similarities to the others: this client has no other batch."""
        url = self.url + "/similarity"
        return self._client().sentence_similarity(WORDS[0], WORDS[1:], model=url)

    def error(self):
        self._client().text_generation("a", temperature=0.001)

    def cancel(self):
        stream = self._client().text_generation("a", stream=True, max_new_tokens=20000)
        next(stream)
        stream.close()

    def deadline(self):
        self._client(DEADLINE_S).text_generation("a", max_new_tokens=20000)

    def text(self, error):
        answer = getattr(error, "response", None)
        return f"{error} {answer.status_code if answer is not None else ''}"


class TextGeneration(MatrixClient):
    name = "text-generation"
    error_text = "temperature"
    deadline_text = "timed out"

    def _client(self, timeout=60.0):
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else None
        return text_generation.Client(self.url, headers=headers, timeout=timeout)

    def unary(self):
        return self._client().generate(WORDS[0]).generated_text

    def stream(self):
        return "".join(event.token.text for event in self._client().generate_stream(WORDS[0]))

    def error(self):
        self._client().generate("a", temperature=0.001)

    def cancel(self):
        stream = self._client().generate_stream("a", max_new_tokens=20000)
        next(stream)
        stream.close()

    def deadline(self):
        self._client(DEADLINE_S).generate("a", max_new_tokens=20000)


def long_texts(start: str) -> list[str]:
    """Returns texts that take an encoder longer than 30 ms. Each `start` gives other texts, so that
    the encoder cache does not have their states."""
    return [f"{start}{turn} " + "wagner " * 500 for turn in range(64)]


class TeiClient(MatrixClient):
    """This client cannot generate, and returns the JSON of an error as if it were an answer."""

    name = "tei-client"
    error_text = "truncation_direction"
    deadline_text = "ReadTimeout"

    def _client(self, timeout=60.0):
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        verify = str(self.ca) if self.ca else True
        return tei_client.HttpClient(self.url, headers=headers, verify=verify, timeout=timeout)

    def batch(self):
        return self._client().embed(WORDS, normalize=False)

    def error(self):
        left = tei_client.models.TruncationDirection.Left
        raise ValueError(self._client().embed(WORDS, truncation_direction=left))

    def unary(self):
        (tokens,) = self._client().tokenize(WORDS[0])
        return self._client().decode([tokens.get_ids()])[0]

    def cancel(self):
        async def main():
            task = asyncio.create_task(self._client().async_embed(long_texts("cancel")))
            running = lambda: self.server.metric("quintet_requests_running") > 0
            assert await asyncio.to_thread(eventually, running)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())

    def deadline(self):
        self._client(httpx.Timeout(60.0, read=0.03)).embed(long_texts("deadline"))


class Curl(MatrixClient):
    name = "curl"
    deadline_text = "504"

    def _command(self, body, path="/v1/completions", *flags):
        command = ["curl", "-sS", "-N", "-m", "60", "--http1.1", *flags]
        if self.ca:
            command += ["--cacert", str(self.ca)]
        if self.key:
            command += ["-H", f"Authorization: Bearer {self.key}"]
        return [*command, "--json", json.dumps(body), self.url + path]

    def _run(self, body, *flags) -> str:
        done = subprocess.run(
            self._command(body, "/v1/completions", *flags),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def _status(self, body, *flags) -> None:
        answer = self._run(body, "-w", "\n%{http_code}", *flags)
        if not answer.endswith("\n200"):
            raise RuntimeError(answer)

    def unary(self):
        self._status({"prompt": WORDS[0]})
        return json.loads(self._run({"prompt": WORDS[0]}))["choices"][0]["text"]

    def stream(self):
        lines = self._run({"prompt": WORDS[0], "stream": True}).split("\n\n")
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return "".join(event["choices"][0]["text"] for event in events)

    def batch(self):
        return [choice["text"] for choice in json.loads(self._run({"prompt": WORDS}))["choices"]]

    def error(self):
        self._status({"prompt": "a", "num_beams": 99})

    def cancel(self):
        body = {"prompt": "a", "stream": True, "max_new_tokens": 20000}
        with subprocess.Popen(self._command(body), stdout=subprocess.PIPE) as process:
            assert any(line.startswith(b"data: ") for line in process.stdout)
            process.kill()

    def deadline(self):
        body = {"prompt": "a", "max_new_tokens": 20000}
        self._status(body, "-H", f"X-Request-Timeout: {DEADLINE_S}")


CLIENTS = [Grpcio, Tritonclient, Openai, HuggingfaceHub, TextGeneration, TeiClient, Curl]


def operations(client: type[MatrixClient]) -> list[str]:
    """Every client has "key" and "tls", because their test needs only unary()."""
    return [name for name in OPERATIONS if name in ("key", "tls") or hasattr(client, name)]


def cells(*wanted: str):
    return [(client, name) for client in CLIENTS for name in wanted if name in operations(client)]


def parametrized(*wanted: str):
    return pytest.mark.parametrize(
        "client, operation",
        cells(*wanted),
        ids=lambda value: value if isinstance(value, str) else value.name,
    )


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A server whose model never ends a sequence."""
    folder = tmp_path_factory.mktemp("endless") / "g2p"
    shutil.copytree(G2P, folder)
    config = folder / "generation_config.json"
    fields = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps({**fields, "suppress_tokens": [1]}))
    with HttpServer(folder, limit_new_tokens=20000, cache_memory=512) as running:
        yield running


@pytest.fixture(scope="module")
def secure(certificates, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.touch(mode=0o600)
    keys.write_text(hashlib.sha256(KEY.encode()).hexdigest() + "\n")
    files = {"tls_cert": certificates["server.pem"], "tls_key": certificates["server.key"]}
    with HttpServer(G2P, api_key_file=keys, **files) as running:
        yield running


@pytest.fixture(scope="module")
def expected(server):
    with server.client() as client:
        return [client.generate(word).sequences[0].text for word in WORDS]


@parametrized("unary", "stream")
def test_texts(server, expected, client, operation):
    wanted = WORDS[0] if client is TeiClient else expected[0]  # which decodes its own tokens
    assert getattr(client(server), operation)() == wanted


@pytest.fixture(scope="module")
def encoder(tiny_models):
    """A server with an embedding model. The client of TEI requires one."""
    with HttpServer(tiny_models["t5-encoder"]) as running:
        yield running


@parametrized("batch")
def test_batches(server, encoder, expected, client, operation):
    server = encoder if client in (HuggingfaceHub, TeiClient) else server
    found = getattr(client(server), operation)()
    if client in (Grpcio, HuggingfaceHub, TeiClient):
        with server.client() as rpc:
            rows = [numpy.frombuffer(e.values, "<f4") for e in rpc.encode(WORDS).embeddings]
        if client is HuggingfaceHub:
            first, *others = [row.astype(float) for row in rows]
            cosines = [x @ first / math.sqrt((x @ x) * (first @ first)) for x in others]
            assert found == pytest.approx(cosines, abs=1e-12)
        elif client is Grpcio:
            assert [bytes(values) for values in found] == [row.tobytes() for row in rows]
        else:
            assert [numpy.float32(values).tobytes() for values in found] == [
                row.tobytes() for row in rows
            ]
    else:
        assert found == expected


@parametrized("error")
def test_errors(server, encoder, client, operation):
    tested = client(encoder if client is TeiClient else server)
    with pytest.raises(Exception) as raised:
        getattr(tested, operation)()
    assert tested.error_text in tested.text(raised.value), tested.text(raised.value)


def cancelled(server) -> float:
    return sum(
        sample.value
        for sample in server.samples()
        if sample.name == "quintet_requests_finished_total"
        and sample.labels["reason"] in ("cancelled", "deadline")
    )


def at_rest(server) -> bool:
    return (
        server.metric("quintet_requests_running") == 0
        and server.metric("quintet_open_calls") == 0
        and server.metric("quintet_kv_cache_usage_ratio") == 0
    )


@parametrized("cancel")
def test_cancelled_requests_end(endless, encoder, client, operation):
    server = encoder if client is TeiClient else endless
    before = cancelled(server)
    getattr(client(server), operation)()
    gc.collect()  # some clients close a connection only then
    check_ended(server, before, client)
    assert cancelled(server) > before


@parametrized("deadline")
def test_deadlines(endless, encoder, client, operation):
    server = encoder if client is TeiClient else endless
    before = cancelled(server)
    tested = client(server)
    with pytest.raises(Exception) as raised:
        getattr(tested, operation)()
    assert tested.deadline_text in tested.text(raised.value), tested.text(raised.value)
    del raised
    gc.collect()
    check_ended(server, before, client)


def check_ended(server, before: float, client) -> None:
    """Waits until one request has ended early and nothing runs.

    TeiClient sends a batch, in which any number of inputs may end early.
    """
    if client is not TeiClient:
        assert eventually(lambda: cancelled(server) == before + 1)
    assert eventually(lambda: at_rest(server))


@parametrized("key", "tls")
def test_keys_and_tls(secure, certificates, expected, monkeypatch, client, operation):
    ca = certificates["ca.pem"]
    # Clients that use the package requests read the certificate authority from this variable.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ca))
    good = client(secure, KEY, ca)
    assert good.unary() == (WORDS[0] if client is TeiClient else expected[0])
    if operation == "key":
        for key in ("", WRONG_KEY):
            bad = client(secure, key, ca)
            with pytest.raises(Exception) as raised:
                bad.unary()
            assert WRONG_KEY not in str(raised.value)
        assert eventually(lambda: secure.metric("quintet_requests_rejected_total", reason="AUTH"))
        return
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    other = client(secure, KEY, certificates["client.pem"])  # not the authority
    with pytest.raises(Exception):
        other.unary()


def test_the_table_of_clients():
    """server/CLIENTS.md says which operations each client has."""
    table = {}
    for line in (SOURCE / "server" / "CLIENTS.md").read_text(encoding="utf-8").splitlines():
        row = [cell.strip().strip("`") for cell in line.strip("| ").split("|")]
        if len(row) == len(OPERATIONS) + 1:
            table[row[0]] = row[1:]
    assert [name.lower() for name in table.pop("client")] == list(OPERATIONS)
    assert not re.search("[^-]", "".join(table.pop("---")))
    table.pop("kserve")
    assert set(table) == {client.name for client in CLIENTS}
    for client in CLIENTS:
        have = operations(client)
        marks = {name: mark for name, mark in zip(OPERATIONS, table[client.name])}
        for name, mark in marks.items():
            assert (mark != "no") == (name in have), (client.name, name)
