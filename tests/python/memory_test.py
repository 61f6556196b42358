"""Tests `quintet serve` under `ulimit -v`.

The server plans its memory within the limit, or refuses to start and prints the sizes.
"""

import re
import resource
import signal
import subprocess

import pytest

from rpc_client import RpcClient
from server_process import BINARY, G2P, Server, free_port

MIB = 1 << 20


def serve(limit_bytes: int, *flags: str) -> tuple[int, str]:
    """Starts a server under `ulimit -v` and stops it when it is ready, unless it ends itself.

    Returns its exit code and output.
    """
    port = free_port()
    process = subprocess.Popen(
        [
            BINARY,
            "serve",
            "--model",
            str(G2P),
            "--listen",
            f"127.0.0.1:{port}",
            "--http-listen",
            "",
            "--drain-delay",
            "0",
            *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes)),
    )
    output = ""
    for line in process.stdout:
        output += line
        if line.endswith(" serving\n"):
            with RpcClient(f"127.0.0.1:{port}") as client:
                assert client.generate("phoneme").sequences[0].text
            process.send_signal(signal.SIGTERM)
    return process.wait(timeout=60), output


def plan_of(output: str) -> dict[str, int]:
    line = next(line for line in output.splitlines() if "memory plan" in line)
    return {
        name: int(value)
        for name, value in re.findall(r"([a-zA-Z ]+) (\d+)", line.partition("MiB: ")[2])
    }


def test_a_server_plans_within_ulimit_v():
    code, output = serve(2048 * MIB, "--cache-memory", "256")
    assert code == 0, output
    assert "85 % of 2048 MiB (RLIMIT_AS (ulimit -v))" in output
    plan = plan_of(output)
    assert plan[" KV cache"] == 256
    assert plan[" requests"] >= 64
    assert plan[" total"] <= 2048 * 0.85 + 1  # shown in whole MiB


def test_near_the_limit_encoder_caches_shrink_first():
    code, output = serve(1200 * MIB, "--cache-memory", "256")
    assert code == 0, output
    assert "encoder caches reduced from 256" in output
    plan = plan_of(output)
    assert plan[" encoder caches"] < 256
    assert plan[" requests"] >= 64


def test_what_does_not_fit_is_refused_with_the_figures():
    code, output = serve(700 * MIB, "--cache-memory", "256")
    assert code == 1
    for words in (
        "KV cache 256",
        "weights ",
        "700 MiB (RLIMIT_AS (ulimit -v))",
        "lower --cache-memory",
    ):
        assert words in output


@pytest.mark.parametrize("limit_mib", (200, 300, 400))
def test_far_below_what_it_needs_a_server_ends_with_an_error_of_its_own(limit_mib):
    code, output = serve(limit_mib * MIB)
    assert code == 1, output
    assert "quintet: serve: the server needs " in output


def test_the_plan_is_logged_without_a_limit_of_the_process():
    with Server(G2P) as server:
        assert re.search(
            r"memory plan, MiB: .* total \d+ of \d+ MiB, 85 % of \d+ MiB \(.+\)", server.log()
        )
