#!/usr/bin/env python3
"""Prints tools/FLAGS.md, the reference of all flags, from the --help texts of a binary.

tools/flags_reference.py build/quintet > tools/FLAGS.md

tests/python/docs_test.py fails if tools/FLAGS.md differs from this output.
"""

import collections
import re
import subprocess
import sys

HEAD = """# Flags of `quintet`

Written by `tools/flags_reference.py build/quintet > tools/FLAGS.md` from the `--help` texts.
Ranges are in the text, defaults in brackets. `--some-flag` can also be set by the variable
`QUINTET_SOME_FLAG` or as `some-flag` in a `--config` file.
"""
# Matches "  --flag VALUE:{choices}  text". If the choices fill their column, only one space
# separates them from the text.
FLAG = re.compile(r"  ((?:-\w,)?--\S+)((?: \S+)*?)(?:(?:\s{2,}|(?<=\}) )(\S.*))?")


def help_of(binary: str, command: list[str]) -> str:
    run = subprocess.run([binary, *command, "--help"], capture_output=True, text=True, check=True)
    return run.stdout


def subcommands(text: str) -> list[str]:
    section = re.search(r"^Subcommands:\n((?:  \S.*\n)+)", text, re.MULTILINE)
    return re.findall(r"^  (\S+)", section[1], re.MULTILINE) if section else []


def commands(binary: str) -> list[list[str]]:
    """Returns every command as a list of words: [] for the program itself, then its subcommands and
    their subcommands."""
    found = [[]]
    for command in found:  # grows while it is read
        found += [[*command, name] for name in subcommands(help_of(binary, command))]
    return found


def flags(text: str) -> list[tuple[str, str, str, str]]:
    """Parses one --help text and returns its flags: [(group, name, value, description)]."""
    rows, group, pending = [], "", None
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][\w ]*:", line):
            group = line[:-1]
        elif pending and line.startswith(" " * 30):
            rows.append((*pending, line.strip()))
            pending = None
        elif match := FLAG.fullmatch(line):
            name, value, description = match[1], match[2].strip(), match[3]
            if description is None:
                pending = (group, name, value)
            else:
                rows.append((group, name, value, description))
    return rows


def without_variable(name: str, description: str) -> str:
    """Removes the name of the flag's environment variable from its description, because it follows
    from the flag's name."""
    variable = "QUINTET_" + name.removeprefix("--").upper().replace("-", "_")
    return description.replace(f" (${variable})", "")


def reference(binary: str) -> str:
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    everything = commands(binary)
    for command in everything:
        for group, name, value, description in flags(help_of(binary, command)):
            row = (name, value.split(":{")[0], without_variable(name, description))
            groups[group][row].append(" ".join(command) or "quintet")
    parts = [HEAD]
    for group, rows in groups.items():
        parts.append(f"\n## {group}\n\n| flag | meaning | commands |\n|---|---|---|\n")
        for (name, value, description), users in rows.items():
            flag = f"`{name} {value}`" if value else f"`{name}`"
            text = description.replace("|", "\\|").replace("<", "&lt;")
            where = "all" if len(users) >= len(everything) - 1 else ", ".join(users)
            parts.append(f"| {flag} | {text} | {where} |\n")
    return "".join(parts)


if __name__ == "__main__":
    print(reference(sys.argv[1]), end="")
