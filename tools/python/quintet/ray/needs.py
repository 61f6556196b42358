"""The packages of the extra `ray`."""

from __future__ import annotations

import importlib
from typing import Any


def need(name: str) -> Any:
    """Imports a module of the extra `ray`. Raises ImportError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"quintet.ray needs {name} ({error}): pip install 'quintet-engine[ray]'"
        ) from error
