"""Tests quintet.Client and quintet.AsyncClient against quintet.Model: the same calls give the same
results, so that a program switches between a server and a local model by changing one line."""

import asyncio
import concurrent.futures
import dataclasses
import hashlib
import inspect
import itertools
import threading
import time

import grpc
import numpy
import pytest

import quintet
from quintet import _engine
from quintet import options as opt
from quintet.wire import pb
from server_process import G2P, SMALL, Server, eventually, run_python, words

LINES = words(150)


@pytest.fixture(scope="module")
def server():
    """Runs a server without encoder cache, because quintet.Model has none either."""
    with Server(G2P, encoder_cache_bytes=0) as running:
        yield running


@pytest.fixture(scope="module")
def remote(server):
    with quintet.Client(server.target) as client:
        yield client


def rounded(value):
    """Rounds all floats of a result to f32, because messages store them as 32-bit floats."""
    if isinstance(value, float):
        return float(numpy.float32(value))
    if dataclasses.is_dataclass(value):
        return type(value).__name__, rounded(
            [getattr(value, field.name) for field in dataclasses.fields(value)]
        )
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 4, "num_return_sequences": 2, "return_scores": True, "early_stopping": True},
        {"do_sample": True, "seed": 5, "temperature": 0.5, "logprobs": True, "top_logprobs": 2},
        {"stop_strings": "AH0", "max_new_tokens": 9, "skip_special_tokens": False},
        {"decoder_prefix": "K", "bad_words_ids": [[56, 64]], "eos_token_id": [1]},
    ],
)
def test_generate_equals_that_of_a_model(model, remote, options):
    assert rounded(remote.generate(LINES, **options)) == rounded(model.generate(LINES, **options))
    assert rounded(remote.generate("a", **options)) == rounded(model.generate("a", **options))
    far, near = remote.stream("a", **options), model.stream("a", **options)
    assert "".join(c.text for c in far) == "".join(c.text for c in near)
    assert rounded(far.result) == rounded(near.result)


def test_encode_score_and_tokens_equal_those_of_a_model(model, remote):
    assert numpy.array_equal(remote.encode(LINES), model.encode(LINES))
    assert numpy.array_equal(remote.encode("a", normalize=True), model.encode("a", normalize=True))
    for pooling in ("first", "last", "max", "mean_sqrt_len", "weighted_mean"):
        far, near = (m.encode(LINES[:9], pooling=pooling) for m in (remote, model))
        assert numpy.array_equal(far, near) and not numpy.array_equal(far, remote.encode(LINES[:9]))
    for far, near in zip(
        remote.encode(LINES[:9], pooling="none"),
        model.encode(LINES[:9], pooling="none"),
        strict=True,
    ):
        assert numpy.array_equal(far, near)
    targets = [["EY1", "B"]] * 9
    assert rounded(remote.score(LINES[:9], targets, top_logprobs=2)) == rounded(
        model.score(LINES[:9], targets, top_logprobs=2)
    )
    assert remote.tokenize("phoneme x") == model.tokenize("phoneme x")
    ids = model.tokenize("phoneme").ids
    assert remote.detokenize(ids) == model.detokenize(ids)
    assert remote.generate(numpy.array(ids)) == model.generate(ids)
    same = ("family", "head", "dtype", "parameters", "vocab", "d_model", "eos_token_ids")
    assert [getattr(remote.info(), name) for name in same] == [
        getattr(model.info(), name) for name in same
    ]


def test_classify_equals_that_of_a_model(tiny_models):
    heads = ("t5-seqcls", "t5-tokcls", "t5-qa")
    with Server(*(tiny_models[name] for name in heads), encoder_cache_bytes=0) as server:
        for name in heads:
            contexts = {"contexts": [f"{w} and more" for w in LINES[:9]]} if name == "t5-qa" else {}
            with (
                quintet.Client(server.target, model=name) as remote,
                quintet.Model(tiny_models[name], **SMALL) as model,
            ):
                far = remote.classify(LINES[:9], **contexts)
                near = model.classify(LINES[:9], **contexts)
                assert rounded(far) == rounded(near)
                ids = model.tokenize("abc").ids
                if contexts:
                    assert rounded(remote.classify(ids, "abc")) == rounded(
                        model.classify(ids, "abc")
                    )
                    for either in (model, remote):
                        with pytest.raises(TypeError, match="contexts: .*parts of this text"):
                            either.classify(ids, ids)
                        with pytest.raises(quintet.InvalidArgumentError, match="contexts: .*more"):
                            either.classify(["a"], iter(["b", "c"]))
                else:
                    assert rounded(remote.classify(ids)) == rounded(model.classify(ids))
        with pytest.raises(quintet.NotFoundError, match="no model") as error:
            quintet.Client(server.target, model="other").generate("a")
        assert error.value.reason == "MODEL_NOT_FOUND"


def test_options_may_be_scalars_of_numpy(model, remote):
    options = {
        "num_beams": numpy.int64(2),
        "eos_token_id": numpy.int64(1),
        "early_stopping": numpy.True_,
        "length_penalty": numpy.float32(0.5),
        "return_scores": numpy.True_,
        "truncate": numpy.False_,
        "timeout": numpy.float32(60),
    }
    plain = {name: value.item() for name, value in options.items()}
    for either in (model, remote):
        assert either.generate("phoneme", **options) == either.generate("phoneme", **plain)
        ids = numpy.array([1])
        assert either.generate("a", eos_token_id=ids) == either.generate("a", eos_token_id=[1])


def test_options_exist_where_they_have_an_effect(model, remote):
    fields = {field.name for field in pb.DecodingOptions.DESCRIPTOR.fields}
    fields -= {"skip_special_tokens", "return_text", "return_token_ids"}
    assert set(_engine.generation_option_names()) == fields == opt.ENGINE_NAMES
    for call in (
        lambda **given: model.generate("a", **given),
        lambda **given: model.stream("a", **given),
        lambda **given: model.tokenize("a", **given),
    ):
        with pytest.raises(TypeError, match="'request_id': only a Client has it"):
            call(request_id="a")
    with pytest.raises(TypeError, match="'vector_type': only a Client has it"):
        model.encode("a", vector_type="fp16")
    with pytest.raises(TypeError, match="'target_special_tokens': only a Model has it"):
        remote.score("a", ["b"], target_special_tokens=False)


@pytest.mark.parametrize("kind", [quintet.Methods, quintet.AsyncMethods])
def test_help_shows_options_with_their_defaults(kind):
    for name, known in opt.OPTIONS.items():
        if name == "Model":
            continue
        method = getattr(kind, name)
        shown = {
            parameter.name: parameter.default
            for parameter in inspect.signature(method).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        assert shown == {option: known[option].default for option in known}, name
        assert all(f"    {option}: " in method.__doc__ for option in known), name


def test_responses_have_request_id_usage_and_timing(remote, model):
    asked = []
    options = {"request_id": "batch-7", "on_response": asked.append}
    results = remote.generate(LINES[:40], **options)
    assert [r.info.usage.output_tokens for r in asked] == [r.usage.output_tokens for r in results]
    assert [r.sequences[0].text for r in asked] == [r.text for r in results]  # in order
    for response in asked:
        times = response.info.timing
        assert response.info.request_id == "batch-7" and response.info.model == "g2p"
        assert 0 < times.first_token_us <= times.total_us < 60_000_000
    for call in (
        lambda **options: remote.encode(LINES, **options),
        lambda **options: remote.score("a", ["EY1"], **options),
        lambda **options: remote.tokenize("a", **options),
        lambda **options: remote.detokenize([5], **options),
        lambda **options: list(remote.generate(iter(LINES[:5]), **options)),
    ):
        asked.clear()
        call(**options)
        assert asked and {r.info.request_id for r in asked} == {"batch-7"}
    asked.clear()
    chunks = list(remote.stream("a", **options))
    assert [e.chunk.text for e in asked[:-1]] == [c.text for c in chunks]
    assert asked[-1].complete.info.request_id == "batch-7"
    asked.clear()
    rows = remote.encode([*LINES[:3], [99999]], on_error="return", **options)
    assert len(rows) == 4 and sum(len(r.embeddings) for r in asked) == 3  # none of the failed one
    with pytest.raises(quintet.InvalidArgumentError, match="request_id") as error:
        remote.generate("a", request_id="two words")
    assert error.value.reason == "INVALID_FIELD"
    with pytest.raises(quintet.NotFoundError) as missing:
        quintet.Client(remote._target, model="other").generate("a", request_id="mine")
    assert missing.value.request_id == "mine"
    for wrong, told in (
        ({"request_id": 1}, "request_id: expected a str or None, got int"),
        (
            {"on_response": 1},
            "on_response: expected a function or None, got int",
        ),
    ):
        with pytest.raises(TypeError, match=told):
            remote.generate("a", **wrong)
        with pytest.raises(TypeError, match=told):
            remote.tokenize("a", **wrong)


def test_an_error_of_on_response_ends_the_call(remote):
    def fail(response):
        raise RuntimeError("enough")

    for call in (remote.generate, remote.tokenize, lambda a, **o: list(remote.stream(a, **o))):
        with pytest.raises(RuntimeError, match="enough"):
            call("a", on_response=fail)
    assert remote.generate("a").text == "EY1"


def test_vectors_of_fewer_bytes(remote):
    exact = remote.encode(LINES)
    for vector_type, error in (("fp16", 2**-11), ("bf16", 2**-8)):
        asked = []
        rows = remote.encode(LINES, vector_type=vector_type, on_response=asked.append)
        assert rows.dtype == numpy.float32 and not numpy.array_equal(rows, exact)
        assert (numpy.abs(rows - exact) <= error * numpy.abs(exact) + 1e-7).all()
        assert {len(e.values) for r in asked for e in r.embeddings} == {512}
        tokens = remote.encode("abc", pooling="none", vector_type=vector_type)
        assert tokens.shape == remote.encode("abc", pooling="none").shape
    with pytest.raises(quintet.InvalidArgumentError, match="vector_type: expected one of fp32"):
        remote.encode("a", vector_type="fp8")


def test_health_and_limits(server, remote):
    assert remote.health() == remote.health("quintet.v1.Inference") == "SERVING"
    with pytest.raises(quintet.NotFoundError):
        remote.health("no.such.Service")
    with pytest.raises(TypeError, match="service: expected a str"):
        remote.health(1)
    with pytest.raises(quintet.UnavailableError):
        quintet.Client("127.0.0.1:1", timeout=5).health()
    names = [field.name for field in pb.Limits.DESCRIPTOR.fields]
    assert names == [field.name for field in dataclasses.fields(quintet.Limits)]
    info = remote.info()
    assert info.limits.max_inputs == 64 and info.limits.max_beams == 32
    assert info.limits.max_input_tokens == info.max_input_tokens
    assert info.limits.max_running_sequences == info.max_num_seqs
    assert (info.dtype, info.cache_dtype) == ("f32", "f32")

    async def work():
        asked = []
        async with quintet.AsyncClient(server.target) as client:
            assert await client.health() == "SERVING"
            with pytest.raises(quintet.NotFoundError):
                await client.health("no.such.Service")
            assert (await client.info()).limits == info.limits
            options = {"request_id": "a-1", "on_response": asked.append}
            await client.generate(LINES[:5], **options)
            await client.tokenize("a", **options)
            assert [chunk async for chunk in client.stream("a", **options)]
        responses = [r.complete if isinstance(r, pb.GenerateStreamResponse) else r for r in asked]
        assert {r.info.request_id for r in responses[:6]} == {"a-1"}
        assert responses[-1].info.usage.output_tokens > 0

    asyncio.run(work())


class _Listener(grpc.GenericRpcHandler):
    """Answers every call with UNIMPLEMENTED, and keeps the methods and the input hashes."""

    def __init__(self):
        self.calls: list[tuple[str, str | None]] = []

    def service(self, call):
        metadata = dict(call.invocation_metadata)
        self.calls.append((call.method.rsplit("/")[-1], metadata.get("quintet-input-hash")))


@pytest.fixture
def listener():
    """A server that only listens; `target` is its address."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    handler = _Listener()
    server.add_generic_rpc_handlers((handler,))
    handler.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield handler
    server.stop(None)


def test_requests_of_one_input_have_its_hash(listener):
    of_text = hashlib.sha256("straße".encode()).hexdigest()[:16]
    ids = pb.TokenIds(ids=[5, 7]).SerializeToString()
    of_ids = hashlib.sha256(ids).hexdigest()[:16]

    with quintet.Client(listener.target) as client:
        keep = {"on_error": "return"}
        client.generate("straße", **keep)
        client.generate([5, 7], **keep)
        client.encode("straße", **keep)
        client.score("straße", ["a"], **keep)
        client.classify("straße", **keep)
        client.encode(["straße", "b"], **keep)
        with pytest.raises(quintet.UnimplementedError):
            list(client.stream("straße"))
        with pytest.raises(quintet.UnimplementedError):
            client.info()
    assert listener.calls == [
        ("Generate", of_text),
        ("Generate", of_ids),
        ("Encode", of_text),
        ("Score", of_text),
        ("Classify", of_text),
        ("Encode", None),
        ("GenerateStream", of_text),
        ("GetModelInfo", None),
    ]
    del listener.calls[:]

    async def work():
        async with quintet.AsyncClient(listener.target) as client:
            await client.generate("straße", **keep)
            with pytest.raises(quintet.UnimplementedError):
                [chunk async for chunk in client.stream("straße")]

    asyncio.run(work())
    assert listener.calls == [("Generate", of_text), ("GenerateStream", of_text)]


def test_a_bare_string_is_one_input(remote):
    assert remote.generate("ab") == remote.generate(["ab"])[0]
    assert remote.encode("ab").shape == (256,)
    assert remote.score("ab", "cd").logprobs.shape == (1,)


def test_long_lists_are_sent_in_parallel(server):
    with quintet.Client(server.target, concurrency=8) as client:
        most = 0
        done = threading.Event()

        def watch():
            nonlocal most
            while not done.is_set():
                most = max(most, int(server.metric("quintet_open_calls")))

        watcher = threading.Thread(target=watch)
        watcher.start()
        results = client.generate(["a"] * 60, ignore_eos=True, max_new_tokens=60)
        done.set()
        watcher.join()
        # The server counts a call as open for a moment after the client has its response, so the
        # count can exceed the concurrency of 8.
        assert len(results) == 60 and 2 <= most <= 12


@pytest.fixture
def idle(server):
    """Yields a function that waits until the server has no open call."""

    def wait():
        assert eventually(lambda: server.metric("quintet_open_calls") == 0, 5)

    wait()
    yield wait
    wait()


ENDLESS = {"ignore_eos": True, "max_new_tokens": 4000}


def test_interrupted_calls_cancel_their_requests(server, idle):
    program = (
        "import os, quintet, signal, threading, time\n"
        "client = quintet.Client(TARGET)\n"
        "for inputs in ('a', ['a'] * 200):\n"
        "    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    try:\n"
        "        client.generate(inputs, ignore_eos=True, max_new_tokens=4000)\n"
        "    except KeyboardInterrupt:\n"
        "        print(client.generate('a').text)\n"
    )
    begin = time.monotonic()
    done = run_python(f"TARGET = {server.target!r}\n{program}")
    assert (done.returncode, done.stdout) == (0, "EY1\n" * 2), done.stderr
    assert time.monotonic() - begin < 20
    idle()


def test_a_failed_call_cancels_its_requests(server, idle):
    begin = time.monotonic()
    with quintet.Client(server.target, concurrency=8) as client:
        for _ in range(3):
            with pytest.raises(quintet.InvalidArgumentError, match="input 0:"):
                client.generate([[999], *["a"] * 200], **ENDLESS)
            assert client.generate(["a", "b"]) == [client.generate("a"), client.generate("b")]
        results = client.generate(iter(["b", *["a"] * 200]), max_new_tokens=4000)
        next(results)
        results.close()
    idle()
    assert time.monotonic() - begin < 20


def test_an_async_call_that_ends_early_cancels_its_requests(server, idle):
    async def work():
        async with quintet.AsyncClient(server.target, concurrency=8) as client:
            task = asyncio.create_task(client.generate(["a"] * 200, **ENDLESS))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(idle)
            with pytest.raises(quintet.InvalidArgumentError, match="input 0:"):
                await client.generate([[999], *["a"] * 200], **ENDLESS)
            await asyncio.to_thread(idle)
            assert (await client.generate("a")).text == "EY1"

    asyncio.run(work())


def test_an_async_client_in_several_event_loops(server):
    client = quintet.AsyncClient(server.target)

    async def work():
        return (await client.generate("a")).text

    assert [asyncio.run(work()) for _ in range(3)] == ["EY1"] * 3

    async def both():
        await work()
        with pytest.raises(quintet.FailedPreconditionError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, work())
        await client.close()

    asyncio.run(both())


def test_iterators_take_bounded_memory(server):
    taken = itertools.count()
    with quintet.Client(server.target, concurrency=4) as client:
        results = client.generate(("a" for _ in taken), max_new_tokens=1)
        for _ in range(30):
            next(results)
        results.close()
        assert next(taken) < 60
        rows = client.encode(iter(LINES))
        assert sum(1 for _ in rows) == len(LINES)


def test_one_bad_input_does_not_fail_those_of_its_request(model, remote):
    inputs = [*LINES[:20], [99999], *LINES[20:40]]
    with pytest.raises(quintet.InvalidArgumentError) as error:
        remote.encode(inputs)
    assert error.value.index == 20 and error.value.reason == "INVALID_FIELD"
    rows = remote.encode(inputs, on_error="return")
    assert numpy.isnan(rows[20]).all()
    assert numpy.array_equal(numpy.delete(rows, 20, 0), model.encode(LINES[:40]))
    told = remote.generate(["a", [99999], "b"], on_error="return")
    assert told[1].index == 1 and [told[0].text, told[2].text] == ["EY1", "B IY1"]


def test_rejected_requests_are_retried_as_the_server_asks():
    with Server(G2P, max_queue=2, max_running=1) as server:
        with quintet.Client(server.target, concurrency=16, attempts=1) as client:
            told = client.generate(["a"] * 60, on_error="return")
            full = [value for value in told if isinstance(value, quintet.Error)]
            assert full and {error.reason for error in full} == {"QUEUE_FULL"}
            assert all(0 < error.retry_after <= 5 for error in full)
        with quintet.Client(server.target, concurrency=3, attempts=5) as client:
            assert [r.text for r in client.generate(["a"] * 30)] == ["EY1"] * 30


def test_timeouts(server):
    with quintet.Client(server.target, timeout=0.2) as client:
        with pytest.raises(quintet.DeadlineExceededError, match="timeout was 0.2 s") as error:
            client.generate("a", ignore_eos=True, max_new_tokens=4000)
        assert error.value.__suppress_context__ and error.value.__cause__ is None
        assert client.generate("a", timeout=30).text == "EY1"
        begin = time.monotonic()
        with pytest.raises(quintet.DeadlineExceededError):
            list(client.stream("a", timeout=0.3, ignore_eos=True, max_new_tokens=4000))
        assert time.monotonic() - begin < 10


def test_a_stream_can_be_closed(remote, server):
    with remote.stream("a", ignore_eos=True, max_new_tokens=4000) as stream:
        assert next(stream)
    assert list(stream) == []
    with pytest.raises(RuntimeError):
        _ = stream.result


def test_async_client_equals_a_model(model, server):
    async def work():
        async with quintet.AsyncClient(server.target) as client:
            results = await asyncio.gather(*(client.generate(word) for word in LINES))
            assert results == model.generate(LINES)
            assert await client.generate(LINES[:20], num_beams=2) == model.generate(
                LINES[:20], num_beams=2
            )
            assert numpy.array_equal(await client.encode(LINES), model.encode(LINES))
            lazily = await client.generate(iter(LINES[:9]))
            assert [r async for r in lazily] == model.generate(LINES[:9])
            text = [chunk.text async for chunk in client.stream("extraordinarily")]
            assert "".join(text) == model.generate("extraordinarily").text
            assert await client.tokenize("a") == model.tokenize("a")
            assert (await client.info()).d_model == 256
            with pytest.raises(quintet.InvalidArgumentError):
                await client.generate("a", num_beams=99)
            task = asyncio.create_task(client.generate("a", ignore_eos=True, max_new_tokens=4000))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(quintet.FailedPreconditionError):
            await client.generate("a")

    asyncio.run(work())
