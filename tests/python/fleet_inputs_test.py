"""Tests of the inputs of the fleet simulator, of the command fleet.py, and of the measurement that
the simulator is compared with."""

import copy
import json
import math
import random
import subprocess
import sys

import pytest
import simpy
from fleet import fields, measure
from fleet.replica import Attempt, Replica
from fleet.report import quantile, show
from fleet.requests import Arrivals, Lengths, Request, read_trace
from fleet.scenario import Scenario, load_scenario
from fleet.service import Curve, ServiceModel
from fleet.simulation import Simulation
from fleet_models import BATCHING, BENCH, SOURCE, run, scenario, service

COMMAND = BENCH / "fleet.py"
G2P = SOURCE / "deploy" / "models" / "g2p"


# ---- Arrivals, lengths, files ----


def test_equal_seeds_give_equal_reports():
    members = dict(
        duration_s=10,
        warmup_s=1,
        workload={"arrivals": {"rate": 300}, "output_tokens": {"kind": "geometric", "mean": 30}},
        fleet={"replicas": 3},
        failures={"mtbf_h": 0.005},
    )
    assert run(service(**BATCHING), **members)[0] == run(service(**BATCHING), **members)[0]
    other = run(service(**BATCHING), **members, seed=2)[0]
    assert other != run(service(**BATCHING), **members)[0]


def test_another_rate_changes_no_length():
    def drawn(rate: float) -> list[tuple[int, int]]:
        made = scenario(
            service(**BATCHING),
            workload={
                "arrivals": {"rate": rate},
                "input_tokens": {"low": 1, "high": 500},
                "output_tokens": {"kind": "geometric", "mean": 30},
            },
        )
        requests = made.workload.requests(1, 1e9, made.folder)
        return [(r.input_tokens, r.output_tokens) for r, _ in zip(requests, range(100))]

    assert drawn(1) == drawn(1000)


def test_a_daily_curve_has_its_rates():
    arrivals = Arrivals(kind="daily", curve=[[0, 1], [6, 0.2], [18, 3]])
    arrivals.check("arrivals")
    assert arrivals.rate_at(3 * 3600) == pytest.approx(0.6)
    assert arrivals.rate_at(21 * 3600) == pytest.approx(2)  # on the way to the next day's 1
    assert arrivals.rate_at((24 + 12) * 3600) == pytest.approx(1.6)
    counts = [0] * 24
    for at_s in arrivals.times(random.Random(1)):
        if at_s >= 24 * 3600:
            break
        counts[int(at_s // 3600)] += 1
    for hour, count in enumerate(counts):
        wanted = 3600 * arrivals.rate_at(3600 * hour + 1800)
        assert count == pytest.approx(wanted, abs=5 * math.sqrt(wanted) + 10), hour


@pytest.mark.parametrize(
    ("members", "mean"),
    [
        ({"low": 10, "high": 30}, 20),
        ({"kind": "geometric", "mean": 40}, 40),
        ({"kind": "geometric", "mean": 1}, 1),
        ({"kind": "lognormal", "mean": 50, "sigma": 0.5}, 50 * math.exp(0.125)),
    ],
)
def test_lengths_have_their_mean(members, mean):
    made = fields.read(Lengths, members, "lengths")
    chance = random.Random(1)
    drawn = [made.draw(chance) for _ in range(40_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.02)
    assert min(drawn) >= 1


def test_a_recorded_trace_is_sent_as_it_is(tmp_path):
    lines = [
        {"at_s": 0.5, "input_tokens": 128, "output_tokens": 3, "ttft_ms": 1.5},
        {"at_s": 0.75, "input_tokens": 128, "output_tokens": 4, "num_beams": 4, "prompt": 7},
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "service.json").write_text(json.dumps({"service": BATCHING}))
    (tmp_path / "scenario.toml").write_text(
        'service = "service.json"\nduration_s = 2\nwarmup_s = 0\n'
        '[workload]\narrivals = {kind = "recorded", file = "trace.jsonl"}\n'
    )
    simulation = Simulation(load_scenario(tmp_path / "scenario.toml"))
    assert simulation.run()["codes"] == {"OK": 2}
    first, second = sorted(simulation.outcomes, key=lambda o: o.request.number)
    assert first.end_s - 0.5 == pytest.approx((0.4 + 3 * 0.26) / 1e3)
    assert second.request.rows == 4
    four = Curve(BATCHING["step_ms"])(4)
    assert second.end_s - 0.75 == pytest.approx((0.4 + 4 * four) / 1e3)
    requests = list(read_trace(tmp_path / "trace.jsonl"))
    assert [r.prompt for r in requests] == [-1, 7]


def test_curves_are_linear_between_points_and_go_on_with_the_last_slope():
    curve = Curve([(1, 1.0), (3, 2.0), (5, 6.0)])
    assert [curve(x) for x in (0, 1, 2, 3, 4, 5, 6)] == [1, 1, 1.5, 2, 4, 6, 8]


def test_quantiles_are_by_nearest_rank():
    values = [float(i) for i in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1)) == (50, 99, 100)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"duration": 3}, "unknown member 'duration'"),
        ({"duration_s": "long"}, "duration_s: expected a finite number, got 'long'"),
        ({"duration_s": math.inf}, "expected a finite number"),
        ({"duration_s": True}, "expected a finite number"),
        ({"seed": 1.5}, "seed: expected a whole number"),
        ({"warmup_s": 100}, "expected warmup_s < duration_s"),
        ({"fleet": {"replicas": 0}}, r"fleet.replicas: expected a value in \[1, 100000\], got 0"),
        ({"fleet": {"balancer": "random"}}, "fleet.balancer: expected one of"),
        ({"fleet": {"speeds": []}}, "fleet.speeds: expected at least one"),
        ({"fleet": {"speeds": [0]}}, r"fleet.speeds\[0\]"),
        ({"fleet": 3}, "fleet: expected a table"),
        ({"workload": {"arrivals": {"kind": "daily"}}}, "arrivals.curve"),
        ({"workload": {"arrivals": {"kind": "recorded"}}}, "arrivals.file"),
        ({"workload": {"output_tokens": {"low": 9, "high": 8}}}, "low <= high"),
        ({"autoscaling": {"max_replicas": 1, "min_replicas": 2}}, "min_replicas <= max_replicas"),
        ({"failures": {"at_s": ["x"]}}, r"at_s\[0\]"),
    ],
)
def test_invalid_scenarios_are_refused_by_name(changes, words):
    with pytest.raises(fields.FieldError, match=words):
        fields.read(Scenario, changes, "scenario")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_ms": []}, "step_ms: expected at least one point"),
        ({"step_ms": [[1, 0.0]]}, "must take more than 0 ms"),
        ({"step_ms": [[1, 2.0], [2, 1.0]]}, r"step_ms\[1\]: expected ascending"),
        ({"step_ms": [[1, math.nan]]}, "finite"),
        ({"encode_ms": [[1]]}, r"encode_ms\[0\]: expected \[x, ms\]"),
        ({"steps_ahead": 2}, "steps_ahead"),
    ],
)
def test_invalid_service_models_are_refused_by_name(changes, words):
    with pytest.raises(fields.FieldError, match=words):
        fields.read(ServiceModel, {**BATCHING, **changes}, "service")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "trace.jsonl:2: expected a JSON object"),
        ("[1]", "trace.jsonl:2: expected a table"),
        ('{"at_s": 2}', "'input_tokens' is missing"),
        ('{"at_s": 0.5, "input_tokens": 1, "output_tokens": 1}', "at_s: expected at least 1"),
        ('{"at_s": 2, "input_tokens": 0, "output_tokens": 1}', "input_tokens"),
    ],
)
def test_invalid_traces_are_refused_by_line(tmp_path, line, words):
    good = '{"at_s": 1, "input_tokens": 1, "output_tokens": 1}\n'
    (tmp_path / "trace.jsonl").write_text(good + line + "\n")
    with pytest.raises(fields.FieldError, match=words):
        list(read_trace(tmp_path / "trace.jsonl"))


def test_a_request_that_can_never_run_is_an_error():
    env = simpy.Environment()
    replica = Replica(env, "replica", service(**BATCHING))
    with pytest.raises(ValueError, match="raise max_batch_tokens or max_running"):
        replica.submit(Attempt(Request(0, 0.0, 0, 5000, 1), lambda attempt, code: None))


# ---- The command ----


def command(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def small_scenario(tmp_path):
    model = {**BATCHING, "max_running": 8}
    (tmp_path / "service.json").write_text(json.dumps({"service": model}))
    path = tmp_path / "scenario.toml"
    path.write_text(
        'service = "service.json"\nduration_s = 8\nwarmup_s = 2\n'
        "[workload]\narrivals = {rate = 1500}\noutput_tokens = {low = 10, high = 50}\n"
    )
    return path


def test_simulate_prints_and_writes_its_report(small_scenario, tmp_path):
    done = command("simulate", small_scenario, "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert f"{report['requests_per_s']:.1f} requests/s" in done.stdout


def test_size_finds_the_smallest_fleet(small_scenario, tmp_path):
    done = command("size", small_scenario, "--ttft-p99", 10, "--json", tmp_path / "size.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "size.json").read_text())
    assert found["report"]["ttft_ms"]["p99"] <= 10
    loaded = load_scenario(small_scenario)
    smaller = copy.deepcopy(loaded)
    assert found["replicas"] > 1
    smaller.fleet.replicas = found["replicas"] - 1
    report = Simulation(smaller).run()
    assert set(report["codes"]) != {"OK"} or report["ttft_ms"]["p99"] > 10


def test_size_says_if_no_fleet_keeps_the_limits(small_scenario):
    done = command("size", small_scenario, "--ttft-p99", 0.1, "--most", 3)
    assert done.returncode == 2 and "3 replicas do not keep the limits" in done.stderr


def test_errors_are_one_line_and_exit_with_2(tmp_path):
    for name, text in (("a.toml", "x ="), ("b.toml", 'service = "none.json"')):
        (tmp_path / name).write_text(text)
        done = command("simulate", tmp_path / name)
        assert done.returncode == 2 and done.stderr.startswith("fleet.py: "), done.stderr
        assert "Traceback" not in done.stderr


def test_the_example_of_the_plan():
    """deploy/SCALING.md shows what deploy/scaling.toml gives."""
    example = load_scenario(SOURCE / "deploy" / "scaling.toml")
    example.fleet.replicas = 15
    plan = (SOURCE / "deploy" / "SCALING.md").read_text("utf-8")
    for line in show(Simulation(example).run()).splitlines():
        assert f"    {line}\n" in plan, line


# ---- The measurement ----


def replica_setup(**members) -> measure.Setup:
    made = {
        "model": str(G2P),
        "devices": ["cpu"],
        "dtype": "auto",
        "max_running": 16,
        "max_batch_tokens": 4096,
        "input_tokens": (16, 64),
        "output_tokens": (16, 64),
        "cores": measure.divide([[0]], 1),
        "seconds": 20.0,
    }
    return measure.Setup(**{**made, **members})


def test_steps_are_fitted_to_the_rates_of_closed_loops():
    """The simulator itself is the measured replica."""
    true = [[1, 5.0], [2, 6.0], [4, 8.0], [8, 9.0], [16, 14.0]]
    members = {"encode_ms": [[16, 4.0], [64, 12.0]], "max_running": 16, "prefill_share": 0.75}
    members["overhead_ms"] = 1.5
    setup = replica_setup()
    assert measure.levels(setup) == [1, 2, 4, 8, 32]
    rates = {
        flight: measure.simulated_rate(setup, {**members, "step_ms": true}, 1, flight, 20.0)
        for flight in measure.levels(setup)
    }
    members["step_ms"] = [[1, 5.0], [16, 10.0]]
    found = measure.fit_steps(setup, members, rates)
    assert [rows for rows, _ in found] == [1, 2, 4, 8, 16]
    for (_, ms), (_, wanted) in zip(found, true, strict=True):
        assert ms == pytest.approx(wanted, rel=0.03)


def test_cores_are_divided_by_physical_core():
    pairs = measure.divide([[i, i + 8] for i in range(8)], 2)
    assert pairs.replicas == ["0,8,1,9", "2,10,3,11"] and pairs.threads == 2
    assert (pairs.proxy, pairs.client) == ("4,12", "5,13,6,14,7,15")
    single = measure.divide([[i] for i in range(16)], 2)
    assert single.replicas == ["0,1,2,3", "4,5,6,7"] and single.threads == 3
    assert (single.proxy, single.client) == ("8,9", "10,11,12,13,14,15")
    few = measure.divide([[0], [1]], 1)
    assert (few.engines, few.replicas, few.proxy, few.client) == (["0"], ["1"], "1", "1")
    fewer = measure.divide([[0], [1]], 2)
    assert (fewer.engines, fewer.replicas) == (["0", "1"], ["0,1", "0,1"])


def test_points_of_curves_ascend():
    assert measure.ascending([[4, 1.0], [1, 2.0], [8, 5.0]]) == [[1, 2.0], [4, 2.0], [8, 5.0]]
    assert measure.batch_sizes(16) == [1, 2, 3, 4, 6, 8, 12, 16]
    assert measure.batch_sizes(5) == [1, 2, 3, 4, 5] and measure.batch_sizes(1) == [1]


def test_measure_writes_a_service_model_of_real_replicas(tmp_path):
    """Two servers behind HAProxy. How well the simulator fits is not looked at here."""
    out = tmp_path / "measured.json"
    done = command(
        *("measure", "--model", G2P, "--max-running", 4, "--seconds", 2, "--loads", 0.3),
        *("--out", out),
    )
    assert done.returncode in (0, 1) and out.exists(), done.stderr
    measured = json.loads(out.read_text())
    assert done.stdout.count("\n") == 5 and "saturation" in done.stdout
    assert measured["holds"] == (done.returncode == 0)
    (row,) = measured["loads"]
    assert row["requests"] > 0
    for name in ("ttft_ms", "e2e_ms"):
        for kind in ("measured", "simulated"):
            p50, p99 = (row["latencies"][f"{name}_{p}"][kind] for p in ("p50", "p99"))
            assert 0 < p50 <= p99
    path = tmp_path / "scenario.toml"
    path.write_text('service = "measured.json"\nduration_s = 3\nwarmup_s = 1\n')
    assert Simulation(load_scenario(path)).run()["codes"]["OK"] > 0


def test_measure_needs_a_device_for_each_replica(tmp_path):
    done = command("measure", "--model", G2P, "--device", "cpu;cpu;cpu")
    assert done.returncode == 2 and "--device: expected 1 or 2 devices" in done.stderr
