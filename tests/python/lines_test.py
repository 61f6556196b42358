"""Tests that commands over lines never drop a part of their input or of a request silently."""

import json
import subprocess

import pytest

from server_process import BINARY, G2P


def run(*flags: str, stdin: bytes, code: int = 0, env=None) -> tuple[list[str], str]:
    done = subprocess.run(
        [BINARY, flags[0], str(G2P), *flags[1:], "--quiet"],
        input=stdin,
        capture_output=True,
        timeout=120,
        check=False,
        env=env,
    )
    assert done.returncode == code, done.stderr.decode(errors="replace")
    return done.stdout.decode().splitlines(), done.stderr.decode()


def lines_of(*objects) -> bytes:
    return "".join(json.dumps(item) + "\n" for item in objects).encode()


JSON = ("--input", "json", "--output", "json")


def test_id_and_meta_are_carried_through_also_by_failed_lines():
    given = lines_of(
        {"text": "oros", "id": 7, "meta": {"b": [1, None], "a": "x"}},
        {"text": "oros", "id": "seven"},
        {"text": "oros"},
        {"text": "oros", "txt": "", "id": 9, "meta": 1},
        {"token_ids": [1 << 20], "id": [10]},
    )
    out, _ = run("generate", *JSON, stdin=given, code=1)
    answers = [json.loads(line) for line in out]
    assert [answer["line"] for answer in answers] == [1, 2, 3, 4, 5]
    assert answers[0]["id"] == 7 and answers[0]["meta"] == {"b": [1, None], "a": "x"}
    assert answers[1]["id"] == "seven" and "meta" not in answers[1]
    assert "id" not in answers[2]
    assert answers[3]["id"] == 9 and answers[3]["meta"] == 1 and "error" in answers[3]
    assert answers[4]["id"] == [10] and "error" in answers[4]
    out, _ = run("encode", *JSON, stdin=given, code=1)
    assert [json.loads(line).get("id") for line in out] == [7, "seven", None, 9, [10]]
    out, _ = run("score", *JSON, stdin=lines_of({"text": "a", "targets": ["AH0"], "id": 3}))
    assert json.loads(out[0])["id"] == 3


def test_numbers_of_id_and_meta_keep_their_digits():
    line = b'{"id":123456789012345678901234,"meta":18446744073709551616,"text":"oros"}\n'
    out, _ = run("generate", *JSON, stdin=line)
    assert out[0].endswith(',"id":123456789012345678901234,"meta":18446744073709551616}')


def test_a_request_beyond_the_kv_cache_is_told_the_size_and_the_flag():
    _, log = run(
        "generate", "--cache-memory", "1", "--num-beams", "32", stdin=b"a" * 300 + b"\n", code=1
    )
    assert "MiB of KV cache, the model has 1 MiB: raise --cache-memory" in log


def test_text_output_warns_once_that_it_has_no_id_and_meta():
    given = lines_of({"text": "a"}, {"text": "oros", "id": 1}, {"text": "a", "meta": 2})
    out, log = run("generate", "--input", "json", stdin=given)
    assert len(out) == 3
    assert log.count('"id" and "meta" are written only with --output json') == 1
    assert "line 2: " in log


@pytest.mark.parametrize(
    "command, field, expected",
    [
        ("generate", "num_beens", "did you mean num_beams?"),
        ("generate", "targets", 'put fields of your own into \\"meta\\"'),
        ("encode", "num_beams", "meta"),
        ("score", "target", "did you mean targets?"),
    ],
)
def test_unknown_fields_fail_their_line(command, field, expected):
    line = {"text": "oros", field: ["AH0"]}
    if command == "score":
        line["targets"] = ["AH0"]
    out, log = run(command, *JSON, stdin=lines_of(line), code=1)
    assert f'unknown field \\"{field}\\"' in out[0] and expected in out[0], out
    assert "line 1: input: unknown field" in log


def test_options_of_a_line_replace_those_of_the_flags():
    words = [{"text": "oros"}, {"text": "oros", "num_beams": 4, "return_scores": True}]
    out, _ = run("generate", *JSON, "--max-new-tokens", "6", stdin=lines_of(*words))
    answers = [json.loads(line) for line in out]
    assert "score" not in answers[0]["sequences"][0]
    expected, _ = run(
        "generate",
        *JSON,
        "--max-new-tokens",
        "6",
        "--num-beams",
        "4",
        "--return-scores",
        stdin=lines_of({"text": "oros"}),
    )
    assert answers[1]["sequences"] == json.loads(expected[0])["sequences"]
    every = {
        "text": "oros",
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 5,
        "seed": 3,
        "stop": ".",
        "suppress_tokens": [9],
        "bad_words_ids": [[8, 9]],
        "eos_token_ids": [1],
        "max_new_tokens": 3,
        "decoder_prefix": [5],
        "logprobs": True,
    }
    out, _ = run("generate", *JSON, stdin=lines_of(every), code=0)
    assert json.loads(out[0])["seed"] == 3
    assert len(json.loads(out[0])["sequences"][0]["logprobs"]) <= 3


@pytest.mark.parametrize(
    "field, value, expected",
    [
        ("num_beams", "4", "num_beams: expected a whole number from 0 to 4294967295, got string"),
        ("num_beams", 33, "num_beams: 33 is not in [1, 32]"),
        ("num_beams", -1, "num_beams: expected a whole number"),
        ("do_sample", 1, "do_sample: expected true or false, got 1"),
        ("temperature", "hot", "temperature: expected a number, got string"),
        ("early_stopping", "soon", "early_stopping: expected true, false or"),
        ("stop", [1], "stop: expected a string or an array of strings, got 1"),
        ("suppress_tokens", 5, "suppress_tokens: expected an array of token ids, got number"),
        ("bad_words_ids", [5], "bad_words_ids[0]: expected an array of token ids"),
        ("seed", -1, "seed: expected a whole number"),
        ("decoder_prefix", 5, "decoder_prefix: expected an array of token ids"),
    ],
)
def test_a_wrong_option_fails_its_line_alone(field, value, expected):
    given = lines_of({"text": "oros", field: value}, {"text": "oros"})
    out, _ = run("generate", *JSON, stdin=given, code=1)
    assert expected in json.loads(out[0])["error"]["message"]
    assert json.loads(out[1])["sequences"]


@pytest.mark.parametrize(
    "flags",
    [
        ("generate", "--logprobs"),
        ("generate", "--top-logprobs", "2"),
        ("generate", "--return-scores", "--num-beams", "2"),
        ("score", "--top-logprobs", "2"),
    ],
)
def test_values_that_text_output_does_not_show_are_refused(flags):
    _, log = run(*flags, stdin=b"oros\tAH0\n", code=2)
    assert "text output does not show it; use --output json" in log
    out, _ = run(
        "generate", "--input", "json", stdin=lines_of({"text": "oros", "logprobs": True}), code=1
    )
    assert out == [""]


def test_input_that_is_not_utf8_fails_its_line():
    out, log = run("generate", stdin=b"oros\nwagn\xe9\noros\n", code=1)
    assert out[0] == out[2] != "" and out[1] == ""
    assert "line 2: the line is not UTF-8" in log


@pytest.mark.parametrize(
    "head, expected",
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "the input is binary"),
        (b"PK\x03\x04\x14\x00\x00\x00", "the input is binary"),
        ("oros\nwagner\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_binary_input_ends_the_command(head, expected):
    out, log = run("generate", stdin=head + b"rest\n" * 1000, code=2)
    assert out == [] and expected in log


def test_temperature_0_is_greedy():
    greedy, _ = run("generate", stdin=b"oros\nwagner\n")
    for flags in (["--temperature", "0"], ["--do-sample", "--temperature", "0", "--top-k", "9"]):
        assert run("generate", *flags, stdin=b"oros\nwagner\n")[0] == greedy
    line = {"text": "oros", "temperature": 0.0, "do_sample": True}
    out, _ = run("generate", "--input", "json", stdin=lines_of(line))
    assert out == greedy[:1]


@pytest.mark.parametrize("dtype", ["float32", "fp32", "FP32", "torch.float32"])
def test_data_types_have_their_usual_names(dtype):
    assert (
        run("generate", "--dtype", dtype, stdin=b"oros\n")[0]
        == run("generate", "--dtype", "f32", stdin=b"oros\n")[0]
    )


def test_misspelt_variables_are_warned_of():
    env = {
        "QUINTET_NUM_BEANS": "4",
        "QUINTET_num_beams": "4",
        "QUINTET_MODLE": "x",
        "QUINTET_FOO": "x",
        "QUINTET_PORT": "tcp://10.0.0.1:50051",
        "PATH": "/usr/bin",
    }
    _, log = run("generate", stdin=b"oros\n", env=env)
    assert (
        "QUINTET_NUM_BEANS: no flag has this environment variable; did you mean QUINTET_NUM_B"
        in log
    )
    assert (
        "QUINTET_num_beams: no flag has this environment variable; did you mean QUINTET_NUM_B"
        in log
    )
    assert "did you mean QUINTET_MODEL?" in log
    assert "QUINTET_PORT" not in log and "QUINTET_FOO" not in log


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [BINARY, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_is_a_subcommand():
    assert command("help").stdout == command("--help").stdout != ""
    for arguments in (["help", "help"], ["help", "--help"], ["help", "-h"]):
        assert command(*arguments).stdout == command("--help").stdout
    assert command("help", "generate", "--help").stdout == command("generate", "--help").stdout
    assert command("help", "serve").stdout == command("serve", "--help").stdout != ""
    assert command("help", "bench", "serve").stdout == command("bench", "serve", "--help").stdout
    assert command("help", "generat").returncode == 2


def test_a_flag_before_the_subcommand_is_explained():
    done = command("--num-beams", "4", "generate")
    assert done.returncode == 2
    assert (
        "--num-beams: flags come after the subcommand, for example: quintet generate" in done.stderr
    )
