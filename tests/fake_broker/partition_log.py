"""One partition's log in memory, with the rules a leader applies to what producers append.

Owns batches, producer state (sequences, epochs, duplicates), transactions in this partition and
leader epochs. Must not know brokers or requests. Invariant: `batches` are contiguous in offsets up
to `log_end_offset`, and every one passed its CRC.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from moldau.protocol import ErrorCode
from moldau.protocol.records import (
    BatchHeader,
    ControlRecordType,
    EndTxnMarker,
    InvalidBatch,
    Record,
    decode_records,
    encode_end_txn_batch,
    increment_sequence,
    iter_batches,
    patch_batch,
    read_batch_header,
    validate_records,
    verify_crc,
)

REMEMBERED_BATCHES_COUNT = 5
NO_TIMESTAMP_MS = -1


class Refused(Exception):
    """An append that the log refuses."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


@dataclass(slots=True)
class StoredBatch:
    """A batch as it lies in the log."""

    header: BatchHeader
    data: bytes


@dataclass(slots=True)
class AppendedBatch:
    """What is remembered of a producer's batch, to know it again."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@dataclass(slots=True)
class ProducerEntry:
    """A producer as this partition knows it."""

    epoch: int
    batches: deque[AppendedBatch] = field(
        default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES_COUNT)
    )


@dataclass(slots=True)
class AbortedRange:
    """An aborted transaction's part of this log; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Appended:
    """Where a batch went; `is_duplicate`: where it had gone before."""

    base_offset: int
    is_duplicate: bool = False


class PartitionLog:
    """A partition's log; all replicas share it, so a new leader has everything acknowledged."""

    def __init__(self, *, max_message_bytes: int = 1024 * 1024 + 12) -> None:
        self.max_message_bytes = max_message_bytes
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.leader_epoch = 0
        self.epoch_starts: list[tuple[int, int]] = [(0, 0)]
        self.batches: list[StoredBatch] = []
        self.producers: dict[int, ProducerEntry] = {}
        self.open_transactions: dict[int, int] = {}
        self.aborted: list[AbortedRange] = []
        self.duplicate_count = 0
        self.held_high_watermark: int | None = None

    @property
    def high_watermark(self) -> int:
        """The end of what consumers may see; the log's end unless a test holds it back."""
        if self.held_high_watermark is None:
            return self.log_end_offset
        return min(self.held_high_watermark, self.log_end_offset)

    @property
    def last_stable_offset(self) -> int:
        """Where the earliest open transaction begins, else the high watermark."""
        return min((self.high_watermark, *self.open_transactions.values()))

    # -- appending ------------------------------------------------------------------------------

    def append(
        self,
        data: bytes | bytearray | memoryview,
        *,
        idempotent_only: bool,
        begins_at_zero: bool = False,
    ) -> Appended:
        """Append the one batch of a produce request, or recognise it.

        `idempotent_only`: the request carries no transactional id. `begins_at_zero`: a producer
        that is not known (any more) has to begin with sequence 0, as in transactions of version 2;
        otherwise it may begin anywhere.

        Raises Refused.
        """
        batch = bytearray(data)
        header = self._checked(batch)
        if header.is_transactional == idempotent_only:
            raise Refused(ErrorCode.INVALID_RECORD, "batch and request disagree on a transaction")
        if header.has_producer_id:
            known = self._check_producer(header, begins_at_zero)
            if known is not None:
                self.duplicate_count += 1
                return Appended(known.base_offset, is_duplicate=True)
        base_offset = self._store(batch)
        if header.has_producer_id:
            self._remember(header, base_offset)
        return Appended(base_offset)

    def _checked(self, batch: bytearray) -> BatchHeader:
        try:
            found = list(iter_batches(batch))
            if len(found) != 1:
                raise Refused(
                    ErrorCode.INVALID_RECORD, f"{len(found)} batches for one partition, not 1"
                )
            header = found[0][1]
            if header.size_bytes > self.max_message_bytes:
                raise Refused(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"{header.size_bytes} bytes are over max.message.bytes",
                )
            if not verify_crc(batch, 0, header):
                raise Refused(ErrorCode.CORRUPT_MESSAGE, "the CRC does not match")
            validate_records(batch, 0, header)
        except InvalidBatch as error:
            raise Refused(ErrorCode[error.reason.error_name], str(error)) from error
        return header

    def _check_producer(self, header: BatchHeader, begins_at_zero: bool) -> AppendedBatch | None:
        """Epoch and sequence, as a leader checks them (KIP-98, KIP-360, KIP-890)."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            if begins_at_zero and header.base_sequence != 0:
                raise Refused(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"sequence {header.base_sequence} begins a transaction",
                )
            return None
        if header.producer_epoch < entry.epoch:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {header.producer_epoch} is older than {entry.epoch}",
            )
        if header.producer_epoch > entry.epoch:
            if header.base_sequence != 0:
                raise Refused(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"sequence {header.base_sequence} begins epoch {header.producer_epoch}",
                )
            return None
        for known in entry.batches:
            if (known.first_sequence, known.last_sequence) == (
                header.base_sequence,
                header.last_sequence,
            ):
                return known
        expected = 0
        if entry.batches:
            expected = increment_sequence(entry.batches[-1].last_sequence, 1)
        if header.base_sequence != expected:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sequence {header.base_sequence} where {expected} was expected",
            )
        return None

    def _store(self, batch: bytearray) -> int:
        base_offset = self.log_end_offset
        patch_batch(batch, 0, base_offset=base_offset, partition_leader_epoch=self.leader_epoch)
        header = read_batch_header(batch)
        self.batches.append(StoredBatch(header, bytes(batch)))
        self.log_end_offset = header.next_offset
        return base_offset

    def _remember(self, header: BatchHeader, base_offset: int) -> None:
        entry = self.producers.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self.producers[header.producer_id] = ProducerEntry(header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        entry.batches.append(
            AppendedBatch(header.base_sequence, header.last_sequence, base_offset, last_offset)
        )
        if header.is_transactional:
            self.open_transactions.setdefault(header.producer_id, base_offset)

    def append_records(self, records: list[Record]) -> int:
        """Append a batch of a test's own, without a producer id; its base offset."""
        from moldau.protocol.records import encode_batch

        return self._store(encode_batch(records))

    def append_raw(self, batch: bytes) -> int:
        """Append a batch as it is, unchecked (damaged ones too, as long as the header is whole)."""
        return self._store(bytearray(batch))

    def end_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, timestamp_ms: int
    ) -> int:
        """Write the marker that ends a producer's transaction here; its offset."""
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        offset = self._store(
            encode_end_txn_batch(
                EndTxnMarker(kind, coordinator_epoch=0),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                timestamp_ms=timestamp_ms,
            )
        )
        first_offset = self.open_transactions.pop(producer_id, None)
        if first_offset is not None and not commit:
            self.aborted.append(AbortedRange(producer_id, first_offset, offset))
        entry = self.producers.get(producer_id)
        if entry is None or entry.epoch != producer_epoch:
            # The marker's epoch is the producer's from now on: older ones are fenced.
            self.producers[producer_id] = ProducerEntry(producer_epoch)
        return offset

    def forget_producer(self, producer_id: int) -> None:
        """Lose a producer's state, as retention does."""
        self.producers.pop(producer_id, None)

    # -- leadership, truncation -----------------------------------------------------------------

    def begin_epoch(self) -> int:
        """A new leader: the next leader epoch begins at the log's end."""
        self.leader_epoch += 1
        self.epoch_starts.append((self.leader_epoch, self.log_end_offset))
        return self.leader_epoch

    def truncate_to(self, offset: int) -> None:
        """Lose everything from `offset` on (an unclean election), at a batch's beginning."""
        while self.batches and self.batches[-1].header.base_offset >= offset:
            self.batches.pop()
        self.log_end_offset = max(
            self.batches[-1].header.next_offset if self.batches else self.log_start_offset,
            self.log_start_offset,
        )
        self.epoch_starts = [
            (epoch, min(start, self.log_end_offset)) for epoch, start in self.epoch_starts
        ]

    def delete_before(self, offset: int) -> None:
        """Move the log's start; batches wholly below it go."""
        self.log_start_offset = max(self.log_start_offset, offset)
        while self.batches and self.batches[0].header.last_offset < self.log_start_offset:
            self.batches.pop(0)

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch not above `leader_epoch`; (-1, -1) for none."""
        if leader_epoch == self.leader_epoch:
            return self.leader_epoch, self.log_end_offset
        if leader_epoch > self.leader_epoch:
            return -1, -1
        for index in range(len(self.epoch_starts) - 1, -1, -1):
            if self.epoch_starts[index][0] <= leader_epoch:
                return self.epoch_starts[index][0], self.epoch_starts[index + 1][1]
        return -1, -1

    # -- reading --------------------------------------------------------------------------------

    def read(self, offset: int, max_offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Whole batches from the one with `offset` on, below `max_offset`."""
        parts: list[bytes] = []
        size_bytes = 0
        place = bisect_left(self.batches, offset, key=lambda batch: batch.header.last_offset)
        for batch in self.batches[place:]:
            if batch.header.last_offset >= max_offset:
                break
            first_one = at_least_one and not parts
            if size_bytes + len(batch.data) > max_bytes and not first_one:
                break
            parts.append(batch.data)
            size_bytes += len(batch.data)
        return b"".join(parts)

    def records(self, *, committed_only: bool = False) -> list[Record]:
        """Every record below the high watermark, control records left out.

        `committed_only` leaves out aborted transactions too, and ends at the last stable offset.
        """
        end = self.last_stable_offset if committed_only else self.high_watermark
        return [
            record
            for batch in self.batches
            if not batch.header.is_control and batch.header.last_offset < end
            if not (committed_only and self._is_aborted(batch.header))
            for record in decode_records(batch.data)
            if record.offset >= self.log_start_offset
        ]

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset <= each.last_offset
            for each in self.aborted
        )

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedRange]:
        """Aborted transactions with something in the range, earliest first."""
        return sorted(
            (
                each
                for each in self.aborted
                if each.last_offset >= first_offset and each.first_offset < end_offset
            ),
            key=lambda each: each.first_offset,
        )

    def epoch_at(self, offset: int) -> int:
        """The leader epoch under which `offset` was (or will be) written."""
        found = -1
        for epoch, start in self.epoch_starts:
            if start <= offset:
                found = epoch
        return found

    def find_timestamp(self, timestamp_ms: int) -> Record | None:
        """The first visible record at or after a time."""
        return next((each for each in self._timed() if each.timestamp_ms >= timestamp_ms), None)

    def latest_timestamp(self) -> Record | None:
        """The record of the largest timestamp."""
        return max(self._timed(), key=lambda each: each.timestamp_ms, default=None)

    def _timed(self) -> Iterator[Record]:
        return iter(self.records())
