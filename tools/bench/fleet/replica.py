"""One replica: a queue, an encoder and a continuously batched decoder, as engine/step_engine.cc
runs them.

Each turn admits waiting requests in the order of their arrival, encodes for a limited time, and
runs one decoder step for all rows. With ServiceModel.steps_ahead = 1 (a GPU) the work of a turn is
enqueued while the step before it runs, so a request joins the step after the next.

Steps between which nothing changes are simulated as one event: the work of a simulation grows with
the requests, not with their tokens.
"""

import collections
import dataclasses
import enum
import heapq
import math
from collections.abc import Callable, Generator

import simpy

from fleet.requests import Request
from fleet.service import ServiceModel


class Code(enum.StrEnum):
    """How an attempt or a request ended: names of gRPC's status codes."""

    OK = "OK"
    QUEUE_FULL = "RESOURCE_EXHAUSTED"  # refused: the queue was full
    DEADLINE = "DEADLINE_EXCEEDED"  # its deadline passed in the queue
    LOST = "UNAVAILABLE"  # the replica failed while it had the request, or no replica was there


@dataclasses.dataclass(slots=True, eq=False)
class Attempt:
    """One try to run a request on a replica."""

    request: Request
    on_end: Callable[["Attempt", Code], None]
    deadline_s: float = math.inf
    sent_s: float = 0.0
    started_s: float = -1.0  # admitted by the engine
    first_s: float = -1.0  # first token
    cached: bool = False


class EncoderCache:
    """An LRU cache of encoder outputs, which counts tokens."""

    def __init__(self, capacity_tokens: int):
        self._capacity, self._used = capacity_tokens, 0
        self._tokens: collections.OrderedDict[int, int] = collections.OrderedDict()
        self.queries = self.hits = 0

    def find(self, request: Request) -> bool:
        """Returns whether the input is in the cache, and counts the query."""
        if self._capacity == 0:
            return False
        self.queries += 1
        if request.prompt not in self._tokens:
            return False
        self._tokens.move_to_end(request.prompt)
        self.hits += 1
        return True

    def insert(self, request: Request) -> None:
        if request.input_tokens > self._capacity or request.prompt in self._tokens:
            return
        self._tokens[request.prompt] = request.input_tokens
        self._used += request.input_tokens
        while self._used > self._capacity:
            self._used -= self._tokens.popitem(last=False)[1]


@dataclasses.dataclass(slots=True)
class _Turn:
    """Planned work: `encode_s` seconds of encoding, then `steps` decoder steps of `step_s` seconds
    with `rows` rows each, numbered from `first`. `joined` have their first token after step
    `first`."""

    encode_s: float
    first: int
    steps: int
    step_s: float
    rows: int
    joined: list[Attempt]


class Replica:
    """A replica in a simulation. `speed`: how many times as fast it is as `service` says. Its
    process runs until fail() or stop()."""

    def __init__(
        self, env: simpy.Environment, name: str, service: ServiceModel, speed: float = 1.0
    ):
        self.env, self.name, self.service, self.speed = env, name, service, speed
        self.cache = EncoderCache(service.encoder_cache_tokens)
        self.up = True
        self.created_s = env.now
        self.busy_s = 0.0  # time in which the engine worked
        self.row_s = 0.0  # integral of the rows in steps over time
        self.outstanding = 0  # requests that have not ended
        self.finished = 0  # requests that have ended, for whatever reason
        self.occupied = 0  # rows of admitted requests
        self.queue: collections.deque[Attempt] = collections.deque()
        self.queue_tokens = 0
        self._encoding: list[Attempt] = []
        self._encode_left_s = 0.0
        self._rows = 0  # rows of the last planned step
        self._step = 0  # number of the last planned step
        self._delayed = 0
        # By the number of their last step: requests, until its results are known, and the number
        # of their rows, until the step after it is planned. _last_steps is a heap of such numbers.
        self._ending: dict[int, list[Attempt]] = {}
        self._leaving: dict[int, int] = {}
        self._last_steps: list[int] = []
        self._wake: simpy.Event | None = None
        self._process = env.process(self._run())

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def utilization(self) -> float:
        """The application_utilization of a load report: running and waiting requests by the rows
        that can run. It may exceed 1."""
        return self.outstanding / self.service.max_running

    def submit(self, attempt: Attempt) -> None:
        """Takes an attempt. Ends it at once with LOST or QUEUE_FULL if the replica is down or its
        queue is full, and otherwise when it has run, expired or been lost."""
        attempt.sent_s = self.env.now
        request, service = attempt.request, self.service
        if not self.up:
            return attempt.on_end(attempt, Code.LOST)
        tokens = self.queue_tokens + request.input_tokens
        if len(self.queue) >= service.max_queue or tokens > service.max_queue_tokens:
            return attempt.on_end(attempt, Code.QUEUE_FULL)
        if request.rows > service.max_running or request.input_tokens > service.max_batch_tokens:
            raise ValueError(
                f"a request of {request.input_tokens} tokens and {request.rows} rows can never "
                f"run: the replica encodes {service.max_batch_tokens} tokens and runs "
                f"{service.max_running} rows; raise max_batch_tokens or max_running of the service"
            )
        self.outstanding += 1
        self.queue.append(attempt)
        self.queue_tokens = tokens
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def fail(self) -> None:
        """Ends the replica at once: all its attempts end LOST."""
        self.up = False
        lost = list(self.queue) + self._encoding
        for attempts in self._ending.values():
            lost += attempts
        self.queue.clear()
        self._encoding, self._ending, self._leaving, self._last_steps = [], {}, {}, []
        self.queue_tokens = self.outstanding = self.occupied = self._rows = 0
        self._process.interrupt()
        for attempt in lost:
            attempt.on_end(attempt, Code.LOST)

    # ---- The engine ----

    def _run(self) -> Generator:
        try:
            current: _Turn | None = None
            while True:
                if current is None:
                    current = self._plan()
                if current is None:
                    self._wake = self.env.event()
                    yield self._wake
                    continue
                if current.steps > 1:
                    current = yield from self._run_steps(current)
                    if current is None:
                        continue
                # With steps ahead, the next turn is enqueued when this one begins.
                following = self._plan() if self.service.steps_ahead else None
                yield from self._work(
                    self.env.timeout(current.encode_s + current.step_s), current.rows
                )
                self._apply(current.first, current.joined)
                current = following
        except simpy.Interrupt:
            return

    def _work(self, event: simpy.Event, rows: int) -> Generator:
        """Waits for `event` while the engine runs `rows` rows."""
        begin = self.env.now
        try:
            yield event
        finally:
            self.busy_s += self.env.now - begin
            self.row_s += (self.env.now - begin) * rows

    def _run_steps(self, turn: _Turn) -> Generator[simpy.Event, object, _Turn | None]:
        """Runs several equal steps until they are done, or until a request may be admitted. Returns
        the step that has begun by then because it was enqueued ahead, or None if there is none."""
        ahead = self.service.steps_ahead
        begin, most, done = self.env.now, turn.steps - ahead, 0
        if self._may_admit_next():
            most = 0  # it arrived when these steps were enqueued already
        elif self.queue:  # there is no room before the last of the steps has ended
            yield from self._work(self.env.timeout(most * turn.step_s), turn.rows)
            done = most
        else:
            self._wake = self.env.event()
            end = self.env.timeout(most * turn.step_s)
            yield from self._work(self._wake | end, turn.rows)
            self._wake = None
            done = min(most, math.floor((self.env.now - begin) / turn.step_s + 1e-9) + 1)
            left = max(begin + done * turn.step_s - self.env.now, 0.0)
            yield from self._work(self.env.timeout(left), turn.rows)
        self._step = turn.first + done - 1 + ahead
        if ahead:
            return _Turn(0.0, self._step, 1, turn.step_s, turn.rows, [])
        self._apply(self._step, [])
        return None

    def _plan(self) -> _Turn | None:
        """Admits requests and plans what follows the steps that are planned already. Returns None
        if there is nothing to do."""
        self._admit()
        self._rows -= self._leaving.pop(self._step, 0)
        encode_s, joined = self._encode()
        for attempt in joined:
            self._rows += attempt.request.rows
            last = self._step + attempt.request.output_tokens
            if last not in self._ending:
                heapq.heappush(self._last_steps, last)
                self._ending[last], self._leaving[last] = [], 0
            self._ending[last].append(attempt)
            self._leaving[last] += attempt.request.rows
        if self._rows == 0:
            return None
        first, steps = self._step + 1, 1
        if not joined and not self._encoding and not self._may_admit_next():
            steps = self._next_last(first) - first + 1
        self._step = first + steps - 1
        step_s = self.service.step_s(self._rows) / self.speed
        return _Turn(encode_s, first, steps, step_s, self._rows, joined)

    def _may_admit_next(self) -> bool:
        """Whether the next turn may admit a waiting request, or counts as a turn of delay."""
        return bool(self.queue) and (self._has_room() or self.service.admission_steps > 0)

    def _has_room(self) -> bool:
        """Whether there are free rows for the first request of the queue."""
        return self.occupied + self.queue[0].request.rows <= self.service.max_running

    def _next_last(self, first: int) -> int:
        """Returns the smallest last step of a request from `first` on: no row leaves before it."""
        while self._last_steps[0] < first:
            heapq.heappop(self._last_steps)
        return self._last_steps[0]

    def _admit(self) -> None:
        service, now = self.service, self.env.now
        while self.queue and self.queue[0].deadline_s < now:
            self._end(self._take(), Code.DEADLINE)
        if not self.queue or self._encode_left_s > 0:
            return
        free = service.max_running - self.occupied
        if (
            0 < self._rows
            and free < service.admission_rows
            and (self._delayed < service.admission_steps)
        ):
            self._delayed += 1
            return
        self._delayed = 0
        tokens = cached = 0
        while self.queue:
            request = self.queue[0].request
            if not self._has_room() or (
                tokens + cached + request.input_tokens > service.max_batch_tokens
            ):
                break
            attempt = self._take()
            attempt.started_s = now
            attempt.cached = self.cache.find(request)
            tokens += 0 if attempt.cached else request.input_tokens
            cached += request.input_tokens if attempt.cached else 0
            self.occupied += request.rows
            self._encoding.append(attempt)
        encode_ms = service.encode(tokens) if tokens else 0.0
        encode_ms += service.cached(cached) if cached else 0.0
        self._encode_left_s = encode_ms / 1e3 / self.speed

    def _take(self) -> Attempt:
        attempt = self.queue.popleft()
        self.queue_tokens -= attempt.request.input_tokens
        return attempt

    def _encode(self) -> tuple[float, list[Attempt]]:
        """Encodes for the time that this turn may. Returns this time and the requests that are
        encoded then."""
        if not self._encoding:
            return 0.0, []
        limit = math.inf
        if self.service.prefill_share > 0 and self._rows > 0:
            limit = self.service.prefill_share * self.service.step_s(self._rows) / self.speed
        encode_s = min(limit, self._encode_left_s)
        self._encode_left_s -= encode_s
        if self._encode_left_s > 0:
            return encode_s, []
        joined, self._encoding = self._encoding, []
        for attempt in joined:
            if not attempt.cached:
                self.cache.insert(attempt.request)
        return encode_s, joined

    def _apply(self, step: int, joined: list[Attempt]) -> None:
        """Delivers the tokens of a step, which are the first ones of `joined`."""
        for attempt in joined:
            attempt.first_s = self.env.now
        for attempt in self._ending.pop(step, ()):
            self.occupied -= attempt.request.rows
            self._end(attempt, Code.OK)

    def _end(self, attempt: Attempt, code: Code) -> None:
        self.outstanding -= 1
        self.finished += 1
        attempt.on_end(attempt, code)
