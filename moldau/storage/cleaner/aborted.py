"""Following transactions through a log that is read batch by batch.

Owns: which producer is inside an aborted transaction at a point of the log, and whether a marker
still has records that it decides about.
Must not: read files. Invariant: batches are given in offset order, all of them. Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from moldau.protocol.records import (
    BatchHeader,
    ControlRecordType,
    decode_control_key,
    decode_records,
)
from moldau.storage.transaction_index import AbortedTransaction


class TransactionWalk:
    """States per producer: outside -> in a committed or an aborted transaction -> outside."""

    __slots__ = ("_committed", "_in_aborted", "_next", "_waiting", "index_entries")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: all aborted transactions that reach into what is going to be read."""
        self._waiting = sorted(aborted, key=attrgetter("first_offset"))
        self._next = 0
        self._in_aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        """Producer id -> its aborted transaction, and whether a batch of it was seen."""
        self._committed: set[int] = set()
        self.index_entries: list[AbortedTransaction] = []
        """Transactions whose marker was met and of which something was there: still needed."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a batch of data: whether its transaction was aborted: nobody may see it."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        current = self._in_aborted.get(header.producer_id)
        if current is None or current[0].last_offset < header.base_offset:
            self._committed.add(header.producer_id)
            return False
        self._in_aborted[header.producer_id] = (current[0], True)
        return True

    def is_empty_end(self, header: BatchHeader, batch: bytes | memoryview) -> bool:
        """Take in a control batch: whether it ends a transaction of which nothing was there.

        Raises: InvalidBatch.
        """
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True  # Its record went in an earlier cleaning.
        control_type = decode_control_key(decode_records(batch)[0].key).type
        if control_type == ControlRecordType.ABORT:
            current = self._in_aborted.pop(header.producer_id, None)
            if current is None or not current[1]:
                return True
            self.index_entries.append(current[0])
            return False
        if control_type == ControlRecordType.COMMIT:
            was_there = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not was_there
        return False

    def take_index_entries(self) -> list[AbortedTransaction]:
        """Those collected since the last call."""
        entries, self.index_entries = self.index_entries, []
        return entries

    def _begin_up_to(self, offset: int) -> None:
        waiting = self._waiting
        while self._next < len(waiting) and waiting[self._next].first_offset <= offset:
            aborted = waiting[self._next]
            current = self._in_aborted.get(aborted.producer_id)
            if current is None or current[0].last_offset < aborted.first_offset:
                self._in_aborted[aborted.producer_id] = (aborted, False)
            self._next += 1
