"""Quintet on Ray: data sets, and serving.

    import quintet.ray, ray

    rows = ray.data.read_parquet("s3://bucket/texts")
    rows = quintet.ray.generate(rows, model="flan-t5-base", actors=(1, 8), num_gpus=0.5)
    rows.write_parquet("s3://bucket/generated")

    # the same as a job that continues after an interruption, with its output in input order
    quintet.ray.run_job("generate", "texts.jsonl", "job", model="flan-t5-base", actors=4)

`quintet.ray.serve` is an application of Ray Serve. Needs Ray: pip install 'quintet-engine[ray]'.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quintet.ray.data import classify, encode, generate, score
    from quintet.ray.job import JobSummary, run_job

# These names are imported when they are first used, because their modules need Ray.
_LATER = {
    "classify": "quintet.ray.data",
    "encode": "quintet.ray.data",
    "generate": "quintet.ray.data",
    "score": "quintet.ray.data",
    "JobSummary": "quintet.ray.job",
    "run_job": "quintet.ray.job",
}

__all__ = ["JobSummary", "classify", "encode", "generate", "run_job", "score"]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(importlib.import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'quintet.ray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
