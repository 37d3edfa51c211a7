"""A task's loop, with a scripted consumer: what comes, what does not, and how long it may take."""

from __future__ import annotations

import uuid
from contextlib import contextmanager

import pyarrow as pa
import pytest

from moldau.client import (
    LogTruncated,
    NoBrokerAvailable,
    NoOffsetForPartition,
    OffsetAndMetadata,
    OffsetOutOfRange,
    RequestTimeout,
    UnknownTopicOrPartition,
)
from moldau.client.arrow.to_arrow import polled_schema
from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.spark_connector.core.ranges import OffsetRange
from moldau.spark_connector.errors import ClusterUnreachable, DataLoss, ReadStalled
from moldau.spark_connector.source import partition_reader
from moldau.spark_connector.source.partition_reader import consumer_settings, pieces, read_range
from tests.unit.spark_connector.source.scripted_source import source_options

P0 = TopicPartition("t", 0)


def batch_of(offsets, value=b"v"):
    columns = {
        "value": pa.array([value] * len(offsets), pa.binary()),
        "offset": pa.array(offsets, pa.int64()),
    }
    arrays = [
        columns.get(field.name, pa.nulls(len(offsets), field.type)) for field in polled_schema()
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=polled_schema())


class StaleError(NoOffsetForPartition):
    """What was found out for a task before: there is a position now."""

    def __init__(self):
        super().__init__([P0])


class ScriptedConsumer:
    """Polls give what the script says: offsets, (offsets, position after them), or an error.

    Time passes while it waits for what does not come.
    """

    def __init__(self, clock, script, beginning=0, end=100):
        self.clock = clock
        self.script = list(script)
        self.beginning = beginning
        self.end = end
        self.position = 0
        self.paused = False
        self.has_position = False
        self.asked = []

    def assignment(self):
        return {P0}

    def positions(self):
        return {P0: OffsetAndMetadata(self.position)} if self.has_position else {}

    def seek(self, partition, offset):
        self.sought = offset
        self.has_position = True
        self.position = offset.offset

    def resume(self, *partitions):
        self.paused = False

    def pause(self, *partitions):
        self.paused = True

    def poll_arrow(self, max_records, timeout_ms):
        self.asked.append(max_records)
        step = self.script.pop(0) if self.script else []
        if isinstance(step, Exception):
            if type(step) is NoOffsetForPartition:
                self.has_position = False
            raise step
        offsets, position = step if isinstance(step, tuple) else (step, None)
        if offsets:
            self.position = offsets[-1] + 1
        elif position is None:
            self.clock.now_ms += timeout_ms
        if position is not None:
            self.position = position
        return batch_of(offsets)

    def beginning_offsets(self, partitions, timeout_ms):
        return self._answer(self.beginning)

    def end_offsets(self, partitions, timeout_ms):
        return self._answer(self.end)

    def _answer(self, answer):
        if isinstance(answer, Exception):
            raise answer
        return {P0: answer}


class Consumers:
    """Lends one."""

    def __init__(self, consumer):
        self.consumer = consumer

    @contextmanager
    def lend(self, settings):
        yield self.consumer


class Clock:
    now_ms = 0.0


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(partition_reader, "_now_ms", lambda: made.now_ms)
    return made


@pytest.fixture
def read(clock):
    def reading(script, start, end, bounds=(0, 100), topic_id=ZERO_UUID, **given):
        consumer = ScriptedConsumer(clock, script, *bounds)
        wanted = OffsetRange(P0, start, end)
        batches = read_range(source_options(**given), wanted, topic_id, Consumers(consumer))
        offsets = [at for batch in batches for at in batch.column("offset").to_pylist()]
        assert consumer.paused
        return offsets

    return reading


def test_batches_are_cut_at_the_end(read):
    assert read([[0, 1, 2], [3, 4, 5, 6]], 0, 5) == [0, 1, 2, 3, 4]
    assert read([[7, 9]], 0, 5) == []
    assert read([[0, 4, 5]], 0, 5) == [0, 4]


def test_the_position_ends_the_task_without_records(read, clock):
    """Markers, and what was compacted away, at the end."""
    assert read([[0, 1], ([], 6)], 0, 6) == [0, 1]
    assert clock.now_ms == 0


def test_no_more_is_asked_for_than_the_range_has(clock):
    consumer = ScriptedConsumer(clock, [[0, 1, 2], [3, 4]])
    list(read_range(source_options(), OffsetRange(P0, 0, 5), ZERO_UUID, Consumers(consumer)))
    assert consumer.asked == [5, 2]


def test_a_stall_ends_in_time_and_says_what_there_is(read, clock):
    with pytest.raises(ReadStalled, match=r"from offset 1 on within 5000 ms .*reaches to 100"):
        read([[0]], 0, 5, kafkaConsumer__pollTimeoutMs="5000")
    assert clock.now_ms == 5_000


def test_getting_on_restarts_the_wait(read, clock):
    script = [[], [], [0], [], [], [1]]
    assert read(script, 0, 2, kafkaConsumer__pollTimeoutMs="2500") == [0, 1]
    assert clock.now_ms == 4_000


@pytest.mark.parametrize("error", [RequestTimeout("no"), NoBrokerAvailable("nobody")])
def test_it_waits_for_a_silent_broker_until_the_poll_timeout(read, error):
    script = [[], [], [0]]
    assert read(script, 0, 1, bounds=(0, error)) == [0]
    with pytest.raises(ReadStalled, match="within 3000 ms"):
        read(script, 0, 2, bounds=(0, error), kafkaConsumer__pollTimeoutMs="3000")


def test_brokers_that_refuse_everything_are_the_clusters_error(read):
    with pytest.raises(ClusterUnreachable, match=r"reading t-0 \[0, 5\): nobody"):
        read([NoBrokerAvailable("nobody")], 0, 5)


@pytest.mark.parametrize("error", [OffsetOutOfRange("no"), LogTruncated(P0, 0, 0)])
@pytest.mark.parametrize(
    ("bounds", "left", "words"),
    [
        ((3, 100), [3, 4], "offset 0 was to be read, but the log begins at 3"),
        ((0, 2), [], "offset 0 was to be read, but the log ends at 2"),
        ((UnknownTopicOrPartition("t"), 2), [], "does not exist any more"),
    ],
)
def test_positions_out_of_range(read, caplog, bounds, left, words, error):
    script = [error, left]
    with pytest.raises(DataLoss, match=words):
        read(script, 0, 5, bounds=bounds)
    assert read(script, 0, 5, bounds=bounds, failOnDataLoss="false") == left
    assert words in caplog.text


def test_another_topic_of_the_same_name_is_not_read(read, caplog):
    """The consumer has no position any more, and says so; another task's error says nothing."""
    words = "offset 1 was to be read; the topic was deleted and created again"
    gone = NoOffsetForPartition([P0])
    with pytest.raises(DataLoss, match=words):
        read([[0], ([], None), gone], 0, 5)
    assert read([[0], gone], 0, 5, failOnDataLoss="false") == [0]
    assert caplog.text.count(words) == 1


def test_what_another_task_has_left_behind_is_no_loss(read):
    assert read([StaleError(), [0, 1]], 0, 2) == [0, 1]


def test_the_consumer_gets_the_id_of_the_topic_that_is_read(clock):
    topic_id = uuid.uuid4()
    consumer = ScriptedConsumer(clock, [[0]])
    list(read_range(source_options(), OffsetRange(P0, 0, 1), topic_id, Consumers(consumer)))
    assert consumer.sought == OffsetAndMetadata(0, topic_id=topic_id)


def test_large_rows_are_handed_over_in_slices():
    batch = batch_of(list(range(10)), value=b"x" * 3_000_000)
    sliced = list(pieces(batch))
    assert [each.num_rows for each in sliced] == [2, 2, 2, 2, 2]
    assert pa.Table.from_batches(sliced).equals(pa.Table.from_batches([batch]))
    assert [each.num_rows for each in pieces(batch_of([1, 2, 3]))] == [3]


def test_what_the_source_needs_wins_over_the_users_settings():
    options = source_options(kafka__client__id="mine", kafka__group__id="g")
    assert consumer_settings(options) == {
        "bootstrap.servers": "h:9092",
        "client.id": "mine",
        "group.id": "g",
        "allow.auto.create.topics": "false",
        "enable.auto.commit": "false",
        "auto.offset.reset": "none",
    }
