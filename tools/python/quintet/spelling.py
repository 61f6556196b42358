"""Exceptions for failed calls of the engine or a server, whose messages name the options as Python
spells them."""

from __future__ import annotations

import re
from typing import Any

from quintet.errors import CLASSES, Error
from quintet.options import ENGINE_NAMES, HUGGING_FACE, OPTIONS

# Flags of the command line whose option in Python has another name or needs a value.
_FLAGS = {
    "--max-running": "max_num_seqs",
    "--max-batch-tokens": "max_num_batched_tokens",
    "--truncate": "truncate=True",
    "--follow-symlinks": "follow_symlinks=True",
    "--ignore-generation-fields": "ignore_generation_fields=True",
}
_NAMES = ENGINE_NAMES.union(*OPTIONS.values())
# Matches the parts of a message that belong to the command line: a shell command (hf or quintet) up
# to the next ";" or ")", a remark "(command line: ...", or a flag that stands alone as a word.
# _replace changes only the flags and leaves the other matches as they are.
_COMMAND_OR_FLAG = re.compile(
    r"(?<![\w./-])(?:hf|quintet) [a-z-][^;)]*|\(command line:[^)]*|"
    r"(?<![^\s(\"'\[])--[a-z]+(?:-[a-z]+)*(?![\w/=-]|\.\w)"
)
# Matches the engine's name of an option at the beginning of a message. In messages of a server the
# field of the request that contains the option may precede it ("decoding.").
_OPTION = re.compile(r"(?:decoding\.)?([a-z_]+)(?=[:\[])")


def _replace(match: re.Match[str]) -> str:
    text = match.group()
    if not text.startswith("--"):
        return text
    name = text.removeprefix("--").replace("-", "_")
    return _FLAGS.get(text) or (HUGGING_FACE.get(name, name) if name in _NAMES else text)


def in_python(message: str) -> str:
    """Rewrites a message of the engine or a server so that it uses Python's names of options: flags
    of the command line become options, and decoding options get Hugging Face's names. Commands and
    paths remain as they are."""
    text = _COMMAND_OR_FLAG.sub(_replace, message)
    option = _OPTION.match(text)
    if option is None or option[1] not in ENGINE_NAMES:
        return text
    return HUGGING_FACE.get(option[1], option[1]) + text[option.end() :]


def make_error(code: str, message: str, index: int = -1, **details: Any) -> Error:
    """Returns the exception for a status code and its message."""
    text = in_python(message)
    place = index if index >= 0 else None
    kind = CLASSES.get(code)
    if kind is None:
        return Error(text, index=place, code=code, **details)
    return kind(text, index=place, **details)
