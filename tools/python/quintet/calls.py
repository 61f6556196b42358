"""The calls of Model and AsyncModel: pass the inputs of a task to the engine, return its results.

`Feed` pushes inputs into the engine's call, at most a window of them at a time, so that iterators
of any length take bounded memory.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

from quintet import _engine, results
from quintet.methods import Task
from quintet.spelling import in_python, make_error

_engine.set_types({"make_error": make_error, **vars(results)})


def begin(
    model: _engine.Model, task: Task, notifier: _engine.Notifier | None = None, token: int = 0
) -> _engine.Call:
    """Begins the call of a task; its inputs are pushed later. `token`: the id that the notifier
    reports when the call has results."""
    options = {name: value for name, value in task.options.items() if value is not None}
    options |= {"one": task.one, "stream": task.method == "stream"}
    rows = task.size if task.array and task.size is not None else -1
    try:
        return model.begin(task.method, options, task.decoding, rows, task.raises, notifier, token)
    except TypeError as error:
        raise TypeError(in_python(str(error))) from None


class Feed:
    """Pushes the inputs of a task into a call of the engine. At most `window` of them are in
    flight: pushed, but their results not yet popped."""

    SLOW_S = 0.005  # inputs that arrive more slowly are pushed one by one
    MOST = 256  # maximum number of inputs in one push
    LEAST = 64  # results for which a call waits whose caller needs them all

    def __init__(self, call: _engine.Call, task: Task, window: int):
        self._call = call
        # Inputs that are there already cannot be slow to arrive.
        self._waits = not isinstance(task.inputs, (list, tuple))
        self._inputs: Iterator[Any] = iter(task.inputs)
        self._extras = task.pairs()
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

    @property
    def least(self) -> int:
        """Number of results to wait for; 0 if inputs can be pushed now. Each wait costs a thread
        switch, and then as many inputs are pushed as results arrived, so waiting for many results
        is cheaper. But if the inputs come from an iterator, each result is yielded at once."""
        if not self.full:
            return 0
        return 1 if self._waits else max(1, min(self.LEAST, self._window // 8))

    def fill(self) -> bool:
        """Pushes inputs until `window` inputs are in flight, none are left, or the iterator of
        inputs was slow to yield. Returns whether any input is in flight."""
        while not self.exhausted and self._pending < self._window:
            inputs, slow = self._take(min(self.MOST, self._window - self._pending))
            if inputs:
                extras = None if self._extras is None else self._extras.take(len(inputs))
                self._call.push(inputs, extras)
                self._pending += len(inputs)
            if self.exhausted and self._extras is not None:
                self._extras.check_end()
            if slow:
                break
        return self._pending > 0

    def _take(self, most: int) -> tuple[list[Any], bool]:
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


def run(model: _engine.Model, task: Task) -> Any:
    """Executes a task and returns the result in the form in which the model's method returns it."""
    if not task.one or task.options["progress"]:
        return collect(task, _results(model, task))
    call = begin(model, task)
    try:
        extras = None if task.extras is None else list(task.extras)
        return call.run(list(task.inputs), extras)[0]
    finally:
        call.cancel()


def take(call: _engine.Call, task: Task, least: int) -> tuple[int, list[Any]]:
    """Waits until `least` of the inputs in flight have finished. Returns the number of finished
    inputs, and a list of their results, which is empty if they are rows of the call's array."""
    if task.array:
        return call.pop_rows(least), []
    results_ = call.pop(least)
    return len(results_), results_


def _results(model: _engine.Model, task: Task) -> Iterator[Any]:
    """Yields the results of a task in the order of its inputs, as they are finished."""
    call = begin(model, task)
    feed = Feed(call, task, model.window())
    told = task.progress_bar()
    try:
        while feed.fill():
            count, results_ = take(call, task, feed.least)
            feed.done(count)
            told(count)
            yield from results_
        if task.array:
            yield call.array()
    finally:
        call.cancel()
        told(-1)


def collect(task: Task, values: Iterator[Any]) -> Any:
    """Converts the results of a task, in the order of its inputs, to the form in which the model's
    method returns them: a single result, a list, an iterator or one array. For an array, `values`
    is the array alone."""
    if task.one or task.array:
        return next(iter(list(values)))
    return list(values) if task.size is not None else values
