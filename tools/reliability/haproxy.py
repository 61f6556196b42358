"""Debian's haproxy before replicas, as deploy/ configures it: h2 on both sides, checks of /readyz in HTTP/1."""
import pathlib
import shutil
import subprocess
import tempfile

from serving import answers, free_port, spawn

CONFIGURATION = """\
global
  maxconn 4000
defaults
  mode http
  timeout connect 2s
  timeout client 620s
  timeout server 620s
  retries 2
  option redispatch
frontend clients
  bind 127.0.0.1:{port} proto h2
  default_backend replicas
backend replicas
  balance leastconn
  option httpchk GET /readyz
{servers}
"""


def find() -> str:
    path = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if not path:
        raise SystemExit("haproxy is not installed: apt-get install --no-install-recommends haproxy")
    return path


class Haproxy:
    """Balances over (gRPC port, HTTP port) pairs."""

    def __init__(self, replicas):
        self.port = free_port()
        self.target = f"127.0.0.1:{self.port}"
        servers = "\n".join(f"  server replica{i} 127.0.0.1:{grpc} proto h2 check port {http} check-proto h1 inter 200ms fall 1 rise 1" for i, (grpc, http) in enumerate(replicas))
        self._folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(self._folder.name) / "haproxy.cfg"
        path.write_text(CONFIGURATION.format(port=self.port, servers=servers))
        self.version = subprocess.run([find(), "-v"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[2]
        self.process = spawn([find(), "-f", str(path), "-db"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

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
