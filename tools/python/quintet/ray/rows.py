"""Converts rows of Arrow tables to inputs of a model, and its results to columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from quintet import results
from quintet.errors import Error, InvalidArgumentError
from quintet.ray.needs import need
from quintet.ray.work import ERROR, Work

Columns = dict[str, Any]  # Arrow arrays by the names of their columns


def inputs_of(table: Any, column: str) -> list[Any]:
    """Returns the values of a column of texts or lists of token ids.

    Raises:
        InvalidArgumentError: the column has another type.
    """
    types = need("pyarrow").types
    kind = table.schema.field(column).type
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    texts = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if not texts and not types.is_null(kind) and not (lists and types.is_integer(kind.value_type)):
        raise InvalidArgumentError(
            f"column {column!r}: expected texts or lists of token ids, got the Arrow type {kind}"
        )
    return list(table.column(column).to_pylist())


def columns_of(work: Work, values: list[Any], head: str) -> Columns:
    """Returns the columns of results. `values`: a result, an exception or None for each row;
    `head`: ModelInfo.head of the model."""
    pa = need("pyarrow")
    found = [None if isinstance(value, Error) else value for value in values]
    names = _columns(work, head)
    columns = {name: pa.array(map(_unless(make), found), kind()) for name, make, kind in names}
    if work.returns_errors:
        errors = (f"{v.code}: {v.message}" if isinstance(v, Error) else None for v in values)
        columns[ERROR] = pa.array(errors, pa.string())
    return columns


Make = Callable[[Any], Any]
Kind = Callable[[], Any]  # makes the Arrow type of a column


def _unless(make: Make) -> Make:
    """`make` for results, None for rows without one."""
    return lambda value: None if value is None else make(value)


def _columns(work: Work, head: str) -> Iterable[tuple[str, Make, Kind]]:
    """The columns of the results of a method: names, how a result becomes a value, Arrow types."""
    if work.method == "encode":
        if work.options.get("pooling") == "none":
            yield "embedding", list, _vectors
        else:
            yield "embedding", lambda found: found, _floats
    elif work.method == "score":
        yield "logprobs", lambda found: [one.logprob for one in found.targets], _doubles
        if work.details:
            yield "tokens", lambda found: _plain([one.tokens for one in found.targets]), _targets
    elif work.method == "classify":
        yield from _classification(head)
    else:
        yield "generated_text", lambda found: found.text, _text
        if work.details:
            yield "sequences", lambda found: _plain(found.sequences), _sequences


def _classification(head: str) -> Iterable[tuple[str, Make, Kind]]:
    if head == "question answering":
        yield "answers", lambda found: _plain(found.answers), _answers
    elif head == "token classification":
        yield "tokens", lambda found: _plain(found.tokens), _token_labels
    else:
        yield "label", lambda found: found.label, _text
        yield "labels", lambda found: _plain(found.labels), _labels


def _plain(value: Any) -> Any:
    """Converts result objects in lists to dicts, which Arrow takes as structs."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, results.TokenLogprob):
        top = [{"token_id": id_, "logprob": logprob} for id_, logprob in value.top]
        return {"token_id": value.token_id, "logprob": value.logprob, "top": top}
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in names}
    return value


# ---- Arrow types ----


def _text() -> Any:
    return need("pyarrow").string()


def _floats() -> Any:
    pa = need("pyarrow")
    return pa.list_(pa.float32())


def _vectors() -> Any:
    return need("pyarrow").list_(_floats())


def _doubles() -> Any:
    pa = need("pyarrow")
    return pa.list_(pa.float64())


def _struct(**fields: Any) -> Any:
    pa = need("pyarrow")
    return pa.struct(list(fields.items()))


def _token_logprobs() -> Any:
    pa = need("pyarrow")
    top = _struct(token_id=pa.int32(), logprob=pa.float32())
    token = _struct(token_id=pa.int32(), logprob=pa.float32(), top=pa.list_(top))
    return pa.list_(token)


def _targets() -> Any:
    return need("pyarrow").list_(_token_logprobs())


def _sequences() -> Any:
    pa = need("pyarrow")
    sequence = _struct(
        text=pa.string(),
        token_ids=pa.list_(pa.int32()),
        finish_reason=pa.string(),
        score=pa.float32(),
        logprobs=_token_logprobs(),
        matched_stop=pa.string(),
    )
    return pa.list_(sequence)


def _labels() -> Any:
    pa = need("pyarrow")
    label = _struct(label=pa.string(), probability=pa.float32(), logit=pa.float32())
    return pa.list_(label)


def _token_labels() -> Any:
    pa = need("pyarrow")
    token = _struct(
        token_id=pa.int32(),
        label=pa.string(),
        probability=pa.float32(),
        labels=_labels(),
        begin_byte=pa.int64(),
        end_byte=pa.int64(),
    )
    return pa.list_(token)


def _answers() -> Any:
    pa = need("pyarrow")
    answer = _struct(
        text=pa.string(),
        begin_byte=pa.int64(),
        end_byte=pa.int64(),
        probability=pa.float32(),
    )
    return pa.list_(answer)
