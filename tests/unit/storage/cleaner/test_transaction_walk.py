"""Which batches of aborted transactions go, when markers of some are gone already."""

from __future__ import annotations

from moldau.protocol.records import (
    BatchHeader,
    ControlRecordType,
    EndTxnMarker,
    encode_end_txn_batch,
    read_batch_header,
)
from moldau.storage.cleaner.batch_filter import TransactionWalk
from moldau.storage.indexes import AbortedTransaction
from tests.storage.log_fixtures import START_MS, batch_of


def data(base_offset: int, producer_id: int = 7) -> BatchHeader:
    batch = batch_of(
        "v",
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    return read_batch_header(batch)


def test_a_second_aborted_transaction_follows_a_first_whose_marker_is_gone() -> None:
    walk = TransactionWalk([AbortedTransaction(7, 20, 25, 26), AbortedTransaction(7, 10, 15, 16)])
    assert not walk.is_aborted(data(5))
    assert walk.is_aborted(data(12))
    assert not walk.is_aborted(data(17)), "committed, between the two"
    assert walk.is_aborted(data(22))
    assert not walk.is_aborted(data(27))
    assert not walk.is_aborted(data(23, producer_id=8)), "another producer's"


def test_a_commit_is_empty_when_nothing_of_its_transaction_is_left() -> None:
    marker = encode_end_txn_batch(
        EndTxnMarker(ControlRecordType.COMMIT, 1),
        producer_id=7,
        producer_epoch=0,
        timestamp_ms=START_MS,
    )
    header = read_batch_header(marker)
    walk = TransactionWalk([])
    assert not walk.is_aborted(data(5))
    assert not walk.is_empty_end(header, marker)
    assert walk.is_empty_end(header, marker)
