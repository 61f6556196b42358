"""Runs Debian's haproxy as a load balancer in front of replicas on this machine. Its configuration
is that of deploy/haproxy/haproxy.cfg, without TLS.
"""

import pathlib
import shutil
import subprocess
import tempfile

from serving import SOURCE, answers, free_port, spawn

SHIPPED = SOURCE / "deploy" / "haproxy" / "haproxy.cfg"


def find() -> str:
    path = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if not path:
        raise SystemExit(
            "haproxy is not installed: apt-get install --no-install-recommends haproxy"
        )
    return path


def configuration(port: int, replicas) -> str:
    """Returns the shipped configuration, changed to listen on `port` and to balance over
    `replicas`, a list of (gRPC port, HTTP port)."""
    lines = []
    for line in SHIPPED.read_text().splitlines():
        words = line.split()
        if words[:1] == ["server"] or "ssl" in line:
            continue
        if words[:1] == ["bind"]:
            line = f"    bind 127.0.0.1:{port} proto h2"
        elif words[:1] == ["maxconn"]:
            line = "    maxconn 4000"  # below the limit of open files of a test machine
        lines.append(line)
    lines += [
        f"    server replica{i} 127.0.0.1:{grpc} proto h2 check port {http} check-proto h1"
        for i, (grpc, http) in enumerate(replicas)
    ]
    return "\n".join(lines) + "\n"


class Haproxy:
    """A running haproxy that balances over `replicas`, a list of (gRPC port, HTTP port). `core`:
    the cores on which it runs, as taskset takes them; None: all."""

    def __init__(self, replicas, core=None):
        self.port = free_port()
        self.target = f"127.0.0.1:{self.port}"
        self._folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(self._folder.name) / "haproxy.cfg"
        path.write_text(configuration(self.port, replicas))
        self.version = subprocess.run(
            [find(), "-v"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()[2]
        pinned = ["taskset", "-c", core] if core else []
        self.process = spawn(
            [*pinned, find(), "-f", str(path), "-db"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    def answers(self, timeout_s: float = 5) -> bool:
        return answers(self.target, timeout_s)

    def alive(self) -> bool:
        return self.process.poll() is None
