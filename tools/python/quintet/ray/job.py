"""Jobs over data sets that continue after an interruption."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quintet import checks
from quintet.errors import (
    Error,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
)
from quintet.ray.data import Actors, Pool
from quintet.ray.needs import need
from quintet.ray.store import Store
from quintet.ray.work import Work, make_work
from quintet.ray.worker import Worker

if TYPE_CHECKING:
    from ray.data import Dataset

_log = logging.getLogger("quintet.ray")
LOST_ACTORS = 3  # actors that a part may lose to failed devices before the job fails
# Options that change where and how fast a model runs, but not what it is asked to compute. A job
# may be continued with others.
_RUNTIME = frozenset(
    ("threads", "engines", "max_num_seqs", "max_num_batched_tokens", "cache_memory", "max_memory")
)


@dataclasses.dataclass(frozen=True)
class JobSummary:
    """What a job has done."""

    rows: int  # rows of the input and of the output
    parts: int  # files of the output
    resumed_parts: int  # those that an earlier run had finished
    output: str  # the folder of the output


def run_job(
    method: str,
    source: str | os.PathLike[str] | list[str],
    destination: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str],
    column: str = "text",
    targets: str = "targets",
    contexts: str | None = None,
    key: str = "key",
    details: bool = False,
    format: str = "parquet",
    part_rows: int = 4096,
    actors: Actors = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    filesystem: Any = None,
    **options: Any,
) -> JobSummary:
    """Runs a method of a model over files, so that a repeated call continues the job.

    The input is first cut into numbered parts, which are stored in the destination. Each row gets
    its number as its key. Actors then write one file of output for each part. A file appears only
    when it is complete; a repeated call with the same arguments skips the parts that have one.
    The names of the files are in the order of the input, and so are the rows in each file.

    Actors that die are restarted, and their parts repeated. An actor whose device fails ends; a
    part that loses three actors this way fails the job.

    Args:
        method: "generate", "encode", "score" or "classify".
        source: path or URI of files or folders that Ray Data reads: Parquet, JSON lines (.jsonl,
            .json, .ndjson, also .gz), or lines of text (.txt, whose column is "text"), all of one
            kind.
        destination: path or URI of a folder for the job alone; every node must reach it.
        model, column, details, actors, num_cpus, num_gpus: as in `quintet.ray.generate`.
        targets, contexts: the columns of `quintet.ray.score` and `quintet.ray.classify`.
        key: name of the column that is added, i64: the number of the row, from 0.
        format: of the output, "parquet" or "jsonl".
        part_rows: rows of a part. Range [1, 1e6]. A part is what an interruption can lose.
        filesystem: the pyarrow.fs.FileSystem of source and destination; by default that of their
            URI.
        **options: those of quintet.Model and of the method, except progress.

    Raises:
        TypeError, InvalidArgumentError: an argument is wrong, or a column is missing.
        FailedPreconditionError: the destination belongs to a job with other arguments, or has
            other files.
        quintet.Error: a row failed, unless on_error="return" was given, or a model could not be
            loaded. Parts that are finished remain.
    """
    extras = targets if method == "score" else contexts if method == "classify" else None
    work = make_work(method, model, options, column, extras, details)
    pool = Pool(actors, num_cpus, num_gpus)
    sources = [
        os.fspath(one) for one in ([source] if isinstance(source, (str, os.PathLike)) else source)
    ]
    job = describe(work, pool.placed(work), sources, key, format)
    store = Store(destination, format, filesystem)
    rows_of_part = checks.in_range(1, 1_000_000)("part_rows", part_rows)
    manifest = store.read_manifest()
    if manifest is None:
        store.begin()
        manifest = _cut(store, work, sources, filesystem, key, rows_of_part)
        manifest["job"] = job
        store.write_manifest(manifest)
    else:
        check_same(manifest["job"], job, store.root)
    return _finish(store, work, pool, manifest)


# ---- The manifest ----


def describe(work: Work, placed: Work, sources: list[str], key: str, form: str) -> dict[str, Any]:
    """The arguments that a job must be continued with, as JSON values."""
    load = {name: value for name, value in placed.load.items() if name not in _RUNTIME}
    named: dict[str, Any] = {
        "method": work.method,
        "model": work.model,
        "source": sources,
        "column": work.column,
        "targets" if work.method == "score" else "contexts": work.extras,
        "key": key,
        "details": work.details,
        "format": form,
    }
    given = {name: value for name, value in {**load, **work.options}.items() if value is not None}
    try:
        return dict(json.loads(json.dumps({**named, "options": given}, default=_plain)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"options: {error}") from None


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()  # NumPy's scalars and arrays
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} cannot be stored in the manifest of a job")


def check_same(begun: Mapping[str, Any], job: Mapping[str, Any], root: str) -> None:
    """Raises FailedPreconditionError if a job was begun with other arguments than `job`."""
    before, now = ({**one, **one.get("options", {})} for one in (begun, job))
    for name in sorted({*before, *now} - {"options"}):
        if before.get(name) != now.get(name):
            begun_with = f"with {before[name]!r}" if name in before else "without it"
            got = f"got {now[name]!r}" if name in now else "now it is missing"
            raise FailedPreconditionError(
                f"{name}: the job in {root} was begun {begun_with}, {got}; pass the same arguments "
                "to continue it, or another destination to begin a new job"
            )


# ---- The parts ----


def _cut(
    store: Store, work: Work, sources: list[str], filesystem: Any, key: str, part_rows: int
) -> dict[str, Any]:
    """Stores the input in numbered parts. Returns the manifest without its job."""
    dataset = _read(sources, filesystem)
    dataset.context.execution_options.preserve_order = True
    pa = need("pyarrow")
    rows = parts = 0
    for table in dataset.iter_batches(batch_size=part_rows, batch_format="pyarrow"):
        if parts == 0:
            work.check_columns(table.column_names, (key,))
        keys = pa.array(range(rows, rows + table.num_rows), pa.int64())
        store.write_input(parts, table.add_column(0, key, keys))
        rows, parts = rows + table.num_rows, parts + 1
    if rows == 0:
        raise InvalidArgumentError(f"source: {', '.join(sources)} has no rows")
    return {"rows": rows, "parts": parts, "part_rows": part_rows}


def _read(sources: list[str], filesystem: Any) -> Dataset:
    """The rows of files, by the reader of Ray Data for the extension of their names."""
    data = need("ray.data")
    kinds = {_kind(source, filesystem) for source in sources}
    if len(kinds) != 1:
        raise InvalidArgumentError(
            f"source: expected files of one kind, got {', '.join(sorted(kinds)) or 'none'}"
        )
    kind = kinds.pop()
    if kind == "parquet":
        return data.read_parquet(sources, filesystem=filesystem)
    if kind == "text":
        return data.read_text(sources, filesystem=filesystem, drop_empty_lines=False)
    return data.read_json(sources, lines=True, filesystem=filesystem, file_extensions=None)


_KINDS = {
    ".parquet": "parquet",
    ".jsonl": "JSON lines",
    ".json": "JSON lines",
    ".ndjson": "JSON lines",
    ".txt": "text",
}


def _kind(source: str, filesystem: Any) -> str:
    """The kind of a file, or of the files of a folder."""
    fs = need("pyarrow.fs")
    path = source
    if filesystem is None:
        filesystem, path = fs.FileSystem.from_uri(_uri(source))
    names = [source]
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        names = [file.path for file in filesystem.get_file_info(fs.FileSelector(path))]
    kinds = {_KINDS.get(os.path.splitext(name.removesuffix(".gz"))[1]) for name in names}
    if len(kinds) != 1 or None in kinds:
        raise InvalidArgumentError(
            f"source: {source}: expected files that end in {', '.join(_KINDS)}, all of one kind"
        )
    return str(kinds.pop())


def _uri(source: str) -> str:
    return source if "://" in source else os.path.abspath(source)


class PartWorker:
    """An actor that turns parts of the input into parts of the output. It returns failures as
    values, because Ray would wrap exceptions in its own."""

    def __init__(self, work: Work, store: Store):
        self._store = store
        self._failure: Exception | None = None
        try:
            self._worker = Worker(work)
        except (Error, TypeError) as error:
            self._failure = error  # returned for each part

    def __call__(self, table: Any) -> Any:
        """Finishes parts. `table`: their numbers in the column "item". Returns it with the column
        "failure": a pickled exception, or null."""
        failures = [self._failure or self._finish(part) for part in table["item"].to_pylist()]
        pa = need("pyarrow")
        pickled = [None if one is None else pickle.dumps(one) for one in failures]
        return table.append_column("failure", pa.array(pickled, pa.binary()))

    def _finish(self, part: int) -> Exception | None:
        rows = self._store.read_input(part)
        try:
            self._store.write_output(part, self._worker(rows))
        except (InternalError, UnavailableError) as error:
            # The device or the engine has failed: only another process can use it again.
            if self._store.note_failure(part) >= LOST_ACTORS:
                return error
            _log.error("part %d: %s; this actor ends, and Ray repeats the part", part, error)
            logging.shutdown()
            os._exit(1)
        except Error as error:
            # The first column is the key.
            place = "" if error.index is None else f"row {rows[0][error.index]}: "
            error.index, error.args = None, (f"{place}{error.message}",)
            return error
        except TypeError as error:
            return error
        return None


def _finish(store: Store, work: Work, pool: Pool, manifest: Mapping[str, Any]) -> JobSummary:
    done = store.finished()
    left = [part for part in range(manifest["parts"]) if part not in done]
    if left:
        _log.info("%d of %d parts are left", len(left), manifest["parts"])
        store.forget_failures()
        data = need("ray.data")
        numbers = data.from_items(left, override_num_blocks=len(left))
        arguments = {"work": pool.placed(work), "store": store}
        finished = pool.map(numbers, PartWorker, arguments, 1)
        for batch in finished.iter_batches(batch_size=None, batch_format="pyarrow"):
            for failure in filter(None, batch["failure"].to_pylist()):
                raise pickle.loads(failure)
        missing = set(left) - store.finished()
        if missing:
            raise FailedPreconditionError(f"{store.root}: part {min(missing)} was not written")
    store.remove_input()
    resumed = manifest["parts"] - len(left)
    return JobSummary(manifest["rows"], manifest["parts"], resumed, f"{store.root}/output")
