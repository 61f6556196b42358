"""Wrong uses of the Python package: each is a clear exception, without a crash or a hang.

The table runs on a Model and on a Client of a server with the same model: both raise the same
class.
"""

import itertools
import pathlib
import shutil
import threading
import time

import numpy
import pytest

import quintet
from server_process import G2P, SMALL, Server, free_port, run_python
from quintet.spelling import make_error
from quintet import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)


@pytest.fixture(scope="module", params=["Model", "Client"])
def model(request):
    if request.param == "Model":
        with quintet.Model(G2P, **SMALL) as loaded:
            yield loaded
    else:
        with Server(G2P) as server, quintet.Client(server.target) as client:
            yield client


async def later():
    yield "a"


# Each row: the expected class of the exception, a part of its message, and the call.
WRONG = [
    # Inputs.
    (TypeError, "NoneType", lambda m: m.generate(None)),
    (TypeError, "int", lambda m: m.generate(5)),
    (TypeError, "bytes", lambda m: m.generate(b"text")),
    (TypeError, "set", lambda m: m.generate({"a", "b"})),
    (TypeError, "dict", lambda m: m.generate({"text": "a"})),
    (TypeError, "float", lambda m: m.generate([1.5])),
    (TypeError, "NoneType", lambda m: m.generate(["a", None])),
    (TypeError, "bytes", lambda m: m.generate(["a", b"b"])),
    (TypeError, "float", lambda m: m.generate([[1, 2.5]])),
    (TypeError, "bool", lambda m: m.generate([[True]])),
    (TypeError, "str", lambda m: m.generate([["a"]])),
    (TypeError, "float", lambda m: m.generate(numpy.array([[1.5, 2.5]]))),
    (InvalidArgumentError, "surrogate", lambda m: m.generate("a\ud800")),
    (InvalidArgumentError, "-1", lambda m: m.generate([-1])),
    (InvalidArgumentError, "128", lambda m: m.generate([128])),
    (InvalidArgumentError, "", lambda m: m.generate([2**31])),
    (InvalidArgumentError, "", lambda m: m.generate([2**80])),
    (InvalidArgumentError, "", lambda m: m.generate([[]])),
    (InvalidArgumentError, "token", lambda m: m.generate("", add_special_tokens=False)),
    (InvalidArgumentError, "1048576", lambda m: m.generate("a" * (1 << 20) + "b")),
    (InvalidArgumentError, "4096", lambda m: m.generate("a" * 5000)),
    (TypeError, "async for", lambda m: m.generate(later())),
    (ZeroDivisionError, "", lambda m: list(m.generate(1 // 0 for _ in "a"))),
    # Options of generate.
    (TypeError, "num_beams'", lambda m: m.generate("a", num_beam=4)),
    (TypeError, "max_new_tokens", lambda m: m.generate("a", max_length=4)),
    (TypeError, "int", lambda m: m.generate("a", num_beams="4")),
    (TypeError, "int", lambda m: m.generate("a", num_beams=4.0)),
    (TypeError, "bool", lambda m: m.generate("a", num_beams=True)),
    (TypeError, "float", lambda m: m.generate("a", do_sample=True, temperature="0.5")),
    (TypeError, "True or False", lambda m: m.generate("a", do_sample=1)),
    (TypeError, "list", lambda m: m.generate("a", suppress_tokens="5")),
    (TypeError, "", lambda m: m.generate("a", bad_words_ids=[5])),
    (TypeError, "str", lambda m: m.generate("a", stop_strings=[5])),
    (TypeError, "twice", lambda m: m.generate("a", stop="x", stop_strings="y")),
    (TypeError, "True or False", lambda m: m.generate("a", truncate="no")),
    (TypeError, "seconds", lambda m: m.generate("a", timeout="5")),
    (TypeError, "on_error", lambda m: m.generate("a", on_error=None)),
    (TypeError, "", lambda m: m.generate("a", 4)),
    (InvalidArgumentError, "on_error", lambda m: m.generate("a", on_error="ignore")),
    (InvalidArgumentError, "timeout", lambda m: m.generate("a", timeout=0)),
    (InvalidArgumentError, "timeout", lambda m: m.generate("a", timeout=float("nan"))),
    (InvalidArgumentError, "num_beams: 99 is not in", lambda m: m.generate("a", num_beams=99)),
    (InvalidArgumentError, "num_beams", lambda m: m.generate("a", num_beams=-1)),
    (InvalidArgumentError, "num_beams", lambda m: m.generate("a", num_beams=2**70)),
    (InvalidArgumentError, "max_new_tokens", lambda m: m.generate("a", max_new_tokens=0)),
    (InvalidArgumentError, "temperature", lambda m: m.generate("a", temperature=0.5)),
    (
        InvalidArgumentError,
        "temperature",
        lambda m: m.generate("a", do_sample=True, temperature=float("inf")),
    ),
    (
        InvalidArgumentError,
        "top_p",
        lambda m: m.generate("a", do_sample=True, top_p=float("nan")),
    ),
    (InvalidArgumentError, "num_return", lambda m: m.generate("a", num_return_sequences=3)),
    (InvalidArgumentError, "early_stopping", lambda m: m.generate("a", early_stopping="always")),
    (InvalidArgumentError, "early_stopping", lambda m: m.generate("a", early_stopping=1)),
    (InvalidArgumentError, "seed", lambda m: m.generate("a", do_sample=True, seed=-1)),
    (InvalidArgumentError, "seed", lambda m: m.generate("a", do_sample=True, seed=2**64)),
    (InvalidArgumentError, "eos_token_id: ", lambda m: m.generate("a", eos_token_id=128)),
    (InvalidArgumentError, "suppress", lambda m: m.generate("a", suppress_tokens=[999])),
    (InvalidArgumentError, "bad_words", lambda m: m.generate("a", bad_words_ids=[[]])),
    (InvalidArgumentError, "stop_strings: ", lambda m: m.generate("a", stop_strings="x" * 300)),
    (TypeError, "stop_strings[0]: ", lambda m: m.generate("a", stop_strings=[5])),
    (TypeError, "eos_token_id: ", lambda m: m.generate("a", eos_token_id="x")),
    (TypeError, "eos_token_id", lambda m: m.generate("a", eos_token_id=numpy.True_)),
    (
        InvalidArgumentError,
        "forced_eos_token_id: ",
        lambda m: m.generate("a", forced_eos_token_id=128),
    ),
    # Other methods.
    (TypeError, "several", lambda m: m.stream(["a", "b"])),
    (TypeError, "", lambda m: m.stream("a", progress=True)),
    (InvalidArgumentError, "num_beams", lambda m: list(m.stream("a", num_beams=99))),
    (InvalidArgumentError, "pooling", lambda m: m.encode("a", pooling="median")),
    (TypeError, "pooling", lambda m: m.encode("a", pooling=1)),
    (TypeError, "normalize", lambda m: m.encode("a", normalize="yes")),
    (TypeError, "num_beams", lambda m: m.encode("a", num_beams=4)),
    (TypeError, "targets", lambda m: m.score("a")),
    (InvalidArgumentError, "targets", lambda m: m.score("a", [])),
    (InvalidArgumentError, "64", lambda m: m.score("a", ["b"] * 65)),
    (InvalidArgumentError, "2 entries", lambda m: m.score(["a", "b"], [["c"]])),
    (InvalidArgumentError, "more entries", lambda m: m.score(["a"], iter([["b"], ["c"]]))),
    (InvalidArgumentError, "more entries", lambda m: list(m.score(iter("a"), [["b"], ["c"]]))),
    (InvalidArgumentError, "fewer entries", lambda m: m.score(["a", "b"], iter([["c"]]))),
    (InvalidArgumentError, "more entries", lambda m: m.score(["a"], itertools.repeat(["b"]))),
    (TypeError, "targets", lambda m: m.score(["a", "b"], "c")),
    (TypeError, "", lambda m: m.score("a", [None])),
    (InvalidArgumentError, "top_logprobs", lambda m: m.score("a", ["b"], top_logprobs=21)),
    (InvalidArgumentError, "", lambda m: m.score("a", ["b"], prefix_lm=True)),
    (InvalidArgumentError, "", lambda m: m.score("a", ["b"], sliding_window=4)),
    (FailedPreconditionError, "head", lambda m: m.classify("a")),
    (InvalidArgumentError, "top_k", lambda m: m.classify("a", top_k=0)),
    (TypeError, "text", lambda m: m.tokenize(["a"])),
    (TypeError, "text", lambda m: m.tokenize(b"a")),
    (TypeError, "str", lambda m: m.detokenize("a")),
    (TypeError, "", lambda m: m.detokenize([1.5])),
    (InvalidArgumentError, "128", lambda m: m.detokenize([128])),
]


def test_only_names_that_are_near_are_suggested(model):
    with pytest.raises(TypeError, match="'num_beam_groups'$"):
        model.generate("a", num_beam_groups=4)


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_call_is_a_clear_exception(model, number):
    expected, words, call = WRONG[number]
    with pytest.raises(expected) as error:
        call(model)
    assert type(error.value) is expected or not isinstance(error.value, quintet.Error)
    assert words in str(error.value) and "--" not in str(error.value)
    assert "std::" not in str(error.value)
    if isinstance(error.value, quintet.Error):
        assert str(error.value)


def test_the_model_works_after_all_of_them(model):
    assert model.generate("a").text == "EY1"


def fp8_cache(cache_dtype):
    return quintet.Model(G2P, device="cpu", cache_dtype=cache_dtype)


LOADING = [
    (TypeError, "path", lambda: quintet.Model(None)),
    (TypeError, "device", lambda: quintet.Model(G2P, device=0)),
    (TypeError, "", lambda: quintet.Model(G2P, devices="cpu")),
    (TypeError, "threads", lambda: quintet.Model(G2P, threads="2")),
    (TypeError, "max_num_seqs", lambda: quintet.Model(G2P, max_num_seqs="auto")),
    (NotFoundError, "no such directory", lambda: quintet.Model("/no/such/model")),
    (InvalidArgumentError, "device", lambda: quintet.Model(G2P, device="tpu")),
    (InvalidArgumentError, "dtype", lambda: quintet.Model(G2P, dtype="double")),
    (InvalidArgumentError, "threads", lambda: quintet.Model(G2P, threads=-1)),
    (InvalidArgumentError, "max_num_seqs", lambda: quintet.Model(G2P, max_num_seqs=0)),
    (InvalidArgumentError, "cache_memory", lambda: quintet.Model(G2P, cache_memory=2**40)),
    (InvalidArgumentError, "dtype", lambda: quintet.Model(G2P, dtype="fp8", device="cpu")),
    (InvalidArgumentError, "cache_dtype: expected auto or fp8", lambda: fp8_cache("fp16")),
    (InvalidArgumentError, "cache_dtype: fp8 is not supported on a CPU", lambda: fp8_cache("fp8")),
    (TypeError, "cache_dtype", lambda: fp8_cache(8)),
    (quintet.ResourceExhaustedError, "", lambda: quintet.Model(G2P, max_memory=1)),
    (TypeError, "tokenizer", lambda: quintet.Model(G2P, tokenizer=5)),
    (TypeError, "revision", lambda: quintet.Model("acme/tiny", revision=1)),
    (TypeError, "follow_symlinks", lambda: quintet.Model(G2P, follow_symlinks="yes")),
    (NotFoundError, "no such", lambda: quintet.Model(G2P, tokenizer="/no/such/file")),
    (TypeError, "target", lambda: quintet.Client(5)),
    (InvalidArgumentError, "target: expected HOST:PORT", lambda: quintet.Client("")),
    (InvalidArgumentError, "newline", lambda: quintet.Client(api_key="secret\n")),
    (InvalidArgumentError, "ASCII", lambda: quintet.Client(api_key="secret key")),
    (TypeError, "", lambda: quintet.Client(retries=3)),
    (InvalidArgumentError, "attempts", lambda: quintet.Client(attempts=9)),
    (InvalidArgumentError, "TLS", lambda: quintet.Client("far.test:1", api_key="secret")),
    (InvalidArgumentError, "priority", lambda: quintet.Client(priority="urgent")),
]


@pytest.mark.parametrize("number", range(len(LOADING)))
def test_a_wrong_constructor_is_a_clear_exception(number):
    expected, words, call = LOADING[number]
    with pytest.raises(expected) as error:
        call()
    assert words in str(error.value) and "secret" not in str(error.value)


@pytest.mark.parametrize(
    "engine, python",
    [
        (
            "--max-running: 1 is less than --num-beams 4",
            "max_num_seqs: 1 is less than num_beams 4",
        ),
        ("raise that limit or use --truncate", "raise that limit or use truncate=True"),
        ("set --dtype to choose (--device cuda).", "set dtype to choose (device cuda)."),
        ("eos_token_ids: token id 9", "eos_token_id: token id 9"),
        ("decoding.stop[0]: too long", "stop_strings[0]: too long"),
        ("--eos-token-ids: bad", "eos_token_id: bad"),
        *(
            (same, same)
            for same in (
                "download it with: hf download acme/dev --revision v9",
                "Merge it with: quintet convert BASE MERGED --adapter DIRECTORY",
                "is not applied; merge it first (quintet convert --adapter)",
                "/tmp/my--model-x: no such directory",
                "/tmp/a --dtype/b: no such directory",
                '(command line: "token_ids" with --truncate)',
                "--no-such-option: unknown",
                "stopped: the engine",
            )
        ),
        (
            "hf download a/b --revision v9; use --follow-symlinks",
            "hf download a/b --revision v9; use follow_symlinks=True",
        ),
    ],
)
def test_messages_name_the_options_of_python(engine, python):
    assert str(make_error("INTERNAL", engine)) == python


def test_messages_keep_paths_and_commands(tmp_path):
    with pytest.raises(NotFoundError, match="/my--model-x: no such directory"):
        quintet.Model(tmp_path / "my--model-x")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "config.json").write_text("{}")
    with pytest.raises(quintet.Error, match="convert BASE MERGED --adapter DIRECTORY"):
        quintet.Model(adapter)


def test_damaged_weights_are_an_error(tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(G2P, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(quintet.Error, match="model.safetensors"):
        quintet.Model(folder)


def test_a_closed_model_says_so(model):
    if isinstance(model, quintet.Client):
        closed = quintet.Client("127.0.0.1:1")
    else:
        closed = quintet.Model(G2P, **SMALL)
    closed.close()
    closed.close()
    assert closed.closed and "closed" in repr(closed)
    for call in (
        lambda: closed.generate("a"),
        lambda: closed.generate(["a"]),
        lambda: list(closed.generate(iter(["a"]))),
        lambda: closed.stream("a"),
        lambda: closed.encode("a"),
        lambda: closed.score("a", ["b"]),
        lambda: closed.classify("a"),
        lambda: closed.tokenize("a"),
        lambda: closed.detokenize([5]),
        lambda: closed.info(),
    ):
        with pytest.raises(FailedPreconditionError, match="closed"):
            call()


def test_closing_ends_the_calls_of_other_threads():
    loaded = quintet.Model(G2P, **SMALL)
    errors = []

    def work():
        try:
            loaded.generate(["a"] * 64, ignore_eos=True, max_new_tokens=4000)
        except quintet.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    loaded.close()
    for thread in threads:
        thread.join(30)
    assert [type(error) for error in errors] == [UnavailableError] * 3
    stream_of = quintet.Model(G2P, **SMALL)
    stream = stream_of.stream("a", ignore_eos=True, max_new_tokens=4000)
    next(stream)
    stream_of.close()
    with pytest.raises(UnavailableError):
        list(stream)


def test_a_dead_server_is_unavailable():
    begin = time.monotonic()
    with quintet.Client(f"127.0.0.1:{free_port()}", attempts=2) as client:
        for call in (
            lambda: client.generate("a"),
            lambda: client.generate(["a", "b"]),
            lambda: list(client.stream("a")),
            lambda: client.encode(["a"] * 40),
            lambda: client.info(),
        ):
            with pytest.raises(UnavailableError):
                call()
        told = client.generate(["a", "b"], on_error="return")
        assert [type(error) for error in told] == [UnavailableError] * 2
    assert time.monotonic() - begin < 30


def test_a_server_that_dies_ends_the_calls():
    with Server(G2P) as server, quintet.Client(server.target, attempts=1) as client:
        stream = client.stream("a", ignore_eos=True, max_new_tokens=4000)
        next(stream)
        server.process.kill()
        with pytest.raises(quintet.Error):
            list(stream)
        with pytest.raises(UnavailableError):
            client.generate(["a"] * 10)


def test_a_forked_process_cannot_use_the_model():
    done = run_python(
        "import os, quintet, sys\n"
        "model = quintet.Model(os.environ['G2P'], device='cpu', cache_memory=64)\n"
        "results = model.generate(iter(['a'] * 1000))\n"
        "next(results)\n"
        "if os.fork() == 0:\n"
        "    for call in (lambda: model.generate('a'), lambda: list(results), model.info,\n"
        "                 lambda: model.stream('a'), lambda: model.tokenize('a'), model.close):\n"
        "        try:\n"
        "            call()\n"
        "            print('no error')\n"
        "        except quintet.FailedPreconditionError as error:\n"
        "            print('fork' in str(error))\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "print(model.generate('a').text)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n" * 6 + "EY1\n", done.stdout + done.stderr


def test_multiprocessing_with_fork_fails_and_with_spawn_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os, quintet\n"
        "def work(_):\n"
        "    with quintet.Model(os.environ['G2P'], device='cpu', cache_memory=64) as model:\n"
        "        return model.generate('a').text\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        print(pool.map(work, range(2)))\n"
    )
    done = run_python(script)
    assert (done.returncode, done.stdout) == (0, "['EY1', 'EY1']\n"), done.stderr


def test_the_modules_import_only_what_they_need():
    done = run_python(
        "import sys, quintet\n"
        "assert 'numpy' not in sys.modules and 'grpc' not in sys.modules\n"
        "quintet.Model\n"
        "assert 'grpc' not in sys.modules and 'google.protobuf' not in sys.modules\n"
        "quintet.Client\n"
        "assert 'grpc' in sys.modules and 'grpc_tools.protoc' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_exists():
    for name in quintet.__all__:
        assert getattr(quintet, name).__doc__, name
    assert pathlib.Path(quintet.__file__).with_name("py.typed").exists()
    with pytest.raises(AttributeError):
        quintet.NoSuchName  # noqa: B018


@pytest.mark.parametrize("count", [0, 3, 299, 301, 1000])
def test_a_list_that_changes_its_length_during_a_call(count):
    class Changing(list):
        def __iter__(self):
            return iter(["a"] * count)

    with quintet.Model(G2P, **SMALL) as model:
        with pytest.raises(InvalidArgumentError, match="their number changed .* from 300"):
            model.encode(Changing(["a"] * 300))
        assert model.encode([]).shape == (0, 256) and model.encode(["a"]).shape == (1, 256)
