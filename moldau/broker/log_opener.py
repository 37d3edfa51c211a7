"""The logs of this broker's replicas: found or made in the directory that the metadata names.

Owns: when a new log is made, where, and what becomes of one that cannot be used. Must not know
leaders, requests or other brokers. Invariants: no empty log is made for a replica that may lie in a
directory that failed: as a member of the in-sync replicas it would be believed; a damaged log is
put aside, never removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from moldau.metadata.image.values import UNASSIGNED_DIRECTORY
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log_manager import InconsistentTopicId

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.broker.partition import Partition
    from moldau.broker.topic_settings import TopicSettings
    from moldau.protocol.types import TopicPartition
    from moldau.runtime.timers import TimerWheel
    from moldau.storage.log import Log
    from moldau.storage.log_directory import LogDirectory
    from moldau.storage.log_manager import LogManager

logger = logging.getLogger("moldau.broker.replicas")

MAX_INLINE_OPENS: Final = 100
"""New logs made at once for one metadata change (about a millisecond each); the others follow while
requests are served, and their partitions answer NOT_LEADER_OR_FOLLOWER until then."""

RETRY_OPEN_MS: Final = 30_000
"""How long after a full disk kept a log from being made it is tried again."""

MAX_REPLACEMENTS: Final = 3
"""How often one replica is begun anew in the life of a process: a disk on which logs keep breaking
is an operator's business."""


class LogOpener:
    """Opens logs for partitions.

    Args:
        start: runs work that takes turns with the loop's own.
        on_opened: told of each partition whose log was opened later than it was asked for.
    """

    def __init__(
        self,
        log_manager: LogManager,
        *,
        settings: TopicSettings,
        timers: TimerWheel,
        start: Callable[[Coroutine[Any, Any, None]], None],
        on_opened: Callable[[Partition], None],
    ) -> None:
        self._log_manager = log_manager
        self._settings = settings
        self._timers = timers
        self._start = start
        self._on_opened = on_opened
        self._to_open: deque[tuple[Partition, UUID]] = deque()
        self._inline_budget = MAX_INLINE_OPENS
        self._replacements: dict[TopicPartition, int] = {}
        self._waits_for_room: set[Partition] = set()

    def begin_change(self) -> None:
        """A metadata change begins."""
        self._inline_budget = MAX_INLINE_OPENS

    def open(self, partition: Partition, assigned: UUID) -> None:
        """Logs that exist are at hand; making many new ones takes turns with requests.

        Args:
            assigned: the log directory that the metadata names for this broker's replica.
        """
        exists = self._log_manager.get(partition.topic_partition) is not None
        if exists or self._inline_budget > 0:
            self._inline_budget -= not exists
            partition.log = self._open_log(partition, assigned)
            return
        partition.is_opening = True
        self._to_open.append((partition, assigned))
        if len(self._to_open) == 1:
            self._start(self._open_in_turn())

    async def _open_in_turn(self) -> None:
        while self._to_open:
            await asyncio.sleep(0)
            partition, assigned = self._to_open[0]
            partition.is_opening = False
            self._retry_open(partition, assigned)
            # Only now: until here `open` must not start a second turn.
            self._to_open.popleft()

    def _open_log(self, partition: Partition, assigned: UUID) -> Log | None:
        """The partition's log, or None: the partition answers KAFKA_STORAGE_ERROR then."""
        topic_partition = partition.topic_partition
        try:
            directory = None
            if self._log_manager.directory_of(topic_partition) is None:
                directory = self._directory_for(topic_partition, assigned)
            return self._log_manager.get_or_create(
                topic_partition,
                partition.topic_id,
                self._settings.of(topic_partition.topic).log_config,
                directory,
            )
        except DiskFull as problem:
            if partition not in self._waits_for_room:
                logger.warning("%s; trying again in %d ms", problem, RETRY_OPEN_MS)
                self._waits_for_room.add(partition)
                self._timers.call_later(RETRY_OPEN_MS, self._end_wait, partition, assigned)
        except (LogOffline, InconsistentTopicId) as problem:
            logger.error("%s is offline: %s", topic_partition, problem)
        return None

    def _end_wait(self, partition: Partition, assigned: UUID) -> None:
        self._waits_for_room.discard(partition)
        self._retry_open(partition, assigned)

    def _retry_open(self, partition: Partition, assigned: UUID) -> None:
        if partition.is_deleted or partition.log is not None:
            return
        partition.log = self._open_log(partition, assigned)
        if partition.log is not None:
            partition.log_opened()
            self._on_opened(partition)

    def _directory_for(
        self, topic_partition: TopicPartition, assigned: UUID
    ) -> LogDirectory | None:
        """Where to make a new log; None for the directory with the fewest partitions.

        Raises:
            LogOffline: the replica lies, or may lie, in a directory that failed.
        """
        directory = self._log_manager.directory_with_id(assigned)
        if directory is not None:
            return directory
        if assigned != UNASSIGNED_DIRECTORY and self._log_manager.has_failed_directories:
            raise LogOffline(str(topic_partition), "it may lie in a log directory that failed")
        return None

    # -- damaged logs ----------------------------------------------------------------------------

    def damage(self, partition: Partition) -> str | None:
        """Why the partition's log cannot be used although its directory can; None when it can, or
        when the directory cannot.
        """
        directory = self._log_manager.directory_of(partition.topic_partition)
        if directory is None or not directory.is_online:
            return None
        return self._log_manager.offline_reason(partition.topic_partition)

    def replace_damaged(self, partition: Partition) -> bool:
        """Put the damaged log aside and begin an empty one, to be filled from the leader.

        Only for a replica that nobody believes: out of the in-sync and the eligible replicas. One
        that two directories hold is an operator's to sort out.

        Returns:
            Whether the partition has a log now.
        """
        topic_partition = partition.topic_partition
        reason = self.damage(partition)
        assert reason is not None, "a log that is fine is not put aside"
        count = self._replacements.get(topic_partition, 0)
        if count >= MAX_REPLACEMENTS or topic_partition in self._log_manager.twins:
            return False
        self._replacements[topic_partition] = count + 1
        directory = self._log_manager.directory_of(topic_partition)
        assert directory is not None
        logger.error(
            "%s: its log in %s is damaged and put aside; it is replicated anew from broker %d: %s",
            topic_partition,
            directory.path,
            partition.core.leader_id,
            reason,
        )
        if count + 1 == MAX_REPLACEMENTS:
            logger.error(
                "%s: that was the last time without a restart; look at the disk below %s",
                topic_partition,
                directory.path,
            )
        try:
            self._log_manager.mark_stray(topic_partition)
        except LogOffline as problem:
            logger.error("%s cannot be put aside: %s", topic_partition, problem)
            return False
        partition.log = None
        self._retry_open(partition, directory.directory_id)
        return partition.log is not None

    # -- the end of a log ------------------------------------------------------------------------

    def remove(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """Delete the log, unless it is already that of a later topic of the same name."""
        self._replacements.pop(topic_partition, None)
        log = self._log_manager.get(topic_partition)
        if log is not None and log.topic_id != topic_id:
            return
        try:
            self._log_manager.delete(topic_partition)
        except LogOffline as problem:
            logger.error("%s cannot be deleted: %s", topic_partition, problem)
