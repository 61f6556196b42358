"""Runs the completion scripts in their shells: they must offer exactly what --help lists."""

import re
import shutil
import subprocess

import pytest

from server_process import BINARY, run_quintet

COMMANDS = ["generate", "encode", "convert", "serve", "bench", "bench serve", "bench engine", "man"]

# Each of these shell programs loads the script $1 and completes the command line of the remaining
# arguments, with the cursor at the end of the last one. It prints one candidate per line.
BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_quintet
printf '%s\\n' "${COMPREPLY[@]}"
"""
# The functions of zsh's completion system work only while a line is edited. The replacements below
# print the candidates that the script passes to them.
ZSH = """
compdef() { :; }
compset() { PREFIX="${PREFIX#*=}"; }
compadd() { shift; print -l -- "$@"; }
_describe() { [[ $1 == -o ]] && shift; print -l -- "${(@)${(@P)2}%%:*}"; }
_files() { print -l -- *; }
source "$1"; shift
words=("$@"); CURRENT=$#; PREFIX="${@[-1]}"
_quintet
"""
FISH = """
source $argv[1]
complete -C (string join ' ' -- $argv[2..]) | string replace -r '\\t.*' ''
"""
SHELLS = {
    "bash": ["bash", "--norc", "-c", BASH, "bash"],
    "zsh": ["zsh", "-f", "-c", ZSH, "zsh"],
    "fish": ["fish", "--no-config", "-c", FISH],
}


@pytest.fixture(params=SHELLS)
def offered(request, tmp_path):
    """Returns a function that completes a command line in one of the shells.

    The current folder of the shell holds one file, words.txt.
    """
    shell = request.param
    assert shutil.which(shell), f"{shell} is not installed: tools/setup.sh"
    script = tmp_path / "script"
    script.write_bytes(run_quintet("completion", shell))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "words.txt").touch()

    def complete(*words: str) -> set[str]:
        flag, equals, value = words[-1].partition("=")
        # Bash splits words at "=".
        typed = [*words[:-1], flag, "=", value][: None if value else -1]
        if not equals or shell != "bash":
            typed = words
        done = subprocess.run(
            [*SHELLS[shell], str(script), "quintet", *typed],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TERM": "dumb"},
        )
        assert done.stderr == "", done.stderr
        found = {word.removeprefix(f"{flag}=") for word in done.stdout.split()}
        # Keeps the candidates that begin with the word at the cursor. zsh itself does this only
        # while a line is edited.
        return {word for word in found if word.startswith(value if equals else words[-1])}

    return complete


def flags_of(command: str) -> set[str]:
    help_text = run_quintet(*command.split(), "--help").decode()
    return set(re.findall(r"(?m)^  (?:-h,)?(--[a-z0-9-]+)", help_text))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_offered_after_its_subcommand(offered, command):
    flags = flags_of(command)
    assert "--log-level" in flags
    assert offered(*command.split(), "--") == flags


def test_subcommands_are_offered_where_they_may_stand(offered):
    top = run_quintet("--help").decode()
    names = set(re.findall(r"(?m)^  ([a-z]+) {2,}", top))
    assert {"generate", "serve", "completion"} <= names
    assert offered("") == names | {"help"}
    assert offered("he") == {"health", "help"}
    assert offered("help", "gen") == {"generate"}
    assert {"serve", "engine"} <= offered("help", "bench", "")
    assert offered("gen") == {"generate"}
    assert {"serve", "engine"} <= offered("bench", "")
    assert offered("completion", "z") == {"zsh"}


def test_values_of_a_fixed_set_are_offered_and_files_otherwise(offered):
    assert offered("generate", "--dtype", "f") == {"f32", "f16", "fp8", "fp8-w8a8"}
    assert offered("serve", "--cache-dtype", "") == {"auto", "fp8"}
    assert offered("generate", "--device", "") == {"auto", "cpu", "cuda"}
    assert offered("serve", "--device", "c") == {"cpu", "cuda"}
    assert offered("encode", "--output", "") == {"json", "f32", "npy"}
    assert offered("generate", "--output", "") == {"text", "json"}
    assert offered("generate", "--device=") == {"auto", "cpu", "cuda"}
    assert offered("generate", "--device=c") == {"cpu", "cuda"}
    assert offered("generate", "--early-stopping", "") == {"heuristic", "first", "never"}
    assert offered("generate", "--skip-special-tokens", "") == {"true", "false"}
    assert "words.txt" in offered("generate", "--model", "")


def test_a_flag_given_before_does_not_change_the_subcommand(offered):
    assert offered("bench", "serve", "--target", "serve", "--") == flags_of("bench serve")


def test_no_other_shell():
    done = subprocess.run(
        [BINARY, "completion", "tcsh"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2 and "tcsh" in done.stderr
