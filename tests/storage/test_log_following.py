"""A follower's log takes whatever its leader has: sizes, pieces, cuts, starts."""

from __future__ import annotations

import errno
import random

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    Codec,
    ControlRecordType,
    EndTxnMarker,
    encode_batch,
    encode_end_txn_batch,
    iter_batches,
)
from moldau.storage.append import AppendOrigin, RecordBatches
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from tests.storage.log_fixtures import (
    START_MS,
    LogBench,
    append,
    batch_of,
    fill,
    read_all,
    values_of,
)
from tests.storage.simulated_filesystem import SimulatedFilesystem


def open_log(**config: int) -> Log:
    return LogBench(config=LogConfig(**config)).open()  # type: ignore[arg-type]


def bytes_of(log: Log) -> bytes:
    """All batches of a log, as its files hold them."""
    found = b""
    for segment in log.segments:
        found += segment.file().pread(segment.size_bytes, 0)
    return found


def test_more_than_a_segment_is_split_where_batches_meet() -> None:
    leader = open_log()
    fill(leader, 50, value_bytes=300)
    follower = open_log(segment_bytes=2_000)
    result = follower.append_as_follower(bytearray(bytes_of(leader)), leader_epoch=0)
    assert (result.error, result.base_offset, result.last_offset) == (ErrorCode.NONE, 0, 49)
    assert result.record_count == 50
    assert result.size_bytes == len(bytes_of(leader))
    assert bytes_of(follower) == bytes_of(leader)
    assert len(follower.segments) > 5
    assert all(segment.size_bytes <= 2_000 for segment in follower.segments)
    assert values_of(follower) == values_of(leader)


def test_holes_and_empty_batches_of_a_compacted_leader_are_taken() -> None:
    """Whatever the topic's policy is by now: what the follower has must open again."""
    leader = open_log()
    for number in range(30):
        append(leader, "x" * 100, producer_id=7, producer_epoch=0, base_sequence=number)
    marker = encode_end_txn_batch(
        EndTxnMarker(ControlRecordType.COMMIT, 1),
        producer_id=7,
        producer_epoch=0,
        timestamp_ms=START_MS,
    )
    result = leader.append_as_leader(
        RecordBatches.read(marker), leader_epoch=0, origin=AppendOrigin.COORDINATOR
    )
    emptied = encode_batch(
        [],
        base_offset=result.base_offset,
        last_offset_delta=0,
        producer_id=7,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
        partition_leader_epoch=0,
    )
    data = bytes_of(leader)
    kept = [
        data[at : at + header.size_bytes]
        for at, header in iter_batches(data)
        if header.base_offset in (3, 4, 11, 12, 25)
    ]
    bench = LogBench(config=LogConfig(segment_bytes=400))
    follower = bench.open()
    noted: list[int | None] = []
    follower.checkpoint_first_dirty = lambda _log, offset: noted.append(offset)
    for piece in (kept[0], b"".join(kept[1:]) + bytes(emptied)):
        result = follower.append_as_follower(bytearray(piece), leader_epoch=0)
        assert result.error is ErrorCode.NONE, result
    assert noted == [0], "said once, before the first hole"
    assert follower.log_end_offset == 31
    assert [r.offset for r in read_all(follower)] == [3, 4, 11, 12, 25]
    bases = [segment.base_offset for segment in follower.segments]
    assert bases[0] == 0
    for clean in (True, False):
        follower = bench.reopen(follower, clean=clean, first_dirty_offset=0)
        assert [r.offset for r in read_all(follower)] == [3, 4, 11, 12, 25]
        assert follower.log_end_offset == 31
        (producer,) = follower.producer_state.producers.values()
        assert producer.last_sequence == 25


def test_segments_of_a_follower_open_again_as_they_were() -> None:
    leader = open_log()
    for number in range(40):
        append(leader, "x" * 200, producer_id=7, producer_epoch=0, base_sequence=number)
    bench = LogBench(config=LogConfig(segment_bytes=1_000))
    follower = bench.open()
    follower.append_as_follower(bytearray(bytes_of(leader)), leader_epoch=0)
    follower = bench.reopen(follower)
    assert bytes_of(follower) == bytes_of(leader)
    (producer,) = follower.producer_state.producers.values()
    assert (producer.producer_id, producer.last_sequence) == (7, 39)


def test_what_the_leader_took_is_taken_whatever_the_limits_are_now() -> None:
    leader = open_log(max_message_bytes=1_000_000)
    append(leader, "before")
    append(leader, "x" * 10_000)
    append(leader, "after")
    follower = open_log(max_message_bytes=100, segment_bytes=1_000)
    result = follower.append_as_follower(bytearray(bytes_of(leader)), leader_epoch=0)
    assert result.error is ErrorCode.NONE
    assert values_of(follower, max_bytes=100_000) == ["before", "x" * 10_000, "after"]
    assert [segment.base_offset for segment in follower.segments] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_a_response_that_ends_anywhere_brings_its_whole_batches(seed: int) -> None:
    choice = random.Random(seed)
    leader = open_log()
    fill(leader, 10, value_bytes=choice.randrange(1, 400))
    everything = bytes_of(leader)
    follower = open_log(segment_bytes=choice.choice([700, 1 << 30]))
    at = 0
    while follower.log_end_offset < 10:
        ends = [position + header.size_bytes for position, header in iter_batches(everything)]
        cut = choice.randrange(ends[follower.log_end_offset], len(everything) + 1)
        before = follower.log_end_offset
        result = follower.append_as_follower(bytearray(everything[at:cut]), leader_epoch=0)
        assert result.error is ErrorCode.NONE, seed
        assert follower.log_end_offset == sum(end <= cut for end in ends) > before, seed
        at = ends[follower.log_end_offset - 1]
    assert bytes_of(follower) == everything, seed


@pytest.mark.parametrize("size_bytes", [1, 11, 12, 60])
def test_less_than_a_batch_is_refused_and_changes_nothing(size_bytes: int) -> None:
    follower = open_log()
    result = follower.append_as_follower(batch_of("a" * 50)[:size_bytes], leader_epoch=0)
    assert result.error is ErrorCode.CORRUPT_MESSAGE
    assert (follower.log_end_offset, follower.size_bytes, follower.offline) == (0, 0, False)


def test_one_damaged_batch_keeps_all_of_them_out() -> None:
    leader = open_log()
    fill(leader, 3)
    damaged = bytearray(bytes_of(leader))
    damaged[-1] ^= 1
    follower = open_log()
    assert follower.append_as_follower(damaged, leader_epoch=0).error is ErrorCode.CORRUPT_MESSAGE
    assert follower.size_bytes == 0


def test_compressed_transactional_and_control_batches_are_taken_as_they_are() -> None:
    leader = open_log()
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        append(leader, "compressed " * 50, codec=codec)
    append(
        leader, "in a transaction", producer_id=5, producer_epoch=1, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip
    marker = encode_end_txn_batch(
        EndTxnMarker(ControlRecordType.ABORT, 3),
        producer_id=5,
        producer_epoch=1,
        timestamp_ms=START_MS,
    )
    assert (
        leader.append_as_leader(
            RecordBatches.read(marker), leader_epoch=0, origin=AppendOrigin.COORDINATOR
        ).error
        is ErrorCode.NONE
    )
    follower = open_log(segment_bytes=150)
    result = follower.append_as_follower(bytearray(bytes_of(leader)), leader_epoch=0)
    assert result.error is ErrorCode.NONE
    assert bytes_of(follower) == bytes_of(leader)
    for log in (leader, follower):
        log.update_high_watermark(log.log_end_offset)
    assert follower.last_stable_offset == leader.last_stable_offset == 6
    ours, theirs = follower.aborted_transactions(0, 6), leader.aborted_transactions(0, 6)
    assert [(a.producer_id, a.first_offset, a.last_offset) for a in ours] == [
        (a.producer_id, a.first_offset, a.last_offset) for a in theirs
    ]
    assert len(ours) == 1


def test_a_full_disk_between_two_segments_keeps_what_was_written() -> None:
    leader = open_log()
    fill(leader, 10, value_bytes=300)
    bench = LogBench(config=LogConfig(segment_bytes=1_200))
    follower = bench.open()
    fetched = bytearray(bytes_of(leader))
    roll_to, rolls = follower.roll_to, [0]

    def full(base_offset: int) -> object:
        rolls[0] += 1
        if rolls[0] == 2:
            raise OSError(errno.ENOSPC, "no space left")
        return roll_to(base_offset)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Log, "roll_to", lambda _log, base_offset: full(base_offset))
        result = follower.append_as_follower(fetched, leader_epoch=0)
    assert result.error is ErrorCode.KAFKA_STORAGE_ERROR
    assert not follower.offline
    end = follower.log_end_offset
    assert 0 < end < 10
    ends = [position + header.size_bytes for position, header in iter_batches(fetched)]
    assert bytes_of(follower) == bytes_of(leader)[: ends[end - 1]]
    rest = follower.append_as_follower(fetched[ends[end - 1] :], leader_epoch=0)
    assert rest.error is ErrorCode.NONE
    assert bytes_of(follower) == bytes_of(leader)


def test_only_an_empty_log_may_begin_inside_a_batch() -> None:
    leader = open_log()
    append(leader, "a", "b", "c")
    append(leader, "d")
    fetched = bytearray(bytes_of(leader))
    begun = open_log()
    begun.truncate_fully_and_start_at(1)
    assert begun.append_as_follower(fetched, leader_epoch=0).error is ErrorCode.NONE
    assert (begun.log_start_offset, begun.log_end_offset) == (1, 4)
    # An empty active segment behind others is no empty log.
    follower = open_log()
    append(follower, "a")
    assert follower.roll()
    refused = follower.append_as_follower(fetched, leader_epoch=0)
    assert refused.error is ErrorCode.CORRUPT_MESSAGE
    assert values_of(follower) == ["a"]


def test_the_start_follows_the_leader_as_far_as_it_is_committed() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem=filesystem, config=LogConfig(segment_bytes=500))
    log = bench.open()
    fill(log, 20)
    log.update_high_watermark(11)
    assert log.advance_log_start_offset(7)
    assert log.log_start_offset == 7
    assert log.segments[0].base_offset <= 7 < log.segments[1].base_offset
    assert not log.advance_log_start_offset(7)
    assert not log.advance_log_start_offset(3)
    assert log.advance_log_start_offset(15)
    assert log.log_start_offset == 11
    log.update_high_watermark(20)
    assert log.advance_log_start_offset(20)
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)
    assert len(log.segments) == 1
    append(log, "more")
    assert values_of(log) == ["more"]


def test_an_epoch_without_records_goes_with_a_cut_that_cuts_nothing() -> None:
    log = open_log()
    append(log, "a", leader_epoch=4)
    log.leader_epoch_cache.assign(5, 1)
    assert log.leader_epoch_cache.latest_epoch == 5
    assert not log.truncate_to(1)
    assert log.leader_epoch_cache.entries == [(4, 0)]


def test_a_log_that_begins_again_knows_no_epoch() -> None:
    log = open_log()
    append(log, "a", leader_epoch=4)
    log.truncate_fully_and_start_at(100)
    assert log.leader_epoch_cache.entries == []
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
