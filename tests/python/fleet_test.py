"""Tests of the fleet simulator (tools/bench/fleet): queueing theory, a simulation of single steps,
and invariants, in simulated time and with fixed seeds; and of the measurement that it is compared
with."""

import copy
import json
import math
import pathlib
import random
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BENCH = SOURCE / "tools" / "bench"
G2P = SOURCE / "deploy" / "models" / "g2p"
sys.path.insert(0, str(BENCH))
import simpy  # noqa: E402
from fleet import balancers, fields, measure  # noqa: E402
from fleet.autoscaler import Autoscaler  # noqa: E402
from fleet.replica import Attempt, Code, EncoderCache, Replica  # noqa: E402
from fleet.report import quantile, show  # noqa: E402
from fleet.requests import Arrivals, Lengths, Request, read_trace  # noqa: E402
from fleet.scenario import Autoscaling, Scenario, load_scenario  # noqa: E402
from fleet.service import Curve, ServiceModel  # noqa: E402
from fleet.simulation import Simulation  # noqa: E402

COMMAND = BENCH / "fleet.py"
# A replica that runs one request at a time, 1 ms for each token.
SERIAL = {"step_ms": [[1, 1.0]], "encode_ms": [[1, 0.0]], "max_running": 1, "max_queue": 1 << 20}
# A replica of the speed of T5-base on a GPU.
BATCHING = {
    "step_ms": [[1, 0.26], [8, 0.3], [32, 0.4], [128, 0.8]],
    "encode_ms": [[1, 0.3], [128, 0.4], [16384, 7.0]],
    "max_running": 64,
    "max_batch_tokens": 4096,
    "max_queue": 1 << 20,
}


def service(**members) -> ServiceModel:
    return fields.read(ServiceModel, members, "service")


def scenario(model: ServiceModel, **members) -> Scenario:
    made = fields.read(Scenario, members, "scenario")
    made.model = model
    return made


def lengths(tokens: int) -> dict:
    return {"low": tokens, "high": tokens}


def run(model: ServiceModel, **members) -> tuple[dict, Simulation]:
    simulation = Simulation(scenario(model, **members))
    return simulation.run(), simulation


# ---- Queueing theory ----


def serial_wait_ms(utilization: float, output: dict, mean_ms: float) -> float:
    """Returns the mean time in the queue of one serial replica."""
    report, _ = run(
        service(**SERIAL),
        duration_s=40_000,
        warmup_s=100,
        workload={
            "arrivals": {"rate": utilization / mean_ms * 1e3},
            "input_tokens": lengths(1),
            "output_tokens": output,
        },
        clients={"timeout_s": 3600},
    )
    assert report["codes"] == {"OK": report["measured"]}
    assert report["utilization"] == pytest.approx(utilization, rel=0.02)
    return report["queue_ms"]["mean"]


@pytest.mark.parametrize("utilization", [0.3, 0.6, 0.8])
def test_constant_service_times_as_m_d_1(utilization):
    wait_ms = serial_wait_ms(utilization, lengths(200), 200)
    assert wait_ms == pytest.approx(200 * utilization / (2 * (1 - utilization)), rel=0.05)


@pytest.mark.parametrize("utilization", [0.3, 0.6, 0.8])
def test_exponential_service_times_as_m_m_1(utilization):
    # Geometric lengths with a mean of 200 tokens are nearly exponential service times.
    wait_ms = serial_wait_ms(utilization, {"kind": "geometric", "mean": 200}, 200)
    assert wait_ms == pytest.approx(200 * utilization / (1 - utilization), rel=0.05)


# ---- Single steps ----


def expected_times(model: ServiceModel, requests: list[Request]) -> list[tuple[float, float]]:
    """Simulates one replica step by step, without SimPy. Returns for each request the times of its
    first and of its last token."""
    ahead = model.steps_ahead
    first, end = {}, {}
    waiting, encoding, running = list(requests), [], []  # running: [request, tokens planned]
    left_s, now = 0.0, 0.0
    enqueued: list[tuple[float, list[Request], list[Request]]] = []  # seconds, joined, ending
    occupied: set[int] = set()
    delayed = 0

    def plan():
        nonlocal left_s, encoding, delayed
        arrived = waiting and waiting[0].at_s <= now
        few = running and model.max_running - len(occupied) < model.admission_rows
        if arrived and not encoding and few and delayed < model.admission_steps:
            delayed += 1
        elif arrived and not encoding:
            tokens = delayed = 0
            while waiting and waiting[0].at_s <= now:
                request = waiting[0]
                if len(occupied) == model.max_running:
                    break
                if tokens + request.input_tokens > model.max_batch_tokens:
                    break
                tokens += request.input_tokens
                occupied.add(request.number)
                encoding.append(waiting.pop(0))
            left_s = model.encode(tokens) / 1e3 if tokens else 0.0
        running[:] = [entry for entry in running if entry[1] < entry[0].output_tokens]
        seconds, joined = 0.0, []
        if encoding:
            seconds = left_s
            if model.prefill_share and running:
                seconds = min(left_s, model.prefill_share * model.step_s(len(running)))
            left_s -= seconds
            if left_s == 0:
                joined, encoding = encoding, []
                running.extend([request, 0] for request in joined)
        if not running:
            return
        for entry in running:
            entry[1] += 1
        ending = [entry[0] for entry in running if entry[1] == entry[0].output_tokens]
        enqueued.append((seconds + model.step_s(len(running)), joined, ending))

    while len(end) < len(requests):
        if not enqueued:
            plan()
        if not enqueued:
            now = waiting[0].at_s
            continue
        if ahead:
            plan()
        seconds, joined, ending = enqueued.pop(0)
        now += seconds
        first.update((request.number, now) for request in joined)
        for request in ending:
            end[request.number] = now
            occupied.remove(request.number)
    return [(first[i], end[i]) for i in range(len(requests))]


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("prefill_share", [0.0, 0.75])
@pytest.mark.parametrize("admission_rows", [1, 5])
@pytest.mark.parametrize("rate", [30, 300, 1500])
def test_skipped_steps_change_no_time(steps_ahead, prefill_share, admission_rows, rate):
    """Steps that are simulated as one event give the times of a simulation of every step."""
    model = service(
        **{**BATCHING, "max_running": 16, "max_batch_tokens": 600},
        steps_ahead=steps_ahead,
        prefill_share=prefill_share,
        admission_rows=admission_rows,
        admission_steps=4,
    )
    chance = random.Random(rate)
    at_s, requests = 0.0, []
    for i in range(400):
        at_s += chance.expovariate(rate)
        requests.append(Request(i, at_s, i, chance.randint(1, 500), chance.randint(1, 80)))
    env = simpy.Environment()
    replica = Replica(env, "replica", model)
    times = {}

    def end(attempt, code):
        assert code == Code.OK
        times[attempt.request.number] = (attempt.first_s, env.now)

    def send():
        for request in requests:
            yield env.timeout(request.at_s - env.now)
            replica.submit(Attempt(request, end))

    env.process(send())
    env.run()
    expected = expected_times(model, requests)
    assert replica.outstanding == replica.occupied == replica.waiting == 0
    for i, (first_s, end_s) in enumerate(expected):
        assert times[i][0] == pytest.approx(first_s, abs=1e-9)
        assert times[i][1] == pytest.approx(end_s, abs=1e-9)


def test_one_request_takes_its_encoding_and_its_steps():
    model = service(**BATCHING, overhead_ms=2.0)
    report, _ = run(
        model,
        duration_s=10,
        warmup_s=0,
        workload={
            "arrivals": {"rate": 0.2},
            "input_tokens": lengths(128),
            "output_tokens": lengths(10),
        },
    )
    assert report["ttft_ms"]["p50"] == pytest.approx(0.4 + 0.26 + 2)
    assert report["e2e_ms"]["p50"] == pytest.approx(0.4 + 10 * 0.26 + 2)


# ---- Balancers ----

SKEWED = {
    "arrivals": {"rate": 2500},
    "input_tokens": lengths(32),
    "output_tokens": {"kind": "lognormal", "mean": 20, "sigma": 1.5, "high": 1000},
}


def p99_ms(balancer: str, **fleet) -> float:
    report, _ = run(
        service(**{**BATCHING, "max_running": 16}),
        duration_s=20,
        warmup_s=5,
        workload=SKEWED,
        fleet={"replicas": 4, "balancer": balancer, **fleet},
    )
    assert report["codes"] == {"OK": report["measured"]}
    return report["ttft_ms"]["p99"]


def test_least_outstanding_beats_round_robin_if_lengths_are_skewed():
    assert p99_ms("least_outstanding") < 0.5 * p99_ms("round_robin")


def test_load_reports_relieve_a_slow_replica():
    slow = {"speeds": [1.0, 1.0, 1.0, 0.5]}
    assert p99_ms("orca", **slow) < 0.5 * p99_ms("round_robin", **slow)


def repeated_prompts(balancer: str, **fleet) -> dict:
    report, _ = run(
        service(**BATCHING, encoder_cache_tokens=20_000),
        duration_s=20,
        warmup_s=5,
        workload={
            "arrivals": {"rate": 1000},
            "input_tokens": lengths(100),
            "output_tokens": lengths(8),
            "prompts": {"distinct": 1600},
        },
        fleet={"replicas": 8, "balancer": balancer, **fleet},
    )
    return report


def test_hashing_the_input_raises_the_hit_rate():
    """Each cache has room for an eighth of the inputs, which are equally likely."""
    assert repeated_prompts("least_outstanding")["encoder_cache_hit_rate"] < 0.2
    hashed = repeated_prompts("hash")
    assert hashed["encoder_cache_hit_rate"] > 0.8
    bounded = repeated_prompts("hash", hash_balance_factor=150)
    assert 0.2 < bounded["encoder_cache_hit_rate"] <= hashed["encoder_cache_hit_rate"]


def test_a_replica_that_joins_moves_only_its_share_of_the_inputs():
    env = simpy.Environment()
    replicas = [Replica(env, f"replica{i}", service(**BATCHING)) for i in range(9)]
    balancer = balancers.ConsistentHash()
    requests = [Request(i, 0.0, i, 1, 1) for i in range(4000)]
    before = [balancer.choose(request, replicas[:8]) for request in requests]
    after = [balancer.choose(request, replicas) for request in requests]
    moved = [new for old, new in zip(before, after, strict=True) if old is not new]
    assert set(moved) == {replicas[8]}
    assert len(moved) / len(requests) == pytest.approx(1 / 9, abs=0.05)


def test_round_robin_and_weights_share_evenly_among_equals():
    for name, difference in (("round_robin", 0.02), ("least_outstanding", 0.05), ("orca", 0.3)):
        _, simulation = run(
            service(**BATCHING),
            duration_s=20,
            warmup_s=5,
            workload={"arrivals": {"rate": 500}},
            fleet={"replicas": 5, "balancer": name},
        )
        shares = [replica.finished for replica in simulation.fleet.members]
        assert max(shares) - min(shares) < difference * sum(shares) / 5, name


def test_the_encoder_cache_evicts_what_was_used_longest_ago():
    cache = EncoderCache(100)
    one, two, three = (Request(i, 0.0, i, 40, 1) for i in range(3))
    for request in (one, two):
        assert not cache.find(request)
        cache.insert(request)
    assert cache.find(one)
    cache.insert(three)  # in the place of two
    assert cache.find(one) and cache.find(three) and not cache.find(two)
    assert (cache.queries, cache.hits) == (6, 3)
    cache.insert(Request(9, 0.0, 9, 101, 1))  # larger than the cache
    assert cache.find(one)


# ---- Limits, failures, autoscaling ----


@pytest.mark.parametrize("balancer", balancers.NAMES)
def test_every_request_ends_once(balancer):
    """Under overload, with deadlines, failures, retries and autoscaling."""
    report, simulation = run(
        service(**{**BATCHING, "max_running": 8, "max_queue": 20}, encoder_cache_tokens=2000),
        duration_s=60,
        warmup_s=5,
        workload={
            "arrivals": {"rate": 900},
            "output_tokens": {"kind": "geometric", "mean": 40},
            "prompts": {"distinct": 100, "zipf": 1.0},
        },
        fleet={"replicas": 2, "balancer": balancer, "start_s": 5},
        failures={"mtbf_h": 0.02, "at_s": [20, 20.5], "redispatch": False},
        clients={"attempts": 2, "timeout_s": 0.05},
        autoscaling={"max_replicas": 6, "interval_s": 5, "metric_lag_s": 2},
    )
    numbers = sorted(outcome.request.number for outcome in simulation.outcomes)
    assert numbers == list(range(report["sent"]))
    assert sum(report["codes"].values()) == report["measured"] <= report["sent"]
    assert set(report["codes"]) == {str(code) for code in Code}
    assert report["failures"] > 2
    for outcome in simulation.outcomes:
        if outcome.code == Code.OK:
            assert outcome.request.at_s <= outcome.started_s < outcome.first_s <= outcome.end_s
    for replica in simulation.fleet.members:
        assert replica.outstanding == replica.occupied == 0


def test_a_closed_loop_keeps_its_concurrency():
    model = service(**BATCHING)
    report, simulation = run(model, duration_s=20, warmup_s=5, concurrency=32)
    assert set(report["codes"]) == {"OK"}
    assert simulation.fleet.members[0].outstanding == 0
    assert report["rows_per_step"] == pytest.approx(32, rel=0.01)


def test_a_failure_loses_only_what_ran_there():
    """No request arrives between the failure and its detection: the balancer sends none there."""
    model = service(**BATCHING)
    simulation = Simulation(
        scenario(
            model,
            duration_s=20,
            warmup_s=0,
            workload={"arrivals": {"rate": 500}, "output_tokens": lengths(100)},
            fleet={"replicas": 3},
            failures={"at_s": [10]},
        )
    )
    lost, fail = [], simulation.fleet.fail

    def watched(replica):
        lost.append(replica.outstanding)
        fail(replica)

    simulation.fleet.fail = watched
    report = simulation.run()
    assert lost[0] > 0
    assert report["codes"] == {"OK": report["measured"] - lost[0], "UNAVAILABLE": lost[0]}
    ends = [o.end_s for o in simulation.outcomes if o.code == Code.LOST]
    assert ends == pytest.approx([10.0] * lost[0])


def test_retries_save_what_a_failure_loses():
    report, _ = run(
        service(**BATCHING),
        duration_s=20,
        warmup_s=0,
        workload={"arrivals": {"rate": 500}, "output_tokens": lengths(100)},
        fleet={"replicas": 3},
        failures={"at_s": [5, 10]},
        clients={"attempts": 3},
    )
    assert report["codes"] == {"OK": report["measured"]}
    assert report["retries"] > 0 and report["failures"] == 2


def test_without_redispatch_calls_fail_until_the_balancer_knows():
    members = dict(
        duration_s=20,
        warmup_s=0,
        workload={"arrivals": {"rate": 100}, "output_tokens": lengths(2)},
        fleet={"replicas": 2, "balancer": "round_robin", "start_s": 100},
        failures={"at_s": [10], "detect_s": 4, "redispatch": False},
    )
    report, _ = run(service(**BATCHING), **members)
    assert report["codes"]["UNAVAILABLE"] == pytest.approx(200, rel=0.15)  # half of 4 s


def test_a_draining_replica_finishes_its_requests():
    model = service(**{**BATCHING, "max_running": 4})
    simulation = Simulation(
        scenario(
            model,
            duration_s=10,
            warmup_s=0,
            workload={"arrivals": {"rate": 300}},
            fleet={"replicas": 3},
        )
    )

    def drain():
        yield simulation.env.timeout(5)
        simulation.fleet.drain()

    simulation.env.process(drain())
    report = simulation.run()
    assert report["codes"] == {"OK": report["measured"]}
    assert report["replicas"]["min"] == 2
    assert report["replica_hours"] * 3600 == pytest.approx(25, abs=0.5)


def test_the_autoscaler_reaches_its_target():
    """In the steady state there are as many replicas as outstanding requests need."""
    report, _ = run(
        service(**BATCHING),
        duration_s=400,
        warmup_s=200,
        workload={"arrivals": {"rate": 300}, "output_tokens": lengths(600)},
        fleet={"replicas": 1, "start_s": 30, "price_per_hour": 2.0},
        autoscaling={
            "max_replicas": 50,
            "metric": "outstanding",
            "target": 16,
            "interval_s": 15,
            "metric_lag_s": 15,
            "scale_down_delay_s": 60,
        },
    )
    assert set(report["codes"]) == {"OK"}
    mean = report["rows_per_step"]  # nearly all outstanding requests run
    assert 11 < mean < 19
    assert report["replicas"]["max"] < 50
    assert report["cost"] == pytest.approx(2 * report["replica_hours"])


def test_the_autoscaler_waits_for_the_start_of_replicas():
    def first_change(start_s: float) -> float:
        """Returns the time at which the second replica serves."""
        _, simulation = run(
            service(**{**BATCHING, "max_running": 4}),
            duration_s=80,
            warmup_s=0,
            workload={"arrivals": {"rate": 400}, "output_tokens": lengths(60)},
            fleet={"replicas": 1, "start_s": start_s},
            autoscaling={"max_replicas": 8, "interval_s": 15, "metric_lag_s": 15},
        )
        sizes = simulation._sizes
        return 0.08 * next(i for i, size in enumerate(sizes) if size > 1)

    # The first decision is at 15 s, when the metric of the time 0 is known; the next at 30 s.
    assert first_change(0) == pytest.approx(30, abs=0.5)
    assert first_change(40) == pytest.approx(70, abs=0.5)


def test_the_rule_of_the_autoscaler():
    options = Autoscaling(max_replicas=10, min_replicas=2, target=5.0)
    scaler = Autoscaler(simpy.Environment(), None, options)
    assert scaler.wanted(31, 3) == 7
    assert scaler.wanted(16, 3) == 3  # within the tolerance
    assert scaler.wanted(0, 3) == 2 and scaler.wanted(1000, 3) == 10


def test_costs_are_paid_from_the_order_of_a_replica():
    report, _ = run(
        service(**BATCHING),
        duration_s=100,
        warmup_s=0,
        workload={"arrivals": {"rate": 10}},
        fleet={"replicas": 2, "start_s": 30, "price_per_hour": 3600},
        failures={"at_s": [40], "repair_s": 10},
    )
    # One replica is paid for 100 s, another for 40, and its replacement from 50 s on.
    assert report["cost"] == pytest.approx(100 + 40 + 50, abs=0.5)


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
