"""Idempotent and transactional producers: sequences, epochs, duplicates, transactions, expiry."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    ControlRecordType,
    EndTxnMarker,
    Record,
    encode_batch,
    encode_end_txn_batch,
    iter_batches,
    patch_batch,
)
from moldau.storage import producer_state
from moldau.storage.append import AppendOrigin, AppendResult, RecordBatches
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from moldau.storage.producer_state import (
    ProducerState,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from tests.storage.log_fixtures import START_MS, LogBench, append, batch_of, fill, values_of

MAX_SEQUENCE = 2**31 - 1
Reopen = Callable[[LogBench, Log], Log]


def send(
    log: Log,
    sequence: int,
    *,
    producer_id: int = 7,
    producer_epoch: int = 0,
    count: int = 1,
    transactional: bool = False,
    leader_epoch: int = 0,
) -> AppendResult:
    sent = batch_of(
        *[f"{producer_id}/{producer_epoch}/{sequence}"] * count,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    return log.append_as_leader(RecordBatches.read(sent), leader_epoch=leader_epoch)


def end(
    log: Log,
    kind: ControlRecordType,
    *,
    producer_id: int = 7,
    producer_epoch: int = 0,
    coordinator_epoch: int = 1,
    transaction_version: int = 0,
    leader_epoch: int = 0,
) -> AppendResult:
    sent = encode_end_txn_batch(
        EndTxnMarker(kind, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timestamp_ms=START_MS,
    )
    return log.append_as_leader(
        RecordBatches.read(sent),
        leader_epoch=leader_epoch,
        origin=AppendOrigin.COORDINATOR,
        transaction_version=transaction_version,
    )


def killed(bench: LogBench, log: Log) -> Log:
    return bench.reopen(log)


def killed_after_flush(bench: LogBench, log: Log) -> Log:
    log.flush()
    return bench.reopen(log)


def stopped(bench: LogBench, log: Log) -> Log:
    return bench.reopen(log, clean=True)


def not_at_all(bench: LogBench, log: Log) -> Log:
    return log


def rolled(bench: LogBench, log: Log) -> Log:
    log.roll()
    log.flush()
    return bench.reopen(log)


@pytest.mark.parametrize("restart", [not_at_all, killed, killed_after_flush, stopped, rolled])
def test_the_last_five_batches_are_known_again(restart: Reopen) -> None:
    bench = LogBench()
    log = bench.open()
    for number in range(8):
        assert send(log, number * 3, count=3).base_offset == number * 3
    append(log, "another producer's")
    log = restart(bench, log)
    for number in (3, 4, 5, 6, 7, 5):
        result = send(log, number * 3, count=3)
        assert result.error is ErrorCode.NONE
        assert result.is_duplicate
        assert (result.base_offset, result.last_offset) == (number * 3, number * 3 + 2)
    assert send(log, 2 * 3, count=3).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 7 * 3, count=2).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 8 * 3 + 1).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 25
    assert send(log, 8 * 3).base_offset == 25


def test_an_unknown_producer_may_begin_anywhere() -> None:
    log = LogBench().open()
    assert send(log, 4711).error is ErrorCode.NONE
    assert send(log, 4713).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 4712).error is ErrorCode.NONE


def test_epochs_fence_and_begin_at_zero() -> None:
    log = LogBench().open()
    send(log, 0, producer_epoch=3)
    send(log, 1, producer_epoch=3)
    assert send(log, 2, producer_epoch=2).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, 0, producer_epoch=2).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, 2, producer_epoch=4).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 0, producer_epoch=4).error is ErrorCode.NONE
    assert send(log, 1, producer_epoch=3).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(log, 1, producer_epoch=4).error is ErrorCode.NONE


def test_sequences_wrap_to_zero() -> None:
    log = LogBench().open()
    assert send(log, MAX_SEQUENCE - 1, count=2).error is ErrorCode.NONE
    assert send(log, 1).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 0).error is ErrorCode.NONE
    other = LogBench()
    log = other.open()
    assert send(log, MAX_SEQUENCE - 1, count=5).error is ErrorCode.NONE
    log = other.reopen(log, clean=True)
    duplicate = send(log, MAX_SEQUENCE - 1, count=5)
    assert (duplicate.is_duplicate, duplicate.base_offset) == (True, 0)
    assert send(log, 3).base_offset == 5


def test_several_batches_of_one_producer_in_one_append() -> None:
    log = LogBench().open()
    options = {"producer_id": 7, "producer_epoch": 0}
    good = batch_of("a", base_sequence=0, **options) + batch_of("b", base_sequence=1, **options)
    assert log.append_as_leader(RecordBatches.read(good), leader_epoch=0).last_offset == 1
    gap = batch_of("c", base_sequence=2, **options) + batch_of("d", base_sequence=4, **options)
    refused = log.append_as_leader(RecordBatches.read(gap), leader_epoch=0)
    assert refused.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 2).base_offset == 2, "the refused append left no trace"


def test_silent_producers_are_forgotten_by_the_brokers_clock() -> None:
    bench = LogBench()
    log = bench.open(producer_expiration_ms=1000)
    append(log, "old", timestamp_ms=1, producer_id=7, producer_epoch=0, base_sequence=0)
    assert log.producer_state.expire(log.clock.now_ms()) == 0, (
        "record timestamps say nothing about silence"
    )
    bench.clock.advance(999)
    assert log.producer_state.expire(log.clock.now_ms()) == 0
    bench.clock.advance(1)
    send(log, 0, producer_id=8)
    assert log.producer_state.expire(log.clock.now_ms()) == 1
    assert [entry.producer_id for entry in log.producer_state.producers.values()] == [8]
    assert send(log, 100).error is ErrorCode.NONE


def test_expiry_while_the_node_was_down() -> None:
    bench = LogBench()
    log = bench.open(producer_expiration_ms=1000)
    send(log, 0)
    log.close()
    bench.clock.advance(1000)
    log = bench.open(clean=True, recovery_point=1, producer_expiration_ms=1000)
    assert not log.producer_state.producers


def test_the_number_of_producers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "MAX_PRODUCER_COUNT", 20)
    bench = LogBench()
    log = bench.open()
    send(log, 0, producer_id=0, transactional=True)
    for producer_id in range(1, 60):
        bench.clock.advance(1)
        send(log, 0, producer_id=producer_id)
        assert len(log.producer_state.producers) <= 20
    assert 0 in log.producer_state.producers, "an open transaction is not forgotten"
    assert 59 in log.producer_state.producers


def test_an_append_that_evicts_forgets_none_of_what_it_did_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "MAX_PRODUCER_COUNT", 20)
    bench = LogBench()
    log = bench.open()
    for producer_id in range(20):
        send(log, 0, producer_id=producer_id, producer_epoch=3)
        bench.clock.advance(1)
    # One fetch brings a new producer and the next batch of the one that was idle longest.
    fetched = bytearray()
    for producer_id, sequence in ((20, 0), (0, 1)):
        base_offset = 20 + len(list(iter_batches(fetched)))
        sent = batch_of("v", producer_id=producer_id, producer_epoch=3, base_sequence=sequence)
        patch_batch(sent, 0, base_offset=base_offset, partition_leader_epoch=0)
        fetched += sent
    assert log.append_as_follower(fetched, leader_epoch=0).error is ErrorCode.NONE
    state = {each.producer_id: each for each in log.producer_state.producers.values()}
    assert (state[0].producer_epoch, state[0].last_sequence) == (3, 1)
    assert [batch.last_sequence for batch in state[0].batches] == [0, 1]
    assert state[20].producer_epoch == 3
    assert 1 not in state
    assert len(state) <= 20
    assert send(log, 2, producer_id=0, producer_epoch=3).error is ErrorCode.NONE


def test_one_append_of_many_new_producers_stays_within_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "MAX_PRODUCER_COUNT", 20)
    log = LogBench().open()
    fetched = bytearray()
    for number in range(50):
        sent = batch_of("v", producer_id=number, producer_epoch=0, base_sequence=0)
        patch_batch(sent, 0, base_offset=number, partition_leader_epoch=0)
        fetched += sent
    assert log.append_as_follower(fetched, leader_epoch=0).error is ErrorCode.NONE
    assert len(log.producer_state.producers) <= 20


def test_describe_producers_data() -> None:
    log = LogBench().open()
    send(log, 5, producer_id=1, producer_epoch=2, transactional=True)
    [entry] = log.producer_state.producers.values()
    assert (entry.producer_id, entry.producer_epoch, entry.last_sequence) == (1, 2, 5)
    assert (entry.current_txn_first_offset, entry.coordinator_epoch) == (0, -1)
    assert entry.last_timestamp_ms == START_MS


# -- transactions --------------------------------------------------------------------------------


def test_the_last_stable_offset_waits_for_markers_below_the_high_watermark() -> None:
    log = LogBench().open()
    send(log, 0, producer_id=1, transactional=True)
    send(log, 0, producer_id=2, transactional=True)
    log.update_high_watermark(2)
    assert log.last_stable_offset == 0
    end(log, ControlRecordType.COMMIT, producer_id=1)
    assert log.last_stable_offset == 0, "the marker is not replicated yet"
    log.update_high_watermark(3)
    assert log.last_stable_offset == 1
    end(log, ControlRecordType.ABORT, producer_id=2)
    log.update_high_watermark(4)
    assert log.last_stable_offset == 4
    assert log.aborted_transactions(0, 4) == [(2, 1, 3, 4)]
    assert log.aborted_transactions(0, 1) == []


@pytest.mark.parametrize("restart", [not_at_all, killed, killed_after_flush, stopped, rolled])
def test_transactions_survive_a_restart(restart: Reopen) -> None:
    bench = LogBench(config=LogConfig(segment_bytes=1500))
    log = bench.open()
    for round_number in range(12):
        for producer_id in (1, 2, 3):
            send(log, round_number, producer_id=producer_id, transactional=True)
        fill(log, 1)
        end(log, ControlRecordType.ABORT, producer_id=1 + round_number % 2)
        end(log, ControlRecordType.COMMIT, producer_id=2 - round_number % 2)
        if round_number < 11:
            end(log, ControlRecordType.COMMIT, producer_id=3)
    log.update_high_watermark(log.log_end_offset)
    stable = log.last_stable_offset
    aborted = log.aborted_transactions(0, log.log_end_offset)
    assert len(aborted) == 12
    assert aborted == sorted(aborted, key=lambda each: each.first_offset)
    log = restart(bench, log)
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == stable < log.log_end_offset
    assert log.aborted_transactions(0, log.log_end_offset) == aborted
    middle = aborted[5]
    assert middle in log.aborted_transactions(middle.last_offset, middle.last_offset + 1)
    assert middle not in log.aborted_transactions(middle.last_offset + 1, log.log_end_offset)


def test_markers_are_checked() -> None:
    log = LogBench().open()
    send(log, 0, producer_epoch=5, transactional=True)
    stale = end(log, ControlRecordType.COMMIT, producer_epoch=4)
    assert stale.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(log, ControlRecordType.COMMIT, producer_epoch=5, coordinator_epoch=9).error is (
        ErrorCode.NONE
    )
    send(log, 1, producer_epoch=5, transactional=True)
    fenced = end(log, ControlRecordType.COMMIT, producer_epoch=5, coordinator_epoch=8)
    assert fenced.error is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    outside = send(log, 2, producer_epoch=5)
    assert outside.error is ErrorCode.INVALID_TXN_STATE


def test_an_aborted_transaction_without_records_leaves_no_trace() -> None:
    bench = LogBench()
    log = bench.open()
    assert end(log, ControlRecordType.ABORT).error is ErrorCode.NONE
    assert log.aborted_transactions(0, 10) == []
    assert bench.names(".txnindex") == []


def test_a_marker_with_a_higher_epoch_makes_the_next_sequence_zero() -> None:
    log = LogBench().open()
    send(log, 0, transactional=True)
    end(log, ControlRecordType.COMMIT, producer_epoch=1)
    assert send(log, 1, producer_epoch=1, transactional=True).error is (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert send(log, 0, producer_epoch=1, transactional=True).error is ErrorCode.NONE


# -- snapshots -----------------------------------------------------------------------------------


def test_snapshot_bytes() -> None:
    entries = [SnapshotEntry(1, 2, 3, 4, 0, 5, 6, 7), SnapshotEntry(8, 0, -1, -1, 0, -1, -1, -1)]
    data = encode_snapshot(entries)
    assert decode_snapshot(data) == entries
    assert len(data) == 10 + 2 * 46
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1
        with pytest.raises(ValueError, match="snapshot"):
            decode_snapshot(bytes(broken))
    for size in range(len(data)):
        with pytest.raises(ValueError, match="snapshot"):
            decode_snapshot(data[:size])


def test_a_damaged_snapshot_is_replaced_by_an_older_one_and_the_log() -> None:
    bench = LogBench(config=LogConfig(segment_bytes=400))
    log = bench.open()
    for number in range(30):
        send(log, number)
    log.close()
    snapshots = bench.names(".snapshot")
    assert len(snapshots) > 4
    for name in snapshots[-3:]:
        bench.overwrite(f"{bench.directory}/{name}", 20, b"\xff\xff")
    log = bench.open(clean=True, recovery_point=30)
    assert send(log, 27).is_duplicate
    assert send(log, 30).base_offset == 30
    for name in bench.names(".snapshot"):
        bench.filesystem.unlink(f"{bench.directory}/{name}")
    log.close()
    log = bench.open(clean=True, recovery_point=31)
    assert send(log, 28).is_duplicate
    assert len(values_of(log)) == 31


# -- several producers in one append (a follower's fetch) ----------------------------------------


def fetched_history() -> tuple[Log, bytes]:
    """A leader's log in which transactions overlap, and its bytes."""
    leader = LogBench().open()
    send(leader, 0, producer_id=1, transactional=True)
    end(leader, ControlRecordType.COMMIT, producer_id=1)
    send(leader, 0, producer_id=2, transactional=True)
    send(leader, 1, producer_id=1, transactional=True)
    send(leader, 0, producer_id=3, transactional=True)
    end(leader, ControlRecordType.ABORT, producer_id=3)
    end(leader, ControlRecordType.ABORT, producer_id=1)
    send(leader, 0, producer_id=4, transactional=True)
    end(leader, ControlRecordType.ABORT, producer_id=2)
    leader.update_high_watermark(leader.log_end_offset)
    return leader, bytes(read_bytes(leader))


def read_bytes(log: Log) -> bytes:
    result = log.read(0, max_bytes=1 << 20)
    return bytes(result.records)


@pytest.mark.parametrize("batch_count", [1, 2, 3, 4, 9])
def test_a_follower_learns_transactions_as_its_leader_did(batch_count: int) -> None:
    leader, data = fetched_history()
    follower = LogBench().open()
    positions = [position for position, _ in iter_batches(data)] + [len(data)]
    for first in range(0, len(positions) - 1, batch_count):
        last = min(first + batch_count, len(positions) - 1)
        part = bytearray(data[positions[first] : positions[last]])
        assert follower.append_as_follower(part, leader_epoch=0).error is ErrorCode.NONE
    follower.update_high_watermark(follower.log_end_offset)
    assert follower.last_stable_offset == leader.last_stable_offset == 7
    ends = follower.log_end_offset
    for start in range(ends):
        for upper in range(start + 1, ends + 1):
            assert follower.aborted_transactions(start, upper) == leader.aborted_transactions(
                start, upper
            )
    assert follower.segments.active.transaction_index.is_sane()
    assert list(follower.producer_state._ongoing) == list(leader.producer_state._ongoing)


def test_the_last_stable_offset_of_a_follower_is_that_of_the_oldest_transaction() -> None:
    leader = LogBench().open()
    send(leader, 0, producer_id=1, transactional=True)
    end(leader, ControlRecordType.COMMIT, producer_id=1)
    send(leader, 0, producer_id=2, transactional=True)
    send(leader, 1, producer_id=1, transactional=True)
    follower = LogBench().open()
    follower.append_as_follower(bytearray(read_bytes(leader)), leader_epoch=0)
    follower.update_high_watermark(4)
    assert follower.last_stable_offset == 2


def test_a_retry_after_a_crash_is_known_though_its_record_was_deleted() -> None:
    bench = LogBench(config=LogConfig(segment_bytes=400))
    log = bench.open()
    for number in range(20):
        send(log, number)
    log.update_high_watermark(20)
    log.flush()
    assert log.delete_records(20) == (ErrorCode.NONE, 20)
    assert send(log, 19).is_duplicate
    log = bench.reopen(log)
    assert send(log, 19).is_duplicate
    for name in bench.names(".snapshot"):
        if name.startswith(f"{20:020d}"):
            bench.filesystem.unlink(f"{bench.directory}/{name}")
    log.abandon()
    log = bench.open(clean=True, recovery_point=20, log_start_offset=20)
    assert send(log, 19).is_duplicate


def test_a_log_that_begins_elsewhere_knows_no_producer_of_the_old_records() -> None:
    """A clean stop left a snapshot exactly where the log begins then."""
    bench = LogBench()
    log = bench.open()
    send(log, 0, count=3, transactional=True)
    log = bench.reopen(log, clean=True)
    assert log.producer_state.snapshot_offsets == [3]
    log.truncate_fully_and_start_at(3)
    assert not log.producer_state.producers
    append(log, "another's")
    log.update_high_watermark(4)
    assert log.last_stable_offset == 4
    log = bench.reopen(log)
    assert not log.producer_state.producers


def test_snapshots_of_records_before_the_first_segment_are_not_used() -> None:
    bench = LogBench()
    log = bench.open()
    send(log, 0)
    state = log.producer_state
    state.take_snapshot()
    assert 1 in state.snapshot_offsets
    state.load_newest(5, 10, START_MS)
    assert (state.producers, state.map_end_offset) == ({}, 5)
    state.load_newest(1, 10, START_MS)
    assert (list(state.producers), state.map_end_offset) == ([7], 1)
    log.abandon()


def test_the_state_of_producers_is_never_of_before_the_logs_start() -> None:
    log = LogBench().open()
    state = log.producer_state
    state.map_end_offset = 5
    state.on_log_start_offset(3)
    assert state.map_end_offset == 5
    state.on_log_start_offset(8)
    assert state.map_end_offset == 8


@pytest.mark.parametrize("snapshot_at", [None, 1, 2])
def test_after_a_cut_the_state_of_producers_is_that_of_the_logs_end(
    snapshot_at: int | None,
) -> None:
    log = LogBench().open()
    state = log.producer_state
    for number in range(4):
        if number == snapshot_at:
            state.take_snapshot()
        send(log, number)
    log.truncate_to(2)
    (producer,) = log.producer_state.producers.values()
    assert (producer.last_sequence, state.map_end_offset) == (1, 2)


def test_a_control_record_that_is_not_understood_leaves_its_producer_as_it_is() -> None:
    """A newer broker may have written it; the bytes are intact."""
    bench = LogBench()
    log = bench.open()
    send(log, 0)
    before = log.producer_state.producers[7].last_timestamp_ms
    unknown = encode_batch(
        [Record(0, START_MS, b"\0\1\0\0", b"\0\0")],
        base_offset=1,
        producer_id=7,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
        partition_leader_epoch=0,
    )
    log.abandon()
    file = bench.filesystem.open(bench.path(0))
    file.append(unknown)
    file.close()
    log = bench.open()
    assert log.log_end_offset == 2
    entry = log.producer_state.producers[7]
    assert (entry.last_timestamp_ms, entry.last_sequence) == (before, 0)
    assert log.producer_state.expire(log.clock.now_ms()) == 0
    assert send(log, 1).error is ErrorCode.NONE


@pytest.mark.parametrize("segment_bytes", [1 << 20, 200])
def test_producers_are_known_as_of_any_offset(segment_bytes: int) -> None:
    """Batches behind the offset count for nothing."""
    log = LogBench(config=LogConfig(segment_bytes=segment_bytes)).open()
    expected: list[tuple[dict[int, int], dict[int, int]]] = []
    for number in range(6):
        for producer_id in (1, 2):
            known = log.producer_state
            last = {key: each.last_offset for key, each in known.producers.items()}
            expected.append((last, dict(known.open_transactions())))
            send(log, number, producer_id=producer_id, transactional=producer_id == 2)
    for offset, (last, is_open) in enumerate(expected):
        state = ProducerState(log.filesystem, log.directory, 10**9)
        state.load(log.segments, offset, START_MS)
        assert {key: each.last_offset for key, each in state.producers.items()} == last
        assert dict(state.open_transactions()) == is_open
        assert state.map_end_offset == offset
