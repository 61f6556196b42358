"""Tests quintet.ray.serve on a cluster of several nodes (tools/try_ray.sh runs this): the answers
of a server, errors, HTTP, replacement under load, lost replicas, scaling."""

import concurrent.futures
import http.client
import itertools
import json
import os
import pathlib
import signal
import threading
import time
import urllib.error
import urllib.request

import pytest
from ray_nodes import descendants, own_processes, ray_nodes

import quintet
import quintet.ray.serve
from quintet.rpc import Failure
from ray import serve
from rpc_client import RpcClient
from server_process import G2P, KEY, Server, eventually, failure_of, free_port, words

SMALL = {"cache_memory": 64, "num_cpus": 0.5}
REPLICAS, SERVERS = "ray::ServeReplica", " serve --model"
# Decodes long enough that tests can act meanwhile: seconds on an idle CPU.
LONG = {"max_new_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module")
def ports():
    """The gRPC and the HTTP port of Ray Serve on a cluster of two nodes."""
    grpc_port, http_port = free_port(), free_port()
    with ray_nodes({"num_cpus": 2}, {"num_cpus": 2}):
        serve.start(
            proxy_location="HeadOnly",
            grpc_options=quintet.ray.serve.grpc_options(port=grpc_port),
            http_options={"port": http_port},
        )
        yield grpc_port, http_port
        serve.shutdown()


@pytest.fixture
def target(ports):
    return f"127.0.0.1:{ports[0]}"


@pytest.fixture
def url(ports):
    return f"http://127.0.0.1:{ports[1]}"


def run(replicas=2, **options) -> None:
    """Deploys the shipped model, in place of what is deployed."""
    serve.run(quintet.ray.serve.application(G2P, replicas=replicas, **{**SMALL, **options}))


def post(url: str, body: dict, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


# ---- The same answers ----


def answers(client: RpcClient) -> list:
    """The responses of all methods, without what differs from call to call, and the text of the
    chunks of a stream."""
    *chunks, last = client.stream("phoneme")
    made = [
        client.generate("phoneme", {"num_beams": 4, "num_return_sequences": 2, "logprobs": True}),
        last.complete,
        client.encode(["one", "two"]),
        *sorted(client.encode_stream(["one", "two", "three"]), key=lambda one: one.item_id),
        client.score("phoneme", ["F OW1", "a"]),
        client.tokenize("phoneme"),
        client.detokenize([5, 6]),
    ]
    for message in made:
        message.info.Clear()
    return ["".join(message.chunk.text for message in chunks), *made]


def test_answers_equal_those_of_a_server(target, url):
    run()
    with (
        Server(G2P, cache_memory=64, http_api_listen=f"127.0.0.1:{free_port()}") as server,
        server.client() as own,
        RpcClient(target, attempts=1, timeout_s=60) as client,
    ):
        assert answers(client) == answers(own)
        for call in (
            lambda one: one.generate("a", {"num_beams": 99}),
            lambda one: one.stream("a", {"num_beams": 99}),
            lambda one: one.encode_stream([[1 << 20]]),
            lambda one: one.classify(["a"]),
            lambda one: one.generate("a" * (1 << 20) + "a"),
        ):
            got, expected = failure_of(lambda: call(client)), failure_of(lambda: call(own))
            assert Failure.of(got).__dict__ | {"request_id": ""} == (
                Failure.of(expected).__dict__ | {"request_id": ""}
            )
        assert client.info().model == "g2p"
    with quintet.Client(target) as client:
        assert client.health() == "SERVING"
        assert [model.name for model in client.list_models()] == ["g2p"]


def test_deadlines_and_cancelled_calls(target):
    run(1)
    with quintet.Client(target, attempts=1) as client:
        with pytest.raises(quintet.DeadlineExceededError):
            client.generate("a", timeout=0.3, **LONG)
        with client.stream("a", **LONG) as stream:
            assert next(stream).token_ids
        # Both calls are gone: the only replica answers at once.
        assert client.generate("phoneme").text == "F OW1 N IY0 M"


def test_http(url):
    run()
    status, body = post(f"{url}/v1/completions", {"prompt": "wagner"})
    assert status == 200 and json.loads(body)["choices"][0]["text"] == "W AE1 G N ER0"
    assert post(f"{url}/v1/completions", {"prompt": "a", "num_beams": 99})[0] == 400
    assert post(f"{url}/nothing", {})[0] == 404
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    parts = iter([b'{"prompt": ', b'"wagner"}'])
    json_type = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", parts, json_type, encode_chunked=True)
    answer = connection.getresponse()
    assert answer.status == 200 and b"W AE1 G N ER0" in answer.read()
    status, body = post(f"{url}/embed", {"inputs": ["a", "b"]})
    assert status == 200 and len(json.loads(body)) == 2
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as models:
        assert [one["id"] for one in json.loads(models.read())["data"]] == ["g2p"]


def test_http_streams(url):
    """The first event arrives while the generation continues."""
    run(1)
    body = {"prompt": "a", "stream": True, "max_tokens": 2000, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        while not (line := answer.readline()).startswith(b"data: {"):
            assert line, "the stream has ended"
        assert json.loads(line[6:])["choices"][0]["finish_reason"] is None


# ---- Replacement, loss, scaling ----


class Load:
    """Calls of several clients, without retries, until it is left. Collects failures."""

    def __init__(self, target: str, url: str):
        self._target, self._url = target, url
        self._stop = threading.Event()
        self.calls, self.failures = 0, []
        self._threads = [
            threading.Thread(target=self._repeat, args=(kind,))
            for kind in (self._unary, self._stream, self._http) * 2
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, call) -> None:
        with quintet.Client(self._target, attempts=1, timeout=120) as client:
            for word in itertools.cycle(words(500)):
                if self._stop.is_set():
                    return
                try:
                    call(client, word)
                except Exception as error:  # noqa: BLE001  a test looks at it
                    self.failures.append(f"{call.__name__}: {error!r}")
                self.calls += 1

    def _unary(self, client: quintet.Client, word: str) -> None:
        assert client.generate(word).text

    def _stream(self, client: quintet.Client, word: str) -> None:
        stream = client.stream(word)
        assert "".join(chunk.text for chunk in stream) == stream.result.text

    def _http(self, client: quintet.Client, word: str) -> None:
        status, body = post(f"{self._url}/v1/completions", {"prompt": word})
        assert status == 200, body


def test_no_request_fails_while_replicas_are_replaced(target, url):
    run(2)
    before = own_processes(REPLICAS)
    servers = own_processes(SERVERS)
    assert len(before) == len(servers) == 2
    with Load(target, url) as load:
        assert eventually(lambda: load.calls > 50, 120)
        run(2, max_input_tokens=512)  # another version of the deployment
        assert eventually(lambda: not own_processes(REPLICAS) & before, 300)
        calls = load.calls
        assert eventually(lambda: load.calls > calls + 50, 120)
    assert load.failures == []
    assert len(own_processes(REPLICAS)) == 2
    assert eventually(lambda: not own_processes(SERVERS) & servers, 60), "servers have outlived"
    with quintet.Client(target) as client:
        assert client.info().limits.max_input_tokens == 512


@pytest.mark.parametrize("victim", [REPLICAS, SERVERS])
def test_a_killed_replica_loses_only_its_calls(target, victim):
    """Kills the process of a replica, or its server. The calls that ran on it end as UNAVAILABLE,
    and those on the other replica go on; clients with retries see no failure."""
    run(2)
    with concurrent.futures.ThreadPoolExecutor(16) as threads, quintet.Client(target) as retrying:
        plain = [quintet.Client(target, attempts=1) for _ in range(2)]
        calls = [threads.submit(plain[i % 2].generate, "a", timeout=300, **LONG) for i in range(8)]
        repeated = [threads.submit(retrying.generate, "a", timeout=300, **LONG) for _ in range(4)]
        time.sleep(1)
        assert not any(call.done() for call in calls), "the calls are too short for this machine"
        alive = own_processes(victim)
        assert len(alive) == 2
        killed = min(alive)
        child = descendants(killed)
        os.kill(killed, signal.SIGKILL)
        outcomes = []
        for call in calls:
            try:
                outcomes.append(call.result(300))
            except quintet.Error as error:
                outcomes.append(error)
        lost = [one for one in outcomes if isinstance(one, Exception)]
        assert 0 < len(lost) < len(calls), outcomes
        for error in lost:
            assert isinstance(error, quintet.UnavailableError), repr(error)
            assert error.reason == "NOT_READY" and error.retry_after
        assert all(call.result(300).text for call in repeated)
        # No process of the replica is left, and another takes its place.
        assert eventually(lambda: not any(os.path.exists(f"/proc/{one}") for one in child), 30)
        assert eventually(lambda: len(own_processes(SERVERS)) == 2, 120)
        for client in plain:
            client.close()


def test_replicas_follow_the_requests(target):
    """The number of replicas grows with the requests and falls again."""
    scaling = {
        "min_replicas": 1,
        "max_replicas": 3,
        "target_ongoing_requests": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 3,
        "metrics_interval_s": 0.5,
        "look_back_period_s": 2,
    }
    run((1, 3), deployment={"autoscaling_config": scaling})
    assert eventually(lambda: len(own_processes(REPLICAS)) == 1, 120)
    stop = threading.Event()

    def work() -> None:
        with quintet.Client(target) as client:
            while not stop.is_set():
                client.generate("a", max_new_tokens=300, ignore_eos=True)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        assert eventually(lambda: len(own_processes(REPLICAS)) == 3, 120)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert eventually(lambda: len(own_processes(REPLICAS)) == 1, 120)


def test_api_keys(target, url, key_file):
    """The replicas check them."""
    run(1, flags={"api_key_file": key_file})
    with quintet.Client(target, api_key=KEY) as client:
        assert client.generate("phoneme").text == "F OW1 N IY0 M"
    with quintet.Client(target) as client, pytest.raises(quintet.UnauthenticatedError):
        client.generate("phoneme")
    assert post(f"{url}/v1/completions", {"prompt": "a"})[0] == 401
    allowed = post(f"{url}/v1/completions", {"prompt": "a"}, Authorization=f"Bearer {KEY}")
    assert allowed[0] == 200


def test_a_full_queue(target):
    """Requests beyond those that replicas run and proxies hold end as RESOURCE_EXHAUSTED."""
    run(1, max_ongoing_requests=1, max_queued_requests=1)
    with quintet.Client(target, attempts=1) as client:
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            calls = [threads.submit(client.generate, "a", timeout=120, **LONG) for _ in range(8)]
            failures = [call.exception(120) for call in calls]
        full = [one for one in failures if one is not None]
        assert full and all(isinstance(one, quintet.ResourceExhaustedError) for one in full)
        assert all(one.reason == "QUEUE_FULL" and one.retry_after for one in full)
        assert len(full) < 8


def test_a_model_that_cannot_be_loaded(target, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    application = quintet.ray.serve.application(tmp_path, **SMALL)
    with pytest.raises(RuntimeError):
        serve.run(application, name="broken", route_prefix="/broken")
    message = serve.status().applications["broken"].deployments["quintet"].message
    assert "quintet serve ended with code" in message, message
    serve.delete("broken")


def test_settings_of_a_configuration_file():
    """deploy/ray/serve.yaml builds an application."""
    from ray.serve.schema import ServeDeploySchema

    yaml = pytest.importorskip("yaml")
    file = pathlib.Path(__file__).resolve().parents[3] / "deploy" / "ray" / "serve.yaml"
    config = ServeDeploySchema(**yaml.safe_load(file.read_text("utf-8")))
    assert config.grpc_options.grpc_servicer_functions == [quintet.ray.serve.SERVICER]
    application = config.applications[0]
    assert application.import_path == "quintet.ray.serve:build"
    built = quintet.ray.serve.build(application.args)
    assert isinstance(built, serve.Application)
