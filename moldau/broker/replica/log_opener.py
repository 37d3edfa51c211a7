"""The logs of this broker's replicas: found or made in the directory that the metadata names.

Owns when a new log is made, and what happens to a log that cannot be used; where the metadata names
no directory, `LogManager` chooses one. Moves of a replica between directories (KIP-113) are not
served: the second log of such a replica would be opened here. Must not know leaders, requests or
other brokers. Invariants: an empty log is made only for a replica that is new on this broker, that
certainly never had a log here, or that is neither in sync nor eligible while another broker leads
and can be neither by an older proposal (docs/adr/0011, 0016), and never for one that may lie in a
directory that failed; a damaged log is put aside, never removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from moldau.config.backoff import Backoff
from moldau.metadata.image.values import MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from moldau.protocol.types import ZERO_UUID, uuid_to_base64
from moldau.storage.faults import DiskFull, LogOffline
from moldau.storage.log_manager import InconsistentTopicId

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.broker.replica.deferred_appends import StartWork
    from moldau.broker.replica.partition import Partition
    from moldau.protocol.types import TopicPartition
    from moldau.runtime.timers import TimerWheel
    from moldau.storage.log import Log
    from moldau.storage.log_config import LogConfig
    from moldau.storage.log_directory import LogDirectory
    from moldau.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

MAX_INLINE_OPENS: Final = 100
"""New logs made at once for one metadata change (about a millisecond each); the others follow while
requests are served, and their partitions answer NOT_LEADER_OR_FOLLOWER until then."""

FIRST_ROOM_PAUSE_MS: Final = 1_000
MAX_ROOM_PAUSE_MS: Final = 10_000
"""Before a log is tried again that a full disk kept from being made or opened; each pause in a row
is twice as long as the one before."""

MAX_REPLACEMENTS: Final = 3
"""How often one replica is begun empty in the life of a process: a disk on which logs keep breaking
needs an operator."""


class LogOpener:
    """Opens logs for partitions.

    `start` runs work that takes turns with the loop's own; `on_opened` is called for each partition
    whose log was not opened by `open` itself but later.
    """

    def __init__(
        self,
        log_manager: LogManager,
        *,
        log_config: Callable[[str], LogConfig],
        timers: TimerWheel,
        start: StartWork,
        on_opened: Callable[[Partition], None],
    ) -> None:
        self._log_manager = log_manager
        self._log_config = log_config
        self._timers = timers
        self._start = start
        self._on_opened = on_opened
        self._to_open: deque[tuple[Partition, UUID, bool]] = deque()
        self._new: set[tuple[TopicPartition, UUID]] = set()
        """Replicas, by topic id, that came to this broker while it ran, and have no log yet."""
        self._inline_budget = MAX_INLINE_OPENS
        self._replacements: dict[TopicPartition, int] = {}
        self._room_pauses: dict[Partition, Backoff] = {}
        """The pauses of partitions whose logs have found no room at their last attempt."""
        self._waits_for_room: set[Partition] = set()

    def begin_change(self) -> None:
        """A metadata change begins: some logs may be made at once again."""
        self._inline_budget = MAX_INLINE_OPENS

    def is_new(self, partition: Partition) -> None:
        """The replica came to this broker while it runs, so it never had a log here."""
        self._new.add((partition.topic_partition, partition.topic_id))

    def open(self, partition: Partition, assigned: UUID, *, is_believed: bool) -> None:
        """Open the partition's log: at once if it exists, else perhaps in turns with requests.

        `assigned` is the log directory that the metadata names for this broker's replica. A replica
        is believed to have what was committed if it is in the ISR or eligible, or no other broker
        leads.
        """
        is_believed = is_believed and (partition.topic_partition, partition.topic_id) not in (
            self._new
        )
        exists = self._log_manager.get(partition.topic_partition) is not None
        if exists or self._inline_budget > 0:
            self._inline_budget -= not exists
            partition.log = self._open_log(partition, assigned, is_believed)
            return
        partition.is_opening = True
        self._to_open.append((partition, assigned, is_believed))
        if len(self._to_open) == 1:
            self._start(self._open_in_turn())

    async def _open_in_turn(self) -> None:
        while self._to_open:
            await asyncio.sleep(0)
            partition, assigned, is_believed = self._to_open[0]
            partition.is_opening = False
            self._retry_open(partition, assigned, is_believed)
            # Only now: until here `open` must not start a second task.
            self._to_open.popleft()

    def _open_log(self, partition: Partition, assigned: UUID, is_believed: bool) -> Log | None:
        """The partition's log, or None: the partition answers KAFKA_STORAGE_ERROR then."""
        topic_partition = partition.topic_partition
        try:
            directory = None
            self._release_name(partition, assigned, is_believed)
            if self._log_manager.directory_of(topic_partition) is None:
                directory = self._directory_for(partition, assigned, is_believed)
            log = self._log_manager.get_or_create(
                topic_partition,
                partition.topic_id,
                self._log_config(topic_partition.topic),
                directory,
            )
        except DiskFull as problem:
            if partition not in self._waits_for_room:
                pauses = self._room_pauses.setdefault(
                    partition, Backoff(FIRST_ROOM_PAUSE_MS, MAX_ROOM_PAUSE_MS)
                )
                pause_ms = pauses.next_ms()
                logger.warning("%s; trying again in %d ms", problem, pause_ms)
                self._waits_for_room.add(partition)
                self._timers.call_later(pause_ms, self._end_wait, partition, assigned, is_believed)
        except (LogOffline, InconsistentTopicId) as problem:
            self._room_pauses.pop(partition, None)
            logger.error("%s is offline: %s", topic_partition, problem)
        else:
            self._new.discard((topic_partition, partition.topic_id))
            self._room_pauses.pop(partition, None)
            return log
        return None

    def _end_wait(self, partition: Partition, assigned: UUID, is_believed: bool) -> None:
        if not partition.is_deleted and self._log_manager.lacks_room(partition.topic_partition):
            self._start(self._open_again(partition, assigned, is_believed))
            return
        self._waits_for_room.discard(partition)
        self._retry_open(partition, assigned, is_believed)

    async def _open_again(self, partition: Partition, assigned: UUID, is_believed: bool) -> None:
        await self._log_manager.open_again(partition.topic_partition)
        self._waits_for_room.discard(partition)
        self._retry_open(partition, assigned, is_believed)

    def _retry_open(self, partition: Partition, assigned: UUID, is_believed: bool) -> None:
        if partition.is_deleted or partition.log is not None:
            self._room_pauses.pop(partition, None)
            return
        partition.log = self._open_log(partition, assigned, is_believed)
        if partition.log is not None:
            partition.log_opened()
            self._on_opened(partition)

    def _release_name(self, partition: Partition, assigned: UUID, is_believed: bool) -> None:
        """Let an offline log of that name make way, if it is not the wanted one.

        Raises:
            LogOffline: the directory of the offline log fails.
        """
        manager, topic_partition = self._log_manager, partition.topic_partition
        directory = manager.directories.with_id(assigned)
        is_new = (topic_partition, partition.topic_id) in self._new
        names_a_living_one = directory is not None and directory.is_online
        manager.found.release_name(
            topic_partition,
            partition.topic_id,
            is_elsewhere=is_new or (names_a_living_one and not is_believed),
        )

    def _directory_for(
        self, partition: Partition, assigned: UUID, is_believed: bool
    ) -> LogDirectory | None:
        """Where to make a new log; None for the directory with the fewest partitions.

        Raises:
            LogOffline: the replica lies, or may lie, in a directory that failed; or it may have had
                a log that is not here any more, and counts as having what was in it.
        """
        manager = self._log_manager
        name = str(partition.topic_partition)
        directory = manager.directories.with_id(assigned)
        if directory is not None and not directory.is_online:
            return directory  # and using it raises why it cannot be used
        may_be_anywhere = assigned in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY)
        is_away = directory is None and (is_believed or assigned != UNASSIGNED_DIRECTORY)
        if is_away and manager.directories.has_failed:
            raise LogOffline(name, "it may lie in a log directory that failed")
        if not is_believed:
            return directory
        if directory is None and not may_be_anywhere:
            raise LogOffline(
                name,
                f"it lies in log directory {uuid_to_base64(assigned)}, which is not one of this "
                "broker; it begins empty once another replica leads and this one is neither in "
                "sync nor eligible",
            )
        if manager.found.may_have_had(directory):
            reason = manager.found.put_missing(
                partition.topic_partition, partition.topic_id, directory
            )
            raise LogOffline(name, reason)
        return directory

    def damage(self, partition: Partition) -> str | None:
        """Why the partition's log cannot be used although its directory can, and will have room;
        None otherwise.
        """
        directory = self._log_manager.directory_of(partition.topic_partition)
        if directory is None or not directory.is_online:
            return None
        if self._log_manager.lacks_room(partition.topic_partition):
            return None
        return self._log_manager.offline_reason(partition.topic_partition)

    def replace_damaged(self, partition: Partition) -> None:
        """Put the damaged log aside and begin an empty one, to be filled from the leader.

        Only for a replica that is neither in sync nor eligible, and that no proposal which is on
        its way can let in. One that two directories hold is left to an operator.
        """
        topic_partition = partition.topic_partition
        reason = self.damage(partition)
        assert reason is not None, "a log that is fine is not put aside"
        count = self._replacements.get(topic_partition, 0)
        if count >= MAX_REPLACEMENTS or topic_partition in self._log_manager.found.twins:
            return
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
            return
        partition.log = None
        self._retry_open(partition, directory.directory_id, is_believed=False)

    def remove(self, topic_partition: TopicPartition, topic_id: UUID) -> None:
        """Delete the log, unless it is already that of a later topic of the same name."""
        self._replacements.pop(topic_partition, None)
        self._new.discard((topic_partition, topic_id))
        if self._log_manager.topic_id_of(topic_partition) not in (ZERO_UUID, topic_id):
            return
        try:
            self._log_manager.delete(topic_partition)
        except LogOffline as problem:
            logger.error("%s cannot be deleted: %s", topic_partition, problem)
