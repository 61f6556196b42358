"""Checks of arguments. Each function returns the checked value, or raises TypeError for a value of
the wrong type and InvalidArgumentError for any other wrong value."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Set, Sized
from typing import Any

from quintet.errors import InvalidArgumentError


def plain(value: Any) -> Any:
    """Converts a scalar of numpy to the Python object of its value; returns any other value."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def flag(name: str, value: Any) -> bool:
    """A boolean. Other values, such as "False" and 0.0, are errors."""
    value = plain(value)
    if value is True or value is False:
        return bool(value)
    raise TypeError(f"{name}: expected True or False, got {type(value).__name__}")


def integer(name: str, value: Any) -> int:
    """An integer of any type, but not a boolean."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        number = int(value.__index__())
        if abs(number) < 2**62:
            return number
        raise InvalidArgumentError(f"{name}: {number} is too large")
    raise TypeError(f"{name}: expected an int, got {type(value).__name__}")


def in_range(least: int, most: int) -> Callable[[str, Any], int]:
    """The check of an integer in [least, most]."""

    def check(name: str, value: Any) -> int:
        number = integer(name, value)
        if not least <= number <= most:
            raise InvalidArgumentError(f"{name}: {number} is not in [{least}, {most}]")
        return number

    return check


def size_or_automatic(name: str, value: Any) -> int | None:
    """An integer of at least 1, or None."""
    if value is None:
        return None
    number = integer(name, value)
    if number < 1:
        raise InvalidArgumentError(f"{name}: {number} is less than 1; None is automatic")
    return number


def seconds(name: str, value: Any) -> float:
    """A duration in seconds; returns 0 for None, which means no limit."""
    value = plain(value)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected seconds as a number or None, got {type(value).__name__}")
    if not math.isfinite(value) or not 0 < value <= 1e9:
        raise InvalidArgumentError(f"{name}: {value} is not in (0, 1e9] seconds")
    return float(value)


def text(name: str, value: Any) -> str:
    """A str that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"{name}: the text contains a surrogate (U+D800 to U+DFFF), which is not a "
            'character; decode the bytes with errors="replace"'
        ) from None
    return value


def context(name: str, value: Any) -> str:
    """The context of a question."""
    if not isinstance(value, str):
        raise TypeError(
            f"{name}: expected a str, got {type(value).__name__}: answers are parts of this text"
        )
    return text(name, value)


def text_or_none(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value if value is None else text(name, value)
    raise TypeError(f"{name}: expected a str or None, got {type(value).__name__}")


def path_or_none(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name}: expected a str, a path or None, got {type(value).__name__}")
    return text(name, os.fspath(value))


def paths_by_name(name: str, value: Any) -> dict[str, str] | None:
    """The check of a mapping from names to paths, or None."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: expected a mapping or None, got {type(value).__name__}")
    for key, path in value.items():
        if not isinstance(key, str) or not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{name}: expected names (str) and paths, got {key!r}: {path!r}")
    return {text(name, key): os.fspath(path) for key, path in value.items()}


def one_of(*choices: str) -> Callable[[str, Any], str]:
    """The check of a str that is one of `choices`."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
        if value not in choices:
            known = ", ".join(choices)
            raise InvalidArgumentError(f"{name}: expected one of {known}, got {value!r}")
        return value

    return check


def function_or_none(name: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    raise TypeError(f"{name}: expected a function or None, got {type(value).__name__}")


def is_one_input(value: Any) -> bool:
    """Whether a value is one input (text or token ids), not several."""
    if isinstance(value, str):
        return True
    if isinstance(value, (bytes, bytearray, Mapping, Set)) or not hasattr(value, "__len__"):
        return False
    if getattr(value, "ndim", None) is not None:
        return bool(value.ndim == 1 and getattr(value.dtype, "kind", "") in "iu")
    if len(value) == 0 or not hasattr(value, "__getitem__"):
        return False
    first = next(iter(value), None)
    scalar = not isinstance(first, bool) and getattr(first, "ndim", 0) == 0
    return scalar and hasattr(first, "__index__")


def inputs(name: str, value: Any) -> Any:
    """An input, or an ordered iterable of inputs."""
    if isinstance(value, str):  # the common case; isinstance of an abstract class is slow
        return value
    if isinstance(value, (bytes, bytearray)):
        raise TypeError(f"{name}: expected str, got {type(value).__name__}; decode it first")
    if hasattr(value, "__aiter__"):
        raise TypeError(
            f"{name}: asynchronous iterators are not supported; make a list of it: "
            "[item async for item in ...]"
        )
    if isinstance(value, (Mapping, Set)) or not isinstance(value, Iterable):
        raise TypeError(
            f"{name}: expected a str, a list of token ids, or an iterable of these, "
            f"got {type(value).__name__}"
        )
    return value


def one_input(name: str, value: Any) -> Any:
    """A text or a list of token ids."""
    if not is_one_input(inputs(name, value)):
        raise TypeError(f"{name}: expected one str or one list of token ids, got several inputs")
    return value


def one_for_each_input(name: str, value: Any, size: int | None) -> Iterable[Any]:
    """An iterable with one entry for each input. `size`: the number of inputs; None: unknown."""
    if isinstance(value, (str, bytes, Mapping, Set)) or not isinstance(value, Iterable):
        raise TypeError(
            f"{name}: expected one entry for each input, in a list, got {type(value).__name__}"
        )
    if size is not None and isinstance(value, Sized) and len(value) != size:
        raise InvalidArgumentError(
            f"{name}: expected {size} entries, one for each input, got {len(value)}"
        )
    return value
