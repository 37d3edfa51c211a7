"""Snapshots of the metadata log: written here, fetched from a leader, served to followers.

Owns: the snapshot that is being fetched, which snapshots exist, what is trimmed when
(`metadata.max.retention.*`). Must not: deliver, or decide that one is due (`SnapshotPolicy` in
controller/controller.py does). Invariant: a snapshot in `files.snapshots` is complete and durable;
the log is trimmed only up to the start of the oldest one kept.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from typing import Final

from moldau.metadata.log import LoadedSnapshot
from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Message
from moldau.protocol.types import Buffer
from moldau.raft.core.effects import WriteSnapshotChunk
from moldau.raft.core.values import SnapshotId
from moldau.raft.core.voters import VoterSet
from moldau.raft.log_files import LogFiles
from moldau.raft.snapshot_files import (
    SnapshotWriter,
    install_snapshot,
    snapshot_batches,
    snapshot_path,
)
from moldau.raft.values import MetadataLogError, MetadataLogSettings
from moldau.runtime.clock import Clock
from moldau.runtime.filesystem import Filesystem
from moldau.storage.faults import DiskFull, LogOffline, is_out_of_room

logger = logging.getLogger(__name__)

MAX_SNAPSHOT_BYTES: Final = 8 * 1024**3
"""A snapshot that grows beyond this is refused."""


class SnapshotRefused(Exception):
    """A fetched snapshot, or a piece of it, is unusable; it was removed."""


class SnapshotStore:
    """The snapshots of one log. `log_lock` is held while the log is replaced."""

    def __init__(
        self, files: LogFiles, clock: Clock, settings: MetadataLogSettings, log_lock: asyncio.Lock
    ) -> None:
        self._files = files
        self._log = files.log
        self._filesystem = files.filesystem
        self._clock = clock
        self._settings = settings
        self._log_lock = log_lock
        self._fetching: tuple[SnapshotId, SnapshotWriter] | None = None

    async def write_chunk(
        self, effect: WriteSnapshotChunk
    ) -> tuple[LoadedSnapshot, VoterSet] | None:
        """Add a piece; the installed snapshot with its voters after the last one, else None.

        Raises SnapshotRefused: it is damaged, or the piece does not follow the one before;
        DiskFull: it found no room and was removed; OSError, LogOffline: the disk refuses; the
        replica must stop.
        """
        try:
            writer = await self._add_piece(effect)
        except OSError as error:
            if not is_out_of_room(error):
                raise
            await self.abandon_fetch()
            raise DiskFull(f"{self._files.directory}: no room for a snapshot: {error}") from None
        return await self._install(effect.snapshot_id, writer) if effect.is_last else None

    async def _add_piece(self, effect: WriteSnapshotChunk) -> SnapshotWriter:
        """Raises SnapshotRefused, OSError."""
        offload = self._filesystem.offload
        if effect.position == 0:
            await self.abandon_fetch()
            path = snapshot_path(self._files.directory, effect.snapshot_id)
            writer = await offload(SnapshotWriter, self._filesystem, path)
            self._fetching = effect.snapshot_id, writer
        if self._fetching is None or self._fetching[0] != effect.snapshot_id:
            raise SnapshotRefused(f"a piece of {effect.snapshot_id} without its beginning")
        writer = self._fetching[1]
        end = effect.position + len(effect.data)
        if writer.size_bytes != effect.position or end > MAX_SNAPSHOT_BYTES:
            held = writer.size_bytes
            await self.abandon_fetch()
            raise SnapshotRefused(f"a piece at byte {effect.position} where {held} is next")
        await offload(writer.append, effect.data)
        return writer

    async def _install(
        self, snapshot_id: SnapshotId, writer: SnapshotWriter
    ) -> tuple[LoadedSnapshot, VoterSet]:
        """Raises as `write_chunk`."""
        self._fetching = None
        async with self._log_lock:
            try:
                loaded, voters = await self._filesystem.offload(
                    install_snapshot,
                    self._filesystem,
                    self._files.directory,
                    self._log,
                    snapshot_id,
                    writer,
                )
            except MetadataLogError as error:
                raise SnapshotRefused(str(error)) from None
            self._files.snapshots[:] = [snapshot_id]
            self._files.cached_snapshot = loaded
            self._files.flushed_end_offset = 0
        logger.info("installed snapshot %s of the leader", snapshot_id)
        return loaded, voters

    async def abandon_fetch(self) -> None:
        """Remove a snapshot that is not complete."""
        if self._fetching is not None:
            writer = self._fetching[1]
            self._fetching = None
            await self._filesystem.offload(writer.abandon)

    async def read_chunk(
        self, snapshot_id: SnapshotId, position: int, max_bytes: int
    ) -> tuple[ErrorCode, int, Buffer]:
        """An error, the size of the snapshot and its bytes from `position` on."""
        path = snapshot_path(self._files.directory, snapshot_id)
        return await self._filesystem.offload(
            _read_piece, self._filesystem, path, position, max_bytes
        )

    async def write(
        self,
        snapshot_id: SnapshotId,
        voters: VoterSet,
        *,
        last_contained_log_time_ms: int,
        records: Iterator[tuple[Message, int]],
    ) -> None:
        """Write a snapshot, durably; `register` makes it count. Raises OSError."""
        offload = self._filesystem.offload
        path = snapshot_path(self._files.directory, snapshot_id)
        writer = await offload(SnapshotWriter, self._filesystem, path)
        try:
            for batch in snapshot_batches(
                records,
                leader_epoch=snapshot_id.leader_epoch,
                last_contained_log_time_ms=last_contained_log_time_ms,
                voters=voters,
                timestamp_ms=self._clock.now_ms(),
            ):
                await offload(writer.append, batch)
            await offload(writer.finish)
        except OSError:
            await offload(writer.abandon)
            raise
        logger.info("wrote metadata snapshot %s", path)

    def register(self, snapshot_id: SnapshotId) -> bool:
        """A snapshot has been written: trim what it replaces. Returns whether it counts.

        On the loop, between two effects. Raises LogOffline.
        """
        snapshots = self._files.snapshots
        if snapshots and snapshots[-1].end_offset >= snapshot_id.end_offset:
            # A later one has been fetched since; the log begins behind this one.
            try:
                self._filesystem.unlink(snapshot_path(self._files.directory, snapshot_id))
            except OSError as problem:  # installing the later one has removed it, or the start will
                logger.info("snapshot %s is of no use any more: %s", snapshot_id, problem)
            return False
        snapshots.append(snapshot_id)
        try:
            # A segment begins, so that the next start checks little.
            self._log.roll()
            while len(snapshots) > 1 and self._may_drop_oldest():
                self._drop_oldest()
        except (DiskFull, OSError) as problem:
            logger.warning("the metadata log could not be trimmed for now: %s", problem)
        return True

    def _drop_oldest(self) -> None:
        """First the log, then the snapshot: a crash in between leaves too much, not too little."""
        oldest, following = self._files.snapshots[0], self._files.snapshots[1]
        error, _ = self._log.delete_records(following.end_offset)
        if error is not ErrorCode.NONE:
            raise LogOffline(self._log.name, self._log.offline_reason or error.name)
        self._filesystem.unlink(snapshot_path(self._files.directory, oldest))
        del self._files.snapshots[0]

    def _may_drop_oldest(self) -> bool:
        """Whether the oldest snapshot, and the log up to the next one, are due to go (KIP-630)."""
        settings, snapshots = self._settings, self._files.snapshots
        filesystem, directory = self._filesystem, self._files.directory
        if settings.retention_ms >= 0:
            age_ms = self._clock.now_ms() - filesystem.modified_ms(
                snapshot_path(directory, snapshots[1])
            )
            if age_ms > settings.retention_ms:
                return True
        if settings.retention_bytes < 0:
            return False
        total = self._log.size_bytes + sum(
            filesystem.size_bytes(snapshot_path(directory, each)) for each in snapshots
        )
        return total > settings.retention_bytes


def _read_piece(
    filesystem: Filesystem, path: str, position: int, max_bytes: int
) -> tuple[ErrorCode, int, Buffer]:
    try:
        file = filesystem.open(path, write=False)
    except FileNotFoundError:
        return ErrorCode.SNAPSHOT_NOT_FOUND, 0, b""
    except OSError as error:
        if not is_out_of_room(error):
            raise
        logger.warning("%s cannot be read now: %s", os.path.basename(path), error)
        return ErrorCode.KAFKA_STORAGE_ERROR, 0, b""
    try:
        size_bytes = file.size_bytes
        if not 0 <= position < size_bytes:
            return ErrorCode.POSITION_OUT_OF_RANGE, size_bytes, b""
        return ErrorCode.NONE, size_bytes, file.pread(max_bytes, position)
    except OSError as error:
        logger.warning("%s cannot be read: %s", os.path.basename(path), error)
        return ErrorCode.KAFKA_STORAGE_ERROR, 0, b""
    finally:
        file.close()
