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
start of actors nor loading is in it. The CPU time per line is that of the actors in this time, and
that of this process, its raylet and its gcs_server from start to end; unlike the throughput it
depends little on what else the machine does. In each repeat all sides run one after the other, in
alternating order. The script prints and writes all figures, and the median, the lowest and the
highest of their ratios to the plain actors in the same repeat.
"""

import argparse
import collections
import contextlib
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


TIMES = ("begin", "end", "cpu_begin", "cpu_end", "pid")


def clocks() -> tuple[float, float]:
    """The time, and the CPU time of this process, in seconds."""
    return time.time(), time.process_time()


def timed(table: pyarrow.Table, begin: tuple[float, float]) -> pyarrow.Table:
    """Appends the times of a call to its result."""
    end = clocks()
    values = (begin[0], end[0], begin[1], end[1], float(os.getpid()))
    for name, value in zip(TIMES, values, strict=True):
        table = table.append_column(name, pyarrow.array([value] * table.num_rows))
    return table


class TimedWorker(Worker):
    def __call__(self, table):
        begin = clocks()
        return timed(super().__call__(table), begin)


class TimedPartWorker(PartWorker):
    def __call__(self, table):
        begin = clocks()
        return timed(super().__call__(table), begin)


def seconds(tables: list[pyarrow.Table]) -> tuple[float, float]:
    """From the begin of the first call to the end of the last one; the CPU time of the actors
    between their first and their last call."""
    times = pyarrow.concat_tables(table.select(TIMES) for table in tables).to_pylist()
    calls = collections.defaultdict(list)
    for call in times:
        calls[call["pid"]].append(call)
    cpu = sum(
        max(call["cpu_end"] for call in own) - min(call["cpu_begin"] for call in own)
        for own in calls.values()
    )
    wall = max(call["end"] for call in times) - min(call["begin"] for call in times)
    return wall, cpu


def ray_cpu() -> float:
    """CPU seconds of this process, which schedules, and of its raylet and gcs_server."""
    found, parents = {}, {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(stat[1])
            program = (folder / "cmdline").read_bytes().partition(b"\0")[0]
            if program.endswith((b"/raylet", b"/gcs_server")) or int(folder.name) == os.getpid():
                ticks = int(stat[11]) + int(stat[12])
                found[int(folder.name)] = ticks / os.sysconf("SC_CLK_TCK")
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(cpu for pid, cpu in found.items() if pid in own)


class Sides:
    """The ways to run the actors; each method returns what `seconds` does."""

    def __init__(self, model: pathlib.Path, lines: list[str], actors: int, batch: int):
        self._lines, self._actors, self._model, self._batch = lines, actors, model, batch
        self._work = Pool(actors, 1, 0).placed(make_work("generate", model, OPTIONS))

    def plain(self) -> tuple[float, float]:
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

    def data(self) -> tuple[float, float]:
        """quintet.ray.generate."""
        source = ray.data.from_arrow(self._batches())
        pool = Pool(self._actors, 1, 0)
        made = pool.map(source, TimedWorker, {"work": self._work}, self._batch)
        done = list(made.iter_batches(batch_size=None, batch_format="pyarrow"))
        assert sum(table.num_rows for table in done) == len(self._lines)
        return seconds(done)

    def job(self) -> tuple[float, float]:
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
                own = table.select(TIMES).to_pydict()
                (times / f"{table['item'][0]}").write_text(json.dumps(own))
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
                done.append(pyarrow.table(json.loads(file.read_text())))
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
    cpu = {name: [] for name in measured}
    load = []
    for repeat in range(arguments.repeats):
        for name in list(measured)[:: 1 if repeat % 2 == 0 else -1]:
            load.append(os.getloadavg()[0])
            before = ray_cpu()
            wall_s, actors_s = getattr(sides, name)()
            others_s = ray_cpu() - before
            measured[name].append(len(lines) / wall_s)
            cpu[name].append((actors_s + others_s) / len(lines) * 1000)
            print(
                f"{repeat} {name}: {measured[name][-1]:.0f} lines/s, {cpu[name][-1]:.3f} CPU ms "
                f"per line, {others_s / len(lines) * 1000:.3f} of them outside the actors",
                flush=True,
            )
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
        "cpu_ms_per_line": cpu,
    }
    for name in ("data", "job"):
        for kind, figures in (("lines_per_s", measured), ("cpu_ms_per_line", cpu)):
            pairs = zip(figures[name], figures["plain"], strict=True)
            ratios = [round(one / plain, 3) for one, plain in pairs]
            summary = {"lowest": min(ratios), "highest": max(ratios)}
            summary = {"median": round(statistics.median(ratios), 3), **summary}
            report[f"{name}_to_plain_{kind}"] = summary
            print(f"{name} / plain, {kind}: {summary}")
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
