"""One idempotent or transactional producer of a partition: what is known, what an append changes.

Owns: the entry with the producer's last batches, the rules for epochs, sequences, duplicates and
transaction boundaries of a batch. Must not: change the state itself (`ProducerState` does, once the
bytes are in the file), or persist.
Invariant: an update that is dropped leaves no trace. Sources: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import (
    BatchHeader,
    ControlRecordType,
    InvalidBatch,
    decode_end_txn_marker,
    decode_records,
)
from moldau.storage.append import rejected
from moldau.storage.faults import AppendRejected

RETAINED_BATCH_COUNT = 5
"""A producer may have at most five requests in flight per connection (KIP-98)."""
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_EPOCH = -1
MAX_SEQUENCE = 2**31 - 1
MAX_PRODUCER_EPOCH = 2**15 - 1

FIRST_VERSION_WITH_EPOCH_BUMP = 2
"""From this `transaction.version` on each transaction has its own epoch, and its marker carries the
next one (KIP-890)."""


class Verification(Protocol):
    """What the broker learnt of a producer while it verified the transaction (KIP-890)."""

    lowest_sequence: int
    """The lowest first sequence of the batches that wait or were refused."""
    supports_epoch_bump: bool
    """Whether the producer gives every transaction its own epoch (transaction version 2)."""


class ProducerBatch(NamedTuple):
    """Sequence range and place of one appended batch."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True, eq=False)
class ProducerEntry:
    """One producer's epoch, last batches and open transaction.

    `batches` are the last at most five of `producer_epoch`, oldest first, contiguous in sequence.
    """

    producer_id: int
    producer_epoch: int = NO_EPOCH
    batches: list[ProducerBatch] = field(default_factory=list)
    last_timestamp_ms: int = -1
    """Last append of the producer by the broker's clock, not by record timestamps."""
    coordinator_epoch: int = NO_EPOCH
    current_txn_first_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record of this epoch, -1 when there is none yet."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the last data record of this epoch, -1 when there is none."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def find_duplicate(self, header: BatchHeader) -> ProducerBatch | None:
        """The batch among the last five that this one repeats, if any.

        Only batches of the same transaction count: librdkafka reuses the sequences of records that
        it drops in an abort for the next transaction, with the same epoch. If such a record was
        written all the same (the answer was NOT_LEADER_OR_FOLLOWER, which librdkafka takes for
        "no"), the next transaction's first batch looks like a retry, and treating it as one would
        lose it.
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


_UNKNOWN = ProducerEntry(producer_id=-1)
"""Stands for any producer that the partition does not know."""


class CompletedTransaction(NamedTuple):
    """A transaction whose marker is being appended: offsets [first_offset, last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerUpdate:
    """The pending effect of one append's batches on one producer."""

    __slots__ = (
        "batches",
        "completed",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_sequence",
        "producer_epoch",
        "producer_id",
        "resets_batches",
        "started_first_offsets",
        "timestamp_ms",
    )

    def __init__(self, producer_id: int, entry: ProducerEntry | None) -> None:
        self.producer_id = producer_id
        self.batches: list[ProducerBatch] = []
        self.completed: list[CompletedTransaction] = []
        self.started_first_offsets: list[int] = []
        self.resets_batches = False
        self.timestamp_ms = -1
        known = _UNKNOWN if entry is None else entry
        self.producer_epoch = known.producer_epoch
        self.last_sequence = known.last_sequence
        self.coordinator_epoch = known.coordinator_epoch
        self.current_txn_first_offset = known.current_txn_first_offset

    def check_data(self, header: BatchHeader, verification: Verification | None) -> None:
        """Whether a client's batch may follow; `verification` if it begins a transaction.

        Raises: AppendRejected with INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or
        INVALID_TXN_STATE.
        """
        self._check_epoch(header)
        if verification is not None:
            self._check_first_sequence(header.base_sequence, verification)
        known_epoch = self.producer_epoch
        if header.producer_epoch != known_epoch:
            # A producer that is not known (also after its expiry) may begin anywhere.
            if header.base_sequence != 0 and known_epoch != NO_EPOCH:
                raise AppendRejected(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {self.producer_id} begins epoch {header.producer_epoch} "
                    f"with sequence {header.base_sequence} instead of 0",
                )
        else:
            expected = 0 if self.last_sequence == MAX_SEQUENCE else self.last_sequence + 1
            if header.base_sequence != expected:
                raise AppendRejected(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {self.producer_id} sent sequence {header.base_sequence}, "
                    f"expected {expected}",
                )
        self._check_transaction(header)

    def check_coordinator_data(self, header: BatchHeader) -> None:
        """Whether a coordinator may write the batch for its producer; sequences do not count.

        Raises: AppendRejected with INVALID_PRODUCER_EPOCH or INVALID_TXN_STATE.
        """
        self._check_epoch(header)
        self._check_transaction(header)

    def _check_epoch(self, header: BatchHeader) -> None:
        if header.producer_epoch < self.producer_epoch:
            raise AppendRejected(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {self.producer_id} sent epoch {header.producer_epoch}, "
                f"the partition has seen {self.producer_epoch}",
            )

    def _check_first_sequence(self, base_sequence: int, verification: Verification) -> None:
        """A transaction's first batch must not overtake one that was sent before it."""
        if verification.supports_epoch_bump and base_sequence and self.last_sequence == NO_SEQUENCE:
            raise AppendRejected(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {self.producer_id} begins with sequence {base_sequence} instead of 0",
            )
        if base_sequence > verification.lowest_sequence:
            raise AppendRejected(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {self.producer_id} sent sequence {base_sequence}, "
                f"{verification.lowest_sequence} came before it",
            )

    def _check_transaction(self, header: BatchHeader) -> None:
        if self.current_txn_first_offset != NO_OFFSET and not header.is_transactional:
            raise AppendRejected(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {self.producer_id} has an open transaction "
                "and sent a batch outside of it",
            )

    def add_data(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Add a batch that gets `base_offset`; `timestamp_ms` is the time of the append."""
        self._move_to_epoch(header.producer_epoch)
        delta = header.last_offset_delta
        last_sequence = header.last_sequence
        self.batches.append(
            ProducerBatch(header.base_sequence, last_sequence, base_offset + delta, delta)
        )
        self.last_sequence = last_sequence
        self.timestamp_ms = timestamp_ms
        if header.is_transactional and self.current_txn_first_offset == NO_OFFSET:
            self.current_txn_first_offset = base_offset
            self.started_first_offsets.append(base_offset)

    def check_marker(
        self, header: BatchHeader, coordinator_epoch: int, transaction_version: int
    ) -> None:
        """Whether a coordinator's end-of-transaction marker may be written.

        With an epoch per transaction the marker's epoch is the one after the transaction's. A
        marker whose epoch is not above the partition's is late and must not end the next
        transaction; without an open transaction it may be written again, and the largest epoch has
        none after it.

        Raises: AppendRejected with INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        producer_epoch, known_epoch = header.producer_epoch, self.producer_epoch
        is_stale = producer_epoch < known_epoch
        if producer_epoch == known_epoch and transaction_version >= FIRST_VERSION_WITH_EPOCH_BUMP:
            is_open = self.current_txn_first_offset != NO_OFFSET
            is_stale = is_open and producer_epoch != MAX_PRODUCER_EPOCH
        if is_stale:
            raise AppendRejected(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"marker of producer {self.producer_id} has epoch {producer_epoch}, "
                f"the partition has seen {known_epoch}",
            )
        if coordinator_epoch < self.coordinator_epoch:
            raise AppendRejected(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker of coordinator epoch {coordinator_epoch}, "
                f"the partition has seen {self.coordinator_epoch}",
            )

    def _move_to_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.resets_batches = True
            self.last_sequence = NO_SEQUENCE
            self.batches.clear()

    def add_control_batch(
        self,
        header: BatchHeader,
        batch: bytes | bytearray | memoryview,
        position: int,
        timestamp_ms: int,
        *,
        check: bool,
        transaction_version: int = 0,
    ) -> None:
        """Add the marker of the control batch at `position` of `batch`, if it ends a transaction.

        A batch whose record compaction removed says nothing. `transaction_version` is that of the
        transaction that the marker ends; `check`: see `check_marker`. Raises: AppendRejected.
        """
        if not header.is_transactional or not header.record_count:
            return
        try:
            marker = decode_end_txn_marker(decode_records(batch, position)[0])
        except InvalidBatch as error:
            raise rejected(error) from None
        except IndexError:
            raise AppendRejected(
                ErrorCode.INVALID_RECORD, "a control batch without record"
            ) from None
        if check:
            self.check_marker(header, marker.coordinator_epoch, transaction_version)
        self._move_to_epoch(header.producer_epoch)
        self.coordinator_epoch = marker.coordinator_epoch
        self.timestamp_ms = timestamp_ms
        if self.current_txn_first_offset != NO_OFFSET:
            is_aborted = marker.type is not ControlRecordType.COMMIT
            self.completed.append(
                CompletedTransaction(
                    self.producer_id, self.current_txn_first_offset, header.base_offset, is_aborted
                )
            )
            self.current_txn_first_offset = NO_OFFSET
