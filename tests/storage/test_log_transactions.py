"""The log's rules for transactions: epochs of markers, coordinators' data, first sequences after
verification, and which aborted transactions a reader gets.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import ControlRecordType
from moldau.storage import producer_state
from moldau.storage.append import AppendOrigin, AppendResult, RecordBatches
from moldau.storage.checkpoints import SEGMENT_SEALS
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from moldau.storage.transaction_proof import TransactionProof
from tests.storage.log_fixtures import START_MS, LogBench, append, batch_of, values_of
from tests.storage.simulated_filesystem import Fault, SimulatedFilesystem
from tests.storage.test_log_producers import (
    Reopen,
    end,
    killed,
    killed_after_flush,
    not_at_all,
    rolled,
    send,
    stopped,
)
from tests.storage.transaction_reader import aborted_transactions, read_committed

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT
RESTARTS = [not_at_all, killed, killed_after_flush, stopped, rolled]
MAX_EPOCH = 2**15 - 1


class Verified(NamedTuple):
    """As a verification guard calls the log."""

    lowest_sequence: int
    supports_epoch_bump: bool = False


def send_verified(log: Log, sequence: int, verified: Verified, **options: int) -> ErrorCode:
    options = {"producer_id": 7, "producer_epoch": 0} | options
    sent = batch_of("value", base_sequence=sequence, is_transactional=True, **options)
    return log.append_as_leader(
        RecordBatches.read(sent), leader_epoch=0, verification=verified
    ).error


def coordinate(log: Log, *, producer_epoch: int = 0, transactional: bool = True) -> ErrorCode:
    """As a group coordinator stores offsets of a transaction."""
    sent = batch_of(
        "offset",
        producer_id=7,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        is_transactional=transactional,
    )
    return log.append_as_leader(
        RecordBatches.read(sent), leader_epoch=0, origin=AppendOrigin.COORDINATOR
    ).error


# -- markers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data_epoch", "marker_epoch", "is_open", "version", "error"),
    [
        (5, 5, True, 0, ErrorCode.NONE),
        (5, 5, True, 1, ErrorCode.NONE),
        (5, 6, True, 1, ErrorCode.NONE),
        (5, 4, True, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, 6, True, 2, ErrorCode.NONE),
        (5, 5, True, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, 4, True, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, 5, False, 2, ErrorCode.NONE),
        (5, 4, False, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (MAX_EPOCH, MAX_EPOCH, True, 2, ErrorCode.NONE),
        (MAX_EPOCH, MAX_EPOCH, False, 2, ErrorCode.NONE),
    ],
)
def test_which_epoch_a_marker_must_have(
    data_epoch: int, marker_epoch: int, is_open: bool, version: int, error: ErrorCode
) -> None:
    log = LogBench().open()
    send(log, 0, producer_epoch=data_epoch, transactional=is_open)
    before = log.log_end_offset
    result = end(log, COMMIT, producer_epoch=marker_epoch, transaction_version=version)
    assert result.error is error
    assert log.log_end_offset == before + (error is ErrorCode.NONE)
    is_open_still = log.producer_state.first_unstable_offset is not None
    log.update_high_watermark(log.log_end_offset)
    assert (log.last_stable_offset < log.log_end_offset) == (
        is_open_still and error is not ErrorCode.NONE
    )


@pytest.mark.parametrize("restart", RESTARTS)
def test_an_epoch_for_each_transaction(restart: Reopen) -> None:
    bench = LogBench()
    log = bench.open()
    for epoch in range(3):
        assert send(log, 0, producer_epoch=epoch, transactional=True).error is ErrorCode.NONE
        assert send(log, 1, producer_epoch=epoch, transactional=True).error is ErrorCode.NONE
        assert end(log, COMMIT, producer_epoch=epoch + 1, transaction_version=2).error == 0
        log = restart(bench, log)
        late = send(log, 2, producer_epoch=epoch, transactional=True)
        assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH, "of the transaction before"
        again = send(log, 0, producer_epoch=epoch, transactional=True)
        assert again.error is ErrorCode.INVALID_PRODUCER_EPOCH, "a late copy, too"
    gap = send(log, 1, producer_epoch=3, transactional=True)
    assert gap.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("restart", RESTARTS)
def test_sequences_go_on_across_transactions_of_one_epoch(restart: Reopen) -> None:
    bench = LogBench()
    log = bench.open()
    for first in (0, 2, 4):
        assert send(log, first, transactional=True).error is ErrorCode.NONE
        assert send(log, first + 1, transactional=True).error is ErrorCode.NONE
        log = restart(bench, log)
        assert send(log, first + 1, transactional=True).is_duplicate
        assert end(log, ABORT).error is ErrorCode.NONE
        log = restart(bench, log)
        gap = send(log, first + 3, transactional=True)
        assert gap.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("ending", [COMMIT, ABORT])
@pytest.mark.parametrize("restart", RESTARTS)
def test_what_a_transaction_sends_was_not_sent_by_the_one_before(
    restart: Reopen, ending: ControlRecordType
) -> None:
    """librdkafka gives sequences of an aborted transaction to the next one, and takes
    NOT_LEADER_OR_FOLLOWER for "not written": "sent again" would lose the record.
    """
    bench = LogBench()
    log = bench.open()
    assert send(log, 0, count=2, transactional=True).error is ErrorCode.NONE
    assert end(log, ending).error is ErrorCode.NONE
    log = restart(bench, log)
    reused = send(log, 0, count=2, transactional=True)
    assert (reused.error, reused.is_duplicate) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, False)
    assert send(log, 2, transactional=True).error is ErrorCode.NONE, "what follows is taken"
    log = restart(bench, log)
    reused = send(log, 0, count=2, transactional=True)
    assert reused.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "also while the next is open"
    again = send(log, 2, transactional=True)
    assert (again.is_duplicate, again.base_offset) == (True, 3)


@pytest.mark.parametrize("restart", RESTARTS)
def test_empty_transactions(restart: Reopen) -> None:
    """Markers without records hold no reader up and are in no index."""
    bench = LogBench()
    log = bench.open()
    assert end(log, ABORT).error is ErrorCode.NONE
    assert end(log, COMMIT).error is ErrorCode.NONE
    append(log, "data")
    log = restart(bench, log)
    log.update_high_watermark(3)
    assert log.last_stable_offset == 3
    assert log.aborted_transactions(0, 3) == []
    assert [each.value for each in read_committed(log)] == [b"data"]
    late = end(log, COMMIT, coordinator_epoch=0)
    assert late.error is ErrorCode.TRANSACTION_COORDINATOR_FENCED, "its epoch is known"


def test_an_idempotent_producer_may_go_on_in_transactions() -> None:
    log = LogBench().open()
    assert send(log, 0).error is ErrorCode.NONE
    assert send(log, 1, transactional=True).error is ErrorCode.NONE
    outside = send(log, 2)
    assert outside.error is ErrorCode.INVALID_TXN_STATE
    assert end(log, COMMIT).error is ErrorCode.NONE
    assert send(log, 2).error is ErrorCode.NONE


def test_open_transactions_outlive_the_expiry_and_the_limit_of_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "MAX_PRODUCER_COUNT", 20)
    bench = LogBench()
    log = bench.open(producer_expiration_ms=1000)
    send(log, 0, transactional=True)
    for producer_id in range(100, 140):
        send(log, 0, producer_id=producer_id)
    bench.clock.advance(10_000)
    log.producer_state.expire(log.clock.now_ms())
    assert [each.producer_id for each in log.producer_state.producers.values()] == [7]
    log = bench.reopen(log, producer_expiration_ms=1000)
    assert send(log, 1, transactional=True).error is ErrorCode.NONE
    assert end(log, COMMIT).error is ErrorCode.NONE
    bench.clock.advance(1000)
    log.producer_state.expire(log.clock.now_ms())
    assert not log.producer_state.producers, "its transaction is over"


# -- a coordinator's data ------------------------------------------------------------------------


def test_a_coordinators_data_has_epochs_but_no_sequences() -> None:
    log = LogBench().open()
    assert coordinate(log, producer_epoch=5) is ErrorCode.NONE
    assert coordinate(log, producer_epoch=5) is ErrorCode.NONE
    assert log.producer_state.has_open_transaction(7, 5)
    assert coordinate(log, producer_epoch=4) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert coordinate(log, producer_epoch=5, transactional=False) is ErrorCode.INVALID_TXN_STATE
    assert end(log, COMMIT, producer_epoch=6, transaction_version=2).error is ErrorCode.NONE
    assert coordinate(log, producer_epoch=5) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert coordinate(log, producer_epoch=6) is ErrorCode.NONE


# -- first sequences after verification ----------------------------------------------------------


def test_a_transactions_first_batch_must_be_the_first_that_was_sent() -> None:
    log = LogBench().open()
    assert send_verified(log, 5, Verified(3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send_verified(log, 3, Verified(3)) is ErrorCode.NONE, "a producer not known here"


def test_with_its_own_epoch_it_must_begin_at_zero() -> None:
    log = LogBench().open()
    own = Verified(3, supports_epoch_bump=True)
    assert send_verified(log, 3, own) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send_verified(log, 0, Verified(0, supports_epoch_bump=True)) is ErrorCode.NONE
    assert send_verified(log, 1, Verified(1, supports_epoch_bump=True)) is ErrorCode.NONE


# -- what readers are sent -----------------------------------------------------------------------


def interleaved(log: Log) -> list[AppendResult]:
    """Three transactions that overlap, aborted in another order than they began."""
    return [
        send(log, 0, producer_id=1, transactional=True),
        append(log, "between"),
        send(log, 0, producer_id=2, transactional=True),
        send(log, 0, producer_id=3, transactional=True),
        end(log, ABORT, producer_id=2),
        send(log, 1, producer_id=3, transactional=True),
        end(log, COMMIT, producer_id=3),
        send(log, 1, producer_id=1, transactional=True),
        end(log, ABORT, producer_id=1),
        send(log, 1, producer_id=2, transactional=True),
        end(log, COMMIT, producer_id=2),
    ]


@pytest.mark.parametrize("segment_bytes", [1 << 20, 200])
@pytest.mark.parametrize("restart", RESTARTS)
def test_aborted_transactions_are_in_the_order_in_which_they_began(
    restart: Reopen, segment_bytes: int
) -> None:
    """Clients skip from a transaction's first offset on, and look only at the next one in line."""
    bench = LogBench(config=LogConfig(segment_bytes=segment_bytes))
    log = bench.open()
    for result in interleaved(log):
        assert result.error is ErrorCode.NONE
    log = restart(bench, log)
    log.update_high_watermark(log.log_end_offset)
    told = [(each.producer_id, each.first_offset) for each in log.aborted_transactions(0, 11)]
    assert told == [(1, 0), (2, 2)], "the second one ended first"
    assert [each.value for each in read_committed(log)] == [
        b"between",
        b"3/0/0",
        b"3/0/1",
        b"2/0/1",
    ]


def test_a_reader_in_the_middle_gets_the_aborted_transactions_that_began_before() -> None:
    log = LogBench().open()
    interleaved(log)
    log.update_high_watermark(log.log_end_offset)
    for offset in range(log.log_end_offset):
        expected = [
            (offset_, value)
            for offset_, value in [(1, b"between"), (3, b"3/0/0"), (5, b"3/0/1"), (9, b"2/0/1")]
            if offset_ >= offset
        ]
        assert [(each.offset, each.value) for each in read_committed(log, offset)] == expected


@pytest.mark.parametrize("restart", [not_at_all, killed, stopped])
@pytest.mark.parametrize("cut", range(12))
def test_what_a_cut_leaves_open_is_open_again(cut: int, restart: Reopen) -> None:
    """A follower cuts its log to its new leader's; markers that go decide nothing any more."""
    bench = LogBench(config=LogConfig(segment_bytes=200))
    log = bench.open()
    interleaved(log)
    log.truncate_to(cut)
    log = restart(bench, log)
    log.update_high_watermark(log.log_end_offset)
    first_offsets, ends = {1: 0, 2: 2, 3: 3}, {1: 8, 2: 4, 3: 6}
    undecided = [
        first for producer_id, first in first_offsets.items() if first < cut <= ends[producer_id]
    ]
    if cut == 10:
        undecided.append(9)
    assert log.last_stable_offset == min([*undecided, min(cut, 11)])
    assert all(each.last_offset < cut for each in log.aborted_transactions(0, 100))


def test_what_was_committed_before_a_cut_is_stable_right_after_it() -> None:
    log = LogBench().open()
    send(log, 0, transactional=True)
    end(log, COMMIT)
    append(log, "a")
    append(log, "b")
    log.update_high_watermark(log.log_end_offset)
    log.truncate_to(3)
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)


def test_a_marker_that_finds_no_room_aborts_nothing() -> None:
    filesystem = SimulatedFilesystem()
    bench = LogBench(filesystem)
    log = bench.open()
    send(log, 0, transactional=True)
    filesystem.faults.append(Fault("append", ".log", errno.ENOSPC))
    assert end(log, ABORT).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.offline
    log.update_high_watermark(log.log_end_offset)
    assert log.segments.active.transaction_index.entries() == []
    assert log.last_stable_offset == 0
    append(log, "between")
    assert end(log, ABORT).error is ErrorCode.NONE
    log.update_high_watermark(log.log_end_offset)
    (aborted,) = log.aborted_transactions(0, 10)
    assert (aborted.first_offset, aborted.last_offset) == (0, 2)
    log = bench.reopen(log)
    assert [each.last_offset for each in log.aborted_transactions(0, 10)] == [2]


def test_records_deleted_by_request_leave_the_transaction_around_them_open() -> None:
    log = LogBench().open()
    send(log, 0, transactional=True)
    append(log, "first")
    append(log, "second")
    log.update_high_watermark(3)
    assert log.delete_records(2) == (ErrorCode.NONE, 2)
    assert log.last_stable_offset == 2
    assert values_of(log) == ["second"]
    end(log, ABORT)
    log.update_high_watermark(4)
    assert [each.value for each in read_committed(log)] == [b"second"]


def test_how_long_the_oldest_transaction_has_been_silent() -> None:
    bench = LogBench()
    log = bench.open()
    state = log.producer_state
    assert state.oldest_transaction_idle_ms(START_MS) is None
    send(log, 0, producer_id=1, transactional=True)
    bench.clock.advance(500)
    send(log, 0, producer_id=2, transactional=True)
    bench.clock.advance(500)
    assert state.oldest_transaction_idle_ms(bench.clock.now_ms()) == 1000
    end(log, COMMIT, producer_id=1)
    assert state.oldest_transaction_idle_ms(bench.clock.now_ms()) == 500


def unproved(segment_bytes: int = 200) -> Log:
    """A log of several segments of which nothing proves the transaction indexes."""
    bench = LogBench(config=LogConfig(segment_bytes=segment_bytes))
    log = bench.open()
    interleaved(log)
    log.close()
    bench.filesystem.unlink(f"{bench.directory}/{SEGMENT_SEALS}")
    log = bench.open(clean=True, recovery_point=log.recovery_point)
    log.update_high_watermark(log.log_end_offset)
    assert log.segments.has_unproved
    return log


def test_indexes_are_proved_as_far_as_a_reader_needs_them() -> None:
    log = unproved()
    aborted_transactions(log, 0, 1)
    proved = [each.transaction_index.is_proved for each in log.segments]
    told = [each.producer_id for each in aborted_transactions(log, 0, 11)]
    assert told == [1, 2]
    assert all(each.transaction_index.is_proved for each in log.segments)
    assert not all(proved)


@pytest.mark.parametrize("steps", range(1, 6))
@pytest.mark.parametrize("cut", range(1, 12))
def test_a_proof_begins_again_when_the_log_is_cut(steps: int, cut: int) -> None:
    log = unproved()
    proof = TransactionProof(log, 0, 11)
    for _ in range(steps):
        if proof.locate():
            proof.run()
    log.truncate_to(cut)
    log.update_high_watermark(log.log_end_offset)
    while proof.locate():
        proof.run()
    told = [(each.producer_id, each.last_offset) for each in log.aborted_transactions(0, 11)]
    assert told == [(producer, last) for producer, last in [(1, 8), (2, 4)] if last < cut]
