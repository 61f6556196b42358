import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tests" / "python"))

from server_process import G2P, Server  # noqa: E402


@pytest.fixture(scope="session")
def server():
    """A running `build/quintet serve` with the shipped model."""
    with Server(G2P) as running:
        yield running
