"""Tests the parts of quintet.ray that need no Ray. tools/try_ray.sh tests the others."""

import asyncio
import json
import pathlib
import re
import subprocess
import sys
import time
import types

import grpc
import pytest

import quintet
import quintet.ray
from quintet.options import OPTIONS
from quintet.ray import proxy, replica, server
from quintet.ray.data import Pool
from quintet.ray.job import check_same, describe
from quintet.ray.work import make_work
from quintet.rpc import Failure
from quintet.wire import pb
from server_process import G2P, package_environment, run_python, run_quintet

Code = grpc.StatusCode


def test_without_ray_an_error_says_how_to_install_it():
    done = run_python(
        """
import sys
sys.modules["ray"] = sys.modules["ray.data"] = None  # as if it were not installed
import quintet.ray
try:
    quintet.ray.run_job("generate", "in.txt", "out", model="m")
except ImportError as error:
    print(error)
""",
    )
    assert "pip install 'quintet-engine[ray]'" in done.stdout, done.stdout + done.stderr


def test_the_package_does_not_import_its_extra():
    done = run_python(
        """
import sys, quintet.ray, quintet.ray.serve, quintet.ray.job
print([name for name in ("ray", "pyarrow", "aiohttp", "starlette") if name in sys.modules])
"""
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


# ---- Options ----


def test_options_are_those_of_the_model_and_its_method(tmp_path):
    (tmp_path / "adapter").mkdir()
    options = {"dtype": "f32", "num_beams": 2, "adapters": {"a": tmp_path / "adapter"}}
    work = make_work("generate", G2P, options)
    assert work.load == {"dtype": "f32", "adapters": {"a": str(tmp_path / "adapter")}}
    assert work.options == {"num_beams": 2}
    assert make_work("generate", "google/flan-t5-base", {}).model == "google/flan-t5-base"


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("generate", {"num_beam": 2}, "has no option 'num_beam'; did you mean 'num_beams'?"),
        ("generate", {"progress": True}, "Ray shows the progress"),
        ("encode", {"num_beams": 2}, "encode.. has no option 'num_beams'"),
        ("encode", {"normalize": 1}, "normalize: expected True or False"),
        ("generate", {"request_id": "a"}, "only a Client has it"),
    ],
)
def test_wrong_options(method, options, message):
    with pytest.raises(TypeError, match=message):
        make_work(method, "m", options)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (((2, 1), 1, 0), "actors: expected 1 <= least <= most, got 2 and 1"),
        ((0, 1, 0), "actors: expected 1 <= least"),
        (((1, 2, 3), 1, 0), "actors: expected a number or"),
        ((1, -1, 0), "num_cpus: -1 is not in"),
        ((1, 1, float("nan")), "num_gpus: nan is not in"),
    ],
)
def test_wrong_pools(arguments, error):
    with pytest.raises(quintet.InvalidArgumentError, match=error):
        Pool(*arguments)


def test_actors_use_what_ray_grants():
    assert Pool(1, 4, 0).defaults() == {"device": "cpu", "threads": 4}
    assert Pool((1, 4), 0.5, 0.5).defaults() == {"device": "cuda", "threads": 1}
    work = make_work("encode", "m", {"device": "cuda:1", "threads": 3})
    assert Pool(1, 1, 0).placed(work).load == {"device": "cuda:1", "threads": 3}


def test_columns_are_checked():
    work = make_work("score", "m", {"on_error": "return"}, "text", "targets")
    work.check_columns(["text", "targets", "id"])
    for names, message in (
        (["text", "id"], "targets: the data set has no column 'targets', only text, id"),
        (["targets"], "column: the data set has no column 'text'"),
        (["text", "targets", "error"], "the data set has a column 'error', as the output has"),
        (["text", "targets", "logprobs"], "has a column 'logprobs'"),
    ):
        with pytest.raises(quintet.InvalidArgumentError, match=message):
            work.check_columns(names)


def test_a_job_continues_only_with_the_same_arguments():
    def job(**options) -> dict:
        work = make_work("generate", "m", options)
        described = describe(work, Pool(1, 2, 0).placed(work), ["in.txt"], "key", "parquet")
        return json.loads(json.dumps(described))

    begun = job(num_beams=2, threads=1)
    check_same(begun, job(num_beams=2, threads=8, cache_memory=64, top_p=None), "d")
    for options, message in (
        ({"num_beams": 3}, "num_beams: the job in d was begun with 2, got 3; pass the same"),
        ({}, "num_beams: the job in d was begun with 2, now it is missing"),
        ({"num_beams": 2, "seed": 1}, "seed: the job in d was begun without it, got 1"),
        ({"num_beams": 2, "dtype": "bf16"}, "dtype: the job in d was begun without it"),
    ):
        with pytest.raises(quintet.FailedPreconditionError, match=message):
            check_same(begun, job(**options), "d")
    with pytest.raises(TypeError, match="cannot be stored in the manifest"):
        job(stop_strings=object())


# ---- The server of a replica ----


def test_options_become_flags(tmp_path):
    options = {
        "device": "cpu",
        "max_num_seqs": 4,
        "max_num_batched_tokens": 512,
        "ignore_generation_fields": True,
        "follow_symlinks": False,
        "tokenizer": tmp_path,
        "adapters": {"a": "b"},
        "cache_memory": None,
    }
    assert server.flags_of("m", options, {"max_queue": 9, "access_log": True}) == [
        "--model=m",
        "--device=cpu",
        "--max-running=4",
        "--max-batch-tokens=512",
        "--ignore-generation-fields",
        f"--tokenizer={tmp_path}",
        "--max-queue=9",
        "--access-log",
    ]
    assert server.flags_of("m", {"revision": "v2"}, {}) == ["--model=m@v2"]
    for flag in ("listen", "--http-api-listen", "model"):
        with pytest.raises(quintet.InvalidArgumentError, match="is set by the replica"):
            server.flags_of("m", {}, {flag: "x"})
    with pytest.raises(TypeError, match="has no option 'devices'"):
        server.flags_of("m", {"devices": "cpu"}, {})


def test_every_option_of_the_model_is_a_flag():
    """`quintet serve` knows the flag of each option."""
    flags = run_quintet("serve", "--help").decode()
    values = {"device": "cpu", "dtype": "f32", "cache_dtype": "auto", "tokenizer": "t"}
    for name, option in OPTIONS["Model"].items():
        if name in ("revision", "adapters"):
            continue
        value = True if option.default is False else values.get(name, 1)
        (made,) = server.flags_of("m", {name: value}, {})[1:]
        assert re.search(rf"{made.partition('=')[0]}[ ,\n]", flags), name


def test_adapters_become_a_configuration_file():
    text = server.adapters_file("org/m", {'a"b': "/x\\y", "c": pathlib.Path("d")})
    assert text == '[models."org/m".adapters]\n"a\\"b" = "/x\\\\y"\n"c" = "d"\n'
    assert server.adapters_file(str(G2P), {}) == '[models."g2p".adapters]\n'
    with pytest.raises(quintet.InvalidArgumentError, match="control character"):
        server.adapters_file("m", {"a\n": "b"})


def run_server(model: str, options: dict, flags: dict, use) -> None:
    async def run() -> None:
        made = server.Server(model, options, flags)
        try:
            await made.start()
            await use(made)
        finally:
            await made.stop()

    asyncio.run(run())


def test_a_server_of_a_replica():
    async def use(made: server.Server) -> None:
        await made.check()
        client = quintet.AsyncClient(made.target)
        assert (await client.generate("phoneme", num_beams=4)).text == "F OW1 N IY0 M"
        await client.close()
        async with made.session.get(f"http://{made.api}/health") as answer:
            assert answer.status == 200

    run_server(str(G2P), {"device": "cpu", "cache_memory": 64, "threads": 1}, {}, use)


def test_a_server_that_cannot_start_says_why():
    async def use(made: server.Server) -> None:
        raise AssertionError

    for options, message in (
        ({"device": "cpu", "dtype": "f99"}, "ended with code 2: .*f99"),
        ({"device": "cpu", "max_memory": 1}, "ended with code [1-9].*max-memory"),
    ):
        with pytest.raises(quintet.FailedPreconditionError, match=message):
            run_server(str(G2P), options, {}, use)


PARENT = """
import asyncio, os, sys, quintet.ray.server as server
async def run():
    made = server.Server(sys.argv[1], {"device": "cpu", "cache_memory": 64, "threads": 1}, {})
    await made.start()
    print(made._process.pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(run())
"""


def test_a_server_ends_with_its_killed_replica():
    done = subprocess.run(
        [sys.executable, "-c", PARENT, str(G2P)],
        env=package_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    folder = pathlib.Path("/proc") / done.stdout.strip()

    def gone() -> bool:
        try:
            return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    end = time.monotonic() + 60
    while not gone() and time.monotonic() < end:
        time.sleep(0.05)
    assert done.stdout.strip().isdecimal() and gone(), done.stderr


# ---- The proxy ----


class Ray:
    """Replaces the functions of handlers as Ray Serve's gRPC server does."""

    def __init__(self, server, serve):
        self._server, self._serve = server, serve

    def add_generic_rpc_handlers(self, handlers):
        own = handlers[0]._method_handlers
        handlers[0]._method_handlers = {
            name: handler._replace(
                response_serializer=None,
                unary_unary=self._unary(name),
                unary_stream=self._stream(name),
                stream_unary=self._unary(name),
                stream_stream=self._stream(name),
            )
            for name, handler in own.items()
        }
        self._server.add_generic_rpc_handlers(handlers)

    def _unary(self, name):
        async def call(request, context):
            return await anext(self._serve(name, request, context))

        return call

    def _stream(self, name):
        async def call(request, context):
            async for answer in self._serve(name, request, context):
                yield answer

        return call


def through_proxy(serve, use, attempts=1) -> None:
    """Runs `use(client)` with a client whose calls `serve` answers, in the place of a replica."""

    async def run() -> None:
        made = grpc.aio.server()
        proxy.add_inference_to_server(None, Ray(made, serve))
        port = made.add_insecure_port("127.0.0.1:0")
        await made.start()
        try:
            async with quintet.AsyncClient(f"127.0.0.1:{port}", attempts=attempts) as client:
                await use(client)
        finally:
            await made.stop(0)

    asyncio.run(run())


def answer(text: str) -> bytes:
    sequence = pb.Sequence(text=text, finish_reason=pb.FINISH_REASON_EOS)
    return pb.GenerateResponse(sequences=[sequence]).SerializeToString()


def test_messages_pass_as_bytes_with_the_time_that_is_left():
    seen = []

    async def serve(name, request, context):
        seen.append((name, request))
        message, seconds = request
        assert 0 < seconds <= 30
        yield answer(pb.GenerateRequest.FromString(message).input.text)

    async def use(client) -> None:
        assert (await client.generate("wagner", timeout=30)).text == "wagner"

    through_proxy(serve, use)
    assert seen[0][0] == "/quintet.v1.Inference/Generate"


@pytest.mark.parametrize(
    ("code", "expected", "reason"),
    [
        (Code.INTERNAL, quintet.UnavailableError, "NOT_READY"),
        (Code.UNAVAILABLE, quintet.UnavailableError, "NOT_READY"),
        (Code.RESOURCE_EXHAUSTED, quintet.ResourceExhaustedError, "QUEUE_FULL"),
        (Code.DEADLINE_EXCEEDED, quintet.DeadlineExceededError, ""),
        (Code.CANCELLED, quintet.CancelledError, ""),
        (Code.NOT_FOUND, quintet.NotFoundError, ""),
    ],
)
def test_calls_that_ray_ends(code, expected, reason):
    async def serve(name, request, context):
        if name.endswith("Stream"):
            yield pb.GenerateStreamResponse(chunk=pb.GenerateChunk(text="a")).SerializeToString()
        context.set_code(code)
        context.set_details("The actor died")
        if not name.endswith("Stream"):
            yield b""

    async def use(client) -> None:
        with pytest.raises(expected) as error:
            await client.generate("a")
        assert error.value.reason == reason
        assert (error.value.retry_after is not None) == bool(reason)
        chunks = []
        with pytest.raises(expected):
            async for chunk in client.stream("a"):
                chunks.append(chunk.text)
        assert chunks == ["a"]

    through_proxy(serve, use)


@pytest.mark.parametrize("method", ["generate", "stream"])
def test_clients_repeat_calls_that_were_lost(method):
    seen = []

    async def serve(name, request, context):
        seen.append(name)
        if len(seen) == 1:
            context.set_code(Code.INTERNAL)
            if method == "stream":
                return
            yield b""
        complete = pb.GenerateResponse.FromString(answer("again"))
        message = pb.GenerateStreamResponse(complete=complete) if method == "stream" else complete
        yield message.SerializeToString()

    async def use(client) -> None:
        if method == "generate":
            assert (await client.generate("a")).text == "again"
        else:
            stream = client.stream("a")
            assert [chunk async for chunk in stream] == []
            assert stream.result.text == "again"

    through_proxy(serve, use, attempts=2)
    assert len(seen) == 2


def test_statuses_of_replicas_are_kept():
    details = proxy.status_details(Code.INTERNAL, "bug", "BUG")

    async def serve(name, request, context):
        context.set_code(Code.INTERNAL)
        context.set_details("bug")
        context.set_trailing_metadata(((proxy.DETAILS, details),))
        yield b""  # which clients of streams must not get

    async def use(client) -> None:
        with pytest.raises(quintet.InternalError, match="^bug$") as error:
            await client.generate("a")
        assert error.value.reason == "BUG"
        with pytest.raises(quintet.InternalError, match="^bug$"):
            async for _ in client.stream("a"):
                raise AssertionError

    through_proxy(serve, use)


class Context:
    """Records what a replica sets, as Ray's context does."""

    def __init__(self):
        self.status = {}

    def invocation_metadata(self):
        return [("authorization", "Bearer key"), ("request_id", "ray"), ("traceparent", "00-1")]

    def set_code(self, code):
        self.status["code"] = code

    def set_details(self, details):
        self.status["details"] = details

    def set_trailing_metadata(self, trailers):
        self.status["trailers"] = dict(trailers)


def call_replica(name: str, call) -> tuple[list[bytes], Context]:
    """Calls a method of a replica whose server is `call`."""
    made, context = types.SimpleNamespace(), Context()
    made._calls = {f"/quintet.v1.Inference/{name}": call}
    method = getattr(replica.Replica, name)

    async def run() -> list[bytes]:
        answer = method(made, (b"request", 5.0), grpc_context=context)
        if hasattr(answer, "__aiter__"):
            return [one.SerializeToString() async for one in answer]
        return [(await answer).SerializeToString()]

    return asyncio.run(run()), context


def test_a_replica_passes_calls_on():
    async def call(message, timeout, metadata):
        assert (message, timeout) == (b"request", 5.0)
        assert metadata == [("authorization", "Bearer key"), ("traceparent", "00-1")]
        return b"answer"

    answers, context = call_replica("Generate", call)
    assert answers == [b"answer"] and context.status == {}


@pytest.mark.parametrize("name", ["Generate", "GenerateStream"])
def test_an_error_of_a_replica_is_not_a_lost_call(name):
    class Answers:
        def __aiter__(self):
            return self

        async def __anext__(self):
            raise KeyError("a bug")

        def cancel(self):
            pass

    async def call(message, timeout, metadata):
        raise KeyError("a bug")

    stream = name.endswith("Stream")
    answers, context = call_replica(name, (lambda *_, **__: Answers()) if stream else call)
    assert answers == [b""]
    assert context.status["code"] == Code.INTERNAL
    assert b"BUG" in context.status["trailers"][proxy.DETAILS]


def test_details_are_those_of_a_server():
    class Error:
        def trailing_metadata(self):
            return ((proxy.DETAILS, proxy.status_details(Code.UNAVAILABLE, "m", "NOT_READY", 1.5)),)

        def code(self):
            return Code.UNAVAILABLE

        def details(self):
            return "m"

    assert Failure.of(Error()) == Failure(
        Code.UNAVAILABLE, "m", "NOT_READY", "", (), retry_after_s=1.5
    )
