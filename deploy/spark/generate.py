#!/usr/bin/env python3
"""Generates text for the rows of a Parquet file with Apache Spark.

    spark-submit deploy/spark/generate.py --model MODEL INPUT OUTPUT

INPUT has a column "text" and any others, which are kept. OUTPUT gets the column "generated_text".
Each Python process of Spark loads the model once and keeps it for its later tasks. For one model on
each node, set spark.executor.cores and spark.task.cpus to the number of its cores; on GPUs,
spark.executor.resource.gpu.amount and spark.task.resource.gpu.amount. Every node needs the package
quintet-engine and the model.
"""

import argparse
import pathlib

from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType
from quintet_rows import generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="argument of quintet.Model")
    parser.add_argument("--num-beams", type=int, default=1)
    parser.add_argument("input")
    parser.add_argument("output")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("quintet").getOrCreate()
    spark.sparkContext.addPyFile(str(pathlib.Path(__file__).with_name("quintet_rows.py")))
    # Rows of a call: more of them keep the model's batch full, and take more memory.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4096")
    rows = spark.read.parquet(arguments.input)
    schema = StructType([*rows.schema.fields, StructField("generated_text", StringType())])
    generate = generator(arguments.model, num_beams=arguments.num_beams)
    rows.mapInPandas(generate, schema=schema).write.parquet(arguments.output)
    spark.stop()


if __name__ == "__main__":
    main()
