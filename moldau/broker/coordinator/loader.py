"""Loading a coordinator's partition: its log, from start to end, into its state machine.

Owns the reading piece by piece, off the loop, the turns it leaves to others, and the rule for what
cannot be read: a record of an unknown type is skipped (a newer coordinator wrote it), anything else
that does not decode ends the loading. Must not decide when a partition is loaded (the runtime
does). Invariant: a shard becomes active in the same turn of the loop in which the end of the log
was reached, still leading in its epoch; nothing comes between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Generic

from moldau.broker.coordinator.core.result import CoordinatorRecord, Producer
from moldau.broker.coordinator.shard import ShardState, StateT
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.records import (
    BatchHeader,
    ControlRecordType,
    InvalidBatch,
    Record,
    decode_control_key,
    decode_records,
    iter_batches,
)

if TYPE_CHECKING:
    from moldau.broker.coordinator.shard import Shard
    from moldau.protocol.coordinator_records import CoordinatorLog
    from moldau.runtime.clock import Clock

logger = logging.getLogger("moldau.broker.coordinator")

RECORDS_PER_TURN: Final = 256
BYTES_PER_TURN: Final = 128 * 1024
"""Records, or bytes of them, that are replayed before the loop gets a turn."""

RETRY_MS: Final = 50
"""The pause before a log that cannot be read now (one that is just being opened) is tried again; it
doubles up to MAX_RETRY_MS (a disk that failed)."""
MAX_RETRY_MS: Final = 2_000


class UnreadableLog(Exception):
    """The log holds something that no coordinator wrote, or that was changed since."""


class LogLoader(Generic[StateT]):
    """Replays one shard's log from its start, once; a log that cannot be read now needs another
    loader, and a new state machine.
    """

    __slots__ = ("_known_types", "_log", "_next_offset", "_record_count", "_shard", "_skipped")

    def __init__(self, shard: Shard[StateT], log: CoordinatorLog) -> None:
        self._shard = shard
        self._log = log
        self._known_types = frozenset(log.record_types())
        self._skipped: set[int] = set()
        self._next_offset = 0
        self._record_count = 0

    async def load(self, buffer_bytes: int, clock: Clock) -> bool:
        """Load the shard, or stop when it is unloaded. False when the log cannot be read now: try
        again later, from its start.

        A log that does not decode fails the shard: a coordinator that guesses would hand out
        offsets that no client committed.
        """
        shard = self._shard
        if not shard.is_led:
            return False
        begin_ms = clock.monotonic_ms()
        self._next_offset = shard.partition.log_start_offset
        has_ended = False
        try:
            is_whole = await self._replay_all(buffer_bytes)
            has_ended = True
        except UnreadableLog as problem:
            logger.error("%s cannot be loaded: %s", shard.name, problem)
        finally:
            if not has_ended and shard.state is ShardState.LOADING:
                shard.fail()
        if not has_ended or shard.state is not ShardState.LOADING:
            return True
        if is_whole:
            logger.info(
                "%s: loaded %d records up to offset %d in leader epoch %d, in %.0f ms",
                shard.name,
                self._record_count,
                self._next_offset,
                shard.leader_epoch,
                clock.monotonic_ms() - begin_ms,
            )
            shard.activate(self._next_offset)
        return is_whole

    async def _replay_all(self, buffer_bytes: int) -> bool:
        """Whether the end of the log was reached, in this very turn of the loop; also False when
        the shard was unloaded. Raises UnreadableLog.
        """
        shard, partition = self._shard, self._shard.partition
        while shard.is_led and partition.log_start_offset <= self._next_offset:
            end_offset = partition.log_end_offset
            if self._next_offset >= end_offset:
                return True
            piece = await partition.read(self._next_offset, buffer_bytes)
            if piece.error is not ErrorCode.NONE or shard.state is not ShardState.LOADING:
                return False
            for _ in self.feed(piece.records):
                await asyncio.sleep(0)
                if shard.state is not ShardState.LOADING:
                    return False
            # Compaction leaves nothing between batches, and nothing behind the last one.
            found_end = piece.next_offset if piece.records else end_offset
            self._next_offset = max(self._next_offset, found_end)
        return False

    def feed(self, batches: bytes) -> Iterator[None]:
        """Replay whole batches in order; yields now and then, for the loop to have its turn.
        Raises: UnreadableLog.
        """
        try:
            for position, header in iter_batches(batches):
                if header.next_offset <= self._next_offset:
                    continue
                if header.is_control:
                    self._replay_control(batches, position, header)
                else:
                    yield from self._replay_data(batches, position, header)
                self._next_offset = header.next_offset
        except (InvalidBatch, RemoteProtocolError) as error:
            raise UnreadableLog(
                f"{self._shard.name} at offset {self._next_offset}: {error}"
            ) from error

    def _replay_control(self, batches: bytes, position: int, header: BatchHeader) -> None:
        """An end marker; a batch whose records compaction removed ends nothing any more."""
        producer = Producer(header.producer_id, header.producer_epoch)
        for record in decode_records(batches, position):
            kind = decode_control_key(record.key).type
            if kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
                self._shard.machine.replay_end_marker(
                    producer, is_commit=kind == ControlRecordType.COMMIT
                )

    def _replay_data(self, batches: bytes, position: int, header: BatchHeader) -> Iterator[None]:
        producer = None
        if header.is_transactional:
            producer = Producer(header.producer_id, header.producer_epoch)
        turn_bytes = 0
        for record in decode_records(batches, position):
            if record.offset >= self._next_offset:
                self._replay_record(record, producer)
            turn_bytes += len(record.key or b"") + len(record.value or b"")
            if not self._record_count % RECORDS_PER_TURN or turn_bytes >= BYTES_PER_TURN:
                turn_bytes = 0
                yield

    def _replay_record(self, record: Record, producer: Producer | None) -> None:
        self._record_count += 1
        if record.key is None:
            raise RemoteProtocolError("a record without a key")
        type_id = int.from_bytes(record.key[:2], "big", signed=True)
        if len(record.key) >= 2 and type_id not in self._known_types:
            if type_id not in self._skipped:
                self._skipped.add(type_id)
                logger.warning(
                    "%s: records of the unknown type %d are skipped (the first at offset %d)",
                    self._shard.name,
                    type_id,
                    record.offset,
                )
            return
        key = self._log.decode_key(record.key)
        if record.value is None:
            replayed = CoordinatorRecord(key, None)
        else:
            replayed = CoordinatorRecord(key, *self._log.decode_value(key, record.value))
        self._shard.machine.replay(replayed, record.offset, producer)
