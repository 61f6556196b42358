"""Reads dataclasses from untrusted mappings (TOML, JSON) with checked names, types and ranges."""

import dataclasses
import json
import math
import pathlib
import tomllib
import typing


class FieldError(ValueError):
    """An input is wrong. The message says where, what was expected, and what was found."""


def number(default=dataclasses.MISSING, *, low: float = -math.inf, high: float = math.inf):
    """Declares a member of a dataclass that must be a number in [low, high]."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high})


def choice(default, *names: str):
    """Declares a member of a dataclass that must be one of `names`."""
    return dataclasses.field(default=default, metadata={"names": names})


def check_number(where: str, value, low: float, high: float, whole: bool):
    """Returns `value` if it is a number in [low, high], as an int if `whole`, else as a float.
    Raises FieldError otherwise."""
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
        kind = "a whole number" if whole else "a finite number"
        raise FieldError(f"{where}: expected {kind}, got {value!r}")
    if not low <= value <= high:
        raise FieldError(f"{where}: expected a value in [{low:g}, {high:g}], got {value!r}")
    return value if whole else float(value)


def _member(where: str, field: dataclasses.Field, kind, value):
    if "low" in field.metadata:
        low, high = field.metadata["low"], field.metadata["high"]
        return check_number(where, value, low, high, kind is int)
    if "names" in field.metadata and value not in field.metadata["names"]:
        raise FieldError(f"{where}: expected one of {field.metadata['names']}, got {value!r}")
    if dataclasses.is_dataclass(kind):
        return read(kind, value, where)
    plain = typing.get_origin(kind) or kind
    if not isinstance(value, plain):
        raise FieldError(f"{where}: expected {plain.__name__}, got {value!r}")
    return value


def read(kind, mapping, where: str):
    """Returns a `kind` (a dataclass) with the members of `mapping`. A member that is absent takes
    its default. `where` names the mapping in errors. Raises FieldError if `mapping` is not a
    mapping, has an unknown member, lacks one without default, or if a value is not valid. A method
    `check(where)` of `kind`, if there is one, checks what involves several members."""
    if not isinstance(mapping, dict):
        raise FieldError(f"{where}: expected a table of members, got {mapping!r}")
    kinds = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    for name in mapping:
        if name not in fields:
            known = ", ".join(fields)
            raise FieldError(f"{where}: unknown member {name!r}; the members are {known}")
    values = {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = _member(f"{where}.{name}", field, kinds[name], mapping[name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise FieldError(f"{where}: the member {name!r} is missing")
    made = kind(**values)
    if hasattr(made, "check"):
        made.check(where)
    return made


def load(path: pathlib.Path, limit_bytes: int = 64 << 20) -> dict:
    """Returns the contents of a TOML or JSON file, by the end of its name. Raises FieldError if the
    file cannot be read, is larger than `limit_bytes`, or does not parse."""
    try:
        if path.stat().st_size > limit_bytes:
            raise FieldError(f"{path}: expected at most {limit_bytes} bytes")
        text = path.read_text("utf-8")
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise FieldError(f"{path}: cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise FieldError(f"{path}: does not parse: {error}") from error
