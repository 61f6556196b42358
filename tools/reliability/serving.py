"""Shared by the reliability scripts: server processes, loads sent by `quintet bench serve`, and
reports of which claims hold.

Needs only the standard library. All traffic uses the loopback interface. Every process that this
module starts is ended when the script ends.
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
# Commands without --device run on the CPU, also on a machine with a GPU.
os.environ.setdefault("QUINTET_DEVICE", "cpu")
G2P = SOURCE / "deploy" / "models" / "g2p"
RESULTS = SOURCE / "tools" / "bench" / "results" / "reliability"

# Even on larger machines the server and the load have one core each, so that figures of different
# machines are comparable.
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
    """Returns a command that runs `quintet` in a container with this machine's network. The
    container is removed when this script ends.

    In the container the model is the folder /model. podman forwards signals to the container and
    ends with the container's exit code.
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


def core_halves() -> tuple[str, str]:
    """Returns the first half of the machine's cores, for a server, and the second half, for its
    clients, as taskset takes them. On a machine with one core both are this core."""
    cores = os.cpu_count()
    half = max(cores // 2, 1)
    return f"0-{half - 1}", f"{half % cores}-{cores - 1}"


def eventually(condition, timeout_s: float) -> float | None:
    """Waits until condition() is true. Returns the seconds that this took, or None after
    `timeout_s` seconds."""
    begin = time.monotonic()
    while True:
        if condition():
            return time.monotonic() - begin
        if time.monotonic() - begin > timeout_s:
            return None
        time.sleep(0.01)


def http_get(port: int, path: str, timeout_s: float = 10) -> tuple[int, str]:
    """Returns status and body of the HTTP response; status 0 if there is no response."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Server:
    """A process of `quintet serve`. It serves the shipped model unless `model` is given.

    `flags`: flags of quintet serve, with underscores instead of dashes. `core`: the core on which
    all threads run. `engine_core`: another core, for the engine's threads. `address_space`:
    RLIMIT_AS in bytes. `cgroup`: the folder of the cgroup in which the server runs. `image`: a
    container image to run instead of the binary; `process` is then podman's process.
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
        # A small encoder cache is already full after a warm-up. If it could grow during the test,
        # that growth could not be told from a leak.
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
        """Returns the ids of the engine's threads. Each of them runs the steps of one model. With
        --threads 1 no other thread computes."""
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
        """Sends SIGTERM and waits for the end of the server. Returns its exit code, or kills it and
        returns -9 if the drain takes longer than `timeout_s`."""
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
        """Returns {name: value} of all metrics; a value is the sum over all labels. A histogram
        appears as its _sum and its _count."""
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
        """Returns the number of accepted requests that are neither finished nor running nor
        queued."""
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
        """Returns one field of /proc/PID/status in bytes: VmRSS or VmSize (now), VmHWM or VmPeak
        (the peaks of these)."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        return 0

    def answers(self, timeout_s: float = 5) -> bool:
        return answers(self.target, timeout_s)


class Samples:
    """During a with-block, calls read() every `period_s` seconds in a thread and appends the
    results to `values`."""

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
    """A `quintet bench serve` process in the background."""

    def __init__(self, target: str, *, core=None, **flags):
        self._output = tempfile.TemporaryFile()
        self.process = spawn(
            load_command(target, core=core, **flags), stdout=self._output, stderr=subprocess.DEVNULL
        )

    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> dict:
        """Stops sending requests, waits until all sent requests have ended, and returns the
        report."""
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
    """Returns whether a new client gets a response within `timeout_s` seconds."""
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
    """Collects the claims and figures of one row of the acceptance table, prints them and writes
    them as JSON."""

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
        """Copies the hardware and versions from the report of a load. Sets "cores" to the cores of
        the machine, because the reporting client may be pinned to one core."""
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
    """Parses the command line. Its flags are --model DIR, --out DIR, and for each of `defaults` a
    flag with the type and the default of that value."""
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
    """Raises this process's limit of open files to the hard limit and returns that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


if __name__ == "__main__":
    sys.exit("serving.py is a module; run one of the scripts in its folder")
