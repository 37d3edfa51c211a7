"""What a broker reports to the active controller about its replicas: which are in sync, where they
lie.

Owns what waits to be reported, the one request of each kind under way, and when it is repeated.
Must not judge a proposal, take an answer over (`Partition.isr_change_answered` does), or choose
directories. Invariants: one request of a kind is under way at a time, but copies of it that were
not answered may reach the controller later than what is sent after them; of a partition at most one
report of a kind waits, the newest.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar
from uuid import UUID

from moldau.broker.lifecycle.controller_channel import (
    INTERNAL_PRINCIPAL,
    ControllerChannel,
    ControllerUnavailable,
)
from moldau.broker.replica.core.in_sync_set import IsrChange, PartitionState
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p56_alter_partition as p56
from moldau.protocol.messages import p73_assign_replicas_to_dirs as p73

if TYPE_CHECKING:
    from moldau.broker.replica.partition import Partition

logger = logging.getLogger(__name__)


PartitionKey = tuple[UUID, int]
Report = TypeVar("Report")

SETTLED_ERRORS: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""The controller has the directory, or this broker has the replica no more."""


@dataclass(eq=False)
class _Sender(ABC, Generic[Report]):
    """One task while something waits to be sent, none otherwise. `broker_epoch` is asked when a
    request is made; `on_fault` is called with an unexpected exception.
    """

    task_name: ClassVar[str]
    retry_backoff_ms: ClassVar[int]
    """The first pause after a request without progress; doubled up to `max_backoff_ms`."""
    max_backoff_ms: ClassVar[int]

    channel: ControllerChannel
    broker_id: int
    broker_epoch: Callable[[], int]
    on_fault: Callable[[BaseException], None]
    waiting: dict[PartitionKey, Report] = field(default_factory=dict, init=False)
    """Reports that are in no request yet."""
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _is_closed: bool = field(default=False, init=False)
    _problem: str = field(default="", init=False)

    def _enqueue(self, key: PartitionKey, report: Report) -> None:
        self.waiting[key] = report
        if self._task is None:
            self._begin()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._send_all(), name=self.task_name)
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Forget what waits; a request under way may or may not reach the controller."""
        self._is_closed = True
        self.waiting.clear()
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.on_fault(error)
        if self.waiting and not self._is_closed:
            # Reported after the task had ended, before the loop called this.
            self._begin()

    async def _send_all(self) -> None:
        backoff = Backoff(self.retry_backoff_ms, self.max_backoff_ms)
        while self.waiting:
            if await self._send_batch():
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next_ms() / 1000)

    @abstractmethod
    async def _send_batch(self) -> bool:
        """Send one request; returns whether there was progress."""


@dataclass(eq=False)
class AlterPartitionSender(_Sender[tuple["Partition", IsrChange]]):
    """Takes the leaders' proposals about in-sync sets to the controller (AlterPartition v3).

    Invariant: a proposal that its partition has left behind, because metadata moved on, is not sent
    (again). `on_answered` is called after answers were taken over: high watermarks may have moved.
    """

    task_name = "alter-partition"
    retry_backoff_ms = 50  # as in Apache Kafka's brokers
    max_backoff_ms = 1_000
    max_partitions_per_request: ClassVar[int] = 1_000
    answer_timeout_ms: ClassVar[int] = 5_000
    """How long one request may look for an active controller and wait for its answer; then a new
    request is made from what is still proposed."""

    on_answered: Callable[[], None]

    def submit(self, partition: Partition, change: IsrChange) -> None:
        """Propose `change`; it replaces an earlier proposal of the partition that still waits."""
        if not self._is_closed:
            key = (partition.topic_id, partition.topic_partition.partition)
            self._enqueue(key, (partition, change))

    def _take_batch(self) -> dict[PartitionKey, tuple[Partition, IsrChange]]:
        """The oldest proposals that are not void; void ones are dropped."""
        batch: dict[PartitionKey, tuple[Partition, IsrChange]] = {}
        for key in list(self.waiting):
            if len(batch) == self.max_partitions_per_request:
                break
            partition, change = self.waiting.pop(key)
            if not is_void(partition, change):
                batch[key] = (partition, change)
        return batch

    async def _send_batch(self) -> bool:
        batch = self._take_batch()
        if not batch:
            return True
        try:
            response: p56.AlterPartitionResponse = await self.channel.send(
                self._request(batch), INTERNAL_PRINCIPAL, timeout_ms=self.answer_timeout_ms
            )
        except ControllerUnavailable as problem:
            self._log_problem(f"no answer about in-sync replicas: {problem}")
            self._put_back(batch)
            return False
        error = ErrorCode.of(response.error_code)
        if error is not ErrorCode.NONE:
            self._log_problem(f"the controller takes no in-sync replicas from us: {error.name}")
            self._put_back(batch)
            return False
        self._log_problem("")
        return self._take_answers(batch, response)

    def _request(
        self, batch: Mapping[PartitionKey, tuple[Partition, IsrChange]]
    ) -> p56.AlterPartitionRequest:
        topics: dict[UUID, p56.TopicData] = {}
        for (topic_id, partition_index), (_, change) in batch.items():
            topic = topics.setdefault(topic_id, p56.TopicData(topic_id=topic_id))
            topic.partitions.append(
                p56.PartitionData(
                    partition_index=partition_index,
                    leader_epoch=change.leader_epoch,
                    new_isr_with_epochs=[
                        p56.BrokerState(
                            broker_id=member, broker_epoch=change.broker_epochs.get(member, -1)
                        )
                        for member in change.isr
                    ],
                    leader_recovery_state=change.leader_recovery_state,
                    partition_epoch=change.partition_epoch,
                )
            )
        return p56.AlterPartitionRequest(
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch(),
            topics=list(topics.values()),
        )

    def _take_answers(
        self,
        batch: Mapping[PartitionKey, tuple[Partition, IsrChange]],
        response: p56.AlterPartitionResponse,
    ) -> bool:
        """Returns whether the response has answers that are not just "later"."""
        answers = {
            (topic.topic_id, answer.partition_index): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        is_progress = False
        for key, (partition, change) in batch.items():
            answer = answers.get(key)
            if answer is None:
                self._put_back({key: (partition, change)})
                continue
            error = ErrorCode.of(answer.error_code)
            state = _answered_state(partition, answer) if error is ErrorCode.NONE else None
            following = partition.isr_change_answered(change, error, state)
            if following is not None:
                # A proposal that the partition made since is newer than one to be repeated.
                self.waiting.setdefault(key, (partition, following))
            is_progress = is_progress or following is not change
        self.on_answered()
        return is_progress

    def _put_back(self, batch: Mapping[PartitionKey, tuple[Partition, IsrChange]]) -> None:
        """Send these again, before later proposals; of one partition the later one counts."""
        self.waiting = {**batch, **self.waiting}

    def _log_problem(self, problem: str) -> None:
        if problem == self._problem:
            return
        if problem:
            logger.warning("%s", problem)
        else:
            logger.info("the controller answers about in-sync replicas again")
        self._problem = problem


def _answered_state(partition: Partition, answer: p56.PartitionDataResponse) -> PartitionState:
    # The answer does not name the replicas; the metadata that follows it does.
    return partition.core.state._replace(
        leader_id=answer.leader_id,
        leader_epoch=answer.leader_epoch,
        partition_epoch=answer.partition_epoch,
        isr=tuple(answer.isr),
        leader_recovery_state=answer.leader_recovery_state,
    )


def is_void(partition: Partition, change: IsrChange) -> bool:
    """Whether metadata has moved on since the proposal: the controller would refuse it."""
    core = partition.core
    return (
        partition.is_deleted
        or not core.is_leader
        or core.leader_epoch != change.leader_epoch
        or core.partition_epoch != change.partition_epoch
    )


@dataclass(eq=False)
class DirectoryAssignments(_Sender[UUID]):
    """Reports to the controller the log directory of each replica (AssignReplicasToDirs, KIP-858).

    Nothing is sent while the metadata is right. A replica whose log cannot be used, in a directory
    that can, is assigned to LOST_DIRECTORY: it then leaves the in-sync replicas and the leadership,
    as if its whole directory had failed.
    """

    task_name = "directory-assignments"
    retry_backoff_ms = 100
    max_backoff_ms = 10_000
    max_replicas_per_request: ClassVar[int] = 2_250
    """As many as Apache Kafka's brokers name in one request (it then stays below 100 KB)."""
    answer_timeout_ms: ClassVar[int] = 10_000

    _told: dict[PartitionKey, UUID] = field(default_factory=dict, init=False)

    def assign(self, topic_id: UUID, partition_index: int, directory_id: UUID) -> None:
        """Report a replica's directory, because the metadata names another. A report that is on its
        way already is not repeated.
        """
        key = (topic_id, partition_index)
        if not self._is_closed and self._told.get(key) != directory_id:
            self._enqueue(key, directory_id)

    def settled(self, topic_id: UUID, partition_index: int, only: UUID | None = None) -> None:
        """The metadata is right about the replica, or the replica is gone. With `only` the metadata
        has that directory, and another one may still be on its way there.
        """
        key = (topic_id, partition_index)
        for reports in (self.waiting, self._told):
            if only is None or reports.get(key) == only:
                reports.pop(key, None)

    async def _send_all(self) -> None:
        # One turn of the loop: the reports of one metadata change go into one request.
        await asyncio.sleep(0)
        await super()._send_all()

    async def _send_batch(self) -> bool:
        batch = {}
        for key in list(self.waiting)[: self.max_replicas_per_request]:
            batch[key] = self._told[key] = self.waiting.pop(key)
        try:
            response: p73.AssignReplicasToDirsResponse = await self.channel.send(
                self._request(batch), INTERNAL_PRINCIPAL, timeout_ms=self.answer_timeout_ms
            )
        except ControllerUnavailable as problem:
            self._tell_again(batch, str(problem))
            return False
        error = ErrorCode.of(response.error_code)
        if error is ErrorCode.UNSUPPORTED_VERSION:
            # The cluster's metadata.version knows no directories; when it does, they are reported.
            for key in batch:
                self._told.pop(key, None)
            return True
        if error is not ErrorCode.NONE:
            self._tell_again(batch, error.name)
            return False
        answered = {
            (topic.topic_id, partition.partition_index): ErrorCode.of(partition.error_code)
            for directory in response.directories
            for topic in directory.topics
            for partition in topic.partitions
        }
        again = {
            key: directory_id
            for key, directory_id in batch.items()
            if answered.get(key) not in SETTLED_ERRORS
        }
        for key in batch.keys() - again.keys():
            if answered[key] is not ErrorCode.NONE:
                self._told.pop(key, None)
        if again:
            key = next(iter(again))
            self._tell_again(again, getattr(answered.get(key), "name", "not answered"))
        else:
            self._problem = ""
        return not again

    def _tell_again(self, batch: Mapping[PartitionKey, UUID], problem: str) -> None:
        for key, directory_id in batch.items():
            if self._told.get(key) == directory_id:
                del self._told[key]
                self.waiting.setdefault(key, directory_id)
        if problem != self._problem:
            self._problem = problem
            logger.warning("directories of %d replicas not told yet: %s", len(batch), problem)

    def _request(self, batch: Mapping[PartitionKey, UUID]) -> p73.AssignReplicasToDirsRequest:
        directories: dict[UUID, dict[UUID, p73.TopicData]] = {}
        for (topic_id, partition_index), directory_id in batch.items():
            topics = directories.setdefault(directory_id, {})
            topic = topics.setdefault(topic_id, p73.TopicData(topic_id=topic_id))
            topic.partitions.append(p73.PartitionData(partition_index=partition_index))
        return p73.AssignReplicasToDirsRequest(
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch(),
            directories=[
                p73.DirectoryData(id=directory_id, topics=list(topics.values()))
                for directory_id, topics in directories.items()
            ],
        )
