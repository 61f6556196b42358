"""Balancers: each chooses one of the replicas that may take a request."""

import bisect
import collections
import hashlib
import itertools
from collections.abc import Sequence

from fleet.replica import Replica
from fleet.requests import Request

NAMES = ("round_robin", "least_outstanding", "hash", "orca")


class RoundRobin:
    """Each replica in turn."""

    def __init__(self):
        self._turn = itertools.count()

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        return replicas[next(self._turn) % len(replicas)]


class LeastOutstanding:
    """The replica with the fewest requests that have not ended, as HAProxy's leastconn; among
    equals the one that was chosen longest ago."""

    def __init__(self):
        self._chosen: dict[Replica, int] = {}
        self._turn = itertools.count(1)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        chosen = self._chosen
        best = min(replicas, key=lambda r: (r.outstanding, chosen.get(r, 0)))
        chosen[best] = next(self._turn)
        return best


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class ConsistentHash:
    """Consistent hashing of the input: equal inputs go to one replica, and a replica that joins or
    leaves moves only its share of the inputs. With `balance_factor` (per cent, as HAProxy's
    hash-balance-factor; 0: off), a replica that has more than this share of the mean number of
    outstanding requests is skipped for the next one on the ring."""

    POINTS = 64  # of each replica on the ring

    def __init__(self, balance_factor: float = 0.0):
        self._factor = balance_factor / 100
        self._members: tuple[Replica, ...] = ()
        self._ring: list[tuple[int, int]] = []  # hash, index in _members

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        members = tuple(replicas)
        if members != self._members:
            self._members = members
            points = itertools.product(enumerate(members), range(self.POINTS))
            self._ring = sorted((_hash(f"{r.name} {k}"), i) for (i, r), k in points)
        at = bisect.bisect(self._ring, (_hash(str(request.prompt)), 0))
        first = members[self._ring[at % len(self._ring)][1]]
        if self._factor == 0:
            return first
        limit = self._factor * (sum(r.outstanding for r in members) + 1) / len(members)
        for i in range(len(self._ring)):
            replica = members[self._ring[(at + i) % len(self._ring)][1]]
            if replica.outstanding < limit:
                return replica
        return first


class OrcaWeighted:
    """Round robin weighted by load reports, as gRPC's weighted_round_robin: every second each
    replica reports its requests per second and its utilization, means of 10 s. Its weight is their
    quotient, or the mean of the others until it has reported. Choices are by earliest deadline."""

    PERIOD_S, WINDOW = 1.0, 10

    def __init__(self):
        self._samples: dict[Replica, collections.deque[tuple[int, float]]] = {}
        self._weights: dict[Replica, float] = {}
        self._deadlines: dict[Replica, float] = {}
        self._now = 0.0

    def tick(self, replicas: Sequence[Replica]) -> None:
        """Takes the load reports of `replicas`. Called every PERIOD_S seconds."""
        for gone in self._samples.keys() - set(replicas):
            for table in (self._samples, self._weights, self._deadlines):
                table.pop(gone, None)
        for replica in replicas:
            samples = self._samples.setdefault(replica, collections.deque(maxlen=self.WINDOW + 1))
            samples.append((replica.finished, replica.utilization))
            if len(samples) < 2:
                continue
            seconds = (len(samples) - 1) * self.PERIOD_S
            rate = (samples[-1][0] - samples[0][0]) / seconds
            utilization = sum(load for _, load in samples) / len(samples)
            if rate > 0 and utilization > 0:
                self._weights[replica] = rate / utilization

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        known = [self._weights[r] for r in replicas if r in self._weights]
        mean = sum(known) / len(known) if known else 1.0
        for replica in replicas:
            if replica not in self._deadlines:
                self._deadlines[replica] = self._now + 1 / self._weights.get(replica, mean)
        best = min(replicas, key=lambda r: self._deadlines[r])
        self._now = self._deadlines[best]
        self._deadlines[best] += 1 / self._weights.get(best, mean)
        return best


def make(name: str, hash_balance_factor: float):
    """Returns a new balancer by its name in NAMES."""
    if name == "hash":
        return ConsistentHash(hash_balance_factor)
    kinds = {
        "round_robin": RoundRobin,
        "least_outstanding": LeastOutstanding,
        "orca": OrcaWeighted,
    }
    return kinds[name]()
