"""A streaming sink as its driver and tasks see it, called without Spark, and its topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from moldau.client import OffsetSpec, TopicPartition, sync
from moldau.client.sync import Admin
from moldau.spark_connector.core.commit_protocol import TaskReport
from moldau.spark_connector.sink.driver import PlannedBatch, commit_batch, plan_batch
from moldau.spark_connector.sink.options import SinkOptions
from moldau.spark_connector.sink.rows import RowColumns
from moldau.spark_connector.sink.writers import TaskPlace, write_slot
from moldau.testing import Cluster
from tests.fake_broker import ThreadedCluster
from tests.kit.waiting import until
from tests.spark.conftest import options_for

TASKS = 2
ROWS = 20


class Sink:
    """A streaming sink as its driver and tasks see it."""

    def __init__(self, cluster: Cluster | ThreadedCluster, topic: str, **options: str) -> None:
        self.id = f"sink-{uuid.uuid4().hex[:8]}"
        self.query_id = str(uuid.uuid4())
        given = options_for(cluster, topic=topic, sinkId=self.id)
        self.options = SinkOptions.parse(given | options)
        self.columns = RowColumns(topic, {"value": 0})
        self.topic = topic

    def plan(self) -> PlannedBatch:
        return plan_batch(self.options, self.id)

    def write(self, planned: PlannedBatch, batch_id: int, attempt: int = 0) -> list[TaskReport]:
        return [self.task(planned, batch_id, task, attempt) for task in range(TASKS)]

    def task(self, planned: PlannedBatch, batch_id: int, task: int, attempt: int = 0) -> TaskReport:
        place = TaskPlace(self.query_id, batch_id, task, attempt)
        rows = batches(values_of(batch_id, task))
        return write_slot(self.options, self.columns, planned, place, rows)

    def commit(self, planned: PlannedBatch, batch_id: int, reports: list[TaskReport]) -> None:
        commit_batch(self.options, planned, self.query_id, batch_id, reports)

    def batch(self, batch_id: int) -> list[TaskReport]:
        planned = self.plan()
        reports = self.write(planned, batch_id)
        self.commit(planned, batch_id, reports)
        return reports

    def visible(self) -> list[bytes]:
        return visible(self.options.kafka["bootstrap.servers"], self.topic)


def values_of(batch_id: int, task: int) -> list[bytes]:
    return [b"%d-%d-%d" % (batch_id, task, row) for row in range(ROWS)]


def batches(values: list[bytes]) -> Iterator[Any]:
    return iter([pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])])


def everything(*batch_ids: int) -> list[bytes]:
    return sorted(v for each in batch_ids for task in range(TASKS) for v in values_of(each, task))


def wait_for_markers(admin: Admin) -> None:
    """EndTxn is answered when the coordinator has logged the outcome; markers come after that."""
    states = ["PrepareCommit", "PrepareAbort"]
    until(lambda: not admin.list_transactions(states=states), what="the markers", deadline_s=30)


def visible(servers: str, topic: str, isolation_level: Any = "read_committed") -> list[bytes]:
    with Admin(servers) as admin:
        wait_for_markers(admin)
    found = []
    with sync.Consumer(servers, isolation_level=isolation_level) as consumer:
        partitions = [TopicPartition(topic, each) for each in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for records in consumer.getmany(timeout_ms=200).values():
                found += [bytes(record.value or b"") for record in records]
    return sorted(found)


def open_rows(admin: Admin, topic: str) -> int:
    wait_for_markers(admin)
    specs = dict.fromkeys((TopicPartition(topic, 0), TopicPartition(topic, 1)), OffsetSpec.LATEST)
    ends = admin.list_offsets(specs)
    stable = admin.list_offsets(specs, read_committed=True)
    return sum(ends[each].offset - stable[each].offset for each in specs)
