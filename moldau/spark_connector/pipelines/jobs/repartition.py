"""The job `repartition`: a topic into one with another number of partitions.

Fewer is what a topic itself cannot become. Invariant: the records of a key stay in their order, and
land where any producer that hashes as Java does puts that key, so that producers can move over.

Why that holds: all records of a key lie in one partition of the source, which one task reads, in
order, and writes, in order, with one producer. Keys that some producer has put into several
partitions have no order to begin with. Records without a key go by the number of their
partition, so those of one partition stay together and in order, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.spark_connector.pipelines.jobs.streams import (
    record_time,
    records,
    run_into,
    topic_sink,
)
from moldau.spark_connector.pipelines.running import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from moldau.spark_connector.pipelines.model import Pipeline


def start(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    """Start it. Raises: PipelineFailed."""
    count = topic_sink(pipeline).partition_count
    assert count is not None, "checked with the file"
    frame = repartitioned(records(spark, pipeline), count)
    return run_into(frame, pipeline, extra={"includeTimestamp": "true"})


def repartitioned(frame: DataFrame, partition_count: int) -> DataFrame:
    """The columns to write; where `partition` is null the key decides."""
    from pyspark.sql import functions as f

    by_number = f.when(f.col("key").isNull(), f.col("partition") % partition_count)
    return frame.select(by_number.alias("partition"), "key", "value", "headers", record_time())
