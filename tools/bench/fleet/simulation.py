"""The simulation of a scenario: clients, balancer, replicas, autoscaler and failures."""

import dataclasses
import math
import random
from collections.abc import Generator

import simpy

from fleet import balancers
from fleet.autoscaler import Autoscaler
from fleet.replica import Attempt, Code, Replica
from fleet.report import Outcome, Totals, summarize
from fleet.requests import Request
from fleet.scenario import Scenario


class Fleet:
    """The replicas of a simulation, those that the balancer uses and all others."""

    def __init__(self, env: simpy.Environment, scenario: Scenario):
        self.env, self._scenario = env, scenario
        self.members: list[Replica] = []  # which the balancer uses, also failed ones, for a while
        self.ordered = 0  # being started
        self.failures = 0
        self._gone: list[Replica] = []  # failed or stopped
        self._draining: list[Replica] = []
        self._gone_s = 0.0  # paid time of replicas that are gone
        self._orders: list[float] = []  # times of the orders of replicas that are being started
        self._made = 0
        for _ in range(scenario.fleet.replicas):
            self._add(env.now)

    @property
    def size(self) -> int:
        """The replicas that work or will."""
        return sum(replica.up for replica in self.members) + self.ordered

    def _add(self, paid_from_s: float) -> None:
        speeds = self._scenario.fleet.speeds
        speed = speeds[self._made % len(speeds)]
        replica = Replica(self.env, f"replica{self._made}", self._scenario.model, speed)
        replica.created_s = paid_from_s
        self._made += 1
        self.members.append(replica)

    def order(self, delay_s: float = 0.0) -> None:
        """Starts a replica, which serves after `delay_s` and FleetOptions.start_s."""
        self.ordered += 1
        self.env.process(self._start(delay_s))

    def _start(self, delay_s: float) -> Generator:
        yield self.env.timeout(delay_s)
        ordered_s = self.env.now
        self._orders.append(ordered_s)
        yield self.env.timeout(self._scenario.fleet.start_s)
        self._orders.remove(ordered_s)
        self.ordered -= 1
        self._add(ordered_s)

    def drain(self) -> None:
        """Takes a replica, the newest one, from the balancer; it ends when its requests have."""
        replica = next(r for r in reversed(self.members) if r.up)
        self.members.remove(replica)
        self._draining.append(replica)
        self.on_request_end(replica)

    def on_request_end(self, replica: Replica) -> None:
        """Called when a request on `replica` has ended."""
        if self._draining and replica.outstanding == 0 and replica in self._draining:
            self._draining.remove(replica)
            self._retire(replica)

    def _retire(self, replica: Replica) -> None:
        self._gone.append(replica)
        self._gone_s += self.env.now - replica.created_s

    def fail(self, replica: Replica) -> None:
        """Lets a member fail. A replacement is ordered; the balancer excludes the member later."""
        self.failures += 1
        replica.fail()
        self._retire(replica)
        self.order(self._scenario.failures.repair_s)
        self.env.process(self._exclude(replica))

    def _exclude(self, replica: Replica) -> Generator:
        yield self.env.timeout(self._scenario.failures.detect_s)
        self.members.remove(replica)

    def totals(self) -> Totals:
        """Sums over all replicas since the start of the simulation."""
        alive = [replica for replica in self.members if replica.up] + self._draining
        every = alive + self._gone
        paid = sum(self.env.now - replica.created_s for replica in alive)
        paid += sum(self.env.now - ordered_s for ordered_s in self._orders)
        return Totals(
            at_s=self.env.now,
            paid_s=paid + self._gone_s,
            busy_s=sum(replica.busy_s for replica in every),
            row_s=sum(replica.row_s for replica in every),
            queries=sum(replica.cache.queries for replica in every),
            hits=sum(replica.cache.hits for replica in every),
        )


class Simulation:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario):
        self.env = simpy.Environment()
        self._scenario = scenario
        self.fleet = Fleet(self.env, scenario)
        self._balancer = balancers.make(scenario.fleet.balancer, scenario.fleet.hash_balance_factor)
        self.outcomes: list[Outcome] = []
        self._requests = scenario.workload.requests(
            scenario.seed,
            math.inf if scenario.concurrency else scenario.duration_s,
            scenario.folder,
        )
        self._chance = random.Random(f"{scenario.seed} clients")
        self._failing = random.Random(f"{scenario.seed} failures")
        self._open = 0
        self._all_sent = False
        self._done = self.env.event()
        self._sizes: list[int] = []

    def run(self) -> dict:
        """Runs the simulation until all requests have ended. Returns the report."""
        env, scenario = self.env, self._scenario
        env.process(self._send_closed() if scenario.concurrency else self._send_open())
        if hasattr(self._balancer, "tick"):
            env.process(self._tick_balancer())
        if scenario.autoscaling.max_replicas:
            Autoscaler(env, self.fleet, scenario.autoscaling)
        env.process(self._fail_sometimes())
        for at_s in scenario.failures.at_s:
            env.process(self._fail_at(at_s))
        windows: list[Totals] = []
        env.process(self._sample(windows))
        env.run(until=self._done)
        while len(windows) < 2:
            windows.append(self.fleet.totals())
        return summarize(scenario, self.outcomes, windows, self._sizes, self.fleet.failures)

    def _sample(self, windows: list[Totals]) -> Generator:
        """Appends the totals at the begin and the end of the measured window."""
        scenario = self._scenario
        yield self.env.timeout(scenario.warmup_s)
        windows.append(self.fleet.totals())
        period_s = max((scenario.duration_s - scenario.warmup_s) / 1000, 1e-3)
        while self.env.now < scenario.duration_s:
            self._sizes.append(sum(replica.up for replica in self.fleet.members))
            yield self.env.timeout(min(period_s, scenario.duration_s - self.env.now))
        windows.append(self.fleet.totals())

    # ---- Clients ----

    def _send_open(self) -> Generator:
        for request in self._requests:
            if request.at_s > self.env.now:
                yield self.env.timeout(request.at_s - self.env.now)
            self._begin(request)
        if self.env.now < self._scenario.duration_s:
            yield self.env.timeout(self._scenario.duration_s - self.env.now)
        self._no_more()

    def _send_closed(self) -> Generator:
        for _ in range(self._scenario.concurrency):
            self._begin(dataclasses.replace(next(self._requests), at_s=self.env.now))
        yield self.env.timeout(self._scenario.duration_s)
        self._no_more()

    def _no_more(self) -> None:
        self._all_sent = True
        if self._open == 0:
            self._done.succeed()

    def _begin(self, request: Request) -> None:
        self._open += 1
        self._send(Outcome(request), None)

    def _send(self, outcome: Outcome, _: simpy.Event | None) -> None:
        """Sends the next attempt of a request to a replica."""
        outcome.attempts += 1
        replica = self._choose(outcome.request)
        attempt = Attempt(
            outcome.request,
            lambda attempt, code: self._on_end(outcome, attempt, replica, code),
            self.env.now + self._scenario.clients.timeout_s,
        )
        if replica is None:
            return self._on_end(outcome, attempt, None, Code.LOST)
        replica.submit(attempt)

    def _choose(self, request: Request) -> Replica | None:
        members = self.fleet.members
        if not members:
            return None
        replica = self._balancer.choose(request, members)
        if not replica.up and self._scenario.failures.redispatch:
            members = [member for member in members if member.up]
            return self._balancer.choose(request, members) if members else None
        return replica

    def _on_end(
        self, outcome: Outcome, attempt: Attempt, replica: Replica | None, code: Code
    ) -> None:
        if replica is not None:
            self.fleet.on_request_end(replica)
        clients = self._scenario.clients
        if code == Code.LOST and outcome.attempts < clients.attempts:
            most_s = clients.backoff_s * 2 ** (outcome.attempts - 1)
            pause = self.env.timeout(self._chance.uniform(0, most_s))
            pause.callbacks.append(lambda event: self._send(outcome, event))
            return
        outcome.code, outcome.end_s = code, self.env.now
        outcome.started_s, outcome.first_s = attempt.started_s, attempt.first_s
        self.outcomes.append(outcome)
        self._open -= 1
        if self._all_sent and self._open == 0:
            self._done.succeed()
        elif self._scenario.concurrency and not self._all_sent:
            # The client hears of the end, and its next request arrives, after the overhead.
            overhead_s = self._scenario.model.overhead_ms / 1e3
            self.env.timeout(overhead_s).callbacks.append(self._send_next)

    def _send_next(self, _: simpy.Event) -> None:
        if not self._all_sent:
            self._begin(dataclasses.replace(next(self._requests), at_s=self.env.now))
        elif self._open == 0 and not self._done.triggered:
            self._done.succeed()

    # ---- Everything else that happens ----

    def _tick_balancer(self) -> Generator:
        while True:
            self._balancer.tick([replica for replica in self.fleet.members if replica.up])
            yield self.env.timeout(balancers.OrcaWeighted.PERIOD_S)

    def _fail_sometimes(self) -> Generator:
        mtbf_s = self._scenario.failures.mtbf_h * 3600
        while mtbf_s > 0:
            alive = max(sum(replica.up for replica in self.fleet.members), 1)
            yield self.env.timeout(self._failing.expovariate(alive / mtbf_s))
            self._fail_one()

    def _fail_at(self, at_s: float) -> Generator:
        yield self.env.timeout(at_s)
        self._fail_one()

    def _fail_one(self) -> None:
        alive = [replica for replica in self.fleet.members if replica.up]
        if alive:
            self.fleet.fail(self._failing.choice(alive))
