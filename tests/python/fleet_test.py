"""Tests of the fleet simulator in simulated time and with fixed seeds: queueing theory, a
simulation of single steps, and balancers."""

import random

import pytest
import simpy
from fleet import balancers
from fleet.replica import Attempt, Code, EncoderCache, Replica
from fleet.requests import Request
from fleet.service import ServiceModel
from fleet_models import BATCHING, SERIAL, lengths, run, service

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
