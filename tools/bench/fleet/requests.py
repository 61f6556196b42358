"""Requests and when they arrive: Poisson processes, daily curves, recorded traces."""

import bisect
import dataclasses
import json
import math
import pathlib
import random
from collections.abc import Iterator

from fleet import fields
from fleet.fields import FieldError, choice, number


@dataclasses.dataclass(slots=True)
class Request:
    """A request as a client makes it. `prompt` identifies the input: requests with equal prompts
    have equal inputs."""

    number: int
    at_s: float  # arrival
    prompt: int
    input_tokens: int
    output_tokens: int
    rows: int = 1  # rows in each decoder step: the number of beams


MAX_TOKENS = 1 << 20


@dataclasses.dataclass
class Lengths:
    """A distribution of token counts. uniform: low to high. geometric: as of outputs that end with
    a constant probability after each token, with the mean `mean`, cut at `high`. lognormal: with
    the median `mean` and the deviation `sigma` of the logarithm, rounded, within [low, high]."""

    kind: str = choice("uniform", "uniform", "geometric", "lognormal")
    low: int = number(1, low=1, high=MAX_TOKENS)
    high: int = number(MAX_TOKENS, low=1, high=MAX_TOKENS)
    mean: float = number(64.0, low=1, high=MAX_TOKENS)
    sigma: float = number(1.0, low=0, high=10)

    def check(self, where: str) -> None:
        if self.low > self.high:
            raise FieldError(f"{where}: expected low <= high, got {self.low} and {self.high}")

    def draw(self, chance: random.Random) -> int:
        if self.kind == "uniform":
            return chance.randint(self.low, self.high)
        if self.kind == "lognormal":
            tokens = round(chance.lognormvariate(math.log(self.mean), self.sigma))
        elif self.mean == 1:
            tokens = 1
        else:
            tokens = 1 + int(math.log(1 - chance.random()) / math.log1p(-1 / self.mean))
        return min(max(tokens, self.low), self.high)


@dataclasses.dataclass
class Prompts:
    """How often inputs repeat. `distinct`: number of different inputs; 0: every request has its
    own. `zipf`: input k is chosen in proportion to 1 / k^zipf; 0: all equally often."""

    distinct: int = number(0, low=0, high=10_000_000)
    zipf: float = number(0.0, low=0, high=10)


@dataclasses.dataclass
class Arrivals:
    """When requests arrive. poisson: `rate` requests per second. daily: a Poisson process whose
    rate follows `curve`, a list of points [hour, requests/s], linear between them and repeated
    every 24 hours. recorded: the times and lengths of `file`."""

    kind: str = choice("poisson", "poisson", "daily", "recorded")
    rate: float = number(1.0, low=1e-6, high=1e7)
    curve: list = dataclasses.field(default_factory=list)
    file: str = ""

    def check(self, where: str) -> None:
        if self.kind == "recorded" and not self.file:
            raise FieldError(f"{where}.file: a recorded trace needs a file")
        if self.kind != "daily":
            return
        if not self.curve:
            raise FieldError(f"{where}.curve: expected at least one point [hour, requests/s]")
        for i, point in enumerate(self.curve):
            if not isinstance(point, list) or len(point) != 2:
                raise FieldError(f"{where}.curve[{i}]: expected [hour, requests/s], got {point!r}")
            hour = fields.check_number(f"{where}.curve[{i}][0]", point[0], 0, 24, False)
            fields.check_number(f"{where}.curve[{i}][1]", point[1], 0, 1e7, False)
            if i > 0 and hour <= self.curve[i - 1][0]:
                raise FieldError(f"{where}.curve[{i}]: expected ascending hours")
        if max(rate for _, rate in self.curve) <= 0:
            raise FieldError(f"{where}.curve: expected a rate above 0")

    def rate_at(self, at_s: float) -> float:
        """Returns the requests per second of a daily curve."""
        hour = at_s / 3600 % 24
        first, last = self.curve[0], self.curve[-1]
        points = [[last[0] - 24, last[1]], *self.curve, [first[0] + 24, first[1]]]
        i = bisect.bisect_right(points, hour, key=lambda point: point[0])
        (left, low), (right, high) = points[i - 1], points[min(i, len(points) - 1)]
        return low if right <= left else low + (high - low) * (hour - left) / (right - left)

    def times(self, chance: random.Random) -> Iterator[float]:
        """Yields arrival times in seconds, ascending, without end. Not for recorded traces."""
        at_s = 0.0
        if self.kind == "poisson":
            while True:
                at_s += chance.expovariate(self.rate)
                yield at_s
        highest = max(rate for _, rate in self.curve)
        while (
            True
        ):  # thinning: arrivals at the highest rate, kept with the probability rate / highest
            at_s += chance.expovariate(highest)
            if chance.random() * highest < self.rate_at(at_s):
                yield at_s


@dataclasses.dataclass
class Workload:
    """The requests of a scenario."""

    arrivals: Arrivals = dataclasses.field(default_factory=Arrivals)
    input_tokens: Lengths = dataclasses.field(default_factory=lambda: Lengths(low=64, high=64))
    output_tokens: Lengths = dataclasses.field(default_factory=lambda: Lengths(low=64, high=64))
    prompts: Prompts = dataclasses.field(default_factory=Prompts)
    num_beams: int = number(1, low=1, high=32)
    beam_share: float = number(1.0, low=0, high=1)  # fraction of requests that use num_beams beams

    def requests(self, seed: int, end_s: float, folder: pathlib.Path) -> Iterator[Request]:
        """Yields the requests that arrive before `end_s`, by ascending time. Times, lengths and
        prompts have random streams of their own: another rate does not change the lengths.
        `folder`: the folder to which the file of a recorded trace is relative."""
        if self.arrivals.kind == "recorded":
            yield from _until(read_trace(folder / self.arrivals.file), end_s)
            return
        yield from _until(self._random_requests(seed), end_s)

    def _random_requests(self, seed: int) -> Iterator[Request]:
        times, outputs, choices, beams = (random.Random(f"{seed} {name}") for name in "tocb")
        cumulative = self._cumulative_weights()
        for i, at_s in enumerate(self.arrivals.times(times)):
            prompt = i
            if cumulative:
                prompt = bisect.bisect_left(cumulative, choices.random() * cumulative[-1])
            # The length of an input is a function of the input.
            length = self.input_tokens.draw(random.Random(f"{seed} i {prompt}"))
            rows = self.num_beams if beams.random() < self.beam_share else 1
            yield Request(i, at_s, prompt, length, self.output_tokens.draw(outputs), rows)

    def _cumulative_weights(self) -> list[float]:
        total, cumulative = 0.0, []
        for k in range(1, self.prompts.distinct + 1):
            total += k**-self.prompts.zipf
            cumulative.append(total)
        return cumulative


def _until(requests: Iterator[Request], end_s: float) -> Iterator[Request]:
    for request in requests:
        if request.at_s >= end_s:
            return
        yield request


@dataclasses.dataclass
class TraceLine:
    """One line of a recorded trace: a JSON object. `quintet bench serve --record` writes more
    members, which the simulator ignores."""

    at_s: float = number(low=0, high=1e9)
    input_tokens: int = number(low=1, high=MAX_TOKENS)
    output_tokens: int = number(low=1, high=MAX_TOKENS)
    num_beams: int = number(1, low=1, high=32)
    prompt: int = number(-1, low=-1, high=1 << 62)  # -1: like no other


def read_trace(path: pathlib.Path) -> Iterator[Request]:
    """Yields the requests of a recorded trace: one JSON object a line with at_s (seconds,
    ascending), input_tokens, output_tokens and optionally num_beams and prompt. Raises FieldError
    with the number of the line if it is not valid."""
    names = {field.name for field in dataclasses.fields(TraceLine)}
    before = 0.0
    try:
        with open(path, encoding="utf-8") as file:
            for i, text in enumerate(file):
                where = f"{path}:{i + 1}"
                try:
                    found = json.loads(text)
                except (json.JSONDecodeError, RecursionError) as error:
                    raise FieldError(
                        f"{where}: expected a JSON object, got {text[:60]!r}"
                    ) from error
                if isinstance(found, dict):
                    found = {name: found[name] for name in names if name in found}
                line = fields.read(TraceLine, found, where)
                if line.at_s < before:
                    raise FieldError(f"{where}.at_s: expected at least {before}, got {line.at_s}")
                before = line.at_s
                prompt = line.prompt if line.prompt >= 0 else -1 - i
                yield Request(
                    i, line.at_s, prompt, line.input_tokens, line.output_tokens, line.num_beams
                )
    except (OSError, UnicodeDecodeError) as error:
        raise FieldError(f"{path}: cannot be read: {error}") from error
