"""The job `aggregate`: windows of event time by keys, each window once.

Owns the grouping. Invariant: a window comes out (in the output `append`) exactly once, when the
watermark has passed its end, and what comes for it later is dropped: `watermark` says how late is
too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.spark_connector.pipelines.columns import decoded, encoded
from moldau.spark_connector.pipelines.jobs.streams import records, run_into, topic_source
from moldau.spark_connector.pipelines.jobs.transforms import transformed
from moldau.spark_connector.pipelines.model import TopicSink
from moldau.spark_connector.pipelines.running import RunningQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from moldau.spark_connector.pipelines.model import Aggregate, Pipeline

_TIME: Final = "_moldau_event_time"
_WINDOW: Final = "_moldau_window"


def start(spark: SparkSession, pipeline: Pipeline) -> RunningQuery:
    """Start it. Raises: PipelineFailed."""
    frame = decoded(records(spark, pipeline), topic_source(pipeline))
    frame = transformed(spark, frame, pipeline)
    assert pipeline.aggregate is not None, "checked with the file"
    frame = aggregated(frame, pipeline.aggregate)
    if isinstance(pipeline.sink, TopicSink):
        frame = encoded(frame, pipeline.sink)
    return run_into(frame, pipeline)


def aggregated(frame: DataFrame, wanted: Aggregate) -> DataFrame:
    """One row per window and group: window_start, window_end, the groups' columns, the measures."""
    from pyspark.sql import functions as f

    timed = frame.withColumn(_TIME, f.expr(wanted.time).cast("timestamp"))
    timed = timed.withWatermark(_TIME, wanted.watermark)
    window = f.window(f.col(_TIME), wanted.window, wanted.slide or wanted.window).alias(_WINDOW)
    groups = [f.expr(text).alias(name) for name, text in wanted.by.items()]
    measures = [f.expr(text).alias(name) for name, text in wanted.measures.items()]
    counted = timed.groupBy(window, *groups).agg(*measures)
    return counted.select(
        f.col(f"{_WINDOW}.start").alias("window_start"),
        f.col(f"{_WINDOW}.end").alias("window_end"),
        *(f.col(f"`{name}`") for name in (*wanted.by, *wanted.measures)),
    )
