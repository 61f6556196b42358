"""Tests deploy/spark/generate.py with a Spark of two executors in processes of their own
(tools/try_ray.sh runs this)."""

import subprocess
import sys

import pyarrow
import pyarrow.parquet

from server_process import G2P, SOURCE, package_environment, run_quintet, words


def test_map_in_pandas(tmp_path):
    known = words(400)
    (tmp_path / "in").mkdir()
    for i in range(4):
        part = [{"id": 100 * i + j, "text": known[100 * i + j]} for j in range(100)]
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(part), tmp_path / "in" / f"{i}.parquet"
        )
    program = str(SOURCE / "deploy" / "spark" / "generate.py")
    environment = package_environment(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYSPARK_SUBMIT_ARGS="--master local-cluster[2,1,1024] pyspark-shell",
        SPARK_LOCAL_IP="127.0.0.1",
    )
    flags = ["--model", str(G2P), "--num-beams", "2"]
    done = subprocess.run(
        [sys.executable, program, *flags, str(tmp_path / "in"), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = pyarrow.parquet.read_table(tmp_path / "out").sort_by("id").to_pylist()
    assert [row["id"] for row in rows] == list(range(400))
    expected = run_quintet(
        "generate", "--model", str(G2P), "--num-beams", "2", "--quiet",
        stdin="".join(f"{word}\n" for word in known),
    )  # fmt: skip
    assert [row["generated_text"] for row in rows] == expected.decode().splitlines()
