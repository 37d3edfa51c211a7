"""A streaming query in its own process, which tests kill.

Reads a directory of text files, two files per batch, and writes every line to a topic; ends when it
has written all there are. `python -m tests.spark.sink.query_job '{"bootstrap": …}'`
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.spark.conftest import SETTINGS
from tests.spark.sink.faulty_source import FORMAT, FaultySource


def main(job: dict[str, Any]) -> None:
    """Run the query to the end of its input. Exits with 1 and the error's text when it fails."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(job.get("master", "local[2]")).appName("query-job")
    for name, value in {**SETTINGS, **job.get("settings", {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(FaultySource)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(job["input"])
    writer = lines.writeStream.format(FORMAT).options(**job["options"])
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except PySparkException as error:
        print(str(error).split("JVM stacktrace", maxsplit=1)[0], file=sys.stderr)
        raise SystemExit(1) from None
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
