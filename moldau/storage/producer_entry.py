"""ProducerEntry: what a partition remembers of one idempotent or transactional producer.

Owns: the entry's fields and the search for a duplicate among its last batches.
Must not: validate or persist.
Invariant: `batches` are the last at most five of `producer_epoch`, oldest first, contiguous in
sequence. Source: KIP-98 (five in-flight requests per connection are the most a producer may have).
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.protocol.records import BatchHeader

RETAINED_BATCH_COUNT = 5
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_EPOCH = -1


class ProducerBatch(NamedTuple):
    """Sequence range and place of one appended batch."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int

    @property
    def first_offset(self) -> int:
        """Offset of the batch's first record."""
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """One producer's epoch, last batches and open transaction."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp_ms",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = NO_EPOCH
        self.batches: list[ProducerBatch] = []
        self.last_timestamp_ms = -1
        """When the broker last heard of the producer (its own clock, not record timestamps)."""
        self.coordinator_epoch = NO_EPOCH
        self.current_txn_first_offset = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record of this epoch, -1 when there is none yet."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the last data record of this epoch, -1 when there is none."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def find_duplicate(self, header: BatchHeader) -> ProducerBatch | None:
        """The batch among the last five that is exactly the one sent again, if any.

        In a transaction only batches of that transaction can be: librdkafka gives the sequences of
        records that it drops in an abort to the next transaction's, with the same epoch. If one was
        written all the same (the answer was NOT_LEADER_OR_FOLLOWER, which it takes for "no"), the
        next transaction's first batch looks like it sent again, and to say yes would lose it.
        """
        if header.producer_epoch != self.producer_epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return None if header.is_transactional and self._is_ended(batch) else batch
        return None

    def _is_ended(self, batch: ProducerBatch) -> bool:
        """Whether the end of the batch's transaction is in the log."""
        first_offset = self.current_txn_first_offset
        return first_offset == NO_OFFSET or batch.last_offset < first_offset
