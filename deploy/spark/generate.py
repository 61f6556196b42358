#!/usr/bin/env python3
"""Generates text for the rows of a Parquet file with Apache Spark.

    spark-submit deploy/spark/generate.py --model MODEL INPUT OUTPUT

INPUT has a column "text" and any others, which are kept. OUTPUT gets the column "generated_text".
Each Python process of Spark loads the model once, in `model()`, and keeps it for its later tasks.
Set spark.executor.cores to the number of cores of a node, and spark.task.cpus to the same number,
so that a node has one task and one model at a time; on GPUs, spark.executor.resource.gpu.amount and
spark.task.resource.gpu.amount. Every node needs the package quintet-engine and the model.
"""

import argparse
import functools
from collections.abc import Callable, Iterable, Iterator

import pandas
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

import quintet


@functools.cache
def model(path: str, device: str, threads: int) -> quintet.Model:
    """The model of this process."""
    return quintet.Model(path, device=device, threads=threads)


def generator(path: str, **options) -> Callable[[Iterable[pandas.DataFrame]], Iterator]:
    """Returns the function for mapInPandas. `options`: those of Model.generate."""

    def generate(frames: Iterable[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
        # Spark tells a task its GPUs and its CPUs.
        task = TaskContext.get()
        gpus = task.resources()["gpu"].addresses if "gpu" in task.resources() else []
        device = f"cuda:{gpus[0]}" if gpus else "cpu"
        loaded = model(path, device, task.cpus())
        for frame in frames:
            results = loaded.generate(frame["text"].tolist(), **options)
            yield frame.assign(generated_text=[result.text for result in results])

    return generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="argument of quintet.Model")
    parser.add_argument("--num-beams", type=int, default=1)
    parser.add_argument("input")
    parser.add_argument("output")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("quintet").getOrCreate()
    # Rows of a batch: more keep the model's batch full, and take more memory.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4096")
    rows = spark.read.parquet(arguments.input)
    schema = StructType([*rows.schema.fields, StructField("generated_text", StringType())])
    made = rows.mapInPandas(
        generator(arguments.model, num_beams=arguments.num_beams), schema=schema
    )
    made.write.parquet(arguments.output)
    spark.stop()


if __name__ == "__main__":
    main()
