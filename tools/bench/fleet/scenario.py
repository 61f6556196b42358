"""A scenario: everything that a simulation needs, read from a TOML file."""

import dataclasses
import pathlib

from fleet import balancers, fields
from fleet.fields import FieldError, choice, number
from fleet.requests import Workload
from fleet.service import ServiceModel, load_service


@dataclasses.dataclass
class FleetOptions:
    """The replicas and what is in front of them."""

    replicas: int = number(1, low=1, high=100_000)  # at the start
    balancer: str = choice("least_outstanding", *balancers.NAMES)
    hash_balance_factor: float = number(0.0, low=0, high=10_000)  # per cent; 0: off
    # Speeds of the replicas relative to the service model, repeated for further ones.
    speeds: list = dataclasses.field(default_factory=lambda: [1.0])
    start_s: float = number(60.0, low=0, high=86400)  # from the order of a replica until it serves
    price_per_hour: float = number(0.0, low=0, high=1e6)  # of one replica, in any currency

    def check(self, where: str) -> None:
        if not self.speeds:
            raise FieldError(f"{where}.speeds: expected at least one speed")
        for i, speed in enumerate(self.speeds):
            fields.check_number(f"{where}.speeds[{i}]", speed, 1e-3, 1e3, False)


@dataclasses.dataclass
class Autoscaling:
    """Scaling as by Kubernetes' HorizontalPodAutoscaler with an AverageValue: every `interval_s`
    the wanted number of replicas is ceil(sum of `metric` over all replicas / target). The fleet
    grows at once, and shrinks to the highest number that was wanted in the last
    `scale_down_delay_s`."""

    max_replicas: int = number(0, low=0, high=100_000)  # 0: no autoscaling
    min_replicas: int = number(1, low=1, high=100_000)
    # waiting: requests in the queues; outstanding: waiting and running requests.
    metric: str = choice("waiting", "waiting", "outstanding")
    target: float = number(5.0, low=1e-3, high=1e6)
    tolerance: float = number(0.1, low=0, high=1)  # relative deviation that changes nothing
    interval_s: float = number(15.0, low=0.1, high=3600)
    metric_lag_s: float = number(15.0, low=0, high=3600)  # age of the metric when it is used
    scale_down_delay_s: float = number(360.0, low=0, high=86400)

    def check(self, where: str) -> None:
        if 0 < self.max_replicas < self.min_replicas:
            raise FieldError(
                f"{where}: expected min_replicas <= max_replicas, got {self.min_replicas} and "
                f"{self.max_replicas}"
            )


@dataclasses.dataclass
class Failures:
    """Failures of replicas. A failed replica loses the requests that it has; a replacement serves
    after `repair_s` and FleetOptions.start_s."""

    mtbf_h: float = number(0.0, low=0, high=1e9)  # mean time between failures of one; 0: none
    at_s: list = dataclasses.field(default_factory=list)  # times at which one of them fails, too
    detect_s: float = number(2.0, low=0, high=3600)  # until the balancer excludes it
    # Whether the balancer sends a call that a failed replica refused to another one.
    redispatch: bool = True
    repair_s: float = number(0.0, low=0, high=1e7)

    def check(self, where: str) -> None:
        for i, at_s in enumerate(self.at_s):
            fields.check_number(f"{where}.at_s[{i}]", at_s, 0, 1e9, False)


@dataclasses.dataclass
class Clients:
    """How clients treat errors: attempts that end UNAVAILABLE are repeated after a random time of
    up to backoff_s, which doubles with each attempt."""

    attempts: int = number(1, low=1, high=5)
    backoff_s: float = number(0.1, low=0, high=60)
    timeout_s: float = number(60.0, low=1e-3, high=3600)  # of an attempt, until it starts


@dataclasses.dataclass
class Scenario:
    """A simulation. Requests that arrive in [warmup_s, duration_s) are measured."""

    service: str = ""  # JSON file of the service model, relative to the scenario's file
    seed: int = number(1, low=0, high=1 << 62)
    duration_s: float = number(60.0, low=1e-3, high=1e8)
    warmup_s: float = number(10.0, low=0, high=1e8)
    # Closed loop: this many requests are in flight at any time, whatever `arrivals` says; 0: off.
    concurrency: int = number(0, low=0, high=10_000_000)
    workload: Workload = dataclasses.field(default_factory=Workload)
    fleet: FleetOptions = dataclasses.field(default_factory=FleetOptions)
    autoscaling: Autoscaling = dataclasses.field(default_factory=Autoscaling)
    failures: Failures = dataclasses.field(default_factory=Failures)
    clients: Clients = dataclasses.field(default_factory=Clients)
    # Set by load_scenario: the service model, and the folder of the scenario.
    model: ServiceModel = dataclasses.field(init=False, repr=False, compare=False)
    folder: pathlib.Path = dataclasses.field(default=pathlib.Path(), init=False)

    def check(self, where: str) -> None:
        if self.warmup_s >= self.duration_s:
            raise FieldError(
                f"{where}: expected warmup_s < duration_s, got {self.warmup_s} and "
                f"{self.duration_s}"
            )
        if self.concurrency and self.workload.arrivals.kind == "recorded":
            raise FieldError(f"{where}.concurrency: a recorded trace has its own arrivals")


def load_scenario(path: pathlib.Path) -> Scenario:
    """Reads a scenario and its service model. Raises FieldError if one of them is not valid."""
    scenario = fields.read(Scenario, fields.load(path), str(path))
    if not scenario.service:
        raise FieldError(f"{path}.service: expected the file that fleet.py measure wrote")
    scenario.folder = path.parent
    scenario.model = load_service(path.parent / scenario.service)
    return scenario
