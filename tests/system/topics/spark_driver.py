"""`python -m tests.system.topics.spark_driver JOB`: a driver that the soak kills.

Owns one Spark, and in it one query after the other from the same checkpoint: each is stopped after
some seconds. Every batch goes into all stores. It ends with 1 when a query does, and with its
standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

import redis

from moldau.spark_connector.pipelines.embedded_spark import spark_session
from moldau.spark_connector.results import RedisOffsets, RedisResults, SqlResults, UniqueRows
from tests.system.topics.bugs import BUG_VARIABLE, BUGS
from tests.system.topics.readers import Stop
from tests.system.topics.spark_source import FORMAT, ObservedSource
from tests.system.topics.stores import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}
MASTER: Final = "local[2]"
QUERY_S: Final = (5.0, 30.0)
"""How long a query runs after its first batch before it is stopped, and the next one goes on from
the checkpoint."""
TRIGGER: Final = "300 milliseconds"
LOOK_S: Final = 0.2
ROWS: Final = "rows"
ROWS_AFTER: Final = "rows-after"
"""The lists in Redis: of `RedisResults` and of `RedisOffsets.after`."""


class Batches:
    """What a batch is written to: each store gets all of it.

    Attributes:
        count: how many have been written.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self.count = 0
        client = redis.Redis.from_url(job["redis"])
        results = RedisOffsets(job["redis"], "spark")

        def write_after(frame: DataFrame, batch_id: int) -> None:
            rows = [json.dumps(row.asDict()) for row in frame.collect()]
            if rows:
                client.rpush(ROWS_AFTER, *rows)

        self._writes: list[Callable[[DataFrame, int], None]] = [
            SqlResults(job["sqlite"], "spark", "with_ids"),
            UniqueRows(job["sqlite"], "unique_rows"),
            RedisResults(results, lambda pipe, row: pipe.rpush(ROWS, json.dumps(row))),
            RedisOffsets(job["redis"], "spark-after").after(write_after),
        ]
        if job["postgres"] is not None:
            self._writes.append(SqlResults(job["postgres"], "spark", "with_ids"))

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Read once, write often: else each store would have what its own reading has found."""
        frame = frame.persist()
        try:
            for write in self._writes:
                write(frame, batch_id)
        finally:
            frame.unpersist()
        self.count += 1


def run_query(spark: SparkSession, job: dict[str, Any], stop: Stop, seconds: float) -> None:
    """A query, for so long after its first batch. Raises what ends it."""
    frame = (
        spark.readStream.format(FORMAT)
        .options(**job["options"])
        .load()
        .selectExpr(*COLUMNS[:-1], f"cast(string(value) as long) as {COLUMNS[-1]}")
    )
    batches = Batches(job)
    query = (
        frame.writeStream.foreachBatch(batches)
        .option("checkpointLocation", job["checkpoint"])
        .trigger(processingTime=TRIGGER)
        .start()
    )
    end: float | None = None
    try:
        while not stop and (end is None or time.monotonic() < end):
            if query.awaitTermination(LOOK_S):
                raise AssertionError("the query has ended by itself")
            if end is None and batches.count:
                end = time.monotonic() + seconds
    finally:
        query.stop()


def main(job: dict[str, Any]) -> None:
    """Queries until the end of the input."""
    if bug := os.environ.get(BUG_VARIABLE):
        BUGS[bug].inject_for_good()
    stop, dice = Stop(), Random()
    spark = spark_session("soak-topics", SETTINGS, master=MASTER)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ObservedSource)
    while not stop:
        run_query(spark, job, stop, dice.uniform(*QUERY_S))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
