"""The way of a leader's proposals about in-sync sets to the controller (AlterPartition v3).

Owns: which proposals wait, the one request under way, and when it is repeated. Must not judge a
proposal, or take an answer over: `Partition.isr_change_answered` does. Invariants: one request is
under way at a time, but copies of it that were not answered may reach the controller later than
what is sent after them; of a partition at most one proposal waits, the newest; one that its
partition has left behind, because metadata moved on, is not sent (again).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from moldau.broker.lifecycle.controller_channel import ControllerChannel, ControllerUnavailable
from moldau.broker.replica.core.values import IsrChange, PartitionState
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResponse,
    TopicData,
)

if TYPE_CHECKING:
    from moldau.broker.replica import Partition

logger = logging.getLogger("moldau.broker.isr")

PRINCIPAL: Final = "User:ANONYMOUS"

MAX_PARTITIONS_PER_REQUEST: Final = 1_000
"""Proposals in one request; the others wait for the next one."""

RETRY_BACKOFF_MS: Final = 50
"""The first pause after a request that brought nothing, as Apache Kafka's brokers make it; doubled
up to MAX_BACKOFF_MS while that goes on."""

MAX_BACKOFF_MS: Final = 1_000

ANSWER_TIMEOUT_MS: Final = 5_000
"""How long one request may look for an active controller, and wait for its answer; after that it is
made anew, out of what is still proposed."""

PartitionKey = tuple[UUID, int]


class AlterPartitionSender:
    """One task while something is proposed, none otherwise.

    Args:
        broker_epoch: of this broker, as it is when a request is made.
        on_answered: called after answers were taken over; high watermarks may have moved.
        on_fault: told of an exception that nobody expected.
    """

    def __init__(
        self,
        channel: ControllerChannel,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        on_answered: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._channel = channel
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._on_answered = on_answered
        self._on_fault = on_fault
        self._waiting: dict[PartitionKey, tuple[Partition, IsrChange]] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._problem = ""

    @property
    def waiting_count(self) -> int:
        """Proposals that are in no request yet."""
        return len(self._waiting)

    def submit(self, partition: Partition, change: IsrChange) -> None:
        """Propose `change`; it replaces what the partition has proposed before, if that waits."""
        if self._is_closed:
            return
        key = (partition.topic_id, partition.topic_partition.partition)
        self._waiting[key] = (partition, change)
        if self._task is None:
            self._begin()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._send_all(), name="alter-partition"
        )
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Forget what waits; what is under way may or may not reach the controller."""
        self._is_closed = True
        self._waiting.clear()
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_fault(error)
        if self._waiting and not self._is_closed:
            self._begin()

    async def _send_all(self) -> None:
        backoff_ms = 0
        while self._waiting:
            batch = self._take_batch()
            if not batch:
                continue
            is_progress = await self._send(batch)
            if is_progress:
                backoff_ms = 0
                continue
            backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS) if backoff_ms else RETRY_BACKOFF_MS
            await asyncio.sleep(backoff_ms / 1000)

    def _take_batch(self) -> dict[PartitionKey, tuple[Partition, IsrChange]]:
        """The oldest proposals that still hold, and the others of this batch forgotten."""
        batch: dict[PartitionKey, tuple[Partition, IsrChange]] = {}
        for key in list(self._waiting):
            if len(batch) == MAX_PARTITIONS_PER_REQUEST:
                break
            partition, change = self._waiting.pop(key)
            if not is_void(partition, change):
                batch[key] = (partition, change)
        return batch

    async def _send(self, batch: Mapping[PartitionKey, tuple[Partition, IsrChange]]) -> bool:
        """One request; returns whether it brought answers that are not just "later"."""
        try:
            response: AlterPartitionResponse = await self._channel.send(
                self._request(batch), PRINCIPAL, timeout_ms=ANSWER_TIMEOUT_MS
            )
        except ControllerUnavailable as problem:
            self._report(f"no answer about in-sync replicas: {problem}")
            self._put_back(batch)
            return False
        error = ErrorCode.of(response.error_code)
        if error is not ErrorCode.NONE:
            self._report(f"the controller takes no in-sync replicas from us: {error.name}")
            self._put_back(batch)
            return False
        self._report("")
        return self._take_answers(batch, response)

    def _request(
        self, batch: Mapping[PartitionKey, tuple[Partition, IsrChange]]
    ) -> AlterPartitionRequest:
        topics: dict[UUID, TopicData] = {}
        for (topic_id, partition_index), (_, change) in batch.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = TopicData(topic_id=topic_id)
            topic.partitions.append(
                PartitionData(
                    partition_index=partition_index,
                    leader_epoch=change.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(
                            broker_id=member, broker_epoch=change.broker_epochs.get(member, -1)
                        )
                        for member in change.isr
                    ],
                    leader_recovery_state=change.leader_recovery_state,
                    partition_epoch=change.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            topics=list(topics.values()),
        )

    def _take_answers(
        self,
        batch: Mapping[PartitionKey, tuple[Partition, IsrChange]],
        response: AlterPartitionResponse,
    ) -> bool:
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
            following = self._take_answer(partition, change, error, answer)
            if following is not None:
                # What the partition proposed meanwhile is newer than what it wants repeated.
                self._waiting.setdefault(key, (partition, following))
            is_progress = is_progress or following is not change
        self._on_answered()
        return is_progress

    def _take_answer(
        self,
        partition: Partition,
        change: IsrChange,
        error: ErrorCode,
        answer: PartitionDataResponse,
    ) -> IsrChange | None:
        state = None
        if error is ErrorCode.NONE:
            state = PartitionState(
                leader_id=answer.leader_id,
                leader_epoch=answer.leader_epoch,
                partition_epoch=answer.partition_epoch,
                # The answer says nothing of these; the metadata that follows it does.
                replicas=partition.core.replicas,
                adding_replicas=partition.core.adding_replicas,
                removing_replicas=partition.core.removing_replicas,
                isr=tuple(answer.isr),
                leader_recovery_state=answer.leader_recovery_state,
            )
        return partition.isr_change_answered(change, error, state)

    def _put_back(self, batch: Mapping[PartitionKey, tuple[Partition, IsrChange]]) -> None:
        """To be sent again, before what came meanwhile, unless that is of the same partition."""
        self._waiting = {**batch, **self._waiting}

    def _report(self, problem: str) -> None:
        """Log a problem when it is a new one, and that it is over."""
        if problem == self._problem:
            return
        if problem:
            logger.warning("%s", problem)
        else:
            logger.info("the controller answers about in-sync replicas again")
        self._problem = problem


def is_void(partition: Partition, change: IsrChange) -> bool:
    """Whether metadata has moved on since: the controller would refuse it."""
    core = partition.core
    return (
        partition.is_deleted
        or not core.is_leader
        or core.leader_epoch != change.leader_epoch
        or core.partition_epoch != change.partition_epoch
    )
