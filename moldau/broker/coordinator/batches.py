"""Coordinator records to batches, and batches of the log back to what a state machine replays.

Owns the two directions and the rule for what cannot be read: a record of an unknown type is skipped
(a newer coordinator wrote it), anything else that does not decode ends the loading. Must not know
leadership or offsets but those in the batches. Invariant: what `encode` makes, `replay_batches`
gives back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from moldau.broker.coordinator.core.result import CoordinatorRecord, CoordinatorState, Producer
from moldau.protocol.coordinator_records import CoordinatorLog
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.records import (
    BatchHeader,
    Codec,
    ControlRecordType,
    InvalidBatch,
    Record,
    decode_control_key,
    decode_records,
    encode_batch,
    iter_batches,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("moldau.broker.coordinator")

RECORDS_PER_TURN: Final = 256
BYTES_PER_TURN: Final = 128 * 1024
"""Records, or bytes of them, that are replayed before the loop gets a turn."""


class UnreadableLog(Exception):
    """The log holds something that no coordinator wrote, or not any more as it wrote it."""


def encode(
    log: CoordinatorLog,
    records: Sequence[CoordinatorRecord],
    *,
    now_ms: int,
    producer: Producer | None,
    codec: Codec,
) -> bytearray:
    """One batch of the records; in a transaction if a producer is named (without sequence numbers:
    the coordinator, not the producer, writes it).

    Raises: LocalProtocolError when a record does not fit its version.
    """
    rows = [
        record.row
        or Record(
            0,
            now_ms,
            log.encode_key(record.key),
            None if record.value is None else log.encode_value(record.value, record.value_version),
        )
        for record in records
    ]
    if producer is None:
        return encode_batch(rows, codec=codec)
    return encode_batch(
        rows,
        codec=codec,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        is_transactional=True,
    )


class Replay:
    """Feeds the batches of a log into a state machine, in order, from `next_offset` on."""

    __slots__ = (
        "_known_types",
        "_log",
        "_name",
        "_skipped",
        "_state",
        "next_offset",
        "record_count",
    )

    def __init__(
        self, log: CoordinatorLog, name: str, state: CoordinatorState, next_offset: int
    ) -> None:
        self._log = log
        self._name = name
        self._state = state
        self._known_types = frozenset(log.record_types())
        self._skipped: set[int] = set()
        self.next_offset = next_offset
        self.record_count = 0

    def feed(self, batches: bytes) -> Iterator[None]:
        """Replay whole batches; yields now and then, for the loop to have its turn.

        Raises: UnreadableLog.
        """
        try:
            for position, header in iter_batches(batches):
                if header.next_offset <= self.next_offset:
                    continue
                if header.is_control:
                    self._replay_control(batches, position, header)
                else:
                    yield from self._replay_data(batches, position, header)
                self.next_offset = header.next_offset
        except (InvalidBatch, RemoteProtocolError) as error:
            raise UnreadableLog(f"{self._name} at offset {self.next_offset}: {error}") from error

    def _replay_control(self, batches: bytes, position: int, header: BatchHeader) -> None:
        """An end marker; a batch whose records compaction removed ends nothing any more."""
        producer = Producer(header.producer_id, header.producer_epoch)
        for record in decode_records(batches, position):
            kind = decode_control_key(record.key).type
            if kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
                self._state.replay_end_marker(producer, is_commit=kind == ControlRecordType.COMMIT)

    def _replay_data(self, batches: bytes, position: int, header: BatchHeader) -> Iterator[None]:
        producer = None
        if header.is_transactional:
            producer = Producer(header.producer_id, header.producer_epoch)
        turn_bytes = 0
        for record in decode_records(batches, position):
            if record.offset >= self.next_offset:
                self._replay_record(record, producer)
            turn_bytes += len(record.key or b"") + len(record.value or b"")
            if not self.record_count % RECORDS_PER_TURN or turn_bytes >= BYTES_PER_TURN:
                turn_bytes = 0
                yield

    def _replay_record(self, record: Record, producer: Producer | None) -> None:
        self.record_count += 1
        if record.key is None:
            raise RemoteProtocolError("a record without a key")
        type_id = int.from_bytes(record.key[:2], "big", signed=True)
        if len(record.key) >= 2 and type_id not in self._known_types:
            if type_id not in self._skipped:
                self._skipped.add(type_id)
                logger.warning(
                    "%s: records of the unknown type %d are skipped (the first at offset %d)",
                    self._name,
                    type_id,
                    record.offset,
                )
            return
        key = self._log.decode_key(record.key)
        if record.value is None:
            replayed = CoordinatorRecord(key, None)
        else:
            replayed = CoordinatorRecord(key, *self._log.decode_value(key, record.value))
        self._state.replay(replayed, record.offset, producer)
