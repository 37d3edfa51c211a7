"""A row-based Python data source for topics: what `format("moldau")` is measured against.

Owns the plainest reader that PySpark's documentation would lead to: a tuple per record, from a
Python Kafka client. Must not be used for anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


class RowsSource(DataSource):
    """`format("rows")` with the options `servers` and `topic`."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return (
            "key binary, value binary, topic string, partition int, offset long, "
            "timestamp timestamp, timestampType int"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowsReader(self.options["servers"], self.options["topic"])


class RowsReader(DataSourceReader):
    """One task per partition, from its first record to its last."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic

    def partitions(self) -> Sequence[InputPartition]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "rows"})
        found = consumer.list_topics(self.topic).topics[self.topic].partitions
        ranges = []
        for number in sorted(found):
            low, high = consumer.get_watermark_offsets(TopicPartition(self.topic, number))
            ranges.append(InputPartition((number, low, high)))
        consumer.close()
        return ranges

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        from confluent_kafka import Consumer, TopicPartition

        number, position, end = partition.value
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "rows", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(self.topic, number, position)])
        while position < end:
            for record in consumer.consume(10_000, timeout=1.0):
                kind, timestamp_ms = record.timestamp()
                moment = datetime.fromtimestamp(timestamp_ms / 1_000, UTC)
                position = record.offset() + 1
                yield (
                    record.key(),
                    record.value(),
                    self.topic,
                    number,
                    record.offset(),
                    moment,
                    kind - 1,
                )
        consumer.close()
