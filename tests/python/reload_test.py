"""Tests that a model is replaced under load: a short run of tools/reliability/reload.py."""

import subprocess
import sys

from server_process import SOURCE


def test_a_model_is_replaced_while_clients_call_and_stream():
    script = SOURCE / "tools" / "reliability" / "reload.py"
    command = [sys.executable, script, "--reloads", "16", "--clients", "5", "--warm-reloads", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
