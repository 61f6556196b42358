"""What actors do with the rows of a data set: a method of quintet.Model with its options."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from quintet import options as opt
from quintet.errors import InvalidArgumentError

METHODS = ("generate", "encode", "score", "classify")
# The columns that results can have, by method (rows.py).
RESULTS = {
    "generate": ("generated_text", "sequences"),
    "encode": ("embedding",),
    "score": ("logprobs", "tokens"),
    "classify": ("label", "labels", "tokens", "answers"),
}
ERROR = "error"


@dataclasses.dataclass(frozen=True)
class Work:
    """A method of a model for each row. Its options are checked, except those that only the engine
    can check."""

    method: str  # one of METHODS
    model: str  # the argument of quintet.Model
    load: dict[str, Any]  # the options of quintet.Model that were given
    options: dict[str, Any]  # the options of the method that were given
    column: str  # name of the column of inputs
    extras: str | None  # name of the column of targets (score) or contexts (classify)
    details: bool  # whether results have all columns

    @property
    def returns_errors(self) -> bool:
        return self.options.get("on_error") == "return"

    def check_columns(self, names: list[str], more: tuple[str, ...] = ()) -> None:
        """Raises InvalidArgumentError if a column of the input is missing, or has the name of a
        column of the output. `names`: columns of the input; `more`: further columns to add."""
        for argument, column in (("column", self.column), (self._extras_name, self.extras)):
            if column is not None and column not in names:
                raise InvalidArgumentError(
                    f"{argument}: the data set has no column {column!r}, only {', '.join(names)}"
                )
        added = (*more, *RESULTS[self.method], *((ERROR,) if self.returns_errors else ()))
        for column in added:
            if column in names:
                raise InvalidArgumentError(
                    f"the data set has a column {column!r}, as the output has; rename it, for "
                    "example with dataset.rename_columns"
                )

    @property
    def _extras_name(self) -> str:
        return "targets" if self.method == "score" else "contexts"


def make_work(
    method: str,
    model: str | os.PathLike[str],
    given: Mapping[str, Any],
    column: str = "text",
    extras: str | None = None,
    details: bool = False,
) -> Work:
    """Makes a Work. `given`: options of quintet.Model and of its method.

    Raises:
        TypeError: an option does not exist, or has the wrong type.
        InvalidArgumentError: a value is wrong.
    """
    if method not in METHODS:
        raise InvalidArgumentError(f"method: {method!r} is not one of {', '.join(METHODS)}")
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"model: expected a str or a path, got {type(model).__name__}")
    load = {name: value for name, value in given.items() if name in opt.OPTIONS["Model"]}
    options = {name: value for name, value in given.items() if name not in load}
    if "progress" in options:
        raise TypeError(f"{method}() has no option 'progress': Ray shows the progress")
    opt.resolve("Model", "Model", load)
    opt.resolve("Model", method, options)
    return Work(method, local_path(model), local_options(load), options, column, extras, details)


def local_path(path: str | os.PathLike[str]) -> str:
    """Makes the path of a local file or folder absolute, because actors run in other folders.
    Returns ids of the Hugging Face hub as they are."""
    name = os.fspath(path)
    return os.path.abspath(name) if os.path.exists(name) else name


def local_options(load: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of quintet.Model, with absolute paths."""
    made = dict(load)
    if made.get("tokenizer") is not None:
        made["tokenizer"] = local_path(made["tokenizer"])
    if made.get("adapters") is not None:
        made["adapters"] = {name: local_path(path) for name, path in made["adapters"].items()}
    return made
