#!/usr/bin/env python3
"""Compares the throughput of quintet.ray with the same actors without Ray Data.

    build/ray/bin/python tools/bench/ray_overhead.py [--actors N] [--lines N] [--batch N]
        [--repeats N] [--model DIR] [--out FILE]

Both sides run the actors of quintet.ray with one thread each on this machine, with the same batches
and two calls at a time for each actor. An actor that has one batch more than another at the end
counts, so there should be many batches for each actor. One side is quintet.ray.generate over a data
set in memory, the other calls Ray actors directly. The third figure is quintet.ray.run_job, which
also reads and writes the files of its parts. A throughput is the number of lines divided by the
time from the begin of the first call of an actor to the end of the last one, so that neither the
start of actors nor loading is in it. In each repeat all sides run one after the other, in
alternating order. The script prints and writes all throughputs, and the median, the lowest and the
highest of their ratios to the plain actors in the same repeat.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = SOURCE / "build" / "python"
os.environ["PYTHONPATH"] = str(PACKAGE)  # for the processes that Ray starts
sys.path.insert(0, str(PACKAGE))
sys.path.insert(0, str(SOURCE / "tools" / "reliability"))
import pyarrow
import quintet.ray
import quintet.ray.job
import ray
from quintet.ray.data import CONCURRENT_BATCHES, Pool
from quintet.ray.job import PartWorker
from quintet.ray.work import make_work
from quintet.ray.worker import Worker
from serving import machine

OPTIONS = {"cache_memory": 128}


def timed(table: pyarrow.Table, begin: float) -> pyarrow.Table:
    """Appends the times of a call to its result."""
    for name, value in (("begin", begin), ("end", time.time())):
        table = table.append_column(name, pyarrow.array([value] * table.num_rows))
    return table


class TimedWorker(Worker):
    def __call__(self, table):
        begin = time.time()
        return timed(super().__call__(table), begin)


class TimedPartWorker(PartWorker):
    def __call__(self, table):
        begin = time.time()
        return timed(super().__call__(table), begin)


def seconds(tables: list[pyarrow.Table]) -> float:
    """From the begin of the first call to the end of the last one."""
    begins = [value for table in tables for value in table["begin"].to_pylist()]
    ends = [value for table in tables for value in table["end"].to_pylist()]
    return max(ends) - min(begins)


class Sides:
    """The ways to run the actors; each method returns seconds."""

    def __init__(self, model: pathlib.Path, lines: list[str], actors: int, batch: int):
        self._lines, self._actors, self._model, self._batch = lines, actors, model, batch
        self._work = Pool(actors, 1, 0).placed(make_work("generate", model, OPTIONS))

    def plain(self) -> float:
        """Ray actors, called directly."""
        kind = ray.remote(num_cpus=1, max_concurrency=CONCURRENT_BATCHES)(TimedWorker)
        actors = [kind.remote(self._work) for _ in range(self._actors)]
        ray.get([actor.__call__.remote(self._table([])) for actor in actors])  # loaded
        batches = collections.deque(map(ray.put, self._batches()))
        running, done = {}, []
        for actor in actors * (CONCURRENT_BATCHES + 1):
            if batches:
                running[actor.__call__.remote(batches.popleft())] = actor
        while running:
            (ready,), _ = ray.wait(list(running))
            actor = running.pop(ready)
            if batches:
                running[actor.__call__.remote(batches.popleft())] = actor
            done.append(ray.get(ready))
        for actor in actors:
            ray.kill(actor)
        assert sum(table.num_rows for table in done) == len(self._lines)
        return seconds(done)

    def data(self) -> float:
        """quintet.ray.generate."""
        source = ray.data.from_arrow(self._batches())
        pool = Pool(self._actors, 1, 0)
        made = pool.map(source, TimedWorker, {"work": self._work}, self._batch)
        done = list(made.iter_batches(batch_size=None, batch_format="pyarrow"))
        assert sum(table.num_rows for table in done) == len(self._lines)
        return seconds(done)

    def job(self) -> float:
        """quintet.ray.run_job."""
        done = []
        original = Pool.map

        def recorded(pool, dataset, worker, arguments, rows):
            made = original(pool, dataset, TimedPartWorker, arguments, rows)
            return made.map_batches(record, batch_format="pyarrow", num_cpus=0)

        with tempfile.TemporaryDirectory() as folder:
            times = pathlib.Path(folder) / "times"
            times.mkdir()

            def record(table):
                pair = [table["begin"].to_pylist(), table["end"].to_pylist()]
                (times / f"{table['item'][0]}").write_text(json.dumps(pair))
                return table

            source = pathlib.Path(folder) / "in.txt"
            source.write_text("".join(f"{line}\n" for line in self._lines), encoding="utf-8")
            Pool.map = recorded
            try:
                quintet.ray.run_job(
                    "generate",
                    source,
                    pathlib.Path(folder) / "job",
                    model=self._model,
                    actors=self._actors,
                    part_rows=self._batch,
                    **OPTIONS,
                )
            finally:
                Pool.map = original
            for file in times.iterdir():
                begin, end = json.loads(file.read_text())
                done.append(pyarrow.table({"begin": begin, "end": end}))
        return seconds(done)

    def _batches(self) -> list[pyarrow.Table]:
        starts = range(0, len(self._lines), self._batch)
        return [self._table(self._lines[i : i + self._batch]) for i in starts]

    @staticmethod
    def _table(lines: list[str]) -> pyarrow.Table:
        return pyarrow.table({"text": pyarrow.array(lines, pyarrow.string())})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--lines", type=int, default=24 * 1024)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", type=pathlib.Path, default=SOURCE / "deploy" / "models" / "g2p")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    words = (SOURCE / "tests" / "data" / "g2p" / "test.tsv").read_text("utf-8").splitlines()
    lines = [words[i % len(words)].partition("\t")[0] for i in range(arguments.lines)]
    ray.init("local", num_cpus=arguments.actors + 1, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    sides = Sides(arguments.model, lines, arguments.actors, arguments.batch)
    measured = {"plain": [], "data": [], "job": []}
    load = []
    for repeat in range(arguments.repeats):
        for name in list(measured)[:: 1 if repeat % 2 == 0 else -1]:
            load.append(os.getloadavg()[0])
            measured[name].append(len(lines) / getattr(sides, name)())
            print(f"{repeat} {name}: {measured[name][-1]:.0f} lines/s", flush=True)
    report = {
        "script": "tools/bench/ray_overhead.py",
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=SOURCE,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip(),
        "machine": machine(),
        "load_average": {"lowest": min(load), "highest": max(load)},
        "ray": ray.__version__,
        "actors": arguments.actors,
        "lines": len(lines),
        "batch": arguments.batch,
        "lines_per_s": measured,
    }
    for name in ("data", "job"):
        ratios = [one / plain for one, plain in zip(measured[name], measured["plain"], strict=True)]
        report[f"{name}_to_plain"] = {
            "median": round(statistics.median(ratios), 3),
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
        }
        print(f"{name} / plain: {report[f'{name}_to_plain']}")
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
