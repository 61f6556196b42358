"""Tests that a failure has the same exit code and a message in every subcommand."""

import json
import shutil
import signal
import subprocess
import threading

import pytest

from server_process import BINARY, G2P, SOURCE

SERVE = ["serve", "--listen", "127.0.0.1:0", "--http-listen", ""]
COMMANDS = [
    ["generate"],
    ["encode"],
    ["score"],
    ["bench"],
    ["bench", "engine", "--concurrency", "1", "--requests", "1"],
    SERVE,
]


def run(*arguments: object) -> tuple[int, str]:
    done = subprocess.run(
        [BINARY, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr + done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
@pytest.mark.parametrize(
    "flags, code, words",
    [
        (["--model", "/no/such/model"], 3, "/no/such/model: no such directory"),
        (["--model", G2P, "--max-memory", "5"], 1, "--max-memory allows 5 MiB"),
        (["--model", G2P, "--dtype", "fp8"], 2, "--dtype: fp8 is not supported"),
        (["--model", G2P, "--dtype", "int8-w8a8"], 2, "--dtype: int8-w8a8 is not supported"),
        (
            ["--model", G2P, "--device", "cpu", "--cache-dtype", "fp8"],
            2,
            "--cache-dtype: fp8 is not supported on a CPU",
        ),
        (["--model", G2P, "--device", "cuda:1000"], 2, "use --device cpu"),
        (["--model", G2P, "--no-such-flag"], 2, "unknown flag --no-such-flag"),
        ([], 2, "--model is required"),
    ],
    ids=[
        "no model",
        "no memory",
        "no such weights",
        "no such products",
        "no such cache",
        "no such device",
        "no such flag",
        "no flag",
    ],
)
def test_a_failure_has_one_code(command, flags, code, words):
    found, text = run(*command, *flags)
    assert words in text
    assert found == code


def test_help_and_readme_name_every_code():
    found, text = run("--help")
    assert found == 0
    readme = (
        (SOURCE / "tools" / "README.md")
        .read_text(encoding="utf-8")
        .partition("**Exit codes:**")[2]
        .partition("\n\n")[0]
    )
    for code in (0, 1, 2, 3, 4, 70, 130):
        assert f"\n  {code}  " in text
        assert f" {code} " in readme.replace("\n", " ")


@pytest.mark.parametrize("model", [f"{G2P}/", f"{G2P}//", f"{G2P}/."])
def test_a_model_is_named_as_its_directory_is_whatever_ends_its_path(model):
    found, text = run(*SERVE, "--model", model, "--max-memory", "5")
    assert (found, "model g2p: " in text) == (1, True)


@pytest.fixture
def model_with_fields(tmp_path):
    """Makes a model directory with the given generation_config.json."""

    def make(fields: dict) -> str:
        model = tmp_path / "model"
        shutil.copytree(G2P, model, dirs_exist_ok=True)
        (model / "generation_config.json").write_text(json.dumps(fields), encoding="utf-8")
        return str(model)

    return make


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if c[0] in ("generate", "bench", "serve")],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_generation_field_that_is_not_followed_is_refused(command, model_with_fields):
    model = model_with_fields({"max_time": 2.5, "num_beams": 2})
    found, text = run(*command, "--model", model)
    assert found == 3
    assert (
        "generation_config.json: max_time is 2.5" in text and "--ignore-generation-fields" in text
    )
    assert "num_beams" not in text


def test_serve_loads_such_a_model_when_told_to(model_with_fields):
    model = model_with_fields({"max_time": 2.5})
    server = subprocess.Popen(
        [BINARY, *SERVE, "--model", model, "--ignore-generation-fields", "--drain-delay", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    logged = ""
    limit = threading.Timer(120, server.kill)
    limit.start()
    try:
        for line in server.stderr:
            logged += line
            if "info serving" in line:
                break
        server.send_signal(signal.SIGTERM)
        logged += server.stderr.read()
        assert server.wait(timeout=120) == 0
    finally:
        limit.cancel()
        server.kill()
        server.stderr.close()
    assert "generation_config.json: max_time is 2.5: ignored" in logged
    assert "info serving" in logged


def test_serve_loads_a_classifier_whatever_its_generation_fields_are(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(SOURCE / "tests/golden/cases/t5-tokcls", model)
    (model / "generation_config.json").write_text('{"max_time": 2.5}', encoding="utf-8")
    found, text = run(*SERVE, "--model", model, "--max-memory", "1")
    assert "max_time" not in text
    assert found == 1  # --max-memory is too small
