"""The actors of Ray Data: each holds a model in its process."""

from __future__ import annotations

from typing import Any

import numpy

import quintet
from quintet.errors import Error, InvalidArgumentError
from quintet.ray.rows import columns_of, inputs_of
from quintet.ray.work import Work


class Worker:
    """Applies a method of a model to the rows of tables. Threads may call it at the same time; the
    rows of all calls share the model's batch."""

    def __init__(self, work: Work):
        """Loads the model and checks the options.

        Raises:
            quintet.Error, TypeError: as quintet.Model and its method.
        """
        self._work = work
        self._model = quintet.Model(work.model, **work.load)
        self._head = self._model.info().head
        try:
            self._call([], [])  # the engine checks the options
        except BaseException:
            self._model.close()
            raise

    def __call__(self, table: Any) -> Any:
        """Returns a pyarrow.Table: the rows of `table` with the columns of their results."""
        work = self._work
        work.check_columns(table.column_names)
        inputs = inputs_of(table, work.column)
        extras = None if work.extras is None else table.column(work.extras).to_pylist()
        for name, values in columns_of(work, self._results(inputs, extras), self._head).items():
            table = table.append_column(name, values)
        return table

    def _results(self, inputs: list[Any], extras: list[Any] | None) -> list[Any]:
        """A result or an exception for each row; a row without an input is an error."""
        rows = [i for i, value in enumerate(inputs) if _is_complete(i, value, extras)]
        if len(rows) == len(inputs):
            return self._call(inputs, extras)
        error = InvalidArgumentError(
            f"the row has no value in the column {self._work.column!r}"
            + (f" or {self._work.extras!r}" if extras is not None else "")
        )
        if not self._work.returns_errors:
            missing = next(i for i, j in enumerate([*rows, -1]) if i != j)
            raise InvalidArgumentError(error.message, index=missing)
        found = self._call(
            [inputs[i] for i in rows], None if extras is None else [extras[i] for i in rows]
        )
        results: list[Any] = [error] * len(inputs)
        for i, result in zip(rows, found, strict=True):
            results[i] = result
        return results

    def _call(self, inputs: list[Any], extras: list[Any] | None) -> list[Any]:
        method = getattr(self._model, self._work.method)
        arguments = (inputs,) if self._work.extras is None else (inputs, extras)
        results = list(method(*arguments, **self._work.options))
        if self._work.method == "encode" and self._work.returns_errors:
            results = [self._vector_or_error(*pair) for pair in zip(inputs, results, strict=True)]
        return results

    def _vector_or_error(self, value: Any, result: Any) -> Any:
        """The exception of an input whose row of an array of embeddings is NaN."""
        if isinstance(result, Error) or not numpy.isnan(result).all():
            return result
        try:
            return self._model.encode(value, **{**self._work.options, "on_error": "raise"})
        except Error as error:
            return error


def _is_complete(i: int, value: Any, extras: list[Any] | None) -> bool:
    return value is not None and (extras is None or extras[i] is not None)
