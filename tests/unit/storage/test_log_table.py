"""Which directory has which partition, and what its checkpoint files are to say of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from moldau.protocol.types import TopicPartition
from moldau.storage.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from moldau.storage.log_directory import LogDirectory
from moldau.storage.log_table import LogTable, OfflinePartition, told_log_start_offset

A, B, C = (TopicPartition(topic, 0) for topic in "abc")
ID = UUID(int=5)


@dataclass
class Segment:
    base_offset: int


class FakeLog:
    """What the table asks of a log."""

    def __init__(self, topic_partition: TopicPartition, number: int, start: int = 0) -> None:
        self.topic_partition = topic_partition
        self.topic_id = ID
        self.offline_reason, self.lacks_room = "burnt", True
        self.recovery_point = number + 1
        self.high_watermark = number + 2
        self.first_dirty_offset = number + 3 if number else None
        self.log_start_offset = start
        self.segments = [Segment(10)]


def directory(path: str) -> LogDirectory:
    return LogDirectory(path, "cluster", 1, UUID(int=len(path)))


def log(topic_partition: TopicPartition, number: int, start: int = 10) -> Any:
    return FakeLog(topic_partition, number, start)


def written(table: LogTable, holder: LogDirectory) -> list[dict[TopicPartition, int]]:
    return [
        table.offsets(holder, name)
        for name in (
            RECOVERY_POINT_CHECKPOINT,
            LOG_START_OFFSET_CHECKPOINT,
            HIGH_WATERMARK_CHECKPOINT,
            CLEANER_CHECKPOINT,
        )
    ]


def by_file(recovery: Any, start: Any, committed: Any, dirty: Any) -> dict[str, Any]:
    return {
        LOG_START_OFFSET_CHECKPOINT: start,
        HIGH_WATERMARK_CHECKPOINT: committed,
        CLEANER_CHECKPOINT: dirty,
        RECOVERY_POINT_CHECKPOINT: recovery,
    }


def test_a_directorys_files_name_its_own_partitions_online_and_offline() -> None:
    table, first, second = LogTable(), directory("/1"), directory("/2")
    table.put_online(log(A, 100, start=11), first)
    table.put_online(log(B, 0), second)
    table.put_offline(C, OfflinePartition(first, "damaged", ID, by_file(7, 3, 6, 5)))
    assert written(table, first) == [
        {A: 101, C: 7},
        {A: 11, C: 3},
        {A: 102, C: 6},
        {A: 103, C: 5},
    ]
    assert written(table, second) == [{B: 1}, {}, {B: 2}, {}]
    table.put_offline(C, OfflinePartition(first, "damaged"))
    assert written(table, first)[0] == {A: 101}
    assert (table.has_offline_in(first), table.has_offline_in(second)) == (True, False)
    assert [each.topic_partition for each in table.logs_in(first)] == [A]


def test_only_a_start_above_the_first_segment_has_to_be_stored() -> None:
    starts = [told_log_start_offset(log(A, 1, start)) for start in (9, 10, 11)]
    assert starts == [None, None, 11]


def test_a_log_that_fails_keeps_its_place_and_its_offsets() -> None:
    table, first = LogTable(), directory("/1")
    failed = log(A, 100, start=11)
    table.put_online(failed, first)
    assert table.log_failed(log(A, 100)) is None, "another log of that name"
    assert table.log_failed(failed) is first
    assert (table.logs, table.directory_of) == ({}, {})
    assert table.offline[A] == OfflinePartition(
        first, "burnt", ID, by_file(101, 11, 102, 103), lacks_room=True
    )
    assert written(table, first) == [{A: 101}, {A: 11}, {A: 102}, {A: 103}]
    assert table.holder(A) is first
    assert table.log_failed(failed) is None
    table.put_online(log(A, 5), first)
    assert table.offline == {}


def test_a_removed_partition_is_remembered_until_its_directorys_files_are_written() -> None:
    table, first, second = LogTable(), directory("/1"), directory("/2")
    online = log(A, 1)
    table.put_online(online, first)
    table.put_offline(B, OfflinePartition(second, "damaged"))
    assert (table.holder(A), table.holder(B), table.holder(C)) == (first, second, None)
    assert table.remove(A) is online
    assert table.remove(B) is None
    assert table.remove(C) is None
    assert (table.logs, table.directory_of, table.offline) == ({}, {}, {})
    assert (table.holder(A), table.holder(B)) == (None, None)
    assert (table.removed_from(first), table.removed_from(second)) == ([A], [B])
    table.offsets_forgotten(second, [A, B, C])
    assert (table.removed_from(first), table.removed_from(second)) == ([A], [])


def test_the_emptiest_directory_counts_offline_partitions_and_no_failed_directories() -> None:
    table = LogTable()
    first, second, third = directory("/1"), directory("/2"), directory("/3")
    every = [first, second, third]
    assert table.emptiest(every) is first
    table.put_online(log(A, 1), first)
    table.put_offline(B, OfflinePartition(second, "damaged"))
    assert table.emptiest(every) is third
    third.fail("burnt")
    table.put_online(log(C, 1), first)
    assert table.emptiest(every) is second
    second.fail("burnt")
    assert table.emptiest(every) is first
    first.fail("burnt")
    assert table.emptiest(every) is None
