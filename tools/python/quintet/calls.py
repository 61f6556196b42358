"""The calls of Model and AsyncModel: checks of arguments, and the flow of inputs to the engine.

A method of both models makes a `Plan` from its arguments; `Feed` then pushes inputs into the
engine's call, at most a window of them at a time, so that iterators of any length take bounded
memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

from quintet import _engine, options as opt, results
from quintet.errors import InvalidArgumentError, make_error

_engine.set_types({"make_error": make_error, **vars(results)})
GENERATION_OPTIONS = frozenset(_engine.generation_option_names())


@dataclasses.dataclass
class Plan:
    """A call of a method of Model: its kind, inputs, and options under the engine's names."""

    kind: str
    options: dict[str, Any]
    decoding: dict[str, Any]
    inputs: Iterable
    extras: Iterable | None  # the targets (score) or contexts (classify) of the inputs
    raises: bool
    progress: bool
    one: bool  # a single input: the result is not in a list
    size: int | None  # number of inputs; None: an iterator
    array: bool = False  # encode: all results in one array

    @property
    def rows(self) -> int:
        return self.size if self.array and self.size is not None else -1


def plan(
    kind: str,
    inputs: Any,
    *,
    extras: tuple[str, Any] | None = None,
    decoding: dict[str, Any] | None = None,
    on_error: str = "raise",
    progress: bool = False,
    timeout: float | None = None,
    array: bool = False,
    **options: Any,
) -> Plan:
    """Checks the arguments that all methods share, and returns the plan of the call."""
    shape = opt.shape_of(inputs, extras)
    return Plan(
        kind=kind,
        options={**options, "one": shape.one, "timeout": opt.seconds("timeout", timeout)},
        decoding=decoding or {},
        inputs=shape.inputs,
        extras=shape.extras,
        raises=opt.choice("on_error", on_error, opt.ON_ERROR) == "raise",
        progress=opt.flag("progress", progress),
        one=shape.one,
        size=shape.size,
        array=array and not shape.one and shape.size is not None,
    )


def generate_plan(
    method: str,
    inputs: Any,
    add_special_tokens: bool,
    truncate: bool,
    skip_special_tokens: bool,
    timeout: float | None,
    on_error: str,
    progress: bool,
    options: dict[str, Any],
    stream: bool = False,
) -> Plan:
    if stream and not opt.is_one_input(inputs):
        opt.check_inputs("input", inputs)
        raise TypeError("input: expected one str or one list of token ids, got several inputs")
    return plan(
        "generate",
        inputs,
        decoding=opt.decoding_options(method, options, GENERATION_OPTIONS),
        on_error=on_error,
        progress=progress,
        timeout=timeout,
        add_special_tokens=opt.flag("add_special_tokens", add_special_tokens),
        truncate=opt.flag("truncate", truncate),
        skip_special_tokens=opt.flag("skip_special_tokens", skip_special_tokens),
        stream=stream,
    )


def encode_plan(
    inputs: Any,
    pooling: str,
    normalize: bool,
    prompt_name: str | None,
    prompt: str | None,
    add_special_tokens: bool,
    truncate: bool,
    timeout: float | None,
    on_error: str,
    progress: bool,
) -> Plan:
    return plan(
        "encode",
        inputs,
        on_error=on_error,
        progress=progress,
        timeout=timeout,
        array=opt.choice("pooling", pooling, opt.POOLINGS) != "none",
        pooling=pooling,
        normalize=opt.flag("normalize", normalize),
        **opt.prompts(prompt_name, prompt),
        add_special_tokens=opt.flag("add_special_tokens", add_special_tokens),
        truncate=opt.flag("truncate", truncate),
    )


def score_plan(
    inputs: Any,
    targets: Any,
    top_logprobs: int,
    sliding_window: int,
    prefix_lm: bool,
    target_special_tokens: bool,
    add_special_tokens: bool,
    truncate: bool,
    timeout: float | None,
    on_error: str,
    progress: bool,
) -> Plan:
    return plan(
        "score",
        inputs,
        extras=("targets", targets),
        on_error=on_error,
        progress=progress,
        timeout=timeout,
        top_logprobs=opt.integer("top_logprobs", top_logprobs),
        sliding_window=opt.integer("sliding_window", sliding_window),
        prefix_lm=opt.flag("prefix_lm", prefix_lm),
        target_special_tokens=opt.flag("target_special_tokens", target_special_tokens),
        add_special_tokens=opt.flag("add_special_tokens", add_special_tokens),
        truncate=opt.flag("truncate", truncate),
    )


def classify_plan(
    inputs: Any,
    contexts: Any,
    top_k: int,
    max_answer_tokens: int,
    add_special_tokens: bool,
    truncate: bool,
    timeout: float | None,
    on_error: str,
    progress: bool,
    head: str,
) -> Plan:
    questions = head == "question answering"
    if questions and contexts is None:
        raise InvalidArgumentError("contexts: this model answers questions; pass their contexts")
    if not questions and contexts is not None:
        raise InvalidArgumentError(f"contexts: this model has the head {head!r}, which takes none")
    return plan(
        "classify",
        inputs,
        extras=("contexts", contexts) if questions else None,
        on_error=on_error,
        progress=progress,
        timeout=timeout,
        top_k=opt.integer("top_k", top_k),
        max_answer_tokens=opt.integer("max_answer_tokens", max_answer_tokens),
        add_special_tokens=opt.flag("add_special_tokens", add_special_tokens),
        truncate=opt.flag("truncate", truncate),
    )


class Feed:
    """Pushes the inputs of a plan into a call of the engine. At most `window` of them are in
    flight: pushed, but their results not yet popped."""

    SLOW_S = 0.005  # inputs that arrive more slowly are pushed one by one
    MOST = 256  # maximum number of inputs in one push

    def __init__(self, call: _engine.Call, plan_: Plan, window: int):
        self._call = call
        # Inputs that are there already cannot be slow to arrive.
        self._waits = not isinstance(plan_.inputs, (list, tuple))
        self._inputs: Iterator = iter(plan_.inputs)
        self._extras = None if plan_.extras is None else iter(plan_.extras)
        self._window = window
        self._pending = 0
        self.exhausted = False

    def done(self, count: int) -> None:
        """Must be called after `count` results have been popped from the call. As many further
        inputs can then be pushed."""
        self._pending -= count

    @property
    def full(self) -> bool:
        """Whether no input can be pushed now: `window` inputs are in flight, or none are left."""
        return self.exhausted or self._pending >= self._window

    def fill(self) -> bool:
        """Pushes inputs until `window` inputs are in flight, none are left, or the iterator of
        inputs was slow to yield. Returns whether any input is in flight."""
        while not self.exhausted and self._pending < self._window:
            inputs, slow = self._take(min(self.MOST, self._window - self._pending))
            if inputs:
                extras = None if self._extras is None else self._take_extras(len(inputs))
                self._call.push(inputs, extras)
                self._pending += len(inputs)
            if slow:
                break
        return self._pending > 0

    def _take(self, most: int) -> tuple[list, bool]:
        if not self._waits:
            inputs = list(itertools.islice(self._inputs, most))
            self.exhausted = len(inputs) < most
            return inputs, False
        inputs = []
        begin = time.monotonic()
        for item in self._inputs:
            inputs.append(item)
            if len(inputs) >= most:
                return inputs, False
            if time.monotonic() - begin > self.SLOW_S:
                return inputs, True
        self.exhausted = True
        return inputs, False

    def _take_extras(self, count: int) -> list:
        extras = []
        for extra in self._extras or ():
            extras.append(extra)
            if len(extras) == count:
                return extras
        raise InvalidArgumentError("there are fewer targets or contexts than inputs")


def run(model: _engine.Model, plan_: Plan) -> Any:
    """Executes a plan and returns the result in the form in which the model's method returns it."""
    if plan_.one and not plan_.progress:
        call = model.begin(plan_.kind, plan_.options, plan_.decoding, -1, plan_.raises)
        try:
            extras = None if plan_.extras is None else list(plan_.extras)
            return call.run(list(plan_.inputs), extras)[0]
        finally:
            call.cancel()
    return collect(plan_, _results(model, plan_))


def take(call: _engine.Call, plan_: Plan, wait: bool) -> tuple[int, list]:
    """How many inputs have finished, and their results unless they are rows of the call's array."""
    if plan_.array:
        return call.pop_rows(wait), []
    results_ = call.pop(wait)
    return len(results_), results_


def _results(model: _engine.Model, plan_: Plan) -> Iterator:
    """Yields the results of a plan in the order of its inputs, as they are finished."""
    call = model.begin(plan_.kind, plan_.options, plan_.decoding, plan_.rows, plan_.raises)
    feed = Feed(call, plan_, model.window())
    told = opt.progress_bar(plan_.progress, plan_.size)
    try:
        while feed.fill():
            count, results_ = take(call, plan_, feed.full)
            feed.done(count)
            told(count)
            yield from results_
        if plan_.array:
            yield call.array()
    finally:
        call.cancel()
        told(-1)


def collect(plan_: Plan, values: Iterator) -> Any:
    """Converts the results of a plan, in the order of its inputs, to the form in which the model's
    method returns them: a single result, a list, an iterator or one array. For an array, `values`
    is the array alone."""
    if plan_.one or plan_.array:
        return next(iter(list(values)))
    return list(values) if plan_.size is not None else values
