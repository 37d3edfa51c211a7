"""Two replicas that lead in turn, with random histories: real logs, the leader's real answers."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from moldau.broker.replica.core.in_sync_set import PartitionState
from moldau.broker.replica.followed_partitions import FollowedPartition, FollowerStep
from moldau.broker.replica.partition import FetchPartition, Partition
from moldau.broker.replica.topic_stats import TopicStats
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import EpochEndOffset, PartitionData
from moldau.protocol.records import iter_batches
from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.runtime.telemetry.metrics import Registry
from moldau.storage.append import RecordBatches
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.kit.manual_clock import ManualClock
from tests.storage.log_fixtures import LogBench, batch_of
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.unit.broker.replica.replicas import LonelyContext

NAME = TopicPartition("topic", 0)
BROKERS = (1, 2)
MAX_FETCHES = 200


class NoOwner:
    """No request waits here."""

    def partition_changed(self, fetched: FetchPartition) -> None:
        raise AssertionError

    def high_watermark_moved(self, fetched: FetchPartition) -> None:
        raise AssertionError


def refuse(*_: Any) -> Any:
    raise AssertionError("nothing here is flushed or proposed")


def at_once(work: Coroutine[Any, Any, None]) -> None:
    """The check of a closed segment, whose file system works inline."""
    with pytest.raises(StopIteration):
        work.send(None)


class Pair:
    """Both replicas of a partition, and what the controller says of them."""

    def __init__(self) -> None:
        clock = ManualClock()
        stats = TopicStats(Registry(clock.monotonic_ms), None)
        self.leader_epoch = -1
        self.leader_id = -1
        self.batch_count = 0
        self.replicas: dict[int, Partition] = {}
        for broker_id in BROKERS:
            partition = Partition(
                NAME, ZERO_UUID, broker_id, stats=stats, start_work=at_once, flush=refuse,
                submit_isr_change=refuse, context=LonelyContext(clock),
            )  # fmt: skip
            partition.log = LogBench(config=LogConfig(segment_bytes=700)).open()
            self.replicas[broker_id] = partition

    def log(self, broker_id: int) -> Log:
        log = self.replicas[broker_id].log
        assert log is not None
        return log

    @property
    def follower_id(self) -> int:
        return 3 - self.leader_id

    def elect(self, leader_id: int, in_sync: tuple[int, ...] = BROKERS) -> None:
        self.leader_id = leader_id
        self.leader_epoch += 1
        state = PartitionState(leader_id, self.leader_epoch, self.leader_epoch, BROKERS, in_sync)
        for partition in self.replicas.values():
            partition.apply_state(state)

    def append(self, record_count: int) -> None:
        self.batch_count += 1
        values = [f"{self.leader_epoch}/{self.batch_count}/{n}" for n in range(record_count)]
        result = self.replicas[self.leader_id].append(RecordBatches.read(batch_of(*values)), 1)
        assert result.error is ErrorCode.NONE

    def fetch(self, max_bytes: int) -> bool:
        """One fetch of the follower; whether it changed anything."""
        follower = FollowedPartition(self.replicas[self.follower_id])
        leader = self.replicas[self.leader_id]
        position = follower.position()
        assert position is not None
        fetched = FetchPartition(NoOwner(), NAME.topic, ZERO_UUID, 0)
        fetched.fetch_offset = position.fetch_offset
        fetched.last_fetched_epoch = position.last_fetched_epoch
        fetched.current_leader_epoch = position.leader_epoch
        for _ in range(2):
            read = leader.read(
                fetched, max_bytes=max_bytes, min_one_batch=True, read_committed=False,
                leader_only=True, for_replica=True,
            )  # fmt: skip
            if not read.pending:
                break
        assert not read.pending, "checked once, and served"
        data = PartitionData(
            error_code=read.error,
            high_watermark=read.high_watermark,
            log_start_offset=read.log_start_offset,
            records=memoryview(bytearray(bytes(read.records))),
        )
        if not isinstance(read.records, bytes):
            read.records.release()  # type: ignore[union-attr]
        if read.is_diverging:
            data.diverging_epoch = EpochEndOffset(
                epoch=read.diverging_epoch, end_offset=read.diverging_end_offset
            )
        step = follower.apply_fetched(position, data)
        if step is FollowerStep.ASK_OFFSETS:
            ends = leader.log
            assert ends is not None
            step = follower.apply_leader_offsets(
                position, ends.log_start_offset, ends.log_end_offset
            )
        assert step is FollowerStep.FETCH_ON, (step, position, read.error)
        after = follower.position()
        assert after is not None
        return after[:7] != position[:7]

    def batches(self, broker_id: int) -> list[bytes]:
        found = []
        for segment in self.log(broker_id).segments:
            data = segment.file().pread(segment.size_bytes, 0)
            found += [data[at : at + header.size_bytes] for at, header in iter_batches(data)]
        return found

    def common(self) -> list[bytes]:
        ours, theirs = (self.batches(broker_id) for broker_id in BROKERS)
        shared = []
        for mine, other in zip(ours, theirs, strict=False):
            if mine != other:
                break
            shared.append(mine)
        return shared


def epochs_with_records(log: Log) -> list[Any]:
    """What a log knows of leader epochs, but for those that were led and wrote nothing."""
    entries = log.leader_epoch_cache.entries
    return [each for each in entries if each.start_offset < log.log_end_offset]


TERM = st.tuples(
    st.sampled_from(BROKERS),
    st.lists(st.integers(1, 3), max_size=4),
    st.integers(0, 5),
    st.sampled_from([1, 200, 10_000]),
)
"""Who leads, the records of each batch it takes, and how often (and how much) is fetched."""


@given(st.lists(TERM, max_size=8), st.sampled_from(BROKERS), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_logs_become_equal_and_nothing_they_had_in_common_is_cut(
    terms: list[Any], last_leader_id: int, last_batch_count: int
) -> None:
    pair = Pair()
    for leader_id, sizes, fetch_count, max_bytes in terms:
        pair.elect(leader_id)
        for size in sizes:
            pair.append(size)
        for _ in range(fetch_count):
            pair.fetch(max_bytes)
    pair.elect(last_leader_id)
    for _ in range(last_batch_count):
        pair.append(1)
    common = pair.common()
    note(f"{len(common)} batches in common")
    for _ in range(MAX_FETCHES):
        if not pair.fetch(300):
            break
        assert pair.batches(pair.follower_id)[: len(common)] == common
    else:
        raise AssertionError("they never come to an end")
    leader_log, follower_log = pair.log(pair.leader_id), pair.log(pair.follower_id)
    assert pair.batches(1) == pair.batches(2)
    assert follower_log.log_end_offset == leader_log.log_end_offset
    assert epochs_with_records(follower_log) == epochs_with_records(leader_log)


def test_two_that_never_spoke_to_each_other() -> None:
    pair = Pair()
    for leader_id in (1, 2, 1, 2):
        pair.elect(leader_id)
        pair.append(2)
        pair.append(1)
    pair.elect(1)
    while pair.fetch(300):
        pass
    assert pair.batches(1) == pair.batches(2)
    assert len(pair.batches(2)) == 4


@pytest.mark.parametrize("sizes", [[2], [2, 1]], ids=["there", "behind"])
def test_a_follower_ends_where_the_leaders_log_begins_inside_a_batch(sizes: list[int]) -> None:
    """Records were deleted up to there; all that the follower has is another leader's, below it."""
    pair = Pair()
    pair.elect(1)
    for size in sizes:
        pair.append(size)
    pair.elect(2)
    pair.append(5)
    pair.append(1)
    leader_log, follower_log = pair.log(2), pair.log(1)
    leader_log.update_high_watermark(6)
    assert leader_log.advance_log_start_offset(2)
    while pair.fetch(300):
        pass
    assert pair.batches(1) == pair.batches(2)
    assert (follower_log.log_start_offset, follower_log.log_end_offset) == (2, 6)


@pytest.mark.parametrize("later", [[], [1]], ids=["all deleted", "more behind"])
def test_what_a_former_leader_did_not_commit_does_not_come_back_by_a_crash(
    later: list[int],
) -> None:
    """The new leader's records were deleted up to where the follower's own end: no answer says that
    these were others. A crash loses the follower's log start offset.
    """
    pair = Pair()
    pair.elect(1)
    pair.append(2)
    pair.elect(2, in_sync=(2,))
    for size in [2, *later]:
        pair.append(size)
    leader_log, follower_log = pair.log(2), pair.log(1)
    assert leader_log.advance_log_start_offset(2)
    while pair.fetch(300):
        pass
    assert follower_log.log_start_offset == 2
    follower_log.abandon()
    reopened = LogBench(filesystem=follower_log.filesystem).open()
    assert reopened.log_start_offset == 2
    assert reopened.log_end_offset == leader_log.log_end_offset


def test_a_follower_without_room_for_a_segment_follows_on() -> None:
    pair = Pair()
    pair.elect(1)
    pair.append(1)
    pair.elect(2, in_sync=(2,))
    pair.append(1)
    leader_log, follower_log = pair.log(2), pair.log(1)
    assert leader_log.advance_log_start_offset(1)
    filesystem = follower_log.filesystem
    assert isinstance(filesystem, SimulatedFilesystem)
    filesystem.capacity_bytes = 0
    while pair.fetch(300):
        pass
    assert follower_log.log_start_offset == 1
