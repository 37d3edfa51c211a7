"""The batches of a topic's partitions on their way out: order, sequence numbers, the sticky choice.

Owns what may go out next (a batch of `batch.size`, or one older than `linger.ms`), numbering
(KIP-98) and renumbering under a new epoch (KIP-360), where records without a key go (KIP-480,
KIP-794) and which compression ratio to expect. Must not know memory, nodes, requests or what error
codes mean.

Invariants:
1. Batches leave in the order of their records. While one is to be sent again, only the oldest that
   is not acknowledged goes out, so that no retry overtakes another batch.
2. Without sequence numbers one batch is on the wire at a time.
3. Numbers have no holes: a numbered batch that was given up for good (a hole) keeps new batches
   back until a later success shows that it was written after all, or the numbering starts over.
4. Only batches that are not on the wire and provably in no log are renumbered.
5. The index of a queue in its topic is its partition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, TypeAlias
from uuid import UUID

from moldau.client.config.producer import ProducerConfig
from moldau.client.producer.core.batch import UNNUMBERED, ProducerBatch
from moldau.client.producer.core.transaction_states import NO_PRODUCER, ProducerIdAndEpoch
from moldau.protocol.records import Codec, RecordBuffer, RecordHeaders
from moldau.protocol.types import ZERO_UUID

MAX_NUMBERED_IN_FLIGHT: Final = 5
"""Batches of one producer that a broker remembers per partition to recognise them again."""

RandRange: TypeAlias = Callable[[int], int]
"""A number from 0 up to, not including, the argument."""

RATIO_MARGIN: Final = 1.05
"""How much worse than expected compression may turn out before a batch is too large."""
RATIO_WORSE_STEP: Final = 0.05
RATIO_BETTER_STEP: Final = 0.005
MAX_UNCOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""No batch holds more than this before compression, however well it compresses."""


class _NoRoom:
    """Takes no records, as a full `RecordBuffer`."""

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


@dataclass(slots=True, eq=False, repr=False)
class PartitionQueue:
    """One partition's batches: outstanding (numbered, sent at least once) before waiting ones
    before the one being filled.

    Attributes:
        appender: takes the next record of the partition; `NO_BUFFER` when no batch is filling.
        leader_id, leader_epoch: from the metadata, -1 for none.
        topic_id: from the metadata, ZERO_UUID for none.
        next_ordinal: how many batches have been numbered so far.
        next_sequence: for the next batch to be numbered, counted without wrapping.
        confirmed_sequence: everything before it is known to be in the log.
        has_hole: a numbered batch was given up and may be missing in the log.
        is_broken: a broker has refused a number that was not the next one: no batch goes out before
            the numbering has started over.
        known_to_log: the producer id of which a batch is known to be in the topic's log.
        idle_since_ms: when the last batch ended, while there are none.
    """

    topic: str
    partition: int
    appender: RecordBuffer | _NoRoom = NO_BUFFER
    filling: ProducerBatch | None = None
    waiting: deque[ProducerBatch] = field(default_factory=deque)
    outstanding: list[ProducerBatch] = field(default_factory=list)
    is_active: bool = False
    leader_id: int = -1
    leader_epoch: int = -1
    topic_id: UUID = ZERO_UUID
    pair: ProducerIdAndEpoch = NO_PRODUCER
    next_sequence: int = 0
    next_ordinal: int = 0
    confirmed_sequence: int = 0
    has_hole: bool = False
    is_broken: bool = False
    known_to_log: int = NO_PRODUCER.producer_id
    idle_since_ms: float = 0.0

    # -- filling ---------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.filling is None and not self.waiting and not self.outstanding

    @property
    def batch_count(self) -> int:
        return len(self.waiting) + (self.filling is not None)

    def open(self, batch: ProducerBatch, buffer: RecordBuffer) -> None:
        assert self.filling is None
        self.filling = batch
        self.appender = buffer

    def close_filling(self) -> ProducerBatch:
        """Put the batch being filled behind the waiting ones; it takes no more records."""
        batch = self.filling
        assert batch is not None
        self.filling = None
        self.appender = NO_BUFFER
        self.waiting.append(batch)
        return batch

    # -- going out -------------------------------------------------------------------------------

    def topic_seen(self, topic_id: UUID) -> None:
        """Take the topic's id from the metadata; that of another topic stands for an empty log."""
        if topic_id != self.topic_id:
            self.topic_id = topic_id
            self.known_to_log = NO_PRODUCER.producer_id

    def is_retrying(self) -> bool:
        return any(not batch.is_on_wire for batch in self.outstanding)

    def retry_due_ms(self) -> float | None:
        """When the oldest batch may be sent again; None while it is not its turn."""
        batch = self.outstanding[0]
        if batch.is_on_wire or batch.is_done or self.is_broken:
            return None
        if 0 <= batch.sent_leader_epoch < self.leader_epoch:
            # A newer leader than the one that refused it: no reason to wait (KIP-951).
            return 0.0
        return batch.not_before_ms

    def may_start_another(self, *, max_outstanding: int) -> bool:
        """Whether a batch that never went out may do so now, as far as order is concerned."""
        if self.outstanding and max_outstanding > 1 and self.known_to_log != self.pair.producer_id:
            # A log that does not know the producer accepts any first number. Two in flight:
            #   1. batch 0 is refused for a moment (no leader, too few replicas, …)
            #   2. batch 1 is accepted, as the first of its producer
            #   3. batch 0 is sent again: out of order, lost for good
            # So does the log of a topic that was created again, while batch 0 waits at the former.
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
        """How many batches have been numbered since the oldest that is not acknowledged. With more
        than a log remembers, it would not recognise that batch when it is sent again:
            1. batch 0 is written, its acknowledgement lost; 1 to 4 are acknowledged
            2. batch 0 is on the wire again, and a batch 5 behind it
            3. batch 0 is refused for a moment, 5 is written, and the log forgets 0
            4. batch 0 is sent a third time: out of order, and written again under a new epoch
        """
        return self.next_ordinal - self.outstanding[0].ordinal

    def take_waiting(self) -> ProducerBatch:
        """Take the next batch that never went out; it is outstanding from now on."""
        if not self.waiting:
            self.close_filling()
        batch = self.waiting.popleft()
        self.outstanding.append(batch)
        return batch

    # -- numbering -------------------------------------------------------------------------------

    def adopt(self, pair: ProducerIdAndEpoch) -> None:
        assert not self.outstanding
        self.pair = pair
        self.next_sequence = 0
        self.next_ordinal = 0
        self.confirmed_sequence = 0
        self.has_hole = False
        self.is_broken = False

    def number(self, batch: ProducerBatch) -> None:
        assert not self.has_hole
        batch.number(self.pair, self.next_sequence)
        self.next_sequence += batch.record_count
        batch.ordinal = self.next_ordinal
        self.next_ordinal += 1

    def wants_new_pair(self) -> bool:
        """Whether the partition stands still until there is another producer epoch."""
        return self.is_broken or (self.has_hole and not self.outstanding)

    def may_renumber(self, pair: ProducerIdAndEpoch) -> bool:
        """Whether the outstanding batches can be renumbered under `pair`."""
        return (
            pair != self.pair
            and self.is_broken
            and all(not batch.is_on_wire for batch in self.outstanding)
        )

    def renumber(self, pair: ProducerIdAndEpoch) -> None:
        """Number the outstanding batches from 0 under a new pair (see invariant 4)."""
        outstanding, self.outstanding = self.outstanding, []
        self.adopt(pair)
        self.outstanding = outstanding
        for batch in outstanding:
            assert not batch.may_be_written
            self.number(batch)

    # -- coming back -----------------------------------------------------------------------------

    def confirm(self, batch: ProducerBatch) -> None:
        """Remove a batch that is in the log, as is everything numbered before it."""
        self.outstanding.remove(batch)
        if batch.is_numbered and batch.pair == self.pair:
            if batch.sent_topic_id == self.topic_id:
                self.known_to_log = self.pair.producer_id
            self.confirmed_sequence = max(self.confirmed_sequence, batch.end_sequence)
            if self.confirmed_sequence == self.next_sequence:
                self.has_hole = False

    def give_up(self, batch: ProducerBatch) -> None:
        """Remove a batch that is not sent again and was not acknowledged."""
        self.outstanding.remove(batch)
        if not batch.is_numbered or batch.pair != self.pair:
            return
        if not batch.may_be_written and batch.end_sequence == self.next_sequence:
            self.next_sequence = batch.base_sequence
            batch.base_sequence = UNNUMBERED
        else:
            self.has_hole = True

    def replace_outstanding(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        place = self.outstanding.index(batch)
        for ordinal, part in enumerate(parts, batch.ordinal):
            part.ordinal = ordinal
        for later in self.outstanding[place + 1 :]:
            later.ordinal += len(parts) - 1
        self.next_ordinal += len(parts) - 1
        self.outstanding[place : place + 1] = parts

    def sequence_refused(self) -> None:
        """Note that the oldest batch did not have the next number of the log: no batch behind it is
        in the log either, and none can get there under these numbers.
        """
        self.is_broken = True
        for batch in self.outstanding:
            batch.may_be_written = False


class TopicQueues:
    """One topic. `leaders` of `set_leaders` say how many partitions it has.

    Attributes:
        queues: by partition.
        sticky: the current partition for records without a key; None before the first.
        ratio: compressed / uncompressed size, as expected.
    """

    __slots__ = ("_config", "_produced_bytes", "name", "queues", "ratio", "sticky")

    def __init__(self, name: str, config: ProducerConfig) -> None:
        self.name: str = name
        self.queues: list[PartitionQueue] = []
        self.sticky: PartitionQueue | None = None
        self.ratio: float = 1.0
        self._config = config
        self._produced_bytes = 0.0

    def set_leaders(self, leaders: Sequence[tuple[int, int]], topic_id: UUID = ZERO_UUID) -> None:
        for partition, (leader_id, leader_epoch) in enumerate(leaders):
            if partition == len(self.queues):
                self.queues.append(PartitionQueue(self.name, partition))
            queue = self.queues[partition]
            queue.leader_id = leader_id
            queue.leader_epoch = leader_epoch
            queue.topic_seen(topic_id)
        # A topic that was created again may have fewer. Batches of the other partitions expire.
        for queue in self.queues[len(leaders) :]:
            queue.leader_id = -1
        while len(self.queues) > len(leaders) and self.queues[-1].is_empty:
            self.queues.pop()
        self.sticky = self.sticky if self.sticky in self.queues else None

    # -- compression -----------------------------------------------------------------------------

    def batch_limit_bytes(self) -> int:
        """How much a new batch may hold before compression to have `batch.size` after it."""
        config = self._config
        if config.codec is Codec.NONE:
            return min(config.batch_size, config.max_request_size)
        expected = int(config.batch_size / (self.ratio * RATIO_MARGIN))
        return min(expected, config.buffer_memory, MAX_UNCOMPRESSED_BYTES)

    def compressed(self, uncompressed_bytes: int, compressed_bytes: int) -> None:
        """Adapt the ratio to a batch: quickly when it is worse, slowly when it is better."""
        seen = compressed_bytes / max(uncompressed_bytes, 1)
        if seen > self.ratio:
            self.ratio = max(self.ratio + RATIO_WORSE_STEP, seen)
        elif seen < self.ratio:
            self.ratio = max(self.ratio - RATIO_BETTER_STEP, seen, 0.01)

    def too_large(self) -> None:
        """Expect nothing of compression, since a batch was too large for the broker."""
        self.ratio = max(self.ratio, 1.0)

    # -- records without a key -------------------------------------------------------------------

    def count(self, queue: PartitionQueue, size_bytes: int) -> None:
        """Count a closed batch; after `batch.size` bytes another partition is due."""
        if queue is self.sticky:
            self._produced_bytes += size_bytes * self.ratio
            if self._produced_bytes >= self._config.batch_size:
                self.sticky = None

    def filled(self, queue: PartitionQueue) -> None:
        """Make another partition due, since a record did not fit into the batch."""
        if queue is self.sticky:
            self.sticky = None

    def choose_sticky(
        self, randrange: RandRange, slow_since_ms: Mapping[int, float], now_ms: float
    ) -> PartitionQueue:
        """Choose the partition for records without a key: at random, the shorter its queue the more
        likely, among partitions with a leader that takes requests. `slow_since_ms`: nodes that have
        not been ready for a request, and since when.
        """
        timeout_ms = self._config.partitioner_availability_timeout_ms
        led = [queue for queue in self.queues if queue.leader_id >= 0] or self.queues
        if timeout_ms > 0:
            led = [
                queue
                for queue in led
                if now_ms - slow_since_ms.get(queue.leader_id, now_ms) <= timeout_ms
            ] or led
        chosen = self._chosen(led, randrange)
        self.sticky = chosen
        self._produced_bytes = 0.0
        return chosen

    def _chosen(self, candidates: list[PartitionQueue], randrange: RandRange) -> PartitionQueue:
        if self._config.partitioner_adaptive_partitioning_enable and len(candidates) > 1:
            sizes = [len(queue.waiting) for queue in candidates]
            most = max(sizes)
            if most:
                totals = list(accumulate(most + 1 - size for size in sizes))
                return candidates[bisect_right(totals, randrange(totals[-1]))]
        return candidates[randrange(len(candidates))]
