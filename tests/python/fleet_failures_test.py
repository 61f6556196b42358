"""Tests of the fleet simulator in simulated time and with fixed seeds: limits, failures,
autoscaling and costs."""

import pytest
import simpy
from fleet import balancers
from fleet.autoscaler import Autoscaler
from fleet.replica import Code
from fleet.scenario import Autoscaling
from fleet.simulation import Simulation
from fleet_models import BATCHING, lengths, run, scenario, service


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
