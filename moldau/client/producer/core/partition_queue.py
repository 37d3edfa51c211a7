"""The batches of one partition on their way out, their order and their sequence numbers.

Owns what may go out next, numbering (KIP-98) and renumbering under a new epoch (KIP-360). Must not
know memory, nodes or what error codes mean.

Invariants:
1. Batches leave in the order of their records. While one is to be sent again, only the oldest that
   is not acknowledged goes out, so no retry overtakes anything.
2. Without sequence numbers one batch is on the wire at a time.
3. Numbers have no holes: what was numbered and given up for good (a hole) keeps new batches back
   until a later success shows that it was written after all, or the numbering starts anew.
4. Renumbered is only what is not on the wire and provably in no log.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from moldau.client.producer.core.batch import UNNUMBERED, ProducerBatch
from moldau.client.producer.core.transaction_states import NO_PRODUCER, ProducerIdAndEpoch
from moldau.protocol.records import RecordBuffer, RecordHeaders

MAX_NUMBERED_IN_FLIGHT: Final = 5
"""Batches of one producer that a broker remembers per partition to recognise them again."""


class Appender(Protocol):
    """What takes records: a `RecordBuffer`, or nothing at all."""

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders = (),
        /,
    ) -> int:
        """The record's index, or -1 when it does not fit."""


class _NoRoom:
    __slots__ = ()

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders = (),
        /,
    ) -> int:
        return -1


NO_BUFFER: Final = _NoRoom()


class PartitionQueue:
    """One partition's batches: outstanding (numbered, sent at least once) before waiting ones
    before the one being filled.

    Attributes:
        appender: takes the next record of the partition; `NO_BUFFER` when no batch is filling.
        leader_id, leader_epoch: as the metadata says, -1 for none.
        next_ordinal: how many batches have been numbered so far.
        next_sequence: for the next batch to be numbered, counted without wrapping.
        confirmed_sequence: everything before it is known to be in the log.
        has_hole: a numbered batch was given up and may be missing in the log.
        is_broken: a broker has said that a number was not the next one.
        known_to_log: the producer id of which something is known to be in the log.
        idle_since_ms: when the last batch ended, while there are none.
    """

    __slots__ = (
        "appender",
        "confirmed_sequence",
        "filling",
        "has_hole",
        "idle_since_ms",
        "is_active",
        "is_broken",
        "known_to_log",
        "leader_epoch",
        "leader_id",
        "next_ordinal",
        "next_sequence",
        "outstanding",
        "pair",
        "partition",
        "topic",
        "waiting",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.appender: Appender = NO_BUFFER
        self.filling: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.outstanding: list[ProducerBatch] = []
        self.is_active: bool = False
        self.leader_id: int = -1
        self.leader_epoch: int = -1
        self.pair: ProducerIdAndEpoch = NO_PRODUCER
        self.next_sequence: int = 0
        self.next_ordinal: int = 0
        self.confirmed_sequence: int = 0
        self.has_hole: bool = False
        self.is_broken: bool = False
        self.known_to_log: int = NO_PRODUCER.producer_id
        self.idle_since_ms: float = 0.0

    # -- filling ---------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be sent or answered."""
        return self.filling is None and not self.waiting and not self.outstanding

    @property
    def batch_count(self) -> int:
        """Batches that have not gone out yet."""
        return len(self.waiting) + (self.filling is not None)

    def open(self, batch: ProducerBatch, buffer: RecordBuffer) -> None:
        """From now on records go into `batch`."""
        assert self.filling is None
        self.filling = batch
        self.appender = buffer

    def close_filling(self) -> ProducerBatch:
        """The batch being filled takes no more records; it goes behind the waiting ones."""
        batch = self.filling
        assert batch is not None
        self.filling = None
        self.appender = NO_BUFFER
        self.waiting.append(batch)
        return batch

    # -- going out -------------------------------------------------------------------------------

    def is_retrying(self) -> bool:
        """Whether some batch that was sent has come back to be sent again."""
        return any(not batch.is_on_wire for batch in self.outstanding)

    def retry_due_ms(self) -> float | None:
        """When the oldest batch may be sent again; None while it is not its turn."""
        batch = self.outstanding[0]
        if batch.is_on_wire or batch.is_done or self.must_renumber():
            return None
        if 0 <= batch.sent_leader_epoch < self.leader_epoch:
            # Another leader than the one that refused it: no reason to wait (KIP-951).
            return 0.0
        return batch.not_before_ms

    def may_start_another(self, *, max_outstanding: int) -> bool:
        """Whether a batch that never went out may do so now, as far as order is concerned."""
        if self.outstanding and max_outstanding > 1 and self.known_to_log != self.pair.producer_id:
            # A log that does not know the producer takes any first number. Two in flight:
            #   1. batch 0 is refused in passing (no leader, too few replicas, …)
            #   2. batch 1 is taken, as the first of its producer
            #   3. batch 0 comes again: out of order, lost for good
            return False
        if self.outstanding and self._window() >= MAX_NUMBERED_IN_FLIGHT:
            return False
        return (
            len(self.outstanding) < max_outstanding
            and not self.has_hole
            and not self.is_broken
            and not self.is_retrying()
        )

    def _window(self) -> int:
        """How many batches have been numbered since the oldest that is not acknowledged. Beyond
        what a log remembers, it would not recognise that one when it comes again:
            1. batch 0 is written, its acknowledgement lost; 1 to 4 are acknowledged
            2. batch 0 is on the wire again, and a batch 5 behind it
            3. batch 0 is refused in passing, 5 is written, and the log forgets 0
            4. batch 0 comes a third time: out of order, and written again under a new epoch
        """
        return self.next_ordinal - self.outstanding[0].ordinal

    def take_waiting(self) -> ProducerBatch:
        """The next batch that never went out; it is outstanding from now on."""
        if not self.waiting:
            self.close_filling()
        batch = self.waiting.popleft()
        self.outstanding.append(batch)
        return batch

    # -- numbering -------------------------------------------------------------------------------

    def adopt(self, pair: ProducerIdAndEpoch) -> None:
        """Count from 0 under another producer id or epoch; nothing is outstanding."""
        assert not self.outstanding
        self.pair = pair
        self.next_sequence = 0
        self.next_ordinal = 0
        self.confirmed_sequence = 0
        self.has_hole = False
        self.is_broken = False

    def number(self, batch: ProducerBatch) -> None:
        """Give the batch that goes out for the first time the next numbers."""
        assert not self.has_hole
        batch.number(self.pair, self.next_sequence)
        self.next_sequence += batch.record_count
        batch.ordinal = self.next_ordinal
        self.next_ordinal += 1

    def must_renumber(self) -> bool:
        """Whether nothing goes out before the numbering has started anew."""
        return self.is_broken

    def wants_new_pair(self) -> bool:
        """Whether the partition stands still until there is another producer epoch."""
        return self.is_broken or (self.has_hole and not self.outstanding)

    def may_renumber(self, pair: ProducerIdAndEpoch) -> bool:
        """Whether what is outstanding can be numbered anew under `pair`."""
        return (
            pair != self.pair
            and self.is_broken
            and all(not batch.is_on_wire for batch in self.outstanding)
        )

    def renumber(self, pair: ProducerIdAndEpoch) -> None:
        """Number what is outstanding from 0 under a new pair (see invariant 4)."""
        outstanding, self.outstanding = self.outstanding, []
        self.adopt(pair)
        self.outstanding = outstanding
        for batch in outstanding:
            assert not batch.may_be_written
            self.number(batch)

    # -- coming back -----------------------------------------------------------------------------

    def confirm(self, batch: ProducerBatch) -> None:
        """The batch is in the log, and so is everything numbered before it."""
        self.outstanding.remove(batch)
        if batch.is_numbered and batch.pair == self.pair:
            self.known_to_log = self.pair.producer_id
            self.confirmed_sequence = max(self.confirmed_sequence, batch.end_sequence)
            if self.confirmed_sequence == self.next_sequence:
                self.has_hole = False

    def give_up(self, batch: ProducerBatch) -> None:
        """The batch will not be sent again, and nobody acknowledged it."""
        self.outstanding.remove(batch)
        if not batch.is_numbered or batch.pair != self.pair:
            return
        if not batch.may_be_written and batch.end_sequence == self.next_sequence:
            self.next_sequence = batch.base_sequence
            batch.base_sequence = UNNUMBERED
        else:
            self.has_hole = True

    def replace_outstanding(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """The parts of a batch take its place."""
        place = self.outstanding.index(batch)
        for ordinal, part in enumerate(parts, batch.ordinal):
            part.ordinal = ordinal
        for later in self.outstanding[place + 1 :]:
            later.ordinal += len(parts) - 1
        self.next_ordinal += len(parts) - 1
        self.outstanding[place : place + 1] = parts

    def sequence_refused(self) -> None:
        """The oldest batch had not the number that the log comes to next: none of those behind it
        can be in the log either, and none ever gets there under these numbers.
        """
        self.is_broken = True
        for batch in self.outstanding:
            batch.may_be_written = False
