"""The function for Spark's mapInPandas, which generate.py sends to the executors.

It is in a module of its own so that its cache outlives a task: Spark copies functions of the main
program anew for each task.
"""

import functools
from collections.abc import Callable, Iterable, Iterator

import pandas
from pyspark import TaskContext

import quintet


@functools.cache
def model(path: str, device: str, threads: int) -> quintet.Model:
    """The model of this process, which later tasks use again."""
    return quintet.Model(path, device=device, threads=threads)


def generator(path: str, **options) -> Callable[[Iterable[pandas.DataFrame]], Iterator]:
    """Returns the function for mapInPandas. It adds the column "generated_text" to rows with the
    column "text". `options`: those of Model.generate."""

    def generate(frames: Iterable[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
        # Spark tells a task its GPUs and its CPUs.
        task = TaskContext.get()
        gpus = task.resources()["gpu"].addresses if "gpu" in task.resources() else []
        loaded = model(path, f"cuda:{gpus[0]}" if gpus else "cpu", task.cpus())
        for frame in frames:
            results = loaded.generate(frame["text"].tolist(), **options)
            yield frame.assign(generated_text=[result.text for result in results])

    return generate
