"""How long the engine of one replica takes: times of decoder steps and encoder batches, and the
limits of its scheduler, as `fleet.py measure` measures and writes them."""

import bisect
import dataclasses
import pathlib
from collections.abc import Sequence

from fleet import fields
from fleet.fields import FieldError, number


class Curve:
    """A piecewise linear function through measured points, by ascending x. Below the first point
    it is constant; above the last one it continues with the slope of the last segment."""

    def __init__(self, points: Sequence[tuple[float, float]]):
        self._xs = [float(x) for x, _ in points]
        self._ys = [float(y) for _, y in points]

    def __call__(self, x: float) -> float:
        xs, ys = self._xs, self._ys
        if len(xs) == 1 or x <= xs[0]:
            return ys[0]
        i = min(bisect.bisect_left(xs, x), len(xs) - 1)
        slope = (ys[i] - ys[i - 1]) / (xs[i] - xs[i - 1])
        return ys[i - 1] + slope * (x - xs[i - 1])


def _curve(where: str, points: list) -> Curve:
    """Checks points [[x, ms], ...] of a curve. Times must not fall as x grows: otherwise the
    continuation of the curve could become negative."""
    if not points:
        raise FieldError(f"{where}: expected at least one point [x, ms]")
    checked: list[tuple[float, float]] = []
    for i, point in enumerate(points):
        if not isinstance(point, list) or len(point) != 2:
            raise FieldError(f"{where}[{i}]: expected [x, ms], got {point!r}")
        x = fields.check_number(f"{where}[{i}][0]", point[0], 0, 1e9, False)
        ms = fields.check_number(f"{where}[{i}][1]", point[1], 0, 1e7, False)
        if checked and (x <= checked[-1][0] or ms < checked[-1][1]):
            raise FieldError(f"{where}[{i}]: expected ascending x and times that do not fall")
        checked.append((x, ms))
    return Curve(checked)


@dataclasses.dataclass
class ServiceModel:
    """Measured times and limits of one replica. The curves are lists of points [x, ms].

    A step of r rows takes step_ms(r). A batch of n packed input tokens takes encode_ms(n), with the
    projection to cross-attention keys and values (of a causal model: its prefill). An input that
    the encoder cache has takes cached_ms(n) instead.
    """

    step_ms: list
    encode_ms: list
    cached_ms: list = dataclasses.field(default_factory=lambda: [[1, 0.0]])
    # Latency of a request outside the engine: network, balancer, tokenizer, response.
    overhead_ms: float = number(0.0, low=0, high=1e6)
    max_running: int = number(256, low=1, high=4096)  # rows of a step
    max_batch_tokens: int = number(4096, low=1, high=1 << 24)  # tokens of an encoder batch
    max_queue: int = number(256, low=1, high=1 << 20)  # waiting requests
    max_queue_tokens: int = number(262144, low=1, high=1 << 40)  # their input tokens
    # While rows run, a step encodes for at most this fraction of its decoding time; 0: no limit.
    prefill_share: float = number(0.0, low=0, high=1000)
    # Steps that are enqueued before the results of the running one are known: 1 on a GPU.
    steps_ahead: int = number(0, low=0, high=1)
    # While rows run, requests are admitted only if admission_rows rows are free, or when
    # admission_steps steps have passed over waiting requests.
    admission_rows: int = number(1, low=1, high=4096)
    admission_steps: int = number(0, low=0, high=1 << 20)
    encoder_cache_tokens: int = number(0, low=0, high=1 << 40)  # 0: no encoder cache
    source: dict = dataclasses.field(default_factory=dict)  # where the figures come from

    def check(self, where: str) -> None:
        self.step = _curve(f"{where}.step_ms", self.step_ms)
        self.encode = _curve(f"{where}.encode_ms", self.encode_ms)
        self.cached = _curve(f"{where}.cached_ms", self.cached_ms)
        if self.step(1) <= 0:
            raise FieldError(f"{where}.step_ms: a step of 1 row must take more than 0 ms")

    def step_s(self, rows: int) -> float:
        return self.step(rows) / 1e3


def load_service(path: pathlib.Path) -> ServiceModel:
    """Reads the member "service" of the JSON file `path`. Raises FieldError if it is not valid."""
    document = fields.load(path)
    if not isinstance(document, dict) or "service" not in document:
        raise FieldError(f"{path}: expected a member 'service', as fleet.py measure writes it")
    return fields.read(ServiceModel, document["service"], f"{path}: service")
