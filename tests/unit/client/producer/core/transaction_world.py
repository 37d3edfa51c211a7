"""A coordinator, leaders and an application around one transaction manager, all in memory.

Owns the model of what a cluster does to transactions (versions 1 and 2), and the ledger of what the
application heard. Invariants it checks: what was reported as committed is visible, all of it, and
what was reported as aborted is not; batches carry the pair and sequence that a leader expects, into
partitions that the coordinator knows of; nothing is ended with batches under way; an outcome that
may have been served is not asked the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

from moldau.client.producer.core import transaction_requests as requests
from moldau.client.producer.core.transaction_manager import (
    CoordinatorFeatures,
    Pause,
    TransactionManager,
)
from moldau.client.producer.core.transaction_requests import Ask, RequestKind
from moldau.client.producer.core.transaction_states import (
    NO_PRODUCER,
    OPEN_STATES,
    Problem,
    ProducerIdAndEpoch,
    TransactionState,
)
from moldau.client.records import ConsumerGroupMetadata as GroupMember
from moldau.client.records import OffsetAndMetadata as Position
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p24_add_partitions_to_txn as adding
from moldau.protocol.messages import p28_txn_offset_commit as committing
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.p25_add_offsets_to_txn import AddOffsetsToTxnResponse
from moldau.protocol.messages.p26_end_txn import EndTxnResponse
from moldau.protocol.types import TopicPartition

S = TransactionState
PARTITIONS = [TopicPartition("in", 0), TopicPartition("in", 1), TopicPartition("out", 0)]


class Violation(AssertionError):
    """Something a user of transactions must never see."""


def producer_of(ask: Ask) -> ProducerIdAndEpoch:
    """The producer id and epoch that the request has."""
    prefix = "v3_and_below_" if ask.kind is RequestKind.ADD_PARTITIONS else ""
    pair = (getattr(ask.request, f"{prefix}producer_{each}") for each in ("id", "epoch"))
    return ProducerIdAndEpoch(*pair)


class Fate(Enum):
    """What becomes of a request on its way."""

    SERVED = "served"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    NOT_COORDINATOR = "not coordinator"
    LOADING = "loading"
    CONCURRENT = "concurrent"
    LATE = "late"
    """The connection was lost, and the request arrives much later all the same."""


REFUSALS = {
    Fate.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
    Fate.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Fate.CONCURRENT: ErrorCode.CONCURRENT_TRANSACTIONS,
}


@dataclass
class Entry:
    """A batch in a log: a transaction decides about it."""

    value: int
    is_visible: bool | None = None


@dataclass
class Batch:
    """A batch of the application, until it is settled."""

    partition: TopicPartition
    value: int
    pair: ProducerIdAndEpoch = NO_PRODUCER
    sequence: int = -1


@dataclass
class Told:
    """What the application knows of its transaction."""

    acknowledged: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    promised: list[requests.OffsetsCommit] = field(default_factory=list)


class Coordinator:
    """Brokers whose `transaction.version` is `version`; the whole cluster is one object."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.pair = ProducerIdAndEpoch(7_000, -1)
        self.is_ongoing = False
        self.outcome: bool | None = None
        self.partitions: set[TopicPartition] = set()
        self.groups: set[str] = set()
        self.pending: dict[tuple[str, TopicPartition], int] = {}
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self.ended_by: ProducerIdAndEpoch | None = None
        self.recovery: tuple[ProducerIdAndEpoch, ProducerIdAndEpoch] | None = None
        self.logs: dict[TopicPartition, list[Entry]] = {each: [] for each in PARTITIONS}
        self.sequences: dict[TopicPartition, tuple[int, int]] = {}

    def serve(self, ask: Ask) -> Any:
        """Do what the request says and answer."""
        match ask.kind:
            case RequestKind.INITIALIZE:
                return self._initialize(producer_of(ask))
            case RequestKind.ADD_PARTITIONS:
                return refused(ask, self._add_partitions(ask))
            case RequestKind.ADD_OFFSETS:
                assert ask.commit is not None
                error = self._join(producer_of(ask))
                if error is ErrorCode.NONE:
                    self.groups.add(ask.commit.member.group_id)
                return refused(ask, error)
            case RequestKind.COMMIT_OFFSETS:
                return refused(ask, self._commit_offsets(ask))
            case _:
                return self._end(ask)

    def produce(self, batch: Batch) -> ErrorCode:
        """Append a batch."""
        if batch.pair != self.pair:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.version >= 2:
            self.is_ongoing = True
            self.partitions.add(batch.partition)
        elif not self.is_ongoing or batch.partition not in self.partitions:
            raise Violation(f"{batch} was sent into a partition that was not added")
        epoch, last = self.sequences.get(batch.partition, (-1, -1))
        expected = last + 1 if epoch == batch.pair.producer_epoch else 0
        if batch.sequence != expected:
            raise Violation(f"{batch}: the leader expects sequence {expected}")
        self.sequences[batch.partition] = (batch.pair.producer_epoch, batch.sequence)
        self.logs[batch.partition].append(Entry(batch.value))
        return ErrorCode.NONE

    def visible(self) -> list[int]:
        """The values that a consumer with read_committed sees."""
        return [each.value for log in self.logs.values() for each in log if each.is_visible]

    def _initialize(self, expected: ProducerIdAndEpoch) -> Any:
        if expected.is_known and self.recovery == (expected, self.pair):
            return InitProducerIdResponse(
                producer_id=self.pair.producer_id, producer_epoch=self.pair.producer_epoch
            )
        if expected.is_known and expected != self.pair:
            return InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
        if self.is_ongoing:
            self._decide(False)
            return InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        before = self.pair
        self._bump()
        self.recovery = (expected, self.pair) if expected.is_known else None
        assert before != self.pair
        self.outcome = None
        return InitProducerIdResponse(
            producer_id=self.pair.producer_id, producer_epoch=self.pair.producer_epoch
        )

    def _join(self, pair: ProducerIdAndEpoch) -> ErrorCode:
        if pair != self.pair:
            return ErrorCode.PRODUCER_FENCED
        self.is_ongoing = True
        return ErrorCode.NONE

    def _add_partitions(self, ask: Ask) -> ErrorCode:
        error = self._join(producer_of(ask))
        if error is ErrorCode.NONE:
            self.partitions.update(ask.partitions)
        return error

    def _commit_offsets(self, ask: Ask) -> ErrorCode:
        request = ask.request
        assert isinstance(request, committing.TxnOffsetCommitRequest)
        if self.version < 2 and request.group_id not in self.groups:
            return ErrorCode.INVALID_TXN_STATE
        error = self._join(producer_of(ask))
        if error is ErrorCode.NONE:
            for topic in request.topics:
                for each in topic.partitions:
                    where = TopicPartition(topic.name, each.partition_index)
                    self.pending[request.group_id, where] = each.committed_offset
        return error

    def _end(self, ask: Ask) -> Any:
        is_repeated = producer_of(ask) == self.ended_by and self.version >= 2
        if is_repeated:
            error = (
                ErrorCode.NONE
                if self.outcome is ask.request.committed
                else ErrorCode.INVALID_TXN_STATE
            )
        elif producer_of(ask) != self.pair:
            error = ErrorCode.PRODUCER_FENCED
        elif self.is_ongoing or (self.version >= 2 and not ask.request.committed):
            self.ended_by = producer_of(ask)
            self._decide(ask.request.committed)
            if self.version >= 2:
                self._bump()
            error = ErrorCode.NONE
        else:
            error = (
                ErrorCode.NONE
                if self.outcome is ask.request.committed
                else ErrorCode.INVALID_TXN_STATE
            )
        if error is not ErrorCode.NONE:
            return EndTxnResponse(error_code=error)
        told = self.pair if self.version >= 2 else NO_PRODUCER
        return EndTxnResponse(producer_id=told.producer_id, producer_epoch=told.producer_epoch)

    def _decide(self, is_commit: bool) -> None:
        for partition in self.partitions:
            for entry in self.logs[partition]:
                if entry.is_visible is None:
                    entry.is_visible = is_commit
        if is_commit:
            self.offsets.update(self.pending)
        self.pending.clear()
        self.partitions.clear()
        self.groups.clear()
        self.is_ongoing = False
        self.outcome = is_commit

    def _bump(self) -> None:
        self.pair = ProducerIdAndEpoch(self.pair.producer_id, self.pair.producer_epoch + 1)


def refused(ask: Ask, error: ErrorCode) -> Any:
    """An answer with this error everywhere; NONE for success."""
    match ask.kind:
        case RequestKind.INITIALIZE:
            return InitProducerIdResponse(error_code=error)
        case RequestKind.ADD_OFFSETS:
            return AddOffsetsToTxnResponse(error_code=error)
        case RequestKind.END:
            return EndTxnResponse(error_code=error)
        case RequestKind.ADD_PARTITIONS:
            return adding.AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=[
                    adding.AddPartitionsToTxnTopicResult(
                        name=topic,
                        results_by_partition=[
                            adding.AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=error
                            )
                        ],
                    )
                    for topic, index in ask.partitions
                ]
            )
        case _:
            return committing.TxnOffsetCommitResponse(
                topics=[
                    committing.TxnOffsetCommitResponseTopic(
                        name=topic,
                        partitions=[
                            committing.TxnOffsetCommitResponsePartition(
                                partition_index=index, error_code=error
                            )
                        ],
                    )
                    for topic, index in ask.partitions
                ]
            )


class World:
    """One producer, its application and its cluster; every step is one of these methods."""

    def __init__(self, version: int, kind: type[TransactionManager] = TransactionManager) -> None:
        self.coordinator = Coordinator(version)
        self.manager = kind("tid", 60_000)
        self.told = Told()
        self.batches: list[Batch] = []
        self.late: list[Ask] = []
        self.numbers: dict[TopicPartition, tuple[ProducerIdAndEpoch, int]] = {}
        self.has_gap = False
        self.commit_may_be_served = False
        self.next_value = 0
        self.began_under = NO_PRODUCER

    # -- the application -------------------------------------------------------------------------

    def initialize(self) -> None:
        assert self.manager.initialize() is None

    def begin(self) -> None:
        assert self.manager.begin() is None
        self.told = Told()
        self.commit_may_be_served = False
        self.began_under = self.manager.producer

    def append(self, partition: TopicPartition) -> None:
        """A record, which is a separate batch."""
        if self.manager.refusal is not None:
            raise Violation(f"refused in {self.manager.state}: {self.manager.refusal}")
        self.next_value += 1
        self.told.sent.append(self.next_value)
        self.batches.append(Batch(partition, self.next_value))
        self.manager.admit(partition)

    def add_offsets(self, partition: TopicPartition, offset: int) -> None:
        commit = self.manager.add_offsets(GroupMember("g"), {partition: Position(offset)})
        assert not isinstance(commit, Problem)
        self.told.promised.append(commit)
        self.told.offsets["g", partition] = offset

    def commit(self) -> None:
        assert self.manager.commit() is None

    def abort(self) -> None:
        if self.manager.abort() is None and self.commit_may_be_served:
            raise Violation("an abort was begun though the commit may have been served")

    # -- batches ---------------------------------------------------------------------------------

    def send(self, fate: Fate) -> None:
        """Bring the first batch that may be sent to its leader."""
        batch = next((each for each in self.batches if self.manager.admit(each.partition)), None)
        if batch is None:
            return
        self._number(batch)
        if fate is Fate.REQUEST_LOST:
            self._failed(batch, ErrorCode.REQUEST_TIMED_OUT, may_be_written=True)
            return
        error = self.coordinator.produce(batch)
        if fate is Fate.ANSWER_LOST:
            self._failed(batch, ErrorCode.REQUEST_TIMED_OUT, may_be_written=True)
        elif error is ErrorCode.NONE:
            self.batches.remove(batch)
            self.told.acknowledged.append(batch.value)
        else:
            self._failed(batch, error, may_be_written=False)

    def _number(self, batch: Batch) -> None:
        pair = self.manager.producer
        if pair != self.coordinator.pair:
            raise Violation(f"{batch} is sent as {pair}, and that is {self.coordinator.pair} now")
        known, last = self.numbers.get(batch.partition, (NO_PRODUCER, -1))
        batch.pair = pair
        batch.sequence = last + 1 if known == pair else 0
        self.numbers[batch.partition] = (pair, batch.sequence)

    def _failed(self, batch: Batch, code: ErrorCode, *, may_be_written: bool) -> None:
        self.batches.remove(batch)
        self.manager.batch_failed(
            batch.partition, Problem(code, "test"), may_be_written=may_be_written
        )

    def settle(self) -> None:
        """What the driver does with the batches of a transaction that is ending."""
        if self.manager.state in (S.ABORTING, S.ABORTABLE_ERROR, S.FATAL_ERROR):
            self.batches.clear()
        if not self.batches and self.manager.awaits_batches:
            self.manager.batches_settled(needs_new_epoch=False)
        self.check()

    # -- requests --------------------------------------------------------------------------------

    def step(self, fate: Fate) -> Pause | None:
        """Send what the manager asks for; None if it asks for nothing."""
        ask = self.manager.next_ask()
        if ask is None:
            return None
        if ask.kind is RequestKind.END:
            self._check_end(ask)
        self.manager.met_coordinator(CoordinatorFeatures(5, 1, self.coordinator.version))
        self.manager.sending(ask)
        if fate in REFUSALS:
            pause = self.manager.answered(ask, refused(ask, REFUSALS[fate])).pause
            if pause is Pause.NONE:
                raise Violation(f"no pause after {fate}")
        elif fate is Fate.SERVED:
            pause = self.manager.answered(ask, self.coordinator.serve(ask)).pause
        else:
            if fate is Fate.ANSWER_LOST:
                self.coordinator.serve(ask)
            elif fate is Fate.LATE and self._may_be_late(ask):
                self.late.append(ask)
            pause = self.manager.unanswered(ask).pause
        self.check()
        return pause

    def _may_be_late(self, ask: Ask) -> bool:
        # Version 1 cannot tell an end that comes late from the next transaction's (KIP-890).
        return self.coordinator.version >= 2 and ask.kind is not RequestKind.INITIALIZE

    def deliver_late(self) -> None:
        """A request arrives that no caller waits for any more."""
        self.coordinator.serve(self.late.pop(0))

    def _check_end(self, ask: Ask) -> None:
        if self.batches:
            raise Violation(f"the end is asked for with {self.batches} under way")
        if not ask.request.committed and self.commit_may_be_served:
            raise Violation("the abort of a transaction whose commit may have been served")
        if ask.request.committed:
            self.commit_may_be_served = True
            missing = [each for each in self.told.promised if not each.is_done]
            if missing:
                raise Violation(f"the commit is asked for without {missing}")

    def finish(self) -> None:
        """With a cluster that has recovered, everything comes to its end in a few steps."""
        for _ in range(40):
            if self.manager.state in (S.READY, S.FATAL_ERROR, S.UNINITIALIZED):
                return
            if self.manager.state in (S.IN_TRANSACTION, S.ABORTABLE_ERROR):
                self.abort()
            self.settle()
            self.send(Fate.SERVED)
            self.step(Fate.SERVED)
        raise Violation(f"stuck in {self.manager.state}")

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        """Look at the ledger whenever a transaction has ended."""
        if self.manager.state is S.FATAL_ERROR:
            raise Violation(f"nobody else is there, and yet: {self.manager.problem}")
        outcome = self.manager.untold_outcome
        if self.manager.state is not S.READY or outcome is None:
            return
        self.manager.untold_outcome = None
        if self.coordinator.is_ongoing:
            raise Violation("the transaction has been left open at the coordinator")
        visible = set(self.coordinator.visible())
        if outcome:
            missing = set(self.told.sent) - visible
            if missing:
                raise Violation(f"committed, and yet invisible: {missing}")
            for key, offset in self.told.offsets.items():
                if self.coordinator.offsets.get(key) != offset:
                    raise Violation(f"committed, and yet the offset of {key} is not {offset}")
        elif visible & set(self.told.sent):
            raise Violation(f"aborted, and yet visible: {visible & set(self.told.sent)}")


def walk(world: World, source: Random, step_count: int) -> None:
    """Any steps in any order, those that bring it forward more often; then to its end."""
    world.initialize()
    for _ in range(step_count):
        fate = source.choice(list(Fate)) if source.random() < 0.4 else Fate.SERVED
        state = world.manager.state
        action = source.random()
        if state is S.READY:
            world.begin()
        elif state is S.IN_TRANSACTION and action < 0.35:
            world.append(source.choice(PARTITIONS))
        elif state is S.IN_TRANSACTION and action < 0.45:
            world.add_offsets(source.choice(PARTITIONS), source.randrange(50))
        elif state is S.IN_TRANSACTION and action < 0.52:
            world.commit()
        elif state in OPEN_STATES and action < (0.9 if state is S.ABORTABLE_ERROR else 0.535):
            world.abort()
        elif world.batches and action < 0.75:
            world.send(fate)
        elif world.late and action < 0.78:
            world.deliver_late()
        elif world.manager.awaits_batches and action < 0.88:
            world.settle()
        else:
            world.step(fate)
    world.finish()
