"""Two ways to run a coordinator in a test.

`MemoryBroker`: the real runtime over partitions that are lists in memory, without an event loop.
The test moves the high watermark, fails appends, takes leadership away and gives it to the next
one, all by hand and at once.

    broker = MemoryBroker(CONSUMER_OFFSETS, partition_count=2)
    runtime = CoordinatorRuntime(
        CONSUMER_OFFSETS, make_state, execute, SETTINGS, broker.ports
    )
    broker.attach(runtime)              # gets metadata; whatever has `on_metadata_update`
    broker.elect(0)                     # this broker leads partition 0, in the next leader epoch
    runtime.call(0, operation)
    broker.partition(0).commit()        # the high watermark reaches the end, waiting answers come
    broker.partition(0).append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    broker.depose(0)                    # another broker leads: unloaded
    broker.depose(0, keep=3); broker.elect(0)     # … and what was behind offset 3 is lost

A commit is by hand unless `is_committing_at_once=True` (one replica). `Caller` collects answers as
a request's context does. `broker.advance(ms)` moves the clock and runs timers.

`running_data_path` (at the end): the real broker parts of `tests.unit.broker.harness.DataPath`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

from moldau.broker.coordinator.core.result import TransactionEnd
from moldau.broker.coordinator.ports import Appended, Piece, RuntimePorts, RuntimeSettings
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.protocol.coordinator_records import CoordinatorLog
from moldau.protocol.errors import ErrorCode
from moldau.protocol.metadata_records import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from moldau.protocol.records import (
    ControlRecordType,
    EndTxnMarker,
    encode_end_txn_batch,
    iter_batches,
    patch_batch,
)
from moldau.runtime.telemetry.metrics import Registry
from moldau.runtime.timers import TimerWheel
from tests.kit.manual_clock import ManualClock

BROKER_ID = 1
OTHER_BROKER_ID = 2
SETTINGS = RuntimeSettings()
HOUR_MS = 3_600_000


class Caller:
    """Who waits for an answer."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.answers: list[Any] = []

    def __repr__(self) -> str:
        return f"Caller({self.name!r}, {self.answers})"

    def respond(self, message: Any) -> None:
        assert not self.answers, f"{self.name}: answered twice: {self.answers[0]}, {message}"
        self.answers.append(message)

    @property
    def is_answered(self) -> bool:
        return bool(self.answers)

    @property
    def answer(self) -> Any:
        assert self.answers, f"{self.name}: no answer yet"
        return self.answers[0]


class MemoryPartition:
    """`CoordinatorPartition`: a list of batches."""

    def __init__(self, *, is_committing_at_once: bool = False) -> None:
        self.is_committing_at_once = is_committing_at_once
        self.batches: list[bytearray] = []
        self.leader_epoch = -1
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.max_batch_bytes = 1024 * 1024 + 12
        self.append_error = ErrorCode.NONE
        """What every append is answered while it is set."""
        self.read_error = ErrorCode.NONE
        self.read_count = 0
        self.on_read: Callable[[], None] | None = None
        """Called within every read, before it returns."""
        self._refusal: tuple[int, ErrorCode] | None = None
        self._wake: tuple[int, Callable[[], None]] | None = None
        self.settle: Callable[[], None] = lambda: None

    def append(self, batch: bytearray, leader_epoch: int) -> Appended:
        if leader_epoch != self.leader_epoch:
            return Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.append_error is not ErrorCode.NONE:
            return Appended(self.append_error)
        if self._refusal is not None:
            left, error = self._refusal
            self._refusal = None if left == 1 else (left - 1, error)
            self.append_error = error if left == 1 else ErrorCode.NONE
        for position, header in iter_batches(batch):
            patch_batch(
                batch,
                position,
                base_offset=self.log_end_offset,
                partition_leader_epoch=leader_epoch,
            )
            self.log_end_offset += header.last_offset_delta + 1
        self.batches.append(batch)
        if self.is_committing_at_once:
            self.high_watermark = self.log_end_offset
            self._look()
        return Appended(ErrorCode.NONE, self.log_end_offset)

    def append_marker(self, end: TransactionEnd, leader_epoch: int) -> Appended:
        kind = ControlRecordType.COMMIT if end.is_commit else ControlRecordType.ABORT
        batch = encode_end_txn_batch(
            EndTxnMarker(kind, end.coordinator_epoch),
            producer_id=end.producer.producer_id,
            producer_epoch=end.producer.producer_epoch,
            timestamp_ms=0,
        )
        return self.append(batch, leader_epoch)

    async def read(self, offset: int, max_bytes: int) -> Piece:
        self.read_count += 1
        if self.on_read is not None:
            self.on_read()
        if self.read_error is not ErrorCode.NONE:
            return Piece(self.read_error)
        found = bytearray()
        next_offset = offset
        for batch in self.batches:
            (header,) = [header for _, header in iter_batches(batch)]
            if header.next_offset > offset and (not found or len(found) + len(batch) <= max_bytes):
                found += batch
                next_offset = header.next_offset
            elif found:
                break
        return Piece(ErrorCode.NONE, bytes(found), next_offset)

    def wake_at(self, offset: int, wake: Callable[[], None]) -> None:
        self._wake = (offset, wake)
        self._look()

    def forget_wake(self) -> None:
        self._wake = None

    # -- what tests do ---------------------------------------------------------------------------

    def commit(self, up_to: int | None = None) -> None:
        """The followers have everything (before `up_to`); who waited for it gets its answer."""
        offset = self.log_end_offset if up_to is None else up_to
        assert self.high_watermark <= offset <= self.log_end_offset
        self.high_watermark = offset
        self._look()
        self.settle()

    def refuse_after(self, append_count: int, error: ErrorCode) -> None:
        """So many more appends succeed; `append_error` is set by the last of them."""
        self._refusal = (append_count, error)

    def cut(self, end_offset: int) -> None:
        """The next leader has only this much."""
        assert end_offset >= self.high_watermark, "what is committed is not lost"
        kept = []
        self.log_end_offset = self.log_start_offset
        for batch in self.batches:
            (header,) = [header for _, header in iter_batches(batch)]
            if header.next_offset > end_offset:
                break
            kept.append(batch)
            self.log_end_offset = header.next_offset
        self.batches = kept

    def tell_leadership(self) -> None:
        """As the replica manager does before its publishers' turn."""
        if self._wake is not None and self.leader_epoch < 0:
            self._fire()

    def _look(self) -> None:
        if self._wake is not None and self._wake[0] <= self.high_watermark:
            self._fire()

    def _fire(self) -> None:
        assert self._wake is not None
        _, wake = self._wake
        self._wake = None
        wake()


class MemoryBroker:
    """A broker of nothing but one coordinator's topic. Everything happens within the calls."""

    def __init__(
        self,
        log: CoordinatorLog,
        *,
        partition_count: int = 1,
        is_committing_at_once: bool = False,
        has_topic: bool = True,
    ) -> None:
        self.log = log
        self.clock = ManualClock()
        self.timers = TimerWheel(self.clock)
        self.registry = Registry(self.clock.monotonic_ms)
        self.image = MetadataImage.EMPTY
        self.topic_id = UUID(int=0xC0)
        self.is_committing_at_once = is_committing_at_once
        self.partitions = [self._new_partition() for _ in range(partition_count)]
        self.is_loading_held = False
        """While set, coroutines wait in `held` (a load that takes long)."""
        self.held: deque[Coroutine[Any, Any, None]] = deque()
        self.ports = RuntimePorts(
            broker_id=BROKER_ID,
            clock=self.clock,
            timers=self.timers,
            registry=self.registry,
            partition=self._find,
            soon=self._soon_due,
            start=self._start,
        )
        self._soon: deque[Callable[[], None]] = deque()
        self._publishers: list[Any] = []
        self._leader_epochs = [0] * partition_count
        if has_topic:
            self.create_topic()

    def _new_partition(self) -> MemoryPartition:
        partition = MemoryPartition(is_committing_at_once=self.is_committing_at_once)
        partition.settle = self.settle
        return partition

    def partition(self, partition_index: int = 0) -> MemoryPartition:
        return self.partitions[partition_index]

    def attach(self, publisher: Any) -> None:
        """Tell it of metadata from now on."""
        self._publishers.append(publisher)
        if self.image is not MetadataImage.EMPTY:
            publisher.on_metadata_update(MetadataDelta.from_nothing(self.image), self.image)
        self.settle()

    def detach(self, publisher: Any) -> None:
        """Its broker has stopped."""
        self._publishers.remove(publisher)
        for partition in self.partitions:
            partition.forget_wake()

    # -- metadata --------------------------------------------------------------------------------

    def create_topic(self) -> None:
        """Led by another broker at first."""
        self.replay(
            TopicRecord(name=self.log.topic, topic_id=self.topic_id),
            *map(self._partition_record, range(len(self.partitions))),
        )

    def add_partitions(self, added_count: int) -> None:
        """A controller lets the topic grow; led by another broker at first."""
        first = len(self.partitions)
        self.partitions += [self._new_partition() for _ in range(added_count)]
        self._leader_epochs += [0] * added_count
        self.replay(*map(self._partition_record, range(first, len(self.partitions))))

    def _partition_record(self, partition_index: int) -> PartitionRecord:
        return PartitionRecord(
            partition_id=partition_index,
            topic_id=self.topic_id,
            replicas=[BROKER_ID, OTHER_BROKER_ID],
            isr=[BROKER_ID, OTHER_BROKER_ID],
            leader=OTHER_BROKER_ID,
            leader_epoch=0,
        )

    def delete_topic(self) -> None:
        for partition in self.partitions:
            partition.leader_epoch = -1
            partition.tell_leadership()
        self.replay(RemoveTopicRecord(topic_id=self.topic_id))

    def recreate_topic(self) -> None:
        """Under the same name, empty, with as many partitions as there are by now."""
        self.delete_topic()
        self.topic_id = UUID(int=self.topic_id.int + 1)
        self._leader_epochs = [0] * len(self.partitions)
        self.partitions = [self._new_partition() for _ in self.partitions]
        self.create_topic()

    def elect(self, partition_index: int = 0) -> int:
        """This broker leads, in a new leader epoch, which is returned; it loads at once."""
        return self._change_leader(partition_index, BROKER_ID)

    def elect_all(self) -> None:
        for index in range(len(self.partitions)):
            self.elect(index)

    def depose(self, partition_index: int = 0, *, keep: int | None = None) -> None:
        """Another broker leads; what lies from offset `keep` on is not in its log."""
        self._change_leader(partition_index, OTHER_BROKER_ID, keep)

    def replay(self, *records: Any) -> None:
        """Metadata records, committed."""
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        offset = self.image.provenance.last_contained_offset + len(records)
        self.image = delta.apply(Provenance(offset, 1, 0))
        for publisher in self._publishers:
            publisher.on_metadata_update(delta, self.image)
        self.settle()

    def _change_leader(self, index: int, leader_id: int, keep: int | None = None) -> int:
        partition = self.partitions[index]
        self._leader_epochs[index] += 1
        leader_epoch = self._leader_epochs[index]
        partition.leader_epoch = leader_epoch if leader_id == BROKER_ID else -1
        partition.tell_leadership()
        if keep is not None:
            partition.cut(keep)
        if partition.is_committing_at_once:
            partition.high_watermark = partition.log_end_offset
        self.replay(
            PartitionChangeRecord(partition_id=index, topic_id=self.topic_id, leader=leader_id)
        )
        registration = self.image.topics.topics_by_name[self.log.topic].partitions[index]
        assert registration.leader_epoch >= leader_epoch, "a change may come within a change"
        return leader_epoch

    # -- time and turns --------------------------------------------------------------------------

    def advance(self, elapsed_ms: float) -> None:
        """Move the clock; timers run."""
        self.clock.advance(elapsed_ms)
        self.settle()

    def jump_wall_clock(self, jump_ms: int) -> None:
        """An operator sets the wall clock, ahead or back; no timer notices."""
        self.clock.set_wall_clock(self.clock.now_ms() + jump_ms)

    def settle(self) -> None:
        """Run what was put off to the next turn of the loop."""
        while self._soon:
            self._soon.popleft()()

    def load_on(self) -> None:
        """Let coroutines that were held run to their end."""
        self.is_loading_held = False
        while self.held:
            _run(self.held.popleft())
        self.settle()

    def step_load(self) -> bool:
        """One turn of the first held coroutine; False when it has ended."""
        work = self.held[0]
        try:
            work.send(None)
        except StopIteration:
            del self.held[0]
            self.settle()
            return False
        return True

    def _find(self, topic: str, partition_index: int) -> MemoryPartition | None:
        return self.partitions[partition_index] if topic == self.log.topic else None

    def _soon_due(self, function: Callable[[], None]) -> None:
        self._soon.append(function)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        del name
        if self.is_loading_held:
            self.held.append(work)
        else:
            _run(work)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its end: what it awaits is only the loop's next turn."""
    while True:
        try:
            work.send(None)
        except StopIteration:
            return


def running_data_path(directory: Path | str, **options: Any) -> Any:
    """The real broker parts on disk, coordinators included; an async context manager.

    Create the internal topics with `create_internal_topic`.
    """
    from tests.unit.broker.harness import DataPath

    return DataPath(directory, **options)


def create_internal_topic(broker: Any, log: CoordinatorLog, partition_count: int = 1) -> None:
    """Its partitions are led by the data path's broker, with Kafka's settings for such a topic."""
    broker.create_topic(log.topic, partition_count, cleanup_policy="compact")
