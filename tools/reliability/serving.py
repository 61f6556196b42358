"""Shared by the reliability scripts: a server process, loads by `quintet bench serve`, and
verdicts.

Standard library only. All traffic uses the loopback interface, and every process started here is
ended here.
"""

import argparse
import atexit
import contextlib
import json
import os
import pathlib
import platform
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[2]
QUINTET = os.environ.get("QUINTET_BINARY", str(SOURCE / "build" / "quintet"))
G2P = SOURCE / "deploy" / "models" / "g2p"
RESULTS = SOURCE / "tools" / "bench" / "results" / "reliability"

# One core for the server and one for the load, also on larger machines, for comparable figures.
SERVER_CORE, LOAD_CORE = "0", "1"

_children: list[subprocess.Popen] = []
_containers: list[str] = []


@atexit.register
def _end_children():
    if _containers:  # those that have ended are ignored
        remove = ["podman", "rm", "--force", "--ignore", "--time", "0", *_containers]
        subprocess.run(remove, stdout=subprocess.DEVNULL, check=False)
    for child in _children:
        if child.poll() is None:
            child.kill()
            child.wait()


def container_command(image: str, model) -> list[str]:
    """The command for `quintet` in a container with this machine's network, removed at our exit.

    The model is the folder /model there. podman passes signals on and ends with the exit code of
    the container.
    """
    name = f"quintet-reliability-{os.getpid()}-{len(_containers)}"
    _containers.append(name)
    confined = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
    volume = f"{pathlib.Path(model).resolve()}:/model:ro"
    run = ["podman", "run", "--rm", "--name", name, "--network", "host", "--volume", volume]
    return [*run, *confined, image]


def spawn(command, **options) -> subprocess.Popen:
    child = subprocess.Popen(command, **options)
    _children.append(child)
    return child


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(condition, timeout_s: float) -> float | None:
    """Waits for the condition; returns the seconds it took, or None after the time limit."""
    begin = time.monotonic()
    while True:
        if condition():
            return time.monotonic() - begin
        if time.monotonic() - begin > timeout_s:
            return None
        time.sleep(0.01)


def http_get(port: int, path: str, timeout_s: float = 10) -> tuple[int, str]:
    """HTTP status and body; status 0 if there is no response."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Server:
    """`quintet serve` with the shipped model unless another is given.

    `flags`: those of the subcommand, with underscores. `core`: the core of all its threads;
    `engine_core`: the core of the engine's threads instead. `address_space`: RLIMIT_AS in bytes.
    `cgroup`: the folder of the cgroup it runs in. `image`: the container image to run instead of
    the binary; `process` is then podman.
    """

    def __init__(
        self,
        model=G2P,
        *,
        ports=None,
        core=None,
        engine_core=None,
        environment=None,
        files_limit=None,
        address_space=None,
        cgroup=None,
        image=None,
        wait=True,
        **flags,
    ):
        self.port, self.http_port = ports or (free_port(), free_port())
        # The encoder output cache grows to its limit by design: a small one is full after a
        # warm-up, so that later growth of memory is significant.
        given = {
            "listen": f"127.0.0.1:{self.port}",
            "http_listen": f"127.0.0.1:{self.http_port}",
            "threads": 1,
            "drain_delay": 0,
            "cache_memory": 512,
            "encoder_cache_bytes": 16 << 20,
            **flags,
        }
        command = ["taskset", "-c", core] if core else []
        command += container_command(image, model) if image else [QUINTET]
        command += ["serve", "--model", "/model" if image else str(model)]
        for name, value in given.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        self.flags = {name: value for name, value in given.items() if "listen" not in name}
        self.target = f"127.0.0.1:{self.port}"
        self._log = tempfile.TemporaryFile()

        def limit():
            if files_limit:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files_limit, files_limit))
            if cgroup:
                (pathlib.Path(cgroup) / "cgroup.procs").write_text("0")
            if address_space:
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

        self.process = spawn(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            preexec_fn=limit,
        )
        if (
            wait
            and eventually(lambda: self.process.poll() is not None or self.ready(), 120) is None
            or self.process.poll() is not None
        ):
            self.process.kill()
            raise RuntimeError(f"the server does not become ready:\n{self.log()}")
        if engine_core:
            for thread in self.engine_threads():
                os.sched_setaffinity(thread, {int(engine_core)})

    def engine_threads(self) -> list[int]:
        """Each steps one model. With --threads 1 nothing else computes."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(task.name) for task in tasks if (task / "comm").read_text() == "engine\n"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def ready(self) -> bool:
        return self.get("/readyz", 1)[0] == 200

    def alive(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def stop(self, timeout_s: float = 60) -> int:
        """Sends SIGTERM and waits; returns the exit code, or -9 if the drain exceeds the limit."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def get(self, path: str, timeout_s: float = 10) -> tuple[int, str]:
        return http_get(self.http_port, path, timeout_s)

    def metrics(self) -> dict[str, float]:
        """Each metric of this server summed over its labels; of histograms the _sum and _count."""
        sums: dict[str, float] = {}
        for line in self.get("/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                name, value = line.split("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def at_rest(self) -> bool:
        metrics = self.metrics()
        return bool(metrics) and all(
            metrics[f"quintet_{name}"] == 0
            for name in ("requests_running", "requests_waiting", "kv_cache_usage_ratio")
        )

    def unaccounted(self) -> float:
        """Number of accepted requests that are not finished, running or queued."""
        m = self.metrics()
        return (
            m["quintet_requests_accepted_total"]
            - m["quintet_requests_finished_total"]
            - m["quintet_requests_running"]
            - m["quintet_requests_waiting"]
        )

    def resident_bytes(self) -> int:
        return self.memory_bytes("VmRSS")

    def memory_bytes(self, field: str) -> int:
        """Field of /proc/PID/status: VmRSS, VmSize (now), VmHWM, VmPeak (peak)."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        return 0

    def answers(self, timeout_s: float = 5) -> bool:
        return answers(self.target, timeout_s)


class Samples:
    """Calls `read` every `period_s` in a thread during the with-block and collects `values`."""

    def __init__(self, read, period_s: float):
        self._read, self._period_s, self.values = read, period_s, []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._end.wait(self._period_s):
            with contextlib.suppress(OSError, KeyError, ValueError):
                self.values.append(self._read())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


def load_command(target: str, *, core=None, **flags) -> list[str]:
    command = ["taskset", "-c", core] if core else []
    command += [QUINTET, "bench", "serve", "--target", target, "--output", "json"]
    for name, value in flags.items():
        name = f"--{name.replace('_', '-')}"
        command += (
            [name]
            if value is True
            else [name, *map(str, value)]
            if isinstance(value, (list, tuple))
            else [name, str(value)]
        )
    return command


class Load:
    """A `quintet bench serve` in the background; `report` waits for its end."""

    def __init__(self, target: str, *, core=None, **flags):
        self._output = tempfile.TemporaryFile()
        self.process = spawn(
            load_command(target, core=core, **flags), stdout=self._output, stderr=subprocess.DEVNULL
        )

    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> dict:
        """Stops sending; returns the report after all requests have ended."""
        if self.running():
            self.process.send_signal(signal.SIGINT)
        return self.report()

    def report(self, timeout_s: float = 1800) -> dict:
        code = self.process.wait(timeout_s)
        self._output.seek(0)
        text = self._output.read()
        if not text:
            raise RuntimeError(f"bench serve failed with code {code}")
        return json.loads(text)


def load(target: str, *, core=None, **flags) -> dict:
    """Runs `quintet bench serve` and returns its JSON report."""
    return Load(target, core=core, **flags).report()


def answers(target: str, timeout_s: float = 5) -> bool:
    """Whether a new client gets a response within the time limit."""
    command = load_command(
        target, concurrency=1, requests=1, input_tokens=4, output_tokens=2, timeout=timeout_s
    )
    return (
        subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s + 30,
            check=False,
        ).returncode
        == 0
    )


def count(report: dict, code: str) -> int:
    return report["load"]["codes"].get(code, {}).get("count", 0)


def failures(report: dict) -> int:
    return report["load"]["measured"] - count(report, "OK")


def lost(report: dict) -> int:
    return report["load"]["sent"] - report["load"]["answered"]


class Verdict:
    """Collects the claims of one row of the acceptance table, prints them and writes them as
    JSON."""

    def __init__(self, name: str, row: int | None, what: str):
        self._begin = time.monotonic()
        self.data = {
            "name": name,
            "row": row,
            "what": what,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "conditions": None,
            "claims": [],
            "figures": {},
        }

    def conditions(self, report: dict):
        """Copies hardware and versions from any report of a load. Its client may be pinned to one
        core, the machine is not."""
        self.data["conditions"] = {**report["conditions"], "cores": os.cpu_count()}

    def figure(self, name: str, value):
        self.data["figures"][name] = value

    def claim(self, text: str, value, holds: bool):
        self.data["claims"].append({"claim": text, "value": value, "holds": bool(holds)})

    def finish(self, out: str | None) -> int:
        self.data["seconds"] = round(time.monotonic() - self._begin, 1)
        holds = all(claim["holds"] for claim in self.data["claims"])
        self.data["holds"] = holds
        if self.data["conditions"] is None:
            self.data["conditions"] = machine()
        print(
            f"{self.data['name']}: {'holds' if holds else 'DOES NOT HOLD'} "
            f"({self.data['seconds']:.0f} s)"
        )
        for claim in self.data["claims"]:
            value = f"{claim['value']:.4g}" if isinstance(claim["value"], float) else claim["value"]
            print(f"  {'yes' if claim['holds'] else 'NO '}  {claim['claim']}: {value}")
        if out:
            path = pathlib.Path(out)
            path.mkdir(parents=True, exist_ok=True)
            (path / f"{self.data['name']}.json").write_text(json.dumps(self.data, indent=1) + "\n")
        return 0 if holds else 1


def machine() -> dict:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    version = subprocess.run(
        [QUINTET, "--version"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    return {
        "version": version[1],
        "commit": version[2].strip("()"),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
    }


def arguments(description: str, **defaults) -> argparse.Namespace:
    """--out DIR and, for each default, a flag of its type; --model DIR is always there."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        default=str(defaults.pop("model", G2P)),
        help="model directory (default: %(default)s)",
    )
    parser.add_argument(
        "--out", help=f"folder for the JSON (committed results: {RESULTS.relative_to(SOURCE)})"
    )
    for name, value in defaults.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"default: {value}"
        )
    return parser.parse_args()


def raise_files_limit():
    """Raises the limit of open files to its maximum and returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


if __name__ == "__main__":
    sys.exit("serving.py is a module; run one of the scripts in its folder")
