"""Tells the controller in which log directory each replica lies (AssignReplicasToDirs, KIP-858).

Owns: what is to be told and is not confirmed yet. Must not choose directories. Invariants: one
request is under way at a time; of a replica the newest directory wins; nothing is sent while what
the metadata says is right.

A replica whose log cannot be used, in a directory that can, is told as LOST_DIRECTORY: it then
leaves the in-sync replicas and the leadership, as if its whole directory had failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from moldau.broker.lifecycle.controller_channel import ControllerChannel, ControllerUnavailable
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)

logger = logging.getLogger("moldau.broker.directories")

PRINCIPAL: Final = "User:ANONYMOUS"

MAX_REPLICAS_PER_REQUEST: Final = 2_250
"""As many as Apache Kafka's brokers name in one request (it then stays below 100 KB)."""

RETRY_BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 10_000
ANSWER_TIMEOUT_MS: Final = 10_000

PartitionKey = tuple[UUID, int]

SETTLED_ERRORS: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Taken over, or of a replica that this broker has no more."""


class DirectoryAssignments:
    """One task while something is to be told, none otherwise.

    Args:
        broker_epoch: of this broker, as it is when a request is made.
        on_fault: told of an exception that nobody expected.
    """

    def __init__(
        self,
        channel: ControllerChannel,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._channel = channel
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._on_fault = on_fault
        self._waiting: dict[PartitionKey, UUID] = {}
        self._told: dict[PartitionKey, UUID] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._problem = ""

    @property
    def waiting_count(self) -> int:
        """Replicas that are in no request yet."""
        return len(self._waiting)

    def assign(self, topic_id: UUID, partition_index: int, directory_id: UUID) -> None:
        """The replica lies in that directory, and the metadata says otherwise. May be called again
        with what is on its way already.
        """
        key = (topic_id, partition_index)
        if self._is_closed or self._told.get(key) == directory_id:
            return
        self._waiting[key] = directory_id
        if self._task is None:
            self._begin()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._send_all(), name="directory-assignments"
        )
        self._task.add_done_callback(self._ended)

    def settled(self, topic_id: UUID, partition_index: int) -> None:
        """The metadata is right about the replica, or the replica is gone."""
        key = (topic_id, partition_index)
        self._waiting.pop(key, None)
        self._told.pop(key, None)

    async def close(self) -> None:
        """Tell nothing more."""
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
            # Told to a task that had ended, before the loop came here.
            self._begin()

    async def _send_all(self) -> None:
        backoff_ms = 0
        # One turn of the loop: what one metadata change brings goes into one request.
        await asyncio.sleep(0)
        while self._waiting:
            batch = {}
            for key in list(self._waiting)[:MAX_REPLICAS_PER_REQUEST]:
                batch[key] = self._told[key] = self._waiting.pop(key)
            problem = await self._send(batch)
            if not problem:
                backoff_ms = 0
                continue
            backoff_ms = min(2 * backoff_ms, MAX_BACKOFF_MS) if backoff_ms else RETRY_BACKOFF_MS
            await asyncio.sleep(backoff_ms / 1000)

    async def _send(self, batch: Mapping[PartitionKey, UUID]) -> bool:
        """One request; returns whether something of it has to be told again."""
        try:
            response: AssignReplicasToDirsResponse = await self._channel.send(
                self._request(batch), PRINCIPAL, timeout_ms=ANSWER_TIMEOUT_MS
            )
        except ControllerUnavailable as problem:
            self._tell_again(batch, str(problem))
            return True
        error = ErrorCode.of(response.error_code)
        if error is ErrorCode.UNSUPPORTED_VERSION:
            # The cluster's metadata.version knows no directories; when it does, they are told.
            for key in batch:
                self._told.pop(key, None)
            return False
        if error is not ErrorCode.NONE:
            self._tell_again(batch, error.name)
            return True
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
        return bool(again)

    def _tell_again(self, batch: Mapping[PartitionKey, UUID], problem: str) -> None:
        for key, directory_id in batch.items():
            if self._told.get(key) == directory_id:
                del self._told[key]
                self._waiting.setdefault(key, directory_id)
        if problem != self._problem:
            self._problem = problem
            logger.warning("directories of %d replicas not told yet: %s", len(batch), problem)

    def _request(self, batch: Mapping[PartitionKey, UUID]) -> AssignReplicasToDirsRequest:
        directories: dict[UUID, dict[UUID, TopicData]] = {}
        for (topic_id, partition_index), directory_id in batch.items():
            topics = directories.setdefault(directory_id, {})
            if topic_id not in topics:
                topics[topic_id] = TopicData(topic_id=topic_id)
            topics[topic_id].partitions.append(PartitionData(partition_index=partition_index))
        return AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            directories=[
                DirectoryData(id=directory_id, topics=list(topics.values()))
                for directory_id, topics in directories.items()
            ],
        )
