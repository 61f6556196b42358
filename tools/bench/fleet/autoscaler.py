"""The autoscaler: scenario.Autoscaling says by which rule it scales."""

import collections
import math
from collections.abc import Generator

import simpy

from fleet.scenario import Autoscaling

SAMPLE_S = 1.0  # time between two readings of the metric


class Autoscaler:
    """Orders and drains replicas of `fleet` (simulation.Fleet). Its processes never end."""

    def __init__(self, env: simpy.Environment, fleet, options: Autoscaling):
        self._env, self._fleet, self._options = env, fleet, options
        readings = math.ceil(options.metric_lag_s / SAMPLE_S) + 1
        self._values: collections.deque[float] = collections.deque(maxlen=readings)
        self._wanted: collections.deque[tuple[float, int]] = collections.deque()
        env.process(self._read())
        env.process(self._scale())

    def _read(self) -> Generator:
        while True:
            members = [replica for replica in self._fleet.members if replica.up]
            self._values.append(sum(getattr(r, self._options.metric) for r in members))
            yield self._env.timeout(SAMPLE_S)

    def _scale(self) -> Generator:
        while True:
            yield self._env.timeout(self._options.interval_s)
            if len(self._values) == self._values.maxlen:
                self._set(self.wanted(self._values[0], self._fleet.size))

    def wanted(self, total: float, size: int) -> int:
        """Returns how many replicas the rule wants if the metric sums up to `total` over `size`."""
        options = self._options
        wanted = math.ceil(total / options.target)
        if size > 0 and abs(total / (options.target * size) - 1) <= options.tolerance:
            wanted = size
        return min(max(wanted, options.min_replicas), options.max_replicas)

    def _set(self, wanted: int) -> None:
        now, fleet = self._env.now, self._fleet
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - self._options.scale_down_delay_s:
            self._wanted.popleft()
        stable = max(number for _, number in self._wanted)
        for _ in range(wanted - fleet.size):
            fleet.order()
        serving = sum(replica.up for replica in fleet.members)
        for _ in range(min(fleet.size - stable, serving - 1)):
            fleet.drain()
