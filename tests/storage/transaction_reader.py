"""A reader of committed data, as clients are: it skips what the answers list as aborted.

It relies on the order in which aborted transactions are listed (by first offset), as clients do
that look at the next one in line only, and on nothing else that the broker knows.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    ControlRecordType,
    Record,
    decode_end_txn_marker,
    decode_records,
    iter_batches,
)
from moldau.storage.indexes import AbortedTransaction
from moldau.storage.log import Log
from moldau.storage.transaction_proof import TransactionProof


def read_committed(
    log: Log, offset: int | None = None, *, max_bytes: int = 1 << 20, upper: int | None = None
) -> list[Record]:
    """Every committed record from `offset` (the log's start) up to the last stable offset, or
    `upper` below it.
    """
    at = log.log_start_offset if offset is None else offset
    limit = log.last_stable_offset if upper is None else min(upper, log.last_stable_offset)
    found: list[Record] = []
    while at < limit:
        data, next_offset = _fetch(log, at, limit, max_bytes)
        waiting = [
            (each.first_offset, each.producer_id)
            for each in aborted_transactions(log, at, next_offset)
        ]
        found += [record for record in _visible(data, waiting) if at <= record.offset < limit]
        assert next_offset > at, "a read makes way"
        at = next_offset
    return found


def aborted_transactions(
    log: Log, start_offset: int, upper_bound_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions of a range, proved first where they have to be, as by a broker."""
    proof = TransactionProof(log, start_offset, upper_bound_offset)
    while proof.locate():
        proof.run()
    return log.aborted_transactions(start_offset, upper_bound_offset)


def _fetch(log: Log, offset: int, limit: int, max_bytes: int) -> tuple[bytes, int]:
    result = log.read(offset, max_bytes=max_bytes, max_offset=limit)
    if result.verification is not None:
        result.verification.run()
        result = log.finish_verification(result)
    assert result.error is ErrorCode.NONE, result
    data = bytes(result.records)
    if not isinstance(result.records, bytes):
        result.records.release()
    return data, result.next_offset


def _visible(data: bytes, waiting: list[tuple[int, int]]) -> list[Record]:
    """The records of a fetched piece that are not aborted; `waiting` in the order of the list."""
    aborting: set[int] = set()
    found: list[Record] = []
    for position, header in iter_batches(data):
        while waiting and waiting[0][0] <= header.last_offset:
            aborting.add(waiting.pop(0)[1])
        if header.is_control:
            if header.is_transactional:
                marker = decode_end_txn_marker(decode_records(data, position)[0])
                if marker.type is ControlRecordType.ABORT:
                    aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            found += decode_records(data, position)
    return found
