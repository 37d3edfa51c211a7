"""What one append would do to one producer's state: checked before the write, applied after it.

Owns: the rules for epochs, sequences and transaction boundaries of a batch.
Must not: change the state itself (producer_state does, once the bytes are in the file).
Invariant: an update that is dropped leaves no trace. Source: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

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
from moldau.storage.producer_entry import (
    NO_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    ProducerBatch,
    ProducerEntry,
)

MAX_SEQUENCE = 2**31 - 1
MAX_PRODUCER_EPOCH = 2**15 - 1

FIRST_VERSION_WITH_EPOCH_BUMP = 2
"""From this `transaction.version` on every transaction has an epoch of its own, and its marker
carries the next one (KIP-890)."""


class Verification(Protocol):
    """What was learnt of a producer while its transaction was being verified (KIP-890).

    `lowest_sequence` is the lowest first sequence of the batches that wait or were turned away;
    `supports_epoch_bump` says that the producer gives every transaction an epoch of its own.
    """

    @property
    def lowest_sequence(self) -> int:
        """Of the batches that wait or were turned away."""
        ...

    @property
    def supports_epoch_bump(self) -> bool:
        """Whether it speaks transaction version 2 or newer."""
        ...


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
        if entry is None:
            self.producer_epoch = NO_EPOCH
            self.last_sequence = NO_SEQUENCE
            self.coordinator_epoch = NO_EPOCH
            self.current_txn_first_offset = NO_OFFSET
        else:
            self.producer_epoch = entry.producer_epoch
            self.last_sequence = entry.last_sequence
            self.coordinator_epoch = entry.coordinator_epoch
            self.current_txn_first_offset = entry.current_txn_first_offset

    def check_data(self, header: BatchHeader, verification: Verification | None) -> None:
        """Whether a client's batch may follow.

        `verification` is what is known of a transaction that this batch begins. Raises:
        AppendRejected with INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or
        INVALID_TXN_STATE.
        """
        self._check_epoch(header)
        if verification is not None:
            self._check_first_sequence(header.base_sequence, verification)
        known_epoch = self.producer_epoch
        if header.producer_epoch != known_epoch:
            # A producer never seen (or forgotten after expiry) may begin anywhere.
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
        """Whether a coordinator may write the batch for its producer; it counts no sequences.

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
        """A transaction's first batch here must not overtake one that was sent before it."""
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
        """Take in a batch that gets `base_offset`; `timestamp_ms` is when it is appended."""
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

        With an epoch per transaction the marker's epoch is the one after the transaction's, so one
        that is not above what the partition has seen is late, and must not end the next
        transaction. It may be written again when nothing is open that it could end; and the
        last epoch of all has none after it.

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

    def add_marker(
        self,
        header: BatchHeader,
        coordinator_epoch: int,
        marker_offset: int,
        *,
        is_commit: bool,
        timestamp_ms: int,
    ) -> None:
        """Take in an end-of-transaction marker; an empty transaction leaves no trace."""
        self._move_to_epoch(header.producer_epoch)
        self.coordinator_epoch = coordinator_epoch
        self.timestamp_ms = timestamp_ms
        if self.current_txn_first_offset != NO_OFFSET:
            self.completed.append(
                CompletedTransaction(
                    self.producer_id, self.current_txn_first_offset, marker_offset, not is_commit
                )
            )
            self.current_txn_first_offset = NO_OFFSET

    def _move_to_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.resets_batches = True
            self.last_sequence = NO_SEQUENCE
            self.batches.clear()


def note_marker(
    update: ProducerUpdate,
    records: bytes | bytearray | memoryview,
    position: int,
    header: BatchHeader,
    now_ms: int,
    *,
    check: bool,
    transaction_version: int = 0,
) -> None:
    """Take a transaction's end marker into `update`; other control records say nothing here, nor
    does a batch whose record compaction removed.

    `transaction_version` is that of the transaction it ends. Raises: AppendRejected.
    """
    if not header.is_transactional or not header.record_count:
        return
    try:
        record = decode_records(records, position)[0]
        marker = decode_end_txn_marker(record)
    except (InvalidBatch, IndexError) as error:
        if isinstance(error, InvalidBatch):
            raise rejected(error) from None
        raise AppendRejected(ErrorCode.INVALID_RECORD, "a control batch without record") from None
    if check:
        update.check_marker(header, marker.coordinator_epoch, transaction_version)
    update.add_marker(
        header,
        marker.coordinator_epoch,
        header.base_offset,
        is_commit=marker.type is ControlRecordType.COMMIT,
        timestamp_ms=now_ms,
    )
