"""Tests that a model and its adapters are replaced under load: short runs of
tools/reliability/reload.py and adapters.py."""

import subprocess
import sys

from server_process import SOURCE


def check(script: str, *flags: str) -> None:
    command = [sys.executable, SOURCE / "tools" / "reliability" / script, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_model_is_replaced_while_clients_call_and_stream():
    check("reload.py", "--reloads", "16", "--clients", "5", "--warm-reloads", "4")


def test_adapters_are_replaced_while_clients_stream():
    check("adapters.py", "--adapters", "0", "--changes", "20", "--clients", "4")
