"""Tests the sections [models.NAME] in the --config file of `quintet serve`, which set options of
one model."""

import os
import re
import subprocess
import tomllib

import numpy
import pytest

import quintet
from quintet.wire import pb
from server_process import BINARY, G2P, Server, failure_of

SECTIONS = """
[models.g2p]
dtype = "int8"
max-input-tokens = 7
limit_new_tokens = 9

[models."t5-encoder"]
default-prompt-name = "passage"

[models."t5-encoder".prompts]
query = "query: "
passage = "passage: \\u00e4"
"""


@pytest.fixture(scope="module")
def server(tiny_models, tmp_path_factory):
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    config.write_text('dtype = "f32"\nmax-input-tokens = 100\n' + SECTIONS)
    with Server(G2P, tiny_models["t5-encoder"], config=config) as running:
        yield running


def test_settings_hold_for_their_model_alone(server):
    with quintet.Client(server.target) as client:
        g2p, encoder = client.list_models()
    assert (g2p.dtype, g2p.max_input_tokens, g2p.max_new_tokens) == ("int8", 7, 9)
    assert (encoder.dtype, encoder.max_input_tokens) == ("f32", 100)
    with quintet.Client(server.target, model="g2p") as client:
        client.generate("a", max_new_tokens=9)
        with pytest.raises(quintet.InvalidArgumentError, match=r"10 is not in \[1, 9\]"):
            client.generate("a", max_new_tokens=10)
        with pytest.raises(quintet.InvalidArgumentError, match="7"):
            client.encode("abcdefghijklmnopqrstuvwxyz")


def test_prompts(server):
    def rows(client, inputs, **options):
        request = [pb.Input(text=text) for text in inputs]
        answer = client.stub.Encode(
            pb.EncodeRequest(call={"model": "t5-encoder"}, inputs=request, options=options)
        )
        return [numpy.frombuffer(row.values, "<f4") for row in answer.embeddings]

    with server.client(call={"model": "t5-encoder"}) as client:
        assert sorted(client.info().prompt_names) == ["passage", "query"]
        [plain] = rows(client, ["b"], prompt="")
        [query] = rows(client, ["query: b"], prompt="")
        [passage] = rows(client, ["passage: \u00e4b"], prompt="")
        assert not numpy.array_equal(plain, query) and not numpy.array_equal(query, passage)
        assert numpy.array_equal(rows(client, ["b"], prompt_name="query")[0], query)
        assert numpy.array_equal(rows(client, ["b"], prompt_name="passage")[0], passage)
        assert numpy.array_equal(rows(client, ["b"])[0], passage)  # the default prompt
        assert numpy.array_equal(rows(client, ["b"], prompt_name="")[0], plain)
        error = failure_of(lambda: rows(client, ["b"], prompt_name="other"))
        assert "prompt_name: expected one of passage, query, got other" in error.details()
    with server.client(call={"model": "g2p"}) as client:
        assert list(client.info().prompt_names) == []


def run(config, *flags: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [BINARY, "serve", "--config", str(config), "--listen", "127.0.0.1:0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def settings(text: str) -> dict:
    return tomllib.loads(text)["models"]


def test_print_config_shows_them_and_is_a_configuration(tmp_path):
    config = tmp_path / "a.toml"
    config.write_text(f'model = "{G2P}"\n' + SECTIONS)
    shown = run(config, "--print-config")
    assert shown.returncode == 0, shown.stderr
    assert settings(shown.stdout) == {
        "g2p": {"dtype": "int8", "max-input-tokens": "7", "limit-new-tokens": "9"},
        "t5-encoder": {
            "default-prompt-name": "passage",
            "prompts": {"query": "query: ", "passage": "passage: \u00e4"},
        },
    }
    again = tmp_path / "b.toml"
    again.write_text(shown.stdout)
    assert run(again, "--print-config").stdout == shown.stdout


def test_flags_and_variables_beat_sections(tmp_path):
    config = tmp_path / "a.toml"
    keys = 'dtype = "int8"\ncache-dtype = "auto"\nmax-queue = 5\n'
    config.write_text(f'model = "{G2P}"\n[models.g2p]\n{keys}')
    assert settings(run(config, "--print-config").stdout)["g2p"] == {
        "dtype": "int8",
        "cache-dtype": "auto",
        "max-queue": "5",
    }
    flag = run(config, "--print-config", "--dtype", "f32", "--cache-dtype", "auto").stdout
    assert settings(flag)["g2p"] == {"max-queue": "5"}
    variable = run(config, "--print-config", QUINTET_MAX_QUEUE="6").stdout
    assert settings(variable)["g2p"] == {"dtype": "int8", "cache-dtype": "auto"}
    with Server(G2P, config=config, dtype="f32") as server, quintet.Client(server.target) as client:
        assert [model.dtype for model in client.list_models()] == ["f32"]


@pytest.mark.parametrize(
    "lines, error",
    [
        ("dtyp = 'int8'", r':4: models\.g2p\.dtyp: unknown key.* Did you mean "dtype"\?'),
        ("listen = 'x'", r":4: models\.g2p\.listen: unknown key, or not a setting of one model"),
        ("help = true", r":4: models\.g2p\.help: unknown key"),
        ("dtype = 'int9'", r":4: models\.g2p\.dtype: .*int9"),
        ("cache-dtype = 'int8'", r":4: models\.g2p\.cache-dtype: .*int8"),
        (
            "device = 'tpu'",
            r":4: models\.g2p\.device: .*expected auto, cpu, cuda, cuda:N, cuda:N,M or cuda:all",
        ),
        ("max-queue = 0", r":4: models\.g2p\.max-queue: .*expected a whole number from 1"),
        ("max-queue = true", r":4: models\.g2p\.max-queue: .*expected a whole number from 1"),
        ("max-queue = [1]", r":4: models\.g2p\.max-queue: expected a string in quotes, a number"),
        ("[models.other]", r":4: \[models\.other\]: no model of this name is served; served: g2p"),
        ("[models.g2p.more]", r":4: expected \[models\.NAME\], \[models\.NAME\.prompts\] or "),
        ("[unknown]\nx = 1", r":5: unknown\.x: no such subcommand"),
    ],
)
def test_errors_name_line_and_key(lines, error, tmp_path):
    config = tmp_path / "serve.toml"
    config.write_text(f'model = "{G2P}"\n[models.g2p]\nmax-input-tokens = 9\n{lines}\n')
    done = run(config)
    assert done.returncode == 2, done.stderr
    assert re.search(re.escape(str(config)) + error, done.stderr), done.stderr


def test_a_cpu_refuses_a_cache_of_fp8(tmp_path):
    config = tmp_path / "serve.toml"
    config.write_text(f'model = "{G2P}"\ndevice = "cpu"\n[models.g2p]\ncache-dtype = "fp8"\n')
    done = run(config, "--http-listen", "")
    assert done.returncode == 2
    assert "--cache-dtype: fp8 is not supported on a CPU" in done.stderr


def test_a_default_prompt_that_does_not_exist(tmp_path):
    config = tmp_path / "serve.toml"
    config.write_text(f'model = "{G2P}"\n[models.g2p]\ndefault-prompt-name = "absent"\n')
    done = run(config, "--http-listen", "")
    assert done.returncode == 3
    assert "default-prompt-name: the model has no prompt absent" in done.stderr


def test_other_subcommands_ignore_them(tmp_path):
    config = tmp_path / "a.toml"
    config.write_text("num-beams = 2\n[models.anything]\ndtype = 'int8'\n")
    done = subprocess.run(
        [BINARY, "generate", "--config", str(config), "--print-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert 'num-beams = "2"' in done.stdout and "anything" not in done.stdout
