"""Tests quintet.ray over data sets on a cluster of several nodes (tools/try_ray.sh runs this)."""

import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pyarrow.parquet
import pytest
from ray_nodes import own_processes, ray_nodes

import quintet
import quintet.ray
import ray
from quintet.ray.job import LOST_ACTORS, PartWorker
from server_process import BINARY, G2P, eventually, package_environment, words

SMALL = {"cache_memory": 64}
WORKERS = "ray::MapWorker"
LINES = 200_000


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with two CPUs each, one of them with a (simulated) GPU."""
    with ray_nodes({"num_cpus": 2}, {"num_cpus": 2, "num_gpus": 1}) as address:
        yield address


@pytest.fixture(scope="module")
def model():
    with quintet.Model(G2P, device="cpu", **SMALL) as loaded:
        yield loaded


def command_lines(path: pathlib.Path, *flags: str) -> list[str]:
    """The output lines of `quintet generate` for the lines of a file."""
    command = [BINARY, "generate", "--model", str(G2P), "--quiet", *flags]
    with path.open() as lines:
        done = subprocess.run(command, stdin=lines, capture_output=True, timeout=3600, check=True)
    return done.stdout.decode().splitlines()


def output_rows(folder: str) -> list[dict]:
    """The rows of the output of a job, file by file in the order of their names."""
    rows = []
    for path in sorted(pathlib.Path(folder).iterdir()):
        if path.suffix == ".jsonl":
            rows += map(json.loads, path.read_text(encoding="utf-8").splitlines())
        else:
            rows += pyarrow.parquet.read_table(path).to_pylist()
    return rows


def write_lines(path: pathlib.Path, lines: list[str]) -> pathlib.Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# ---- Data sets ----


def test_rows_of_parquet_keep_their_keys(cluster, model, tmp_path):
    known = words(300)
    rows = [{"id": 1000 - i, "text": word} for i, word in enumerate(known)]
    ray.data.from_items(rows, override_num_blocks=7).write_parquet(str(tmp_path / "in"))
    source = ray.data.read_parquet(str(tmp_path / "in"))
    made = quintet.ray.generate(
        source, model=G2P, actors=(1, 3), batch_size=32, num_beams=2, details=True, **SMALL
    )
    made.write_parquet(str(tmp_path / "out"))
    found = ray.data.read_parquet(str(tmp_path / "out")).sort("id", descending=True).take_all()
    expected = model.generate(known, num_beams=2)
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    assert [row["generated_text"] for row in found] == [one.text for one in expected]
    assert [row["sequences"][0]["token_ids"] for row in found] == [
        one.token_ids for one in expected
    ]


def test_rows_of_json_lines(cluster, model, tmp_path):
    lines = [json.dumps({"id": i, "text": word}) for i, word in enumerate(words(20))]
    source = ray.data.read_json(str(write_lines(tmp_path / "in.jsonl", lines)), lines=True)
    quintet.ray.encode(source, model=G2P, normalize=True, **SMALL).write_json(str(tmp_path / "out"))
    rows = {row["id"]: row["embedding"] for row in output_rows_of_json(tmp_path / "out")}
    expected = model.encode(words(20), normalize=True)
    for i in range(20):
        assert rows[i] == pytest.approx(expected[i].tolist(), abs=1e-6)


def output_rows_of_json(folder: pathlib.Path) -> list[dict]:
    return [json.loads(line) for file in folder.iterdir() for line in file.open()]


def test_vectors_of_tokens(cluster, model):
    source = ray.data.from_items([{"text": "phoneme"}])
    row = quintet.ray.encode(source, model=G2P, pooling="none", **SMALL).take_all()[0]
    expected = model.encode("phoneme", pooling="none")
    assert [list(map(float, vector)) for vector in row["embedding"]] == expected.tolist()


def test_scores(cluster, model):
    targets = ["F OW1 N IY0 M", "F OW1"]
    source = ray.data.from_items([{"text": "phoneme", "answers": targets}])
    row = quintet.ray.score(source, model=G2P, targets="answers", details=True, **SMALL).take_all()[
        0
    ]
    expected = model.score("phoneme", targets)
    assert list(row["logprobs"]) == expected.logprobs.tolist()
    assert [token["token_id"] for token in row["tokens"][1]] == [
        token.token_id for token in expected.targets[1].tokens
    ]


def test_heads(cluster, tiny_models):
    def rows(name: str, **columns) -> dict:
        source = ray.data.from_items([{"text": "phoneme", "context": "a phoneme is a sound"}])
        return quintet.ray.classify(source, model=tiny_models[name], **columns, **SMALL).take_all()[
            0
        ]

    def loaded(name: str) -> quintet.Model:
        return quintet.Model(tiny_models[name], device="cpu", **SMALL)

    with loaded("t5-seqcls") as head:
        expected = head.classify("phoneme")
        row = rows("t5-seqcls")
        assert row["label"] == expected.label
        assert [one["label"] for one in row["labels"]] == [one.label for one in expected.labels]
    with loaded("t5-tokcls") as head:
        expected = head.classify("phoneme")
        assert [one["label"] for one in rows("t5-tokcls")["tokens"]] == [
            one.label for one in expected.tokens
        ]
    with loaded("t5-qa") as head:
        expected = head.classify("phoneme", "a phoneme is a sound")
        found = rows("t5-qa", contexts="context")["answers"]
        assert [one["text"] for one in found] == [one.text for one in expected.answers]


def test_failed_rows_are_returned(cluster):
    rows = [{"text": "a"}, {"text": None}, {"text": "b" * 5000}, {"text": "c"}]
    source = ray.data.from_items(rows, override_num_blocks=1)
    options = {"model": G2P, "on_error": "return", "max_input_tokens": 64, **SMALL}
    for method, column in (("generate", "generated_text"), ("encode", "embedding")):
        found = getattr(quintet.ray, method)(source, **options).take_all()
        by_text = {row["text"]: row for row in found}
        assert by_text["a"]["error"] is None and by_text["c"][column] is not None
        assert by_text[None]["error"].startswith("INVALID_ARGUMENT: the row has no value")
        assert by_text["b" * 5000]["error"].startswith("INVALID_ARGUMENT: ")
        assert by_text["b" * 5000][column] is None


def test_a_failed_row_fails_the_data_set(cluster):
    source = ray.data.from_items([{"text": "a"}, {"text": "b" * 5000}])
    with pytest.raises(Exception, match="max_input_tokens"):
        quintet.ray.generate(source, model=G2P, max_input_tokens=64, **SMALL).take_all()
    with pytest.raises(Exception, match=r"num_beams: 99 is not in \[1, 32\]"):
        quintet.ray.generate(source, model=G2P, num_beams=99, **SMALL).take_all()


def test_two_actors_share_a_gpu(cluster):
    """Ray places actors with half a GPU each on the node that has one; the engine stays on the
    CPU, as this GPU is simulated."""
    source = ray.data.from_items([{"text": word} for word in words(64)], override_num_blocks=16)
    made = quintet.ray.generate(
        source, model=G2P, actors=2, num_gpus=0.5, device="cpu", batch_size=4, **SMALL
    )
    assert made.count() == 64


@pytest.mark.skipif(not pathlib.Path("/dev/nvidia0").exists(), reason="needs a GPU")
def test_two_actors_run_on_a_gpu(cluster):
    """Like the test above, on a GPU of this machine. Rounding on a GPU depends on the batch."""
    known = words(400)
    rows = [{"id": i, "text": word} for i, word in enumerate(known)]
    source = ray.data.from_items(rows, override_num_blocks=8)
    options = {"dtype": "f32", "cache_memory": 512}
    made = quintet.ray.generate(source, model=G2P, actors=2, num_gpus=0.5, batch_size=50, **options)
    found = [row["generated_text"] for row in made.sort("id").take_all()]
    with quintet.Model(G2P, device="cuda", **options) as on_gpu:
        expected = [result.text for result in on_gpu.generate(known)]
    assert sum(map(str.__eq__, found, expected)) >= 0.98 * len(known)


# ---- Jobs ----


def test_200000_lines_and_a_killed_actor(cluster, tmp_path):
    """The output of four actors on two nodes, one of which is killed in the middle, is complete, in
    the order of the keys, and equal to that of the command line."""
    known = words(6000)
    source = write_lines(tmp_path / "in.txt", [known[i % 6000] for i in range(LINES)])
    job, failures = {}, []

    def run() -> None:
        try:
            job["summary"] = quintet.ray.run_job(
                "generate",
                source,
                tmp_path / "job",
                model=G2P,
                actors=4,
                max_new_tokens=4,
                **SMALL,
            )
        except BaseException as error:
            failures.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    output = tmp_path / "job" / "output"
    parts = -(-LINES // 4096)
    assert eventually(lambda: failures or len(list(output.glob("part-*"))) >= parts // 3, 1800)
    assert not failures
    before = own_processes(WORKERS)
    assert len(before) == 4
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    finished_then = len(list(output.glob("part-*")))
    assert finished_then < parts, "the job has ended before the actor was killed"
    assert eventually(lambda: own_processes(WORKERS) - before or not runner.is_alive(), 600)
    runner.join(3600)
    assert not failures and not runner.is_alive()
    summary = job["summary"]
    assert (summary.rows, summary.parts, summary.resumed_parts) == (LINES, parts, 0)
    rows = output_rows(summary.output)
    assert [row["key"] for row in rows] == list(range(LINES))
    assert [row["text"] for row in rows] == [known[i % 6000] for i in range(LINES)]
    expected = command_lines(source, "--max-new-tokens", "4")
    assert [row["generated_text"] for row in rows] == expected


JOB = """
import sys, ray
import quintet.ray
ray.init(sys.argv[1], log_to_driver=False)
print(quintet.ray.run_job("generate", sys.argv[2], sys.argv[3], model=sys.argv[4], actors=2,
                          part_rows=100, format="jsonl", cache_memory=64))
"""


def test_an_interrupted_job_continues(cluster, tmp_path):
    known = words(6000)
    source = write_lines(tmp_path / "in.txt", known)
    output = tmp_path / "job" / "output"
    before = own_processes(WORKERS)  # those of data sets of other tests may go on
    command = [sys.executable, "-c", JOB, cluster, str(source), str(tmp_path / "job"), str(G2P)]
    process = subprocess.Popen(command, env=package_environment())
    try:
        assert eventually(lambda: len(list(output.glob("part-*"))) >= 10, 300)
    finally:
        process.kill()
        process.wait()
    # Ray ends the actors of a driver that is gone.
    assert eventually(lambda: own_processes(WORKERS) <= before, 120)
    finished = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*")}
    assert 10 <= len(finished) < 60
    options = {"model": G2P, "actors": 2, "format": "jsonl", **SMALL}
    for wrong, message in (
        ({"num_beams": 2}, "num_beams: the job in .* was begun without it, got 2"),
        ({"device": "cuda"}, "device: .* was begun with 'cpu', got 'cuda'"),
        ({"column": "line"}, "column: .* was begun with 'text', got 'line'"),
        ({"format": "parquet"}, "format: .* was begun with 'jsonl', got 'parquet'"),
    ):
        with pytest.raises(quintet.FailedPreconditionError, match=message):
            quintet.ray.run_job("generate", source, tmp_path / "job", **{**options, **wrong})
    summary = quintet.ray.run_job("generate", source, tmp_path / "job", threads=2, **options)
    assert (summary.rows, summary.parts) == (6000, 60)
    assert summary.resumed_parts == len(finished)
    for name, time_ns in finished.items():
        assert (output / name).stat().st_mtime_ns == time_ns, "a finished part was written again"
    rows = output_rows(summary.output)
    assert [row["key"] for row in rows] == list(range(6000))
    assert [row["generated_text"] for row in rows] == command_lines(source)
    again = quintet.ray.run_job("generate", source, tmp_path / "job", **options)
    assert again.resumed_parts == 60


def test_a_job_over_several_files_of_parquet(cluster, tmp_path):
    known = words(500)
    for i in range(5):
        part = [{"text": word, "n": i} for word in known[100 * i : 100 * i + 100]]
        table = pyarrow.Table.from_pylist(part)
        pyarrow.parquet.write_table(table, tmp_path / f"in-{i}.parquet")
    sources = [str(tmp_path / f"in-{i}.parquet") for i in range(5)]
    summary = quintet.ray.run_job(
        "encode", sources, tmp_path / "job", model=G2P, part_rows=64, key="row", **SMALL
    )
    rows = output_rows(summary.output)
    assert [row["row"] for row in rows] == list(range(500))
    assert [row["text"] for row in rows] == known
    assert [row["n"] for row in rows] == [i // 100 for i in range(500)]
    assert {len(row["embedding"]) for row in rows} == {256}


def test_a_job_over_a_folder_of_compressed_json_lines(cluster, model, tmp_path):
    known = words(90)
    (tmp_path / "in").mkdir()
    for i in range(3):
        rows = [{"text": word, "targets": ["a", word]} for word in known[30 * i : 30 * i + 30]]
        with gzip.open(tmp_path / "in" / f"{i}.jsonl.gz", "wt") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
    summary = quintet.ray.run_job(
        "score", tmp_path / "in", tmp_path / "job", model=G2P, format="jsonl", **SMALL
    )
    rows = output_rows(summary.output)
    assert [row["text"] for row in rows] == known
    expected = model.score(known, [["a", word] for word in known])
    assert [row["logprobs"] for row in rows] == [one.logprobs.tolist() for one in expected]


def test_wrong_destinations_and_sources(cluster, tmp_path):
    source = write_lines(tmp_path / "in.txt", ["a", "b"])
    options = {"model": G2P, **SMALL}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(quintet.FailedPreconditionError, match="has files but no job.json"):
        quintet.ray.run_job("generate", source, tmp_path / "other", **options)
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"
    (tmp_path / "data" / "input").mkdir(parents=True)
    (tmp_path / "data" / "input" / "mine.parquet").write_text("mine")
    with pytest.raises(quintet.FailedPreconditionError, match="has files but no job.json"):
        quintet.ray.run_job("generate", source, tmp_path / "data", **options)
    assert (tmp_path / "data" / "input" / "mine.parquet").exists()
    with pytest.raises(quintet.InvalidArgumentError, match="no column 'texts', only text"):
        quintet.ray.run_job("generate", source, tmp_path / "job", column="texts", **options)
    with pytest.raises(quintet.InvalidArgumentError, match="files that end in"):
        quintet.ray.run_job("generate", tmp_path / "in.csv", tmp_path / "job", **options)
    bad = write_lines(tmp_path / "bad.txt", ["a", "b" * 5000])
    with pytest.raises(quintet.InvalidArgumentError, match="^row 1: .*max_input_tokens"):
        quintet.ray.run_job("generate", bad, tmp_path / "bad", max_input_tokens=64, **options)
    with pytest.raises(quintet.InvalidArgumentError, match=r"num_beams: 99 is not in \[1, 32\]"):
        quintet.ray.run_job("generate", source, tmp_path / "beams", num_beams=99, **options)
    with pytest.raises(quintet.NotFoundError):
        quintet.ray.run_job("generate", source, tmp_path / "none", model="no/such-model")


class LosesItsDevice(PartWorker):
    """An actor whose device fails at each part."""

    def __init__(self, work, store):
        super().__init__(work, store)
        self._worker = self._fail

    def _fail(self, table):
        raise quintet.InternalError("the device has failed")


def test_a_part_that_loses_three_actors_fails_the_job(cluster, tmp_path, monkeypatch):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr("quintet.ray.job.PartWorker", LosesItsDevice)
    source = write_lines(tmp_path / "in.txt", ["a"])
    options = {"model": G2P, **SMALL}
    with pytest.raises(quintet.InternalError, match="the device has failed"):
        quintet.ray.run_job("generate", source, tmp_path / "job", **options)
    losses = list((tmp_path / "job" / "failures" / "part-000000").iterdir())
    assert len(losses) == LOST_ACTORS
    monkeypatch.undo()
    assert quintet.ray.run_job("generate", source, tmp_path / "job", **options).rows == 1
