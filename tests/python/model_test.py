"""Tests quintet.Model and quintet.AsyncModel: models in this process, against the command line."""

import asyncio
import gc
import itertools
import json
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import quintet
from server_process import G2P, SMALL, package_environment, run_python, run_quintet, words

LINES = [*words(150), "ext" * 40, "a", "Straße", "日本"]


@pytest.fixture(scope="module")
def heads(tiny_models):
    """Loads one model of each head. Yields them by the names of their folders."""
    loaded = {name: quintet.Model(path, **SMALL) for name, path in tiny_models.items()}
    yield loaded
    for each in loaded.values():
        each.close()


def command(subcommand: str, path: pathlib.Path, *flags: str, lines=LINES) -> list[dict]:
    """Runs a subcommand on `lines` and returns its parsed JSON lines."""
    out = run_quintet(
        subcommand,
        "--model",
        str(path),
        "--output",
        "json",
        "--quiet",
        *flags,
        stdin="".join(f"{line}\n" for line in lines),
    )
    return [json.loads(line) for line in out.splitlines()]


def single(value: float) -> float:
    """Rounds `value` to f32 and to the digits that the command line prints for it."""
    return float(str(numpy.float32(value)))


def sequence_json(sequence: quintet.Sequence) -> dict:
    value = {
        "text": sequence.text,
        "token_ids": sequence.token_ids,
        "finish_reason": sequence.finish_reason,
    }
    if sequence.matched_stop is not None:
        value["matched_stop"] = sequence.matched_stop
    if sequence.score is not None:
        value["score"] = single(sequence.score)
    if sequence.logprobs is not None:
        value["logprobs"] = [token_json(token) for token in sequence.logprobs]
    return value


def token_json(token: quintet.TokenLogprob) -> dict:
    value = {"token_id": token.token_id, "logprob": single(token.logprob)}
    if token.top:
        value["top"] = [{"token_id": id_, "logprob": single(lp)} for id_, lp in token.top]
    return value


# Options of Model.generate, and the equivalent flags of `quintet generate`.
CASES = {
    "greedy": ({}, []),
    "beams": (
        {"num_beams": 4, "num_return_sequences": 3, "return_scores": True},
        ["--num-beams", "4", "--num-return-sequences", "3", "--return-scores"],
    ),
    "early_stopping": (
        {"num_beams": 3, "early_stopping": True, "length_penalty": 0.5},
        ["--num-beams", "3", "--early-stopping", "first", "--length-penalty", "0.5"],
    ),
    "never": (
        {"num_beams": 2, "early_stopping": "never"},
        ["--num-beams", "2", "--early-stopping", "never"],
    ),
    "sampling": (
        {"do_sample": True, "seed": 7, "temperature": 0.7, "top_k": 5, "num_return_sequences": 2},
        ["--do-sample", "--seed", "7", "--temperature", "0.7", "--top-k", "5"]
        + ["--num-return-sequences", "2"],
    ),
    "logprobs": (
        {"logprobs": True, "top_logprobs": 3, "max_new_tokens": 9},
        ["--logprobs", "--top-logprobs", "3", "--max-new-tokens", "9"],
    ),
    "stop": (
        {"stop_strings": ["AH0", "N"], "include_stop": True},
        ["--stop", "AH0", "--stop", "N", "--include-stop"],
    ),
    "lists": (
        {"suppress_tokens": [9, 13], "bad_words_ids": [[56, 64], [36]], "eos_token_id": 1},
        ["--suppress-tokens", "9,13", "--bad-words-ids", "56,64;36", "--eos-token-ids", "1"],
    ),
    "prefix": (
        {"decoder_prefix": "K", "echo": True, "no_repeat_ngram_size": 2},
        ["--decoder-prefix", "K", "--echo", "--no-repeat-ngram-size", "2"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_generate_equals_the_command_line(model, case):
    options, flags = CASES[case]
    expected = command("generate", G2P, *flags)
    for result, line in zip(model.generate(LINES, **options), expected, strict=True):
        assert [sequence_json(s) for s in result.sequences] == line["sequences"]
        usage = {name: getattr(result.usage, name) for name in line["usage"]}
        assert usage == line["usage"]
        assert result.seed == line.get("seed")


def test_text_output_equals_that_of_the_command_line(model):
    expected = run_quintet(
        "generate", "--model", str(G2P), "--quiet", stdin="".join(f"{w}\n" for w in LINES)
    ).decode()
    assert "".join(f"{result.text}\n" for result in model.generate(LINES)) == expected


@pytest.mark.parametrize(
    "pooling", ["mean", "first", "last", "max", "mean_sqrt_len", "weighted_mean", "none"]
)
def test_encode_equals_the_command_line(model, pooling):
    flags = ["--pooling", pooling, "--normalize"]
    out = run_quintet(
        "encode",
        "--model",
        str(G2P),
        "--output",
        "f32",
        "--quiet",
        *flags,
        stdin="".join(f"{line}\n" for line in LINES),
    )
    values = model.encode(LINES, pooling=pooling, normalize=True)
    if pooling == "none":
        assert all(array.shape[1] == 256 for array in values)
        values = numpy.concatenate(values)
    assert values.dtype == numpy.float32 and values.tobytes() == out


def test_score_equals_the_command_line(model):
    lines = [f"{word}\tF OW1 N\tK AE1 T" for word in words(30)]
    expected = command("score", G2P, "--top-logprobs", "2", lines=lines)
    results = model.score(words(30), [["F OW1 N", "K AE1 T"]] * 30, top_logprobs=2)
    for result, line in zip(results, expected, strict=True):
        told = [
            {"logprob": target.logprob, "tokens": [token_json(token) for token in target.tokens]}
            for target in result.targets
        ]
        assert told == line["targets"]
        assert result.logprobs.tolist() == [target["logprob"] for target in line["targets"]]


def test_classify_equals_the_command_line(heads, tiny_models):
    texts = words(20)
    for result, line in zip(
        heads["t5-seqcls"].classify(texts),
        command("classify", tiny_models["t5-seqcls"], lines=texts),
        strict=True,
    ):
        told = [
            {"label": s.label, "probability": s.probability, "logit": single(s.logit)}
            for s in result.labels
        ]
        assert (result.label, told) == (line["label"], line["labels"])
    for result, line in zip(
        heads["t5-tokcls"].classify(texts),
        command("classify", tiny_models["t5-tokcls"], lines=texts),
        strict=True,
    ):
        for token, expected in zip(result.tokens, line["tokens"], strict=True):
            for name in ("label", "probability", "token_id", "begin_byte", "end_byte"):
                assert getattr(token, name) == expected[name]
            assert sorted(single(s.logit) for s in token.labels) == sorted(expected["logits"])
    contexts = [f"{word} and more of it" for word in texts]
    answered = heads["t5-qa"].classify(texts, contexts, top_k=3, max_answer_tokens=8)
    flags = ["--top-k", "3", "--max-answer-tokens", "8"]
    lines = [f"{q}\t{c}" for q, c in zip(texts, contexts, strict=True)]
    for result, line in zip(
        answered, command("classify", tiny_models["t5-qa"], *flags, lines=lines), strict=True
    ):
        told = [
            {name: getattr(a, name) for name in ("text", "begin_byte", "end_byte", "probability")}
            for a in result.answers
        ]
        assert told == line["answers"]


def test_gpt2_generates_and_scores(heads, tiny_models):
    gpt2 = heads["gpt2"]
    expected = command("generate", tiny_models["gpt2"], "--max-new-tokens", "5", lines=["ab", "c"])
    results = gpt2.generate(["ab", "c"], max_new_tokens=5)
    assert [r.token_ids for r in results] == [e["sequences"][0]["token_ids"] for e in expected]
    plain = gpt2.score("ab", ["cd"]).logprobs[0]
    assert plain != gpt2.score("ab", ["cd"], prefix_lm=True).logprobs[0]
    assert plain != gpt2.score("abc", ["cd"], sliding_window=2).logprobs[0]


def test_shapes_of_inputs_and_results(model):
    one = model.generate("phoneme")
    assert isinstance(one, quintet.Generation) and one.text == "F OW1 N IY0 M"
    ids = model.tokenize("phoneme").ids
    for same in (ids, tuple(ids), numpy.array(ids), numpy.array(ids, dtype=numpy.int32)):
        assert model.generate(same) == one
    assert model.generate(["phoneme"]) == [one] == model.generate(("phoneme",))
    assert model.generate([ids, "phoneme"]) == [one, one]
    assert model.generate([]) == []
    assert model.encode([]).shape == (0, 256)
    assert model.encode("phoneme").shape == (256,)
    lazily = model.generate(word for word in ["phoneme", "a"])
    assert iter(lazily) is lazily and [r.text for r in lazily] == ["F OW1 N IY0 M", "EY1"]
    rows = model.encode(iter(["a", "b"]))
    assert numpy.array_equal(numpy.stack(list(rows)), model.encode(["a", "b"]))
    assert numpy.array_equal(model.encode(LINES)[3], model.encode(LINES[3]))
    assert model.score("a", "EY1").logprobs.shape == (1,)


def test_iterators_take_bounded_memory(model):
    """An endless iterator of inputs is read only slightly ahead of the results that are taken."""
    taken = itertools.count()
    results = model.generate(("a" for _ in taken), max_new_tokens=1)
    for _ in range(500):
        next(results)
    assert next(taken) < 500 + 2 * model._engine.window()
    results.close()


def test_results_of_a_slow_source_arrive_before_its_end(model):
    gate = threading.Event()

    def source():
        yield "phoneme"
        time.sleep(0.05)
        for _ in range(400):  # the first result is awaited only until it is there
            time.sleep(0.01)
            yield "a"
            if gate.is_set():
                return

    results = model.generate(source())
    assert next(results).text == "F OW1 N IY0 M"
    gate.set()
    assert {result.text for result in results} == {"EY1"}


def test_stream_equals_generate(model):
    for options in ({}, {"num_beams": 3}, {"do_sample": True, "seed": 3}):
        stream = model.stream("extraordinarily", **options)
        chunks = list(stream)
        whole = model.generate("extraordinarily", **options)
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert stream.result == whole
    with model.stream("extraordinarily", ignore_eos=True, max_new_tokens=4000) as stream:
        next(stream)
        time.sleep(0.3)  # several chunks arrive together
        next(stream)
    assert list(stream) == []
    with pytest.raises(RuntimeError):
        _ = stream.result


def test_encode_shares_memory_and_outlives_the_model():
    loaded = quintet.Model(G2P, **SMALL)
    array = loaded.encode(LINES)
    copy = array.copy()
    tokens = loaded.encode("phoneme", pooling="none")
    loaded.close()
    del loaded
    gc.collect()
    assert not array.flags.owndata and array.flags.writeable and not tokens.flags.owndata
    assert numpy.array_equal(array, copy)
    array[0] = 0


def test_threads_share_the_model(model):
    expected = {word: result for word, result in zip(LINES, model.generate(LINES), strict=True)}
    failures = []

    def work(part):
        for word in part:
            if model.generate(word) != expected[word]:
                failures.append(word)

    threads = [threading.Thread(target=work, args=(LINES[i::16],)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_gil_is_released(model):
    """A Python thread makes progress while a call runs."""
    ticks = 0
    done = threading.Event()

    def tick():
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    model.generate(["a"] * 8, ignore_eos=True, max_new_tokens=300)
    done.set()
    thread.join()
    assert ticks > 20


def test_errors_name_the_input_and_keep_the_results_before_it(model):
    with pytest.raises(quintet.InvalidArgumentError, match="input 2: .*99999") as error:
        model.generate(["a", "b", [99999], "c"])
    assert (error.value.index, error.value.code) == (2, "INVALID_ARGUMENT")
    results = model.generate(iter(["a", "b", [99999], "c"]))
    assert [next(results).text, next(results).text] == ["EY1", "B IY1"]
    with pytest.raises(quintet.InvalidArgumentError):
        next(results)
    mixed = model.generate(["a", [99999], "b"], on_error="return")
    assert [type(value).__name__ for value in mixed] == [
        "Generation",
        "InvalidArgumentError",
        "Generation",
    ]
    assert isinstance(mixed[1], ValueError) and mixed[1].index == 1
    unreadable = model.generate(["a", "\ud800", "b"], on_error="return")
    assert unreadable[1].index == 1 and unreadable[2].text == "B IY1"
    rows = model.encode(["a", [99999], "b", "\ud800"], on_error="return")
    assert numpy.isnan(rows).all(axis=1).tolist() == [False, True, False, True]


def test_results_and_errors_can_be_pickled(model):
    result = model.generate("phoneme", logprobs=True, top_logprobs=2, num_beams=2)
    assert pickle.loads(pickle.dumps(result)) == result
    [error] = model.generate([[99999]], on_error="return")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.index, copy.code) == (
        type(error),
        str(error),
        0,
        "INVALID_ARGUMENT",
    )


def test_truncation_and_special_tokens():
    with quintet.Model(G2P, max_input_tokens=4, **SMALL) as short:
        with pytest.raises(quintet.InvalidArgumentError, match="max_input_tokens 4.*truncate=True"):
            short.generate("phoneme")
        ids = short.tokenize("phoneme").ids
        cut = short.generate("phoneme", truncate=True)
        assert cut.token_ids == short.generate([*ids[:3], 1]).token_ids
        assert cut.usage.input_tokens == 4
    assert ids[-1] == 1


def test_tokenize_and_detokenize(model):
    tokens = model.tokenize("phoneme x")
    assert model.detokenize(tokens.ids) == "phoneme x"
    assert tokens.ids[:-1] == model.tokenize("phoneme x", add_special_tokens=False).ids
    assert tokens.pieces[-1] == "</s>" and tokens.offsets[-1] == (9, 9)
    assert model.detokenize(tokens.ids, skip_special_tokens=False).endswith("</s>")


def test_a_timeout_ends_the_input(model):
    with pytest.raises(quintet.DeadlineExceededError) as error:
        model.generate("a", timeout=0.05, ignore_eos=True, max_new_tokens=4000)
    assert isinstance(error.value, TimeoutError)
    assert model.generate("a", timeout=60).text == "EY1"


def test_info(model, heads):
    info = model.info()
    assert (info.family, info.head, info.d_model) == ("t5", "language model", 256)
    assert info.device == "cpu"
    assert len(heads["t5-seqcls"].info().labels) == 5
    assert "g2p" in repr(model)


def test_device_auto_falls_back_to_the_cpu_and_says_so():
    done = run_python(
        "import logging, os, quintet\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "print(quintet.Model(os.environ['G2P'], cache_memory=64).info().device)\n",
        CUDA_VISIBLE_DEVICES="",
    )
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr
    assert re.search(r"device auto: cpu \(.+\), dtype f32", done.stderr), done.stderr


def test_progress_bar(model, capsys):
    tqdm = pytest.importorskip("tqdm")
    assert tqdm and len(model.generate(["a", "b"], progress=True)) == 2
    assert "2/2" in capsys.readouterr().err


ENDLESS = {
    "generate": "model.generate(['a'] * 640, ignore_eos=True, max_new_tokens=4000)",
    "stream": "[list(model.stream('a', ignore_eos=True, max_new_tokens=4000)) for _ in range(99)]",
}


@pytest.mark.parametrize("method", ENDLESS)
def test_control_c_ends_a_call(method):
    code = (
        "import os, quintet\n"
        "model = quintet.Model(os.environ['G2P'], device='cpu', cache_memory=64)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        f"    {ENDLESS[method]}\n"
        "except KeyboardInterrupt:\n"
        "    print(model.generate('a').text)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=package_environment(),
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("EY1\n", 0)
    assert time.monotonic() - begin < 20


def test_a_process_with_an_open_model_ends():
    done = run_python(
        "import os, quintet, threading\n"
        "model = quintet.Model(os.environ['G2P'], device='cpu', cache_memory=64)\n"
        "source = model.generate(iter(['a'] * 10))\n"
        "next(source)\n"
        "stream = model.stream('a', ignore_eos=True)\n"
        "next(stream)\n"
        "print('end')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# ---- asyncio ----


def test_async_methods_equal_those_of_model(model):
    async def work():
        shared = quintet.AsyncModel(model)
        async with shared:
            results = await asyncio.gather(*(shared.generate(word) for word in LINES))
            assert results == model.generate(LINES)
            assert await shared.generate(LINES[:5], num_beams=2) == model.generate(
                LINES[:5], num_beams=2
            )
            assert numpy.array_equal(await shared.encode(LINES), model.encode(LINES))
            assert (await shared.score("a", ["EY1"])) == model.score("a", ["EY1"])
            lazily = await shared.generate(iter(LINES[:9]))
            assert [r async for r in lazily] == model.generate(LINES[:9])
            chunks = [chunk.text async for chunk in shared.stream("extraordinarily")]
            assert "".join(chunks) == model.generate("extraordinarily").text
            assert (await shared.tokenize("a")) == model.tokenize("a")
            with pytest.raises(quintet.InvalidArgumentError):
                await shared.generate("a", num_beams=99)
            with pytest.raises(TypeError):
                await shared.generate("a", beams=2)

    asyncio.run(work())
    assert model.generate("a").text == "EY1"  # a shared model stays open


def test_another_tokenizer_and_symbolic_links(tmp_path):
    folder = tmp_path / "linked"
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).symlink_to(G2P / file)
    with pytest.raises(quintet.InvalidArgumentError, match="or follow_symlinks=True$"):
        quintet.Model(folder, **SMALL)
    options = {"follow_symlinks": True, **SMALL}
    with quintet.Model(folder, **options) as bare:
        with pytest.raises(quintet.FailedPreconditionError, match="no tokenizer"):
            bare.generate("a")
    for tokenizer in (G2P, str(G2P / "spiece.model")):
        with quintet.Model(folder, tokenizer=tokenizer, **options) as complete:
            assert complete.generate("a").text == "EY1"


def test_cancelling_a_task_ends_its_call(model):
    async def work():
        shared = quintet.AsyncModel(model)
        task = asyncio.create_task(
            shared.generate(["a"] * 64, ignore_eos=True, max_new_tokens=4000)
        )
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        begin = time.monotonic()
        assert (await shared.generate("a")).text == "EY1"
        assert time.monotonic() - begin < 10
        await shared.close()

    asyncio.run(work())
