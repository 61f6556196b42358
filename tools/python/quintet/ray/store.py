"""The files of a job: a folder on any file system that pyarrow knows.

    DESTINATION/job.json                     the manifest: options of the job, number of its parts
    DESTINATION/input/part-000000.parquet    the rows of the input with their keys
    DESTINATION/output/part-000000.parquet   the same rows with their results; .jsonl: JSON lines

A file appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from typing import Any

from quintet.errors import FailedPreconditionError, InvalidArgumentError
from quintet.ray.needs import need

FORMATS = ("parquet", "jsonl")
_MANIFEST = "job.json"
_INPUT = re.compile(r"part-[0-9]+\.parquet|\.part-[0-9]+\.parquet\.[0-9a-f]+")
_URI = re.compile(r"[a-z][a-z0-9+.-]*://")


class Store:
    """The folder of a job. Can be pickled; processes may use it at the same time."""

    def __init__(self, destination: str | os.PathLike[str], form: str, filesystem: Any = None):
        """`destination`: a path or a URI; `form`: one of FORMATS; `filesystem`: a
        pyarrow.fs.FileSystem, by default the one of the URI or the local one."""
        if form not in FORMATS:
            raise InvalidArgumentError(f"format: {form!r} is not one of {', '.join(FORMATS)}")
        fs = need("pyarrow.fs")
        path = os.fspath(destination)
        if filesystem is None and _URI.match(path):
            filesystem, path = fs.FileSystem.from_uri(path)
        elif filesystem is None:
            filesystem, path = fs.LocalFileSystem(), os.path.abspath(path)
        self.form = form
        self._filesystem = filesystem
        self._root = path.rstrip("/")

    @property
    def root(self) -> str:
        return self._root

    # ---- The manifest ----

    def read_manifest(self) -> dict[str, Any] | None:
        """Returns the manifest; None if there is none. Raises FailedPreconditionError if it is not
        a manifest of a job."""
        try:
            text = self._read(_MANIFEST)
        except FileNotFoundError:
            return None
        try:
            manifest = json.loads(text)
            if isinstance(manifest["job"], dict) and manifest["parts"] >= 0:
                return dict(manifest)
        except (ValueError, KeyError, TypeError):
            pass
        raise FailedPreconditionError(
            f"{self._root}/{_MANIFEST} is not the manifest of a job; choose another destination"
        )

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        self._write(_MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())

    def begin(self) -> None:
        """Removes what an interrupted cut has left. Raises FailedPreconditionError if the folder
        has other files."""
        others = set(self._names(""))
        if all(_INPUT.fullmatch(name) for name in self._names("input")):
            others -= {"input"}
        if not self._names("output"):
            others -= {"output"}
        if others:
            raise FailedPreconditionError(
                f"destination: {self._root} has files but no {_MANIFEST} "
                f"({min(others)!r}, for example); choose an empty or a new folder"
            )
        self.remove_input()
        for folder in ("input", "output"):
            self._filesystem.create_dir(f"{self._root}/{folder}", recursive=True)

    def remove_input(self) -> None:
        fs = need("pyarrow.fs")
        if self._filesystem.get_file_info(f"{self._root}/input").type != fs.FileType.NotFound:
            self._filesystem.delete_dir(f"{self._root}/input")

    # ---- Parts ----

    def finished(self) -> set[int]:
        """Returns the numbers of the parts whose output exists."""
        name = re.compile(rf"part-([0-9]+)\.{self.form}")
        found = (name.fullmatch(file) for file in self._names("output"))
        return {int(match[1]) for match in found if match}

    def read_input(self, part: int) -> Any:
        """Returns the pyarrow.Table of a part."""
        parquet = need("pyarrow.parquet")
        source = need("pyarrow").BufferReader(self._read(f"input/part-{part:06d}.parquet"))
        return parquet.read_table(source)

    def write_input(self, part: int, table: Any) -> None:
        self._write(f"input/part-{part:06d}.parquet", _parquet(table))

    def write_output(self, part: int, table: Any) -> None:
        data = _parquet(table) if self.form == "parquet" else _json_lines(table)
        self._write(f"output/part-{part:06d}.{self.form}", data)

    def note_failure(self, part: int) -> int:
        """Notes that an actor was lost with this part. Returns how often that has happened."""
        folder = f"failures/part-{part:06d}"
        self._filesystem.create_dir(f"{self._root}/{folder}", recursive=True)
        self._write(f"{folder}/{uuid.uuid4().hex}", b"")
        return len(self._names(folder))

    def forget_failures(self) -> None:
        fs = need("pyarrow.fs")
        if self._filesystem.get_file_info(f"{self._root}/failures").type != fs.FileType.NotFound:
            self._filesystem.delete_dir(f"{self._root}/failures")

    # ---- Files ----

    def _names(self, folder: str) -> list[str]:
        """The names of the files of a folder; none if it does not exist."""
        selector = need("pyarrow.fs").FileSelector(
            f"{self._root}/{folder}".rstrip("/"), allow_not_found=True
        )
        return [file.base_name for file in self._filesystem.get_file_info(selector)]

    def _read(self, name: str) -> bytes:
        with self._filesystem.open_input_stream(f"{self._root}/{name}", compression=None) as file:
            return bytes(file.readall())

    def _write(self, name: str, data: Any) -> None:
        """Writes a file at once: the complete bytes under another name, which is then changed."""
        folder, _, base = name.rpartition("/")
        other = "/".join(filter(None, (self._root, folder, f".{base}.{uuid.uuid4().hex}")))
        with self._filesystem.open_output_stream(other, compression=None) as file:
            file.write(data)
        self._filesystem.move(other, f"{self._root}/{name}")


def _parquet(table: Any) -> Any:
    sink = need("pyarrow").BufferOutputStream()
    need("pyarrow.parquet").write_table(table, sink)
    return sink.getvalue()


def _json_lines(table: Any) -> bytes:
    """JSON lines of a table. Values that JSON lacks become texts (dates, bytes) or null (NaN)."""
    lines = []
    for row in table.to_pylist():
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False, default=str)
        except ValueError:
            line = json.dumps(_finite(row), ensure_ascii=False, default=str)
        lines.append(line + "\n")
    return "".join(lines).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not -1.8e308 < value < 1.8e308:
        return None
    return value
