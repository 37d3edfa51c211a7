"""Records waiting to be sent, batch by batch: the producer's memory.

Owns every batch from its first record to its outcome and the bytes of `buffer.memory`. Must not
send, wait or read a clock: the sender asks it which batches may go out now (`queues` says whether
one is full or has lingered), and `results` applies the answers to them.

Invariants:
1. The batches of `incomplete` are exactly those without an outcome.
2. `free_bytes` plus what batches and held records have reserved is `buffer.memory`; it is below 0
   only by the headers of batches that had to be split.
3. What is appended ends, with an outcome in `finished`, at the latest at `delivery.timeout.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from moldau.client.config.producer import ProducerConfig
from moldau.client.producer.core.batch import Outcome, ProducerBatch
from moldau.client.producer.core.queues import (
    MAX_NUMBERED_IN_FLIGHT,
    PartitionQueue,
    RandRange,
    TopicQueues,
)
from moldau.client.producer.core.transaction_states import NO_PRODUCER, ProducerIdAndEpoch
from moldau.protocol.records import BATCH_HEADER_SIZE, BatchHeader, Codec, RecordBuffer
from moldau.protocol.types import ZERO_UUID

RESERVE_BYTES: Final = 4096
"""A batch's first share of `buffer.memory` when there is little left; doubled as it grows."""
PLENTY_RESERVE_BYTES: Final = 32_768
"""The same, at most, while there is enough for many batches."""
PLENTY_BATCHES: Final = 16
"""How many batches of that size must still find room."""
FORGOTTEN_MS: Final = 600_000.0
"""Brokers remember an idle producer at least this long (a day by default)."""
NEVER: Final = float("inf")


class Room(Enum):
    """The outcome of a request for room for a record."""

    MADE = "made"
    BATCH_CLOSED = "batch closed"
    """The batch was full. Ask again, after choosing the partition again if the choice is free."""
    NO_MEMORY = "no memory"
    """`buffer.memory` is used up."""


class Ready(NamedTuple):
    """The batches that could be sent.

    Attributes:
        by_leader: partitions with batches to send, by leader; those of one node go out together as
            soon as one of them is `due`.
        due: leaders that get a request now.
        leaderless: topics with a due batch for a partition without leader.
        next_ms: when to ask again if nothing happens before.
    """

    by_leader: dict[int, list[PartitionQueue]]
    due: set[int]
    leaderless: set[str]
    next_ms: float


class Identity(Protocol):
    """A producer's id, epoch and transactions (KIP-98), which `transactions.Transactions` decides;
    absent when idempotence is off. Everything is synchronous.
    """

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The current producer id and epoch; NO_PRODUCER until there is one."""

    @property
    def transactional_id(self) -> str | None:
        """None for a producer that is only idempotent."""

    @property
    def highest_produce_version(self) -> int | None:
        """The highest version of Produce that may be used, None for any."""

    def admit(self, topic: str, partition: int) -> bool:
        """Whether a batch of the partition may go out now; if not, what is missing is requested."""

    def batch_failed(
        self, topic: str, partition: int, error: Exception, *, may_be_written: bool
    ) -> None:
        """Note that a batch has failed for good; not for batches failed by `fail_waiting`."""

    def bump_epoch(self) -> None:
        """Ask for a new epoch (KIP-360) for a producer that is only idempotent."""


class Accumulator:
    """Batches by topic and partition.

    Args:
        config: the producer's settings for its batches.
        backoff_ms: how long a batch waits that came back for the nth time (KIP-580).
        randrange: the dice of the sticky partitioner.

    Attributes:
        identity: producer id and transactions; None without idempotence.
        finished, replaced: outcomes since the owner last took them, and those that were split.
        hurries: while it is not 0 no batch waits for `linger.ms`.
        slow_since_ms: nodes that take no request at the moment, and since when.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        identity: Identity | None = None,
        backoff_ms: Callable[[int], float],
        randrange: RandRange,
    ) -> None:
        self.config = config
        self.backoff_ms = backoff_ms
        self.identity = identity
        self.topics: dict[str, TopicQueues] = {}
        self.free_bytes: int = config.buffer_memory
        self.incomplete: dict[Outcome, None] = {}
        self.finished: list[Outcome] = []
        self.replaced: list[Outcome] = []
        self.hurries = 0
        self.is_full: bool = False
        self.slow_since_ms: dict[int, float] = {}
        self._randrange = randrange
        self._active: dict[PartitionQueue, None] = {}
        self._split_parts: dict[ProducerBatch, None] = {}
        self._bump_asked_under: ProducerIdAndEpoch | None = None
        self._drain_turn = 0

    # -- topics ----------------------------------------------------------------------------------

    def set_leaders(
        self, topic: str, leaders: Sequence[tuple[int, int]], topic_id: UUID = ZERO_UUID
    ) -> TopicQueues:
        """Take over the (leader id or -1, leader epoch) of each partition of a topic."""
        known = self.topics.get(topic)
        if known is None:
            known = self.topics[topic] = TopicQueues(topic, self.config)
        known.set_leaders(leaders, topic_id)
        return known

    def forget_topic(self, topic: str) -> None:
        """Drop an idle topic; one with batches stays."""
        known = self.topics.get(topic)
        if known is not None and all(queue.is_empty for queue in known.queues):
            del self.topics[topic]

    def sticky_queue(self, topic: TopicQueues, now_ms: float) -> PartitionQueue:
        return topic.sticky or topic.choose_sticky(self._randrange, self.slow_since_ms, now_ms)

    # -- filling ---------------------------------------------------------------------------------

    def make_room(
        self, queue: PartitionQueue, record_bytes: int, now_ms: float, *, forced: bool = False
    ) -> Room:
        """Make room for the next append of a record of at most `record_bytes`. `forced`: the caller
        has just given back as much memory.
        """
        batch = queue.filling
        if batch is not None:
            buffer = batch.buffer
            assert buffer is not None
            size_bytes = buffer.size_bytes
            needed = size_bytes + record_bytes
            limit = self.topics[queue.topic].batch_limit_bytes()
            if needed > limit:
                self.close_batch(queue)
                self.topics[queue.topic].filled(queue)
                return Room.BATCH_CLOSED
            # Never so much at once that a record larger than a request would fit unnoticed.
            step = min(2 * batch.reserved_bytes, size_bytes + self.config.max_request_size)
            granted = self._reserve(
                min(limit, max(needed, step)), needed, batch.reserved_bytes, forced=forced
            )
            if granted:
                buffer.limit_bytes = batch.reserved_bytes = granted
            return Room.MADE if granted else Room.NO_MEMORY
        needed = BATCH_HEADER_SIZE + record_bytes
        limit = max(self.topics[queue.topic].batch_limit_bytes(), needed)
        first_bytes = min(limit, PLENTY_RESERVE_BYTES)
        if first_bytes * PLENTY_BATCHES > self.free_bytes:
            first_bytes = RESERVE_BYTES
        granted = self._reserve(min(limit, max(needed, first_bytes)), needed, 0, forced=forced)
        if not granted:
            return Room.NO_MEMORY
        buffer = RecordBuffer(granted)
        batch = ProducerBatch(queue.topic, queue.partition, now_ms, buffer)
        batch.reserved_bytes = granted
        self.incomplete[batch] = None
        queue.open(batch, buffer)
        self._activate(queue, now_ms)
        return Room.MADE

    def append_encoded(
        self, queue: PartitionQueue, encoded: bytearray, header: BatchHeader, now_ms: float
    ) -> ProducerBatch | None:
        """Append a batch that was made elsewhere, behind all records so far; None without room.
        `encoded` is 61 bytes of space and the records, compressed as the header says, which is
        complete but for producer id, epoch, sequence and the transactional bit.
        """
        if not self._reserve(len(encoded), len(encoded), 0, forced=False):
            return None
        if queue.filling is not None:
            self.close_batch(queue)
        batch = ProducerBatch.of_encoded(queue.topic, queue.partition, now_ms, encoded, header)
        batch.reserved_bytes = len(encoded)
        self.incomplete[batch] = None
        queue.waiting.append(batch)
        self.topics[queue.topic].count(queue, len(encoded))
        self._activate(queue, now_ms)
        return batch

    def close_batch(self, queue: PartitionQueue) -> None:
        batch = queue.close_filling()
        buffer = batch.buffer
        assert buffer is not None
        size_bytes = buffer.size_bytes
        self.free_bytes += batch.reserved_bytes - size_bytes
        batch.reserved_bytes = size_bytes
        buffer.limit_bytes = 0
        self.topics[queue.topic].count(queue, size_bytes)

    def reserve(self, size_bytes: int) -> bool:
        return self._reserve(size_bytes, size_bytes, 0, forced=False) > 0

    def _reserve(self, wanted: int, needed: int, held: int, *, forced: bool) -> int:
        """Raise reserved memory from `held` to `wanted`, or at least `needed`; 0 without room."""
        if wanted - held <= self.free_bytes:
            granted = wanted
        elif needed - held <= self.free_bytes or forced:
            granted = needed
        else:
            self.is_full = True
            return 0
        self.free_bytes -= granted - held
        return granted

    def _activate(self, queue: PartitionQueue, now_ms: float) -> None:
        if not queue.is_active:
            queue.is_active = True
            if now_ms - queue.idle_since_ms > FORGOTTEN_MS:
                queue.known_to_log = NO_PRODUCER.producer_id
            self._active[queue] = None

    # -- going out -------------------------------------------------------------------------------

    def ready(self, now_ms: float) -> Ready:
        """The batches that could be sent now, and when to ask again."""
        by_leader: dict[int, list[PartitionQueue]] = {}
        due: set[int] = set()
        leaderless: set[str] = set()
        next_ms = self.expiry_ms()
        idle: list[PartitionQueue] = []
        for queue in self._active:
            if queue.is_empty:
                idle.append(queue)
                continue
            due_ms = self.due_ms(queue)
            if due_ms == NEVER:
                continue
            if queue.leader_id < 0:
                if due_ms <= now_ms:
                    leaderless.add(queue.topic)
                else:
                    next_ms = min(next_ms, due_ms)
                continue
            by_leader.setdefault(queue.leader_id, []).append(queue)
            if due_ms <= now_ms:
                due.add(queue.leader_id)
            else:
                next_ms = min(next_ms, due_ms)
        for queue in idle:
            queue.is_active = False
            queue.idle_since_ms = now_ms
            del self._active[queue]
        return Ready(by_leader, due, leaderless, next_ms)

    def due_ms(self, queue: PartitionQueue) -> float:
        """When the queue's next batch goes out; NEVER while something else must happen first."""
        if queue.wants_new_pair():
            self._renew_numbers(queue)
        if queue.outstanding and queue.is_retrying():
            due_ms = queue.retry_due_ms()
            return NEVER if due_ms is None else due_ms
        if not queue.batch_count or not self._may_start(queue):
            return NEVER
        if queue.waiting or self.hurries or self.is_full or self.config.linger_ms <= 0:
            return 0.0
        assert queue.filling is not None
        return queue.filling.created_ms + self.config.linger_ms

    def _may_start(self, queue: PartitionQueue) -> bool:
        identity = self.identity
        if identity is None:
            return queue.may_start_another(max_outstanding=1)
        if queue.outstanding and queue.pair != identity.producer:
            return False
        most = min(self.config.max_in_flight_requests_per_connection, MAX_NUMBERED_IN_FLIGHT)
        if queue.may_start_another(max_outstanding=most):
            return True
        # A hole, but the numbering may start over: the transaction with the hole has ended.
        return not queue.outstanding and queue.pair != identity.producer

    def _renew_numbers(self, queue: PartitionQueue) -> None:
        """Ask for another epoch for a partition whose numbers cannot go on (KIP-360)."""
        identity = self.identity
        assert identity is not None
        if identity.transactional_id is not None:
            return
        if queue.pair == identity.producer and self._bump_asked_under != queue.pair:
            self._bump_asked_under = queue.pair
            identity.bump_epoch()
        pair = identity.producer
        if not pair.is_known or pair == queue.pair:
            return
        if not queue.outstanding:
            queue.adopt(pair)
        elif queue.may_renumber(pair):
            queue.renumber(pair)

    def drain(
        self, queues: Sequence[PartitionQueue], max_bytes: int, now_ms: float
    ) -> list[ProducerBatch]:
        """Take the batches for one request: at most one of each partition, and `max_bytes` together
        (but at least one). They are on the wire from now on.
        """
        drained: list[ProducerBatch] = []
        size_bytes = 0
        self._drain_turn += 1
        start = self._drain_turn % len(queues)
        for queue in (*queues[start:], *queues[:start]):
            batch = self._next_of(queue, now_ms)
            if batch is None:
                continue
            self._encode(batch)
            if drained and size_bytes + batch.size_bytes > max_bytes:
                break
            if batch not in queue.outstanding:
                self._start(queue, batch)
            batch.is_on_wire = True
            batch.sent_leader_epoch = queue.leader_epoch
            batch.sent_topic_id = queue.topic_id
            identity = self.identity
            batch.prepare(
                is_transactional=identity is not None and identity.transactional_id is not None
            )
            size_bytes += batch.size_bytes
            drained.append(batch)
        return drained

    def _next_of(self, queue: PartitionQueue, now_ms: float) -> ProducerBatch | None:
        """The batch that may go out, still in its place."""
        if queue.outstanding and queue.is_retrying():
            due_ms = queue.retry_due_ms()
            return None if due_ms is None or due_ms > now_ms else queue.outstanding[0]
        if not queue.batch_count or not self._may_start(queue):
            return None
        identity = self.identity
        if identity is not None and not (
            identity.admit(queue.topic, queue.partition) and identity.producer.is_known
        ):
            return None
        if not queue.batch_count:
            return None
        if not queue.waiting:
            self.close_batch(queue)
        return queue.waiting[0]

    def _start(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        identity = self.identity
        if identity is not None and queue.pair != identity.producer:
            queue.adopt(identity.producer)
        taken = queue.take_waiting()
        assert taken is batch
        if identity is not None:
            queue.number(batch)

    def _encode(self, batch: ProducerBatch) -> None:
        if batch.is_filling:
            config = self.config
            batch.close(config.codec, config.compression_level)
            if config.codec is not Codec.NONE:
                topic = self.topics[batch.topic]
                topic.compressed(batch.uncompressed_bytes, batch.size_bytes)

    def node_ready(self, node_id: int, is_ready: bool, now_ms: float) -> None:
        """Note whether a node takes requests, for `partitioner.availability.timeout.ms`."""
        if is_ready:
            self.slow_since_ms.pop(node_id, None)
        else:
            self.slow_since_ms.setdefault(node_id, now_ms)

    # -- for transactions ------------------------------------------------------------------------

    @property
    def has_in_flight(self) -> bool:
        return any(batch.is_on_wire for queue in self._active for batch in queue.outstanding)

    @property
    def needs_new_epoch(self) -> bool:
        """Whether some partition cannot go on under the current producer id and epoch."""
        identity = self.identity
        return identity is not None and any(
            queue.pair == identity.producer and (queue.has_hole or queue.is_broken)
            for topic in self.topics.values()
            for queue in topic.queues
        )

    # -- bookkeeping for `results` ---------------------------------------------------------------

    def active_queues(self) -> list[PartitionQueue]:
        return list(self._active)

    def queue_of(self, batch: ProducerBatch) -> PartitionQueue:
        return self.topics[batch.topic].queues[batch.partition]

    def release(self, outcome: Outcome, reserved_bytes: int) -> None:
        self.free_bytes += reserved_bytes
        self.is_full = False
        self.incomplete.pop(outcome, None)

    def replace(self, batch: ProducerBatch, parts: Iterable[ProducerBatch]) -> None:
        """Replace a batch that was split by its parts, which reserve what they need."""
        self.free_bytes += batch.reserved_bytes
        self.incomplete.pop(batch)
        self.forget_part(batch)
        self.replaced.append(batch)
        for part in parts:
            part.reserved_bytes = part.uncompressed_bytes
            self.free_bytes -= part.reserved_bytes
            self.incomplete[part] = None
            self._split_parts[part] = None

    def forget_part(self, batch: ProducerBatch) -> None:
        self._split_parts.pop(batch, None)

    def expiry_ms(self) -> float:
        oldest_ms = NEVER
        for batch in self._split_parts:
            oldest_ms = min(oldest_ms, batch.created_ms)
        for outcome in self.incomplete:
            if isinstance(outcome, ProducerBatch):
                oldest_ms = min(oldest_ms, outcome.created_ms)
                break
        return oldest_ms + self.config.delivery_timeout_ms
