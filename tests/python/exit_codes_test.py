"""The same failure ends every subcommand with the same code, and says why."""

import subprocess

import pytest

from server_process import BINARY, G2P, SOURCE

SERVE = ["serve", "--listen", "127.0.0.1:0", "--http-listen", ""]
COMMANDS = [["generate"], ["encode"], ["score"], ["bench"], ["bench", "engine", "--concurrency", "1", "--requests", "1"], SERVE]


def run(*arguments: object) -> tuple[int, str]:
    done = subprocess.run(
        [BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr + done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
@pytest.mark.parametrize(
    "flags, code, words",
    [
        (["--model", "/no/such/model"], 3, "/no/such/model: config.json: cannot open"),
        (["--model", G2P, "--max-memory", "5"], 1, "--max-memory allows 5242880"),
        (["--model", G2P, "--dtype", "fp8"], 2, "--dtype fp8: "),
        (["--model", G2P, "--device", "cuda:1000"], 2, "CUDA"),
        (["--model", G2P, "--no-such-flag"], 2, "unknown flag --no-such-flag"),
        ([], 2, "--model is required"),
    ],
    ids=["no model", "no memory", "no such products", "no such device", "no such flag", "no flag"],
)
def test_a_failure_has_one_code(command, flags, code, words):
    found, text = run(*command, *flags)
    assert words in text
    assert found == code


def test_help_and_readme_name_every_code():
    found, text = run("--help")
    assert found == 0
    readme = (SOURCE / "README.md").read_text(encoding="utf-8").partition("**Exit codes:**")[2].partition("\n- **")[0]
    for code in (0, 1, 2, 3, 4, 70, 130):
        assert f"\n  {code}  " in text
        assert f" {code} " in readme.replace("\n", " ")


@pytest.mark.parametrize("model", [f"{G2P}/", f"{G2P}//", f"{G2P}/."])
def test_a_model_is_named_as_its_directory_is_whatever_ends_its_path(model):
    found, text = run(*SERVE, "--model", model, "--max-memory", "5")
    assert (found, "model g2p: " in text) == (1, True)
