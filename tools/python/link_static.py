#!/usr/bin/env python3
"""Runs a link command with Debian's archives in place of its shared libraries.

    link_static.py COMPILER ARGUMENTS...

Replaces each shared library by the archive in the same folder, if there is one, and adds the
archives of the libraries that gRPC needs. The C and C++ runtimes stay shared, and so do libraries
without an archive (highway, spdlog, fmt, prometheus-cpp), which auditwheel copies into the wheel.
With QUINTET_STATIC, CMake links `quintet` through this script.
"""

import pathlib
import re
import subprocess
import sys

# libprotobuf's archive contains that of libprotobuf-lite.
DROPPED = {"libprotobuf-lite"}
# glibc and the compiler's runtime have archives, too, but a program must share them.
RUNTIME = {"atomic", "c", "dl", "gcc", "m", "pthread", "rt", "stdc++"}


def names_of(flags: list[str]) -> list[str]:
    """Returns the libraries that -lNAME flags name, without those of the C and C++ runtimes."""
    names = [flag.removeprefix("-l") for flag in flags if flag.startswith("-l")]
    return [name for name in names if name not in RUNTIME]


def archive_of(argument: str) -> str | None:
    """Returns the archive to link instead of a shared library; "" to link neither; None to keep the
    argument, because it is not a shared library or has no archive."""
    match = re.fullmatch(r"(/.*/)(lib[^/]+?)\.so(\.[0-9.]+)?", argument)
    if match is None:
        return None
    folder, name, _ = match.groups()
    if name in DROPPED:
        return ""
    archive = pathlib.Path(folder) / f"{name}.a"
    return str(archive) if archive.exists() else None


def main() -> int:
    arguments, archives = [], []
    for argument in sys.argv[1:]:
        archive = archive_of(argument)
        if archive is None:
            arguments.append(argument)
        elif archive:
            archives.append(archive)
    needs = subprocess.run(
        ["pkg-config", "--static", "--libs-only-l", "grpc++"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split()
    folder = pathlib.Path(archives[0]).parent
    for name in names_of(arguments + needs):
        archive = folder / f"lib{name}.a"
        if archive.exists():
            archives.append(str(archive))
            arguments = [argument for argument in arguments if argument != f"-l{name}"]
    group = ["-Wl,--start-group", *dict.fromkeys(archives), "-Wl,--end-group", "-lpthread", "-ldl"]
    return subprocess.run([*arguments, *group, "-Wl,--as-needed"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
