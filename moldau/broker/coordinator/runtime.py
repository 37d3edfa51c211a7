"""The runtime of a coordinator: state machines on the partitions of one internal topic.

Owns which partitions are loaded and how (piece by piece, off the loop, with turns for others), the
way of an operation to its state machine, and the metrics of both. Must not know what the state
machines do. Invariants: there is a shard exactly for every partition of the topic that the last
image says this broker leads, in that leader epoch; none of an earlier epoch can append any more. A
shard becomes active in the same turn of the loop in which the end of the log was reached, still
leading in its epoch; nothing comes between. The number of partitions that places the keys stays as
long as the topic lives:

1. a controller that lets coordinators' topics grow (Apache Kafka's) adds partitions;
2. the runtime goes on with the number that it began with, and says so;
3. after a restart only the metadata tell the number, and they tell the new one. What is in the log
   was placed by the old one: where the keys of a loaded partition show that, no key is served here
   any more (`_compare_places`), for its state is in a partition that the new number hides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Generic

from moldau.broker.coordinator.core.result import (
    Answerable,
    Collector,
    CoordinatorRecord,
    CoordinatorResult,
    Producer,
    TransactionEnd,
)
from moldau.broker.coordinator.key_partitions import multiple_of_counts, partition_for
from moldau.broker.coordinator.shard import Execute, Operation, Shard, ShardState, StateT
from moldau.config.backoff import Backoff
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
    from uuid import UUID

    from moldau.broker.coordinator.ports import RuntimePorts, RuntimeSettings
    from moldau.metadata.image import MetadataDelta, MetadataImage, TopicImage
    from moldau.protocol.coordinator_records import CoordinatorLog
    from moldau.runtime.clock import Clock
    from moldau.runtime.timers import WheelTimer


logger = logging.getLogger(__name__)

KEYS_COMPARED: Final = 64
"""Keys of a loaded partition whose places are compared: each one that fits two counts by chance
halves the doubt at least.
"""

MAX_LOADING_COUNT: Final = 4
"""Partitions that are loaded at the same time: each holds a piece of its log in memory."""

METRIC_TYPES: Final = {
    "__consumer_offsets": "group-coordinator-metrics",
    "__transaction_state": "transaction-coordinator-metrics",
}


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
    loader, and a new state machine. A record of an unknown type is skipped (a newer coordinator
    wrote it), anything else that does not decode ends the loading.
    """

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
            logger.log(
                logging.INFO if self._record_count else logging.DEBUG,
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
        """Replay whole batches in order; yields to give the loop turns. Raises: UnreadableLog."""
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


@dataclass(eq=False)
class CoordinatorRuntime(Generic[StateT]):
    """Belongs to the data loop. All of it is synchronous but the loading."""

    _log: CoordinatorLog
    _make_state: Callable[[int], StateT]
    _execute: Execute
    _settings: RuntimeSettings
    _ports: RuntimePorts
    _shards: dict[int, Shard[StateT]] = field(default_factory=dict)
    _topic_id: UUID | None = None
    _topic_image: TopicImage | None = None
    partition_count: int = 0
    """Partitions of the topic that keys are kept in, 0 before there is one."""
    _is_placed_otherwise: bool = False
    _to_load: deque[Shard[StateT]] = field(default_factory=deque)
    _loading_count: int = 0
    _retries: dict[Shard[StateT], WheelTimer] = field(default_factory=dict)
    _backoffs: dict[int, Backoff] = field(default_factory=dict)
    _is_closed: bool = False
    _idle: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = self._log.topic
        prefix = f"kafka.server:type={METRIC_TYPES.get(self.topic, 'coordinator-metrics')},name="
        registry = self._ports.registry
        for state in (ShardState.LOADING, ShardState.ACTIVE, ShardState.FAILED):
            registry.gauge(
                f"{prefix}num-partitions", partial(self._count_shards, state), state=state.value
            )
        registry.gauge(
            f"{prefix}waiting-count",
            lambda: float(sum(shard.waiting_count for shard in self._shards.values())),
        )
        self._load_time_ms = registry.histogram(f"{prefix}partition-load-time-ms")
        self._left_out = registry.counter(f"{prefix}left-out-record-count")
        self._turned_away = registry.counter(f"{prefix}turned-away-count")

    def _count_shards(self, state: ShardState) -> float:
        return float(sum(shard.state is state for shard in self._shards.values()))

    # -- metadata --------------------------------------------------------------------------------

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Load the partitions that this broker leads now, unload the others.

        Call it after the replica manager has taken over the same image.
        """
        del delta
        topic = image.topics.topics_by_name.get(self.topic)
        if topic is self._topic_image or self._is_closed:
            return
        before, self._topic_image = self._topic_image, topic
        if topic is None or topic.topic_id != self._topic_id:
            for partition_index in list(self._shards):
                self._unload(partition_index)
            self._topic_id = None if topic is None else topic.topic_id
            self.partition_count = 0 if topic is None else len(topic.partitions)
            self._is_placed_otherwise = False
        elif before is not None and len(before.partitions) != len(topic.partitions):
            logger.error(
                "%s has %d partitions now. Its keys stay where %d partitions put them until this"
                " broker restarts; then it will refuse them",
                self.topic,
                len(topic.partitions),
                self.partition_count,
            )
        if topic is None:
            return
        for partition_index, registration in topic.partitions.items():
            if registration.leader == self._ports.broker_id:
                self._lead(partition_index, registration.leader_epoch)
            else:
                self._unload(partition_index)

    def _lead(self, partition_index: int, leader_epoch: int) -> None:
        shard = self._shards.get(partition_index)
        if shard is not None:
            if shard.leader_epoch == leader_epoch or shard.continue_in(leader_epoch):
                return
            self._unload(partition_index)
        self._begin(partition_index, leader_epoch)

    def _begin(self, partition_index: int, leader_epoch: int) -> None:
        partition = self._ports.partition(self.topic, partition_index)
        if partition is None:
            logger.error("%s-%d is led here but not held", self.topic, partition_index)
            return
        shard = Shard(
            self._log,
            partition_index,
            leader_epoch,
            partition,
            self._make_state(partition_index),
            self._ports,
            self._settings,
            self._execute,
            self._left_out,
        )
        self._shards[partition_index] = shard
        self._to_load.append(shard)
        self._load_more()

    def _unload(self, partition_index: int) -> None:
        shard = self._shards.pop(partition_index, None)
        if shard is None:
            return
        self._backoffs.pop(partition_index, None)
        retry = self._retries.pop(shard, None)
        if retry is not None:
            retry.cancel()
        shard.unload()

    # -- loading ---------------------------------------------------------------------------------

    def _load_more(self) -> None:
        while self._to_load and self._loading_count < MAX_LOADING_COUNT:
            shard = self._to_load.popleft()
            if shard.state is ShardState.LOADING:
                self._loading_count += 1
                self._ports.start(self._load(shard), f"load {self.topic}-{shard.partition_index}")

    async def _load(self, shard: Shard[StateT]) -> None:
        begin_ms = self._ports.clock.monotonic_ms()
        try:
            is_decided = await LogLoader(shard, self._log).load(
                self._settings.load_buffer_bytes, self._ports.clock
            )
            if is_decided:
                self._backoffs.pop(shard.partition_index, None)
                self._load_time_ms.observe(self._ports.clock.monotonic_ms() - begin_ms)
                self._compare_places(shard)
            elif shard.state is ShardState.LOADING:
                backoff = self._backoffs.setdefault(
                    shard.partition_index, Backoff(RETRY_MS, MAX_RETRY_MS)
                )
                self._retries[shard] = self._ports.timers.call_later(
                    backoff.next_ms(), self._load_again, shard
                )
        finally:
            self._loading_count -= 1
            self._load_more()
            if not self._loading_count:
                idle, self._idle = self._idle, []
                for tell in idle:
                    tell()

    def _compare_places(self, shard: Shard[StateT]) -> None:
        """Serve no key of a topic whose log was placed by a smaller number of partitions.

        A topic that grew long ago has keys in its added partitions: what lies elsewhere was left
        behind then, and is not found again. Refusing would save nothing.
        """
        if shard.state is not ShardState.ACTIVE or self._is_placed_otherwise:
            return
        keys = islice(shard.machine.keys(), KEYS_COMPARED)
        multiple = multiple_of_counts(keys, shard.partition_index)
        if not multiple % self.partition_count:
            return
        written = filter(self._is_written, range(self.partition_count))
        for earlier_count in range(max(written) + 1, self.partition_count):
            if not multiple % earlier_count:
                self._is_placed_otherwise = True
                logger.error(
                    "%s has %d partitions, but its keys lie where %d put them (%s): none of them is"
                    " served here",
                    self.topic,
                    self.partition_count,
                    earlier_count,
                    shard.name,
                )
                return
        logger.warning(
            "%s holds keys that belong elsewhere by the %d partitions of the topic: it has grown,"
            " and they were left behind",
            shard.name,
            self.partition_count,
        )

    def _is_written(self, partition_index: int) -> bool:
        """Whether the broker's replica, led or not, holds anything."""
        partition = self._ports.partition(self.topic, partition_index)
        return partition is not None and partition.log_end_offset > partition.log_start_offset

    def _load_again(self, shard: Shard[StateT]) -> None:
        """Load again with a new state machine: the old one may have seen half of the log."""
        del self._retries[shard]
        if self._shards.get(shard.partition_index) is shard:
            del self._shards[shard.partition_index]
            shard.unload()
            self._begin(shard.partition_index, shard.leader_epoch)

    # -- operations ------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int | None:
        return partition_for(key, self.partition_count) if self.partition_count else None

    def max_batch_bytes(self, key: str) -> int:
        """What a batch in the log of a key's partition may hold; no limit while the partition is
        not loaded: it may be when the operation comes.
        """
        partition_index = self.partition_of(key)
        shard = None if partition_index is None else self._shards.get(partition_index)
        if shard is None or not shard.is_led:
            return 2**31 - 1
        return shard.partition.max_batch_bytes

    def call(
        self, key: str | int, operation: Operation[StateT], *, passes_limit: bool = False
    ) -> ErrorCode:
        """Carry out an operation on the state of a key's partition, or of the partition itself.

        Args:
            passes_limit: carry it out even when too much waits for its commit: for the work of the
                coordinator itself, and for what members must do in time to stay members.

        Returns:
            NONE: `operation(state, now_ms)` was called, exactly once. Otherwise it was not:
            NOT_COORDINATOR, the partition is not led here, or there is no topic: who then asks for
            the coordinator has it made; COORDINATOR_LOAD_IN_PROGRESS, it is being loaded, or the
            limit of what waits is reached; COORDINATOR_NOT_AVAILABLE, the log cannot be read, or
            keys were placed by another partition count.
        """
        if self._is_placed_otherwise and isinstance(key, str):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition_index = self.partition_of(key) if isinstance(key, str) else key
        shard = None if partition_index is None else self._shards.get(partition_index)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        error = shard.call(operation, passes_limit=passes_limit)
        if error is not ErrorCode.NONE and shard.state is ShardState.ACTIVE:
            self._turned_away.value += 1
        return error

    def ask(
        self,
        key: str,
        reply_to: Answerable,
        operation: Operation[StateT],
        on_error: Callable[[ErrorCode], object],
        *,
        passes_limit: bool = False,
    ) -> None:
        """As `call`; have the state machine answer `reply_to`, or answer why it cannot be asked."""
        error = self.call(key, operation, passes_limit=passes_limit)
        if error is not ErrorCode.NONE:
            reply_to.respond(on_error(error))

    def list_each(
        self,
        partition_indexes: Iterable[int],
        operation: Callable[[StateT, Answerable], CoordinatorResult],
        done: Callable[[list[ErrorCode], list[Any]], None],
    ) -> None:
        """Have the state machines of several partitions answer with a list each, or an ErrorCode.
        `done` gets the errors, also of partitions that cannot be asked, and the lists as one.
        """

        def ended(parts: list[list[Any] | ErrorCode]) -> None:
            errors = [part for part in parts if isinstance(part, ErrorCode)]
            # What was lost since is another coordinator's to list.
            errors = [error for error in errors if error is not ErrorCode.NOT_COORDINATOR]
            lists = [part for part in parts if not isinstance(part, ErrorCode)]
            done(errors, list(chain.from_iterable(lists)))

        collector = Collector(ended)
        for partition_index in partition_indexes:
            part = collector.part()

            def asked(state: StateT, _now_ms: float, part: Answerable = part) -> CoordinatorResult:
                return operation(state, part)

            error = self.call(partition_index, asked)
            if error is not ErrorCode.NONE:
                part.respond(error)
        collector.all_asked()

    def states(self) -> Iterator[tuple[int, StateT]]:
        """Index and state machine of every loaded partition; read only."""
        for partition_index, shard in list(self._shards.items()):
            if shard.state is ShardState.ACTIVE:
                yield partition_index, shard.machine

    def state(self, partition_index: int) -> StateT | None:
        """The state machine of a loaded partition, read only; None of any other."""
        shard = self._shards.get(partition_index)
        return None if shard is None or shard.state is not ShardState.ACTIVE else shard.machine

    @property
    def is_loading(self) -> bool:
        """Whether some partition is being loaded, so that lists of everything are incomplete."""
        return any(shard.state is ShardState.LOADING for shard in self._shards.values())

    def coordinator_epoch(self, partition_index: int) -> int:
        """The leader epoch in which the partition is loaded, -1 where it is not."""
        shard = self._shards.get(partition_index)
        if shard is None or shard.state is not ShardState.ACTIVE:
            return -1
        return shard.leader_epoch

    def complete_transaction(
        self, partition_index: int, end: TransactionEnd, done: Callable[[ErrorCode], None]
    ) -> None:
        """End a transaction in a partition of this topic: append its marker, replay it. `done` is
        called exactly once: with NONE when the marker is committed.
        """
        shard = self._shards.get(partition_index)
        if shard is None:
            done(ErrorCode.NOT_COORDINATOR)
        else:
            shard.complete_transaction(end, done)

    async def close(self) -> None:
        """Answer NOT_COORDINATOR to all waiting requests, and wait for reads that are under way."""
        self._is_closed = True
        for partition_index in list(self._shards):
            self._unload(partition_index)
        if self._loading_count:
            idle = asyncio.Event()
            self._idle.append(idle.set)
            await idle.wait()
