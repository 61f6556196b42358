"""Tests of the administration service with real clients: grpcio for quintet.admin.v1, tritonclient
for KServe's methods, `quintet admin` on the command line, and signals."""

import concurrent.futures
import json
import signal
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest
import tritonclient.grpc as triton
import tritonclient.utils

import quintet
from admin_client import ADMIN_KEY, AdminServer, Checkpoint
from server_process import BINARY, G2P, KEY, Server, eventually, failure_of, free_port

AUTHORIZATION = {"authorization": f"Bearer {ADMIN_KEY}"}


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "g2p")


@pytest.fixture
def server(tmp_path, checkpoint):
    with AdminServer(tmp_path, {"g2p": (checkpoint.folder, {})}) as running:
        yield running
    assert running.process.returncode == 0


def answer(server, model: str = "") -> str:
    with server.client(call={"model": model}) as client:
        return client.generate("phoneme").sequences[0].text


def info(server, model: str = ""):
    with server.client(call={"model": model}) as client:
        return client.info()


def test_a_model_is_reloaded_unloaded_and_loaded(server, checkpoint):
    first = answer(server)
    assert server.listed().version == 1
    checkpoint.use(1)
    reloaded = server.admin("ReloadModel", "g2p")
    assert (reloaded.model.version, reloaded.drained_first) == (2, False)
    assert server.state() == "SERVING"
    second = answer(server)
    assert second != first
    assert eventually(lambda: server.listed().weights_sha256 == checkpoint.hashes[1])
    assert eventually(lambda: server.listed().retired_versions == 0)
    unloaded = server.admin("UnloadModel", "g2p")
    assert (unloaded.model.version, unloaded.model.ready) == (0, False)
    assert server.get("/readyz")[0] == 503 and server.get("/healthz")[0] == 200
    error = failure_of(lambda: answer(server))
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    server.admin("UnloadModel", "g2p")  # once more changes nothing
    checkpoint.use(0)
    assert server.admin("LoadModel").model.version == 3  # the only model needs no name
    assert server.admin("LoadModel", "g2p").model.version == 3
    assert server.get("/readyz")[0] == 200
    assert answer(server) == first
    with server.client() as client:
        assert client.info().model_version == 3
        assert client.generate("phoneme").info.model_version == 3


def test_a_failed_reload_leaves_the_version_that_serves(server, checkpoint):
    first = answer(server)
    checkpoint.write(checkpoint.versions[1][:-1])
    error = failure_of(lambda: server.admin("ReloadModel", "g2p"))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert str(checkpoint.folder) not in error.details()
    listed = server.listed()
    assert listed.version == 1 and listed.failure == error.details()
    assert server.state() == "SERVING" and server.get("/readyz")[0] == 200
    checkpoint.remove()
    assert failure_of(lambda: server.admin("ReloadModel")).code() == error.code()
    assert answer(server) == first
    assert server.metric("quintet_model_loads_total", outcome="failed") == 2
    assert server.metric("quintet_model_loads_total", outcome="loaded") == 1
    assert eventually(lambda: "model g2p: was not loaded: " in server.log())
    assert eventually(lambda: "version 1 serves" in server.log())
    checkpoint.use(1)
    assert server.admin("ReloadModel").model.version == 2
    assert server.listed().failure == ""
    assert answer(server) != first


def test_only_models_of_the_configuration(server):
    for method in ("LoadModel", "ReloadModel", "UnloadModel"):
        for name in ("other", str(G2P), "../g2p"):
            error = failure_of(lambda m=method, n=name: server.admin(m, n))
            assert error.code() == grpc.StatusCode.NOT_FOUND
            assert error.details().startswith("model: ")


def test_a_key_of_an_administrator_is_needed(server):
    for key, code in (
        ("", grpc.StatusCode.UNAUTHENTICATED),
        (KEY, grpc.StatusCode.PERMISSION_DENIED),
    ):
        for method in ("ListModels", "UnloadModel", "ReloadConfiguration"):
            assert failure_of(lambda m=method, k=key: server.admin(m, key=k)).code() == code
    # The service is not on the address of calls.
    with grpc.insecure_channel(server.target) as channel:
        for path in (
            "/quintet.admin.v1.Admin/ListModels",
            "/inference.GRPCInferenceService/RepositoryModelUnload",
        ):
            call = channel.unary_unary(path)
            metadata = [("authorization", f"Bearer {ADMIN_KEY}")]
            error = failure_of(lambda c=call, m=metadata: c(b"", metadata=m))
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    # And calls are not on the address of administration.
    with grpc.insecure_channel(server.admin_target) as channel:
        call = channel.unary_unary("/quintet.v1.Inference/ListModels")
        metadata = [("authorization", f"Bearer {ADMIN_KEY}")]
        error = failure_of(lambda: call(b"", metadata=metadata))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "flags, text",
    [
        (["--admin-listen", "127.0.0.1:0"], "--admin-api-key-file"),
        (["--admin-listen", "0.0.0.0:0", "--allow-plaintext"], "--tls-cert"),
        (["--admin-listen", "127.0.0.1"], "--admin-listen"),
    ],
)
def test_the_address_is_checked(flags, text):
    command = [BINARY, "serve", "--model", G2P, "--listen", "127.0.0.1:0", "--http-listen", ""]
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert text in done.stderr


def test_kserve_clients_load_and_unload(server, checkpoint):
    with triton.InferenceServerClient(server.admin_target) as client:
        assert client.is_server_ready() and client.is_model_ready("g2p")
        index = client.get_model_repository_index(headers=AUTHORIZATION)
        assert [(m.name, m.version, m.state) for m in index.models] == [("g2p", "1", "READY")]
        first = answer(server)
        checkpoint.use(1)
        client.load_model("g2p", headers=AUTHORIZATION)
        assert server.listed().version == 2
        assert answer(server) != first
        client.unload_model("g2p", headers=AUTHORIZATION)
        index = client.get_model_repository_index(headers=AUTHORIZATION)
        assert [m.state for m in index.models] == ["UNAVAILABLE"]
        assert not client.is_model_ready("g2p") and not client.is_server_ready()
        for refused, code in (
            (lambda: client.load_model("other", headers=AUTHORIZATION), "NOT_FOUND"),
            (lambda: client.load_model("g2p", headers=AUTHORIZATION, config="{}"), "INVALID"),
            (lambda: client.load_model("g2p"), "UNAUTHENTICATED"),
        ):
            with pytest.raises(tritonclient.utils.InferenceServerException, match=code):
                refused()
        client.load_model("g2p", headers=AUTHORIZATION)
        assert client.is_model_ready("g2p")


def test_the_command_line(server, checkpoint, tmp_path):
    key = tmp_path / "key"
    key.write_text(ADMIN_KEY + "\n")

    def admin(*arguments, key_file=key) -> subprocess.CompletedProcess:
        command = [BINARY, "admin", *arguments, "--target", server.admin_target]
        return subprocess.run(
            [*command, "--key-file", key_file],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert admin("list").stdout.startswith("g2p\tSERVING\tversion 1")
    checkpoint.use(1)
    assert admin("reload", "g2p").stdout.startswith("g2p\tSERVING\tversion 2")
    listed = json.loads(admin("list", "--output", "json").stdout)
    assert listed["models"][0]["version"] == "2"
    assert admin("unload").stdout.startswith("g2p\tUNLOADED\tversion 0")
    assert admin("load", "g2p").returncode == 0
    assert admin("reload-configuration").stdout == "g2p\tunchanged\tversion 3\n"
    failed = admin("reload", "other")
    assert failed.returncode == 4 and "no model of this name" in failed.stderr
    assert admin("list", "g2p").returncode == 2
    assert admin("remove").returncode == 2
    assert admin("list", key_file=tmp_path / "absent").returncode == 2


def test_the_configuration_adds_changes_and_removes_models(server, checkpoint, tmp_path):
    other = Checkpoint(tmp_path / "other")
    other.use(1)
    first = answer(server, "g2p")
    server.configure({"g2p": (checkpoint.folder, {}), "two": (other.folder, {"max_queue": 7})})
    changes = {c.model: c for c in server.admin("ReloadConfiguration").changes}
    actions = type(changes["g2p"]).Action
    assert changes["g2p"].action == actions.Value("ACTION_UNCHANGED")
    assert changes["two"].action == actions.Value("ACTION_LOADED")
    assert answer(server, "g2p") == first != answer(server, "two")
    server.configure({"g2p": (checkpoint.folder, {"max_queue": 9}), "two": (other.folder, {})})
    changes = {c.model: c for c in server.admin("ReloadConfiguration").changes}
    assert {c.action for c in changes.values()} == {actions.Value("ACTION_REPLACED")}
    assert info(server, "g2p").limits.max_queue_requests == 9
    assert info(server, "two").model_version == 2
    assert server.metric("quintet_ready", model_name="two") == 1
    server.configure({"two": (other.folder, {})})
    changes = {c.model: c for c in server.admin("ReloadConfiguration").changes}
    assert changes["g2p"].action == actions.Value("ACTION_UNLOADED")
    assert [model.model for model in server.admin("ListModels").models] == ["two"]
    assert failure_of(lambda: answer(server, "g2p")).code() == grpc.StatusCode.NOT_FOUND
    # None: the metrics of the process.
    names = {"two", "none", None}
    assert eventually(lambda: {s.labels.get("model_name") for s in server.samples()} == names)


@pytest.mark.parametrize(
    "text, message",
    [
        ('model = ["a={g2p}"]\n[models.a]\nmax_queue', "serve.toml:3"),
        ('model = ["a=/nonexistent"]', "/nonexistent"),
        ('model = ["a={g2p}", "a={g2p}"]', "given twice"),
        ('model = ["a={g2p}"]\n[models.b]\nmax_queue = 3', "no model of this name"),
        ('model = ["a={g2p}"]\n[models.a]\nidle_unload = "soon"', "models.a.idle_unload"),
        ('model = ["a={g2p}"]\n[models.a]\nmax_queue = 0', "models.a.max_queue"),
        ("listen = 5", "required"),
    ],
)
def test_an_invalid_configuration_changes_nothing(server, text, message):
    first = answer(server)
    server.config.write_text(text.replace("{g2p}", str(G2P)) + "\n")
    error = failure_of(lambda: server.admin("ReloadConfiguration"))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert message in error.details()
    server.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: server.log().count("the configuration was not reloaded") == 2)
    assert server.listed().version == 1 and answer(server) == first


def test_a_model_whose_files_are_invalid_is_listed_as_failed(server, checkpoint, tmp_path):
    other = Checkpoint(tmp_path / "other")
    other.write(b"short")
    models = {"g2p": (checkpoint.folder, {}), "two": (other.folder, {})}
    server.configure(models)
    changes = server.admin("ReloadConfiguration").changes
    assert [bool(change.failure) for change in changes] == [False, True]
    assert server.state("two") == "FAILED" and not server.listed("two").ready
    assert server.get("/readyz")[0] == 200 and server.get("/healthz")[0] == 200
    other.use(0)
    changes = server.admin("ReloadConfiguration").changes  # failed models are tried again
    assert not any(change.failure for change in changes)
    assert server.state("two") == "SERVING"


def test_hang_ups_reload_the_configuration_once_for_many(server, checkpoint, tmp_path):
    """Sends many SIGHUPs while calls run: all calls succeed, and the last configuration holds."""
    models = {"g2p": (checkpoint.folder, {})}
    stop, failures, answers = threading.Event(), [], set()

    def call():
        with server.client(call={"model": "g2p"}) as client:
            while not stop.is_set():
                try:
                    answers.add(client.generate("phoneme").sequences[0].text)
                except grpc.RpcError as error:
                    failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(60):
        server.configure({"g2p": (checkpoint.folder, {"max_queue": 100 + i // 20})})
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    server.configure({**models, "two": (G2P, {})})
    server.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: server.state("two") == "SERVING", 60)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures and len(answers) == 1
    assert info(server, "g2p").limits.max_queue_requests == 256


def test_two_operations_at_once_on_one_model(server):
    """Each of several concurrent reloads is either done or refused; then the model serves."""
    outcomes = set()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            calls = [pool.submit(server.admin, "ReloadModel", "g2p") for _ in range(8)]
            for call in calls:
                error = call.exception()
                outcomes.add("done" if error is None else error.code().name)
    assert "done" in outcomes and outcomes <= {"done", "ABORTED"}
    assert server.state() == "SERVING"
    loaded = server.metric("quintet_model_loads_total", outcome="loaded")
    assert server.listed().version == loaded
    answer(server)


def test_an_idle_model_is_unloaded_and_comes_back(tmp_path, checkpoint):
    with AdminServer(
        tmp_path, {"g2p": (checkpoint.folder, {"idle_unload": "1s"}), "two": (G2P, {})}
    ) as server:
        first = answer(server, "g2p")
        assert eventually(lambda: server.state() == "IDLE", 30)
        listed = server.listed()
        assert listed.ready and listed.version == 0
        assert server.get("/readyz")[0] == 200
        assert server.metric("quintet_ready", model_name="g2p") == 1
        assert server.metric("quintet_model_version", model_name="g2p") == 0
        with quintet.Client(server.target) as client:
            by_name = {model.name: model for model in client.list_models()}
        assert by_name["g2p"].ready and by_name["g2p"].family == ""
        with concurrent.futures.ThreadPoolExecutor(6) as pool:  # all of them wait for one load
            assert set(pool.map(lambda _: answer(server, "g2p"), range(6))) == {first}
        assert server.listed().version == 2
        assert server.state("two") == "SERVING"


def test_an_idle_model_that_cannot_be_loaded_is_tried_again(tmp_path, checkpoint):
    with AdminServer(
        tmp_path, {"g2p": (checkpoint.folder, {"idle_unload": "1s", "max_queue": 4})}
    ) as server:
        answer(server)
        assert eventually(lambda: server.state() == "IDLE", 30)
        checkpoint.remove()
        error = failure_of(lambda: answer(server))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert server.state() == "FAILED"
        assert eventually(lambda: server.get("/readyz")[0] == 503, 10)
        checkpoint.use(0)
        # A call loads it again some time after the failure.
        assert eventually(lambda: server.state() == "SERVING" or _tried(server), 40)
        answer(server)


def _tried(server) -> bool:
    try:
        answer(server)
    except grpc.RpcError:
        time.sleep(0.5)
        return False
    return True


def test_http_clients_wait_for_an_idle_model(tmp_path, checkpoint):
    port = free_port()
    with AdminServer(
        tmp_path,
        {"g2p": (checkpoint.folder, {"idle_unload": "1s"})},
        http_api_listen=f"127.0.0.1:{port}",
    ) as server:
        first = answer(server)
        assert eventually(lambda: server.state() == "IDLE", 30)

        def get(path):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
                return json.load(response)

        model = get("/v1/models")["data"][0]
        assert (model["id"], model["ready"], model["state"]) == ("g2p", True, "IDLE")
        assert server.state() == "IDLE"  # looking at it does not load it
        body = json.dumps({"prompt": "phoneme", "max_tokens": 64}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            body,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            assert json.load(response)["choices"][0]["text"] == first
        assert get("/v1/models")["data"][0]["version"] == 2


def test_a_server_that_is_stopped_while_it_reloads_ends(server):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            server.admin("ReloadModel")
        reload = pool.submit(server.admin, "ReloadModel")
        time.sleep(0.02)
        assert server.stop() == 0
        reload.exception()  # either result is possible


def test_an_operation_that_nobody_waits_for_goes_on(server, checkpoint):
    checkpoint.use(1)
    try:
        server.admin("ReloadModel", timeout=0.001)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    server.admin("ListModels")
    assert eventually(lambda: server.state() == "SERVING")
    # It was either not received at all, or has ended.
    assert server.listed().version in (1, 2)


def test_without_an_address_nothing_is_served(checkpoint):
    with Server(checkpoint.folder) as server:
        server.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: "configuration reloaded: g2p unchanged" in server.log())
