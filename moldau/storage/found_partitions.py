"""FoundPartitions: what a node's log directories hold when it starts, against what they should.

Owns: which partitions are missing, which ones two directories have (twins), which directories were
not read, and what becomes of each once the metadata is known.
Must not: make logs, or know leaders. Invariant: a missing partition stays missing, over any number
of starts, until it is put aside or the metadata does not know it (docs/adr/0016).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from moldau.protocol.types import ZERO_UUID, TopicPartition, uuid_to_base64
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    RECOVERY_POINT_CHECKPOINT,
    UNKNOWN_BROKER_EPOCH,
    read_partition_metadata,
)
from moldau.storage.faults import CorruptFile, LogOffline, describe
from moldau.storage.log_directory import STRAY_SUFFIX, DirectoryContents, LogDirectory
from moldau.storage.log_table import LogTable, OfflinePartition
from moldau.storage.served_directories import ServedDirectories

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class FoundPartitions:
    """Belongs to one log manager. `look_for_missing` and `without_twins` while it starts, `settle`
    when the metadata is known, the others while it runs.

    Args:
        write_soon: has the checkpoint files written that name the partitions.
        mark_stray: puts an online or offline partition aside. Raises: LogOffline.
        load: opens a partition that a directory has.
    """

    _filesystem: Filesystem
    _table: LogTable
    _directories: ServedDirectories
    _write_soon: Callable[[], None]
    _mark_stray: Callable[[TopicPartition], bool]
    _load: Callable[[DirectoryContents, TopicPartition], Awaitable[None]]
    twins: set[TopicPartition] = field(default_factory=set)
    """Partitions that two directories have, until metadata or an operator decide."""
    missing: set[TopicPartition] = field(default_factory=set)
    """Offline partitions that a checkpoint names and no directory has."""
    unread: frozenset[UUID] = frozenset()
    """Directories that the broker had before and that could not be read at the start."""
    _read: frozenset[UUID] = frozenset()
    _twin_places: dict[TopicPartition, list[DirectoryContents]] = field(default_factory=dict)
    _nameless: set[UUID] = field(default_factory=set)

    def gone(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """The partition was put aside in that directory: put its copies in others aside too.

        A new log must not begin in what is left of an old one of that name.
        """
        for contents in self._twin_places.get(topic_partition, ()):
            if contents.directory is not directory:
                self._put_copy_aside(contents.directory, topic_partition)
        self._drop(topic_partition)

    def _drop(self, topic_partition: TopicPartition) -> None:
        self.missing.discard(topic_partition)
        self.twins.discard(topic_partition)
        self._twin_places.pop(topic_partition, None)

    def previous_broker_epoch(self, found: Iterable[DirectoryContents]) -> int:
        """The broker epoch with which all directories were cleanly shut down, else -1 (KIP-966).

        All: those that are configured, or that the broker had when it stopped. A partition that is
        damaged all the same, or missing, may lack what it acknowledged.
        """
        stops = [contents.clean_shutdown for contents in found]
        epochs = {UNKNOWN_BROKER_EPOCH if each is None else each.broker_epoch for each in stops}
        if len(epochs) != 1 or self._directories.has_failed or self.unread or self._table.offline:
            return UNKNOWN_BROKER_EPOCH
        return epochs.pop()

    def look_for_missing(self, found: Sequence[DirectoryContents]) -> None:
        """Find partitions that were here when the checkpoints were written, and are gone."""
        self._read = frozenset(contents.directory.directory_id for contents in found)
        present = {each for contents in found for each in contents.partitions}
        noted: set[UUID] = set()
        for contents in found:
            if contents.clean_shutdown is not None:
                noted |= contents.clean_shutdown.directory_ids
            if not contents.has_names:
                self._nameless.add(contents.directory.directory_id)
            for topic_partition in contents.names():
                if topic_partition not in present and topic_partition not in self.missing:
                    self.missing.add(topic_partition)
                    reason = f"{contents.directory.join(str(topic_partition))} is not there"
                    self._put_offline(contents, topic_partition, reason)
        self._note_unread(noted)
        if self.missing:
            logger.warning("%d partitions that were here are not any more", len(self.missing))

    def has_all(self, directory_ids: Iterable[UUID]) -> bool:
        """Whether the start has read every directory that this broker has or had.

        These: `directory_ids` of the last registration, those of the last stop, and the configured
        ones. One of them that was not read may have held any partition whose directory the metadata
        does not name.
        """
        self._note_unread(directory_ids)
        return not (self.unread or self._directories.has_failed)

    def _note_unread(self, directory_ids: Iterable[UUID]) -> None:
        known = self._read.union(self.unread)
        unread = [each for each in directory_ids if each not in known]
        if unread:
            ids = ", ".join(sorted(uuid_to_base64(each) for each in unread))
            logger.warning("log directories that this broker had before are not here: %s", ids)
            self.unread = self.unread.union(unread)

    def without_twins(
        self, found: Iterable[DirectoryContents]
    ) -> list[tuple[DirectoryContents, TopicPartition]]:
        """The partitions to load. A partition that two directories have is served from neither."""
        holders: dict[TopicPartition, list[DirectoryContents]] = {}
        for contents in found:
            for topic_partition in contents.partitions:
                holders.setdefault(topic_partition, []).append(contents)
        wanted = []
        for topic_partition, places in holders.items():
            if len(places) == 1:
                wanted.append((places[0], topic_partition))
                continue
            paths = " and ".join(each.directory.path for each in places)
            reason = f"it is in {paths}; keep the right one of the two"
            logger.error("%s is offline: %s", topic_partition, reason)
            self.twins.add(topic_partition)
            self._twin_places[topic_partition] = places
            self._put_offline(places[0], topic_partition, reason)
        return wanted

    async def settle(self, place_of: Callable[[TopicPartition], tuple[UUID, UUID] | None]) -> None:
        """Put aside logs that are no replica of this broker, and decide between twins. `place_of`
        gives topic id and log directory of this broker's replica, None when it has none.
        """
        for log in list(self._table.logs.values()):
            place = place_of(log.topic_partition)
            if place is None or log.topic_id not in (place[0], ZERO_UUID):
                logger.warning("%s is not a replica of this broker: put aside", log.topic_partition)
                try:
                    self._mark_stray(log.topic_partition)
                except LogOffline as problem:
                    logger.error("%s cannot be put aside: %s", log.topic_partition, problem)
        for topic_partition in [each for each in self.missing if place_of(each) is None]:
            self._forget(topic_partition)
        for topic_partition, places in list(self._twin_places.items()):
            place = place_of(topic_partition)
            if topic_partition not in self.twins:
                del self._twin_places[topic_partition]
            elif self._is_of_others(topic_partition, None if place is None else place[0]):
                self._put_twins_aside(topic_partition)
            elif place is not None:
                right = self._right_twin(topic_partition, places, place)
                if right is not None:
                    await self._keep_twin(topic_partition, right, places)

    def _topic_ids(self, topic_partition: TopicPartition) -> list[UUID | None]:
        """The topic id of each copy of the partition, None where a disk does not give it.

        ZERO_UUID for a copy without one: a power loss left no more of a log that was just made.
        """
        found: list[UUID | None] = []
        for contents in self._twin_places[topic_partition]:
            path = contents.directory.join(str(topic_partition))
            try:
                found.append(read_partition_metadata(self._filesystem, path) or ZERO_UUID)
            except CorruptFile:
                found.append(ZERO_UUID)
            except OSError:
                found.append(None)
        return found

    def _is_of_others(self, topic_partition: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether no copy can belong to the topic of this id (None: to any of this broker)."""
        own: set[UUID | None] = {None} if topic_id is None else {None, ZERO_UUID, topic_id}
        return own.isdisjoint(self._topic_ids(topic_partition))

    def _put_twins_aside(self, topic_partition: TopicPartition) -> None:
        """Put every copy aside; a directory that cannot be written fails and keeps its copy."""
        for contents in self._twin_places[topic_partition]:
            self._put_copy_aside(contents.directory, topic_partition)
        self._forget(topic_partition)

    def _put_copy_aside(self, directory: LogDirectory, topic_partition: TopicPartition) -> bool:
        """Returns whether the copy was renamed; otherwise the directory has failed."""
        try:
            self._directories.rename_aside(directory, topic_partition, STRAY_SUFFIX)
        except FileNotFoundError:
            return True
        except OSError as error:
            path = directory.join(str(topic_partition))
            self._directories.fail(directory, f"{path} cannot be renamed: {describe(error)}")
            return False
        return True

    def _right_twin(
        self,
        topic_partition: TopicPartition,
        places: Sequence[DirectoryContents],
        place: tuple[UUID, UUID],
    ) -> DirectoryContents | None:
        """The copy of this topic, or without a topic id, where the metadata says; else the only one
        of this topic; else the only one without a topic id.

        None when an operator must decide. A copy elsewhere does not count beside the one that the
        metadata names: the cluster may take the replica for one that has what is in that one.
        """
        topic_id, directory_id = place
        topic_ids = self._topic_ids(topic_partition)
        if None in topic_ids:
            return None
        copies = list(zip(places, topic_ids, strict=True))
        own = [each for each, found in copies if found == topic_id]
        nameless = [each for each, found in copies if found == ZERO_UUID]
        named = [each for each in own + nameless if each.directory.directory_id == directory_id]
        candidates = named or own or nameless
        return candidates[0] if len(candidates) == 1 else None

    async def _keep_twin(
        self,
        topic_partition: TopicPartition,
        right: DirectoryContents,
        places: Sequence[DirectoryContents],
    ) -> None:
        for contents in places:
            if contents is right:
                continue
            directory = contents.directory
            logger.warning(
                "%s is in %s: the copy in %s is put aside",
                topic_partition,
                right.directory.path,
                directory.path,
            )
            if not self._put_copy_aside(directory, topic_partition):
                return
        self._forget(topic_partition)
        await self._load(right, topic_partition)

    def _forget(self, topic_partition: TopicPartition) -> None:
        self._table.remove(topic_partition)
        self._drop(topic_partition)
        self._write_soon()

    def replicas_known(self) -> None:
        """All replicas of this broker are known: write checkpoints that name each directory's."""
        if self._nameless:
            self._write_soon()

    def may_have_had(self, directory: LogDirectory | None) -> bool:
        """Whether an unknown log may have been in that directory; None: in any of this broker."""
        if directory is None:
            return bool(self._nameless or self.unread)
        return directory.directory_id in self._nameless

    def put_missing(
        self, topic_partition: TopicPartition, topic_id: UUID, directory: LogDirectory | None
    ) -> str:
        """A partition is missing: offline from now on, at later starts too. Returns the reason."""
        holder = directory or self._table.emptiest(self._directories.all)
        assert holder is not None, "some directory is online, or the node has stopped"
        reason = "its log is in no log directory of this broker"
        offline = OfflinePartition(holder, reason, topic_id, {RECOVERY_POINT_CHECKPOINT: 0})
        self._table.put_offline(topic_partition, offline)
        self.missing.add(topic_partition)
        self._write_soon()
        return reason

    def note_missing(self, replicas: Iterable[tuple[TopicPartition, UUID]]) -> None:
        """`put_missing` for each of these partitions (with topic id) that no directory has.

        Durable when it returns, except in a directory that fails or is full.
        """
        for topic_partition, topic_id in replicas:
            if self._table.holder(topic_partition) is None:
                self.put_missing(topic_partition, topic_id, None)
        self._directories.write_recovery_points()

    def release_name(
        self, topic_partition: TopicPartition, topic_id: UUID, *, is_elsewhere: bool
    ) -> None:
        """Remove an offline partition whose name is needed for another one.

        The offline partition is of another topic; or it is in a directory that failed, and the
        metadata says that the wanted one is elsewhere. Raises: LogOffline when the directory fails.
        """
        offline = self._table.offline.get(topic_partition)
        if offline is None:
            return
        if topic_partition in self.twins and self._is_of_others(topic_partition, topic_id):
            self._put_twins_aside(topic_partition)
            return
        is_other = ZERO_UUID not in (topic_id, offline.topic_id) and topic_id != offline.topic_id
        if not is_other and (offline.directory.is_online or not is_elsewhere):
            return
        logger.warning(
            "%s in %s is not the one wanted: %s",
            topic_partition,
            offline.directory.path,
            offline.reason,
        )
        if offline.directory.is_online:
            self._mark_stray(topic_partition)
        else:
            self._forget(topic_partition)

    def _put_offline(
        self, contents: DirectoryContents, topic_partition: TopicPartition, reason: str
    ) -> None:
        offsets = contents.offsets_of(topic_partition)
        offline = OfflinePartition(contents.directory, reason, offsets=offsets)
        self._table.put_offline(topic_partition, offline)
