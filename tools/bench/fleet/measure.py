"""Measures a replica of Quintet and fits a service model to it, then measures replicas behind
HAProxy under Poisson loads and compares these with the simulator.

All figures come from public interfaces: `quintet bench` for the times of the encoder, and the gRPC
client of `quintet bench serve` for everything else. The simulator gets the recorded arrivals and
lengths of each load, so that both see the same requests.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "reliability"))
import random_t5
from fleet import fields
from fleet.fields import FieldError
from fleet.report import distribution
from fleet.scenario import Scenario
from fleet.service import Curve, ServiceModel
from fleet.simulation import Simulation
from haproxy import Haproxy
from runs import flags_of, json_report, write_report
from serving import QUINTET, Server, eventually, failures, load, machine

GOAL = 0.15  # largest relative deviation of a simulated percentile
LOOP_REQUESTS = 3000  # in a simulation of a closed loop


@dataclasses.dataclass(frozen=True)
class Cores:
    """Lists of cores as taskset takes them, and the compute threads of a replica. `engines`: the
    core of each engine's thread, if it has one of its own."""

    replicas: list[str]
    engines: Sequence[str | None]
    proxy: str
    client: str
    threads: int


def sibling_groups() -> list[list[int]]:
    """Returns the usable cores, grouped by physical core."""
    groups: dict[str, list[int]] = {}
    for core in sorted(os.sched_getaffinity(0)):
        path = pathlib.Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        key = path.read_text().strip() if path.exists() else str(core)
        groups.setdefault(key, []).append(core)
    return list(groups.values())


def divide(groups: Sequence[Sequence[int]], replicas: int) -> Cores:
    """Gives the replicas half of the physical cores, HAProxy an eighth, and the client the rest. An
    engine has a thread for each physical core of its replica, but leaves one core to the server's
    other threads where cores have no siblings. With too few cores, each engine has one, in turn,
    and everything else shares those that are left, if any, and otherwise all."""

    def names(chosen) -> str:
        return ",".join(str(core) for group in chosen for core in group)

    each, proxy = len(groups) // 2 // replicas, len(groups) // 8
    if each < 2 or proxy < 1:
        engines = [str(groups[i % len(groups)][0]) for i in range(replicas)]
        others = names(groups[replicas:] or groups)
        return Cores([others] * replicas, engines, others, others, 1)
    parts = [groups[i * each : (i + 1) * each] for i in range(replicas)]
    rest = groups[replicas * each :]
    threads = each if len(groups[0]) > 1 else each - 1
    return Cores(
        [names(part) for part in parts],
        [None] * replicas,
        names(rest[:proxy]),
        names(rest[proxy:]),
        threads,
    )


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is measured: a model on devices, one for each replica, under one kind of load."""

    model: str
    devices: list[str]
    dtype: str
    max_running: int
    max_batch_tokens: int
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    cores: Cores
    seconds: float  # of each load

    @property
    def on_gpu(self) -> bool:
        return self.devices[0] != "cpu"

    @property
    def mean_output(self) -> float:
        return sum(self.output_tokens) / 2

    def server(self, i: int) -> Server:
        """Starts replica `i`."""
        return Server(
            self.model,
            core=self.cores.replicas[i],
            engine_core=self.cores.engines[i],
            threads=self.cores.threads,
            device=self.devices[i],
            dtype=self.dtype,
            max_running=self.max_running,
            max_batch_tokens=self.max_batch_tokens,
            cache_memory=2048,  # replicas may share a GPU
            max_queue=4096,
            max_queue_tokens=1 << 24,
            encoder_cache_bytes=0,
        )

    def bench(self, batches: list[int], lengths: list[int], new_tokens: int) -> dict:
        """Returns the report of `quintet bench` on the cores of the first replica."""
        flags = {
            "model": self.model,
            "device": self.devices[0],
            "dtype": self.dtype,
            "threads": self.cores.threads,
            "max_running": self.max_running,
            "max_batch_tokens": self.max_batch_tokens,
            "max_input_tokens": self.input_tokens[1],
            "mode": "generate",
            "batch": batches,
            "input_tokens": lengths,
            "new_tokens": new_tokens,
            "repetitions": 5,
            "warmup": 2,
        }
        cores = self.cores.engines[0] or self.cores.replicas[0]
        command = ["taskset", "-c", cores, QUINTET, "bench", *flags_of(flags)]
        return json_report(command, timeout=120)

    def load(self, target: str, **shape) -> tuple[dict, list[dict]]:
        """Sends a load. Returns its report and its recorded requests. Raises RuntimeError if a
        request failed."""
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            report = load(
                target, core=self.cores.client, channels=8, timeout=120, record=file.name, **shape
            )
            lines = pathlib.Path(file.name).read_text().splitlines()
        if failures(report):
            raise RuntimeError(f"requests failed: {report['load']['codes']}")
        return report, [json.loads(line) for line in lines]

    def mixed(self) -> dict:
        """Returns the flags of the mixed lengths."""
        return {
            "input_tokens": "{}:{}".format(*self.input_tokens),
            "output_tokens": "{}:{}".format(*self.output_tokens),
        }


# ---- One replica ----


def batch_sizes(most: int) -> list[int]:
    """Returns 1, 2, 3, 4, 6, 8, 12, ... below `most`, and `most`."""
    sizes = {m << i for m in (2, 3) for i in range(most.bit_length())} | {1}
    return sorted(size for size in sizes if size < most) + [most]


@dataclasses.dataclass(frozen=True)
class EngineTimes:
    """Points [rows, ms] of steps and [tokens, ms] of encoder batches, each with the projection to
    the cross-attention's keys and values, and the conditions under which they were measured."""

    step_ms: list[list[float]]
    encode_ms: list[list[float]]
    conditions: dict


def engine_times(setup: Setup) -> EngineTimes:
    """Measures whole calls of `quintet bench` with one and with several new tokens."""
    low, high = setup.input_tokens
    middle, more = (low + high) // 2, 1 + int(setup.mean_output)
    batches = [b for b in batch_sizes(setup.max_running) if b * middle <= setup.max_batch_tokens]
    steps, encodes = [], []
    for lengths, sizes in (([middle], batches), ([low, high], [1])):
        ms: dict[tuple[int, int], dict[int, float]] = {}
        for new_tokens in (1, more):
            report = setup.bench(sizes, lengths, new_tokens)
            for row in report["rows"]:
                shape = (row["batch"], row["input_tokens"])
                ms.setdefault(shape, {})[new_tokens] = row["wall_ms"]
        for (batch, tokens), times in ms.items():
            step = (times[more] - times[1]) / (more - 1)
            if tokens == middle:
                steps.append([batch, step])
            encodes.append([batch * tokens, max(times[1] - step, 0.0)])
    return EngineTimes(ascending(steps), ascending(encodes), report["conditions"])


def ascending(points: list[list[float]]) -> list[list[float]]:
    """Returns the points by ascending x, one for each x, with times that do not fall: a time below
    an earlier one becomes equal to it."""
    points = [[x, ms] for x, ms in sorted({x: ms for x, ms in points}.items())]
    for before, point in itertools.pairwise(points):
        point[1] = max(point[1], before[1])
    return points


def levels(setup: Setup) -> list[int]:
    """Returns the requests in flight of the closed loops that measure one replica: 1, 2, 4, ...
    below its rows, and twice its rows, so that all of them are always busy."""
    doubling = [1 << i for i in range(setup.max_running.bit_length())]
    return [n for n in doubling if n < setup.max_running] + [2 * setup.max_running]


def fit_steps(setup: Setup, members: dict, rates: dict[int, float]) -> list[list[float]]:
    """Returns points of step_ms with which a simulated replica ends as many requests per second as
    the measured one. `members`: the service model; step_ms has the point of 1 row, and further ones
    from which the search begins. `rates`: requests/s by the requests in flight, ascending."""
    engine = Curve(members["step_ms"])
    points = [members["step_ms"][0]]
    for flight, rate in rates.items():
        rows = min(flight, setup.max_running)
        if rows == points[-1][0]:
            continue
        ms = engine(rows)
        for _ in range(5):
            ms = max(ms, points[-1][1])
            found = simulated_rate(
                setup, {**members, "step_ms": [*points, [rows, ms]]}, 1, flight, rate
            )
            # A request has a row for rows / rate seconds, which its steps share.
            ms += rows * (1 / rate - 1 / found) * 1e3 / setup.mean_output
        points.append([rows, max(ms, points[-1][1])])
    return points


def service_model(setup: Setup) -> dict:
    """Measures one replica. Returns the members of a fleet.service.ServiceModel."""
    engine = engine_times(setup)
    members = {
        "step_ms": engine.step_ms,
        "encode_ms": engine.encode_ms,
        "max_running": setup.max_running,
        "max_batch_tokens": setup.max_batch_tokens,
        "max_queue": 4096,
        "max_queue_tokens": 1 << 24,
        # On a GPU the server's limit holds for the host's time, which encoding takes little of.
        "prefill_share": 0.0 if setup.on_gpu else 0.75,
        "steps_ahead": 1 if setup.on_gpu else 0,
        "admission_rows": max(setup.max_running // 16, 1) if setup.on_gpu else 1,
        "admission_steps": 4 if setup.on_gpu else 0,
    }
    rates, first_ms = {}, {}
    with setup.server(0) as server:
        ports = [(server.port, server.http_port)]
        with Haproxy(ports, core=setup.cores.proxy) as proxy:
            wait_for(proxy, server)
            for flight in levels(setup):
                report = measured_loop(setup, proxy.target, flight, setup.seconds / 5)
                rates[flight] = rate_of(setup, report)
                first_ms[flight] = report["ttft_ms"]["p50"]
                if flight == 1:
                    step_ms = report["tpot_ms"]["p50"]
    encode = Curve(engine.encode_ms)
    engine_ms = encode(sum(setup.input_tokens) / 2) + step_ms
    members["overhead_ms"] = max(first_ms[1] - engine_ms, 0.0)
    members["step_ms"] = ascending([*engine.step_ms, [1, step_ms]])
    engine_steps = members["step_ms"]
    members["step_ms"] = fit_steps(setup, members, rates)
    if 2 in first_ms:
        # While other requests run, a GPU hides some of what the host does for a new one: the
        # overhead is what the first token takes when another request runs.
        found = simulated_loop(setup, members, 1, 2, rates[2])["ttft_ms"]["p50"]
        members["overhead_ms"] = max(members["overhead_ms"] + first_ms[2] - found, 0.0)
        members["step_ms"] = engine_steps
        members["step_ms"] = fit_steps(setup, members, rates)
    members["source"] = {
        "conditions": engine.conditions,
        "engine_step_ms": engine.step_ms,
        "requests_per_s_by_concurrency": list(rates.items()),
        "ttft_ms_p50_by_concurrency": list(first_ms.items()),
    }
    return members


def wait_for(proxy: Haproxy, *servers: Server) -> None:
    if eventually(proxy.answers, 30) is None:
        raise RuntimeError("HAProxy does not answer: " + servers[0].log()[-1000:])


# ---- Replicas behind HAProxy ----


def simulated(model: ServiceModel, replicas: int, **members) -> dict:
    """Returns the report of a simulation of `replicas` behind HAProxy's leastconn."""
    fleet = {"replicas": replicas, "balancer": "least_outstanding"}
    scenario = fields.read(Scenario, {"fleet": fleet, **members}, "scenario")
    scenario.model = model
    return Simulation(scenario).run()


def measured_loop(setup: Setup, target: str, flight: int, seconds: float) -> dict:
    """Returns the "load" of the report of a closed loop with `flight` requests in flight."""
    report, _ = setup.load(
        target, concurrency=flight, warmup=2 * flight, duration=seconds, **setup.mixed()
    )
    return report["load"]


def rate_of(setup: Setup, load_report: dict) -> float:
    """Returns requests/s: output tokens/s, which vary less in a short time, by the mean output."""
    return load_report["output_tokens_per_s"] / setup.mean_output


def simulated_loop(
    setup: Setup, members: dict, replicas: int, flight: int, expected: float
) -> dict:
    """Returns the report of such a closed loop in the simulator. `expected`: about its requests/s,
    for the length of the simulation."""
    warmup_s = 2 * flight / expected
    return simulated(
        fields.read(ServiceModel, members, "service"),
        replicas,
        duration_s=warmup_s + LOOP_REQUESTS / expected,
        warmup_s=warmup_s,
        concurrency=flight,
        workload={
            name: dict(zip(("low", "high"), getattr(setup, name), strict=True))
            for name in ("input_tokens", "output_tokens")
        },
    )


def simulated_rate(
    setup: Setup, members: dict, replicas: int, flight: int, expected: float
) -> float:
    """Returns the requests/s of that loop."""
    report = simulated_loop(setup, members, replicas, flight, expected)
    return report["output_tokens_per_s"] / setup.mean_output


def compare(setup: Setup, target: str, model: ServiceModel, share: float, rate: float) -> dict:
    """Sends a Poisson load and simulates its requests. Returns the percentiles of both."""
    report, requests = setup.load(
        target,
        request_rate=rate,
        warmup=max(int(2 * rate), 1),
        duration=setup.seconds,
        seed=int(100 * share),
        **setup.mixed(),
    )
    measured = [r for r in requests if r["measured"]]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
        trace.write("".join(json.dumps(r) + "\n" for r in requests))
        trace.flush()
        expected = simulated(
            model,
            len(setup.devices),
            duration_s=requests[-1]["at_s"] + 1,
            warmup_s=measured[0]["at_s"],
            workload={"arrivals": {"kind": "recorded", "file": trace.name}},
        )
    latencies = {}
    for name in ("ttft_ms", "e2e_ms"):
        real, found = distribution([r[name] for r in measured if name in r]), expected[name]
        for p in ("p50", "p99"):
            latencies[f"{name}_{p}"] = {
                "measured": real[p],
                "simulated": found[p],
                "deviation": found[p] / real[p] - 1,
            }
    return {
        "load": share,
        "requests_per_s": rate,
        "requests": len(measured),
        "latencies": latencies,
        "late_ms_p99": report["load"]["late_ms"]["p99"],
        "simulated_rows_per_step": expected["rows_per_step"],
    }


def table(document: dict) -> str:
    """Returns measured, simulated and deviation of every percentile as a short table."""
    found = document["saturation"]
    columns = [f"{kind} {p}" for kind in ("TTFT", "E2E") for p in ("p50", "p99")]
    lines = [
        "ms: measured / simulated (deviation)",
        f"{'load':5} {'req/s':>8}" + "".join(f"{column:>27}" for column in columns),
    ]
    for row in document["loads"]:
        line = f"{100 * row['load']:4.0f}% {row['requests_per_s']:8.1f}"
        for v in row["latencies"].values():
            cell = f"{v['measured']:.2f} / {v['simulated']:.2f} ({100 * v['deviation']:+.1f}%)"
            line += f"{cell:>27}"
        lines.append(line)
    lines.append(
        f"saturation {found['measured']:.1f} requests/s measured, {found['simulated']:.1f} "
        f"simulated; largest deviation {100 * document['largest_deviation']:.1f} %, "
        f"goal {100 * GOAL:.0f} %: {'holds' if document['holds'] else 'DOES NOT HOLD'}"
    )
    return "\n".join(lines)


def setup_of(args: argparse.Namespace, model: str) -> Setup:
    devices = args.device.split(";")
    if len(devices) == 1:
        devices *= args.replicas
    if len(devices) != args.replicas:
        raise FieldError(f"--device: expected 1 or {args.replicas} devices, got {args.device}")
    gpu = devices[0] != "cpu"
    return Setup(
        model=model,
        devices=devices,
        dtype=args.dtype,
        max_running=args.max_running or (8 if gpu else 64),
        max_batch_tokens=16384 if gpu else 4096,
        input_tokens=(16, 64),
        output_tokens=(16, 64),
        cores=divide(sibling_groups(), args.replicas),
        seconds=args.seconds,
    )


def measure_fleet(setup: Setup, members: dict, loads: Sequence[float]) -> dict:
    """Measures the replicas behind HAProxy and compares them with the simulator."""
    replicas = len(setup.devices)
    model = fields.read(ServiceModel, members, "service")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(setup.server(i)) for i in range(replicas)]
        ports = [(server.port, server.http_port) for server in servers]
        proxy = stack.enter_context(Haproxy(ports, core=setup.cores.proxy))
        wait_for(proxy, *servers)
        flight = 2 * replicas * setup.max_running
        most = rate_of(setup, measured_loop(setup, proxy.target, flight, setup.seconds / 3))
        rows = [compare(setup, proxy.target, model, share, share * most) for share in loads]
    expected = simulated_rate(setup, members, replicas, flight, most)
    worst = max(abs(v["deviation"]) for row in rows for v in row["latencies"].values())
    return {
        "haproxy": proxy.version,
        "saturation": {"measured": most, "simulated": expected},
        "loads": rows,
        "largest_deviation": worst,
        "holds": worst <= GOAL,
    }


def measure(args: argparse.Namespace) -> int:
    """The command `fleet.py measure`. Returns 0 if every percentile is within GOAL."""
    begin = time.monotonic()
    shape = "t5-small" if args.device == "cpu" else "t5-base"
    with contextlib.ExitStack() as stack:
        model = args.model or stack.enter_context(random_t5.directory(shape))
        setup = setup_of(args, model)
        members = service_model(setup)
        print(f"one replica measured ({time.monotonic() - begin:.0f} s)", flush=True)
        fleet = measure_fleet(setup, members, args.loads)
    document = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "conditions": machine(),
        "setup": dataclasses.asdict(setup) | {"model": args.model or f"{shape}, random weights"},
        "service": members,
        **fleet,
        "seconds": round(time.monotonic() - begin, 1),
    }
    write_report(args.out, document)
    print(table(document))
    return 0 if document["holds"] else 1
