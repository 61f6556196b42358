"""Finds the library that the engine opens on a GPU: cuBLASLt of the `nvidia-cublas` wheel."""

from __future__ import annotations

import importlib.util
import os
import pathlib


def use_cublas_wheel() -> None:
    """Sets QUINTET_CUBLAS_DIR to the folder of the wheel's libcublasLt, unless it is set. Without
    the wheel the engine looks in the system's folders."""
    folder = _folder()
    if folder is not None:
        os.environ.setdefault("QUINTET_CUBLAS_DIR", str(folder))


def _folder() -> pathlib.Path | None:
    try:
        found = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return None
    roots = found.submodule_search_locations or () if found else ()
    libraries = [
        library for root in roots for library in pathlib.Path(root).glob("*/lib/libcublasLt.so.*")
    ]
    # Choose the folder of the newest version. The engine loads the library from it only if the
    # version is the engine's own major version of CUDA.
    return max(libraries, key=lambda library: library.name).parent if libraries else None
