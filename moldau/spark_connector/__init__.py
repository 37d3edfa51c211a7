"""Spark reads and writes Kafka topics, from `pip install 'moldau[spark]'` and without a jar.

    spark.readStream.format("moldau").option("kafka.bootstrap.servers", "localhost:9092")
        .option("subscribe", "flights").load()

Spark finds the format by itself (see `pyspark_moldau`); `register(spark)` says it to a session
where that does not work. Names are imported when they are asked for: the drivers' and workers'
processes need different ones. Must not import anything of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.spark_connector.data_source import MoldauDataSource
    from moldau.spark_connector.pipelines.embedded_spark import spark_session
    from moldau.spark_connector.registration import register
    from moldau.spark_connector.sink.settle import forget_sink, list_sinks, move_sink, settle_sink

__all__ = [
    "MoldauDataSource",
    "forget_sink",
    "list_sinks",
    "move_sink",
    "register",
    "settle_sink",
    "spark_session",
]

at_first_use(
    globals(),
    """
    spark_connector.data_source: MoldauDataSource
    spark_connector.pipelines.embedded_spark: spark_session
    spark_connector.registration: register
    spark_connector.sink.settle: forget_sink list_sinks move_sink settle_sink
    """,
)
