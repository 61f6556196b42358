"""Several engines on a CPU: jobs, quintet.Model and a server give the results of one engine."""

import concurrent.futures
import subprocess

import numpy as np
import pytest
import quintet
from adapter_files import make_adapter
from server_process import BINARY, G2P, Server, run_quintet, words

BEAMS = {"num_beams": 2, "max_new_tokens": 24, "return_scores": True}


@pytest.mark.parametrize(
    "command", [["generate", "--num-beams", "2"], ["encode", "--output", "json"]]
)
def test_jobs_give_the_same_bytes(command):
    text = "".join(f"{word}\n" for word in words(300))
    name, *flags = command
    flags = ["--model", str(G2P), "--device", "cpu", "--quiet", *flags]
    two = run_quintet(name, *flags, "--engines", "2", stdin=text)
    assert two == run_quintet(name, *flags, stdin=text)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["bench", "--engines", "2"], "--engines: bench runs one engine"),
        (["generate", "--engines", "0"], "--engines"),
        (["generate", "--device", "cuda:1,1"], "expected auto, cpu, cuda, cuda:N, cuda:N,M"),
    ],
)
def test_wrong_flags(flags, error):
    command = [BINARY, *flags, "--model", str(G2P)]
    done = subprocess.run(command, capture_output=True, text=True, input="a\n", check=False)
    assert done.returncode == 2
    assert error in done.stderr


def test_a_model(tmp_path):
    adapter = make_adapter(tmp_path / "one", 1)
    options = {"device": "cpu", "cache_memory": 64, "adapters": {"one": adapter}, "threads": 2}
    with quintet.Model(G2P, **options) as one, quintet.Model(G2P, engines=2, **options) as two:
        assert two.info().max_num_seqs == 2 * one.info().max_num_seqs
        for name in (None, "one"):
            expected = one.generate(words(200), adapter=name, **BEAMS)
            assert two.generate(words(200), adapter=name, **BEAMS) == expected
        assert np.array_equal(two.encode(words(100)), one.encode(words(100)))
        two.load_adapter("late", adapter)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            late = pool.map(lambda word: two.generate(word, adapter="late", **BEAMS), words(50))
            assert list(late) == expected[:50]
    with pytest.raises(quintet.InvalidArgumentError, match="engines: 0 is not in"):
        quintet.Model(G2P, engines=0)


def test_a_server():
    with (
        Server(G2P, engines=2, threads=2, max_running=8) as server,
        quintet.Client(server.target) as client,
        quintet.Model(G2P, device="cpu", cache_memory=64) as model,
    ):
        assert client.info().limits.max_running_sequences == 16
        expected = [result.text for result in model.generate(words(300), num_beams=2)]
        assert [result.text for result in client.generate(words(300), num_beams=2)] == expected
        tokens = server.metric("quintet_generation_tokens_total")
        each = [server.metric("quintet_engine_generation_tokens_total", engine=i) for i in "01"]
        assert tokens > 300 and min(each) > 0 and sum(each) == tokens
