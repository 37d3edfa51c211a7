"""The metadata log on disk: `__cluster_metadata-0` with its segments, snapshots and election state.

Owns: opening it, in every state a crash can leave it, the core's view of it, and reading it back.
Must not: lead or deliver. Invariant: after `open_log_files` the latest snapshot and the log overlap
or touch: every record that was ever flushed is in one of them. Everything in the log is on stable
storage.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from moldau.metadata.log import LoadedSnapshot
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.records import ControlRecordType
from moldau.protocol.schema import Message
from moldau.protocol.types import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, TopicPartition
from moldau.raft.batch_codec import DecodedBatch, decode_batches
from moldau.raft.core.values import ElectionState, EpochEnd, SnapshotId
from moldau.raft.core.voters import VoterHistory, VoterSet
from moldau.raft.snapshot_files import (
    finish_install,
    list_snapshots,
    read_snapshot_file,
    remove_unfinished,
    snapshot_path,
)
from moldau.raft.state_files import (
    QUORUM_STATE,
    read_flushed_end,
    read_quorum_state,
    write_flushed_end,
)
from moldau.raft.values import METADATA_DIRECTORY, MetadataLogError
from moldau.runtime.clock import Clock
from moldau.runtime.files import FileRegion
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import read_partition_metadata, write_partition_metadata
from moldau.storage.faults import CorruptFile, DiskFull, LogOffline
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig

logger = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024
"""How much of the log one read takes (one larger batch excepted)."""


@dataclass(slots=True)
class LogFiles:
    """An opened metadata log, and the LogView that the quorum core asks.

    `snapshots` are ids, oldest first; `cached_snapshot` is the decoded content of the latest one,
    while it is kept; `flushed_end_offset` is what `flushed-end-offset` says. An epoch that only the
    snapshot at the log's start has counts as the epoch before the first record.
    """

    filesystem: Filesystem
    directory: str
    log: Log
    snapshots: list[SnapshotId]
    voters: VoterHistory
    quorum_state: ElectionState
    cached_snapshot: LoadedSnapshot | None = None
    flushed_end_offset: int = 0

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def last_leader_epoch(self) -> int:
        log = self.log
        if log.log_end_offset > log.log_start_offset:
            epoch = log.leader_epoch_cache.epoch_for_offset(log.log_end_offset - 1)
            assert epoch >= 0, "every record's epoch is known"
            return epoch
        return self.snapshots[-1].leader_epoch if self.snapshots else 0

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        log = self.log
        entries = log.leader_epoch_cache.entries
        index = bisect_right(entries, leader_epoch, key=lambda entry: entry.leader_epoch)
        if index > 0:
            ends_at = entries[index].start_offset if index < len(entries) else log.log_end_offset
            return EpochEnd(entries[index - 1].leader_epoch, ends_at)
        for snapshot in reversed(self.snapshots):
            is_at_start = snapshot.end_offset == log.log_start_offset
            if is_at_start and snapshot.leader_epoch <= leader_epoch:
                return EpochEnd(snapshot.leader_epoch, log.log_start_offset)
        return EpochEnd(0, log.log_start_offset)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[0] if self.snapshots else None

    def has_snapshot(self, snapshot_id: SnapshotId) -> bool:
        return snapshot_id in self.snapshots

    def read(self, start_offset: int, end_offset: int) -> Iterator[DecodedBatch]:
        """The batches from `start_offset` to `end_offset` (exclusive). Blocks.

        Raises MetadataLogError: damage, or the log is offline.
        """
        next_offset = start_offset
        while next_offset < end_offset:
            batches = self.finish_read(self.start_read(next_offset, end_offset), next_offset)
            if not batches:
                raise MetadataLogError(f"{self.directory}: nothing at offset {next_offset}")
            yield from batches
            next_offset = batches[-1].header.next_offset

    def records(self) -> Iterator[Message]:
        """The metadata records of the latest snapshot and of the log behind it, committed or not,
        in order. Blocks. Raises: MetadataLogError: damage; OSError: a file cannot be read.
        """
        start_offset = self.log_start_offset
        snapshot_id = self.latest_snapshot
        if snapshot_id is not None:
            snapshot = self.cached_snapshot
            if snapshot is None or snapshot.end_offset != snapshot_id.end_offset:
                path = snapshot_path(self.directory, snapshot_id)
                snapshot, _ = read_snapshot_file(self.filesystem, path, snapshot_id)
            yield from snapshot.records
            start_offset = max(start_offset, snapshot_id.end_offset)
        for batch in self.read(start_offset, self.log_end_offset):
            yield from batch.records

    def start_read(
        self, start_offset: int, end_offset: int, max_bytes: int = READ_BYTES
    ) -> FileRegion | bytes:
        """Find the bytes of some batches from the one that holds `start_offset` on; on the log's
        own loop. Raises MetadataLogError.

        Args:
            max_bytes: the first batch comes whole, though it may have more.
        """
        result = self.log.read(start_offset, max_bytes=max_bytes, max_offset=end_offset)
        if result.error is not ErrorCode.NONE:
            raise MetadataLogError(
                f"{self.directory}: reading at offset {start_offset}: "
                f"{result.error_message or result.error.name}"
            )
        return result.records

    def finish_read(self, region: FileRegion | bytes, start_offset: int) -> list[DecodedBatch]:
        """Read and decode what `start_read` found, checking every CRC; in any thread.

        Raises MetadataLogError.
        """
        if isinstance(region, bytes):
            return list(decode_batches(region, self.directory))
        try:
            data = region.read()
            source = region.file.name
        except OSError as error:
            raise MetadataLogError(f"{self.directory}: {error}") from None
        finally:
            region.release()
        batches = list(decode_batches(data, source))
        return [batch for batch in batches if batch.header.last_offset >= start_offset]


def open_log_files(
    filesystem: Filesystem,
    clock: Clock,
    metadata_directory: str,
    config: LogConfig,
    static_voters: VoterSet,
) -> LogFiles:
    """Open the metadata log below `metadata_directory`, creating it if need be. Blocks.

    Args:
        static_voters: of the configuration; they count until the log or a snapshot names others.

    Raises:
        MetadataLogError: damage, or files that contradict each other or the configuration; nothing
            is overwritten.
        OSError: the disk refuses.
    """
    directory = os.path.join(metadata_directory, METADATA_DIRECTORY)
    filesystem.mkdirs(directory)
    filesystem.fsync_directory(metadata_directory)  # or a vote could vanish with the directory
    quorum_state = read_quorum_state(filesystem, directory)
    # A process that was killed may have renamed the file and not synced the directory yet: the
    # state that this process acts upon must not vanish with the power.
    filesystem.fsync_directory(directory)
    _check_topic_id(filesystem, directory)
    finish_install(filesystem, directory)
    remove_unfinished(filesystem, directory)
    snapshots = list_snapshots(filesystem, directory)
    latest: LoadedSnapshot | None = None
    voters = VoterSet()
    if snapshots:
        path = snapshot_path(directory, snapshots[-1])
        latest, voters = read_snapshot_file(filesystem, path, snapshots[-1])
    _check_gap(filesystem, directory, snapshots)
    flushed_end_offset = read_flushed_end(filesystem, directory)
    log = _open_log(filesystem, clock, directory, config, snapshots, flushed_end_offset)
    history = VoterHistory(voters if voters.kraft_version >= 1 else static_voters)
    election = quorum_state or ElectionState()
    files = LogFiles(filesystem, directory, log, snapshots, history, election, latest)
    try:
        _check_epoch(directory, quorum_state, log, snapshots)
        _finish_trim(files)
        start_offset = max(snapshots[-1].end_offset if snapshots else 0, log.log_start_offset)
        for batch in files.read(start_offset, log.log_end_offset):
            found = voters_in_batch(directory, batch, history.latest)
            if found is not None:
                history.append(*found)
        _check_static_voters(directory, static_voters, history.latest)
        log.flush()
        if log.log_end_offset != flushed_end_offset:
            write_flushed_end(filesystem, directory, log.log_end_offset)
        files.flushed_end_offset = log.log_end_offset
    except (MetadataLogError, OSError):
        log.abandon()
        raise
    except (LogOffline, DiskFull) as error:
        log.abandon()
        raise MetadataLogError(str(error)) from None
    return files


def voters_in_batch(
    source: str, batch: DecodedBatch, before: VoterSet
) -> tuple[int, VoterSet] | None:
    """The voters that a batch brings and the offset of their last record; None if it has none.

    Raises MetadataLogError: their record cannot be decoded.
    """
    kinds = (ControlRecordType.KRAFT_VERSION, ControlRecordType.KRAFT_VOTERS)
    found = [index for index, each in enumerate(batch.control_records) if each[0] in kinds]
    if not found:
        return None
    offset = batch.header.base_offset + found[-1]
    try:
        return offset, before.with_control_records(batch.control_records)
    except RemoteProtocolError as error:
        raise MetadataLogError(f"{source}: at offset {offset}: {error}") from None


def _check_static_voters(directory: str, configured: VoterSet, recorded: VoterSet) -> None:
    """A quorum whose voters are in its log needs none in its configuration, and no others."""
    if not configured.voters or recorded.kraft_version < 1:
        return
    configured_ids = sorted(voter.voter_id for voter in configured.voters)
    recorded_ids = sorted(voter.voter_id for voter in recorded.voters)
    if configured_ids != recorded_ids:
        raise MetadataLogError(
            f"{directory}: controller.quorum.voters names {_ids(configured_ids)} and the metadata "
            f"log {_ids(recorded_ids)}; remove controller.quorum.voters, the log's voters count"
        )


def _ids(voter_ids: list[int]) -> str:
    return ", ".join(map(str, voter_ids)) or "nobody"


def _check_topic_id(filesystem: Filesystem, directory: str) -> None:
    try:
        topic_id = read_partition_metadata(filesystem, directory)
    except CorruptFile as error:
        raise MetadataLogError(str(error)) from None
    if topic_id is None:
        write_partition_metadata(filesystem, directory, METADATA_TOPIC_ID)
    elif topic_id != METADATA_TOPIC_ID:
        raise MetadataLogError(f"{directory}: holds topic {topic_id}, not the metadata log")


def _open_log(
    filesystem: Filesystem,
    clock: Clock,
    directory: str,
    config: LogConfig,
    snapshots: list[SnapshotId],
    flushed_end_offset: int,
) -> Log:
    """Open the segments. What a snapshot covers, or the note says, was flushed before, so the log
    must reach there.
    """
    snapshot_end_offset = snapshots[-1].end_offset if snapshots else 0
    try:
        log = Log.open(
            filesystem,
            clock,
            directory,
            TopicPartition(METADATA_TOPIC_NAME, 0),
            config,
            topic_id=METADATA_TOPIC_ID,
            log_start_offset=snapshots[0].end_offset if snapshots else 0,
            recovery_point=max(snapshot_end_offset, flushed_end_offset),
            clean_shutdown=False,
        )
    except DiskFull as error:
        raise MetadataLogError(str(error)) from None
    if log.offline:
        raise MetadataLogError(f"{directory}: {log.offline_reason}")
    return log


def _check_epoch(
    directory: str, quorum_state: ElectionState | None, log: Log, snapshots: list[SnapshotId]
) -> None:
    """An epoch is durable before its first record: a file that is behind its log is an old one,
    and the votes since then are forgotten. A missing file says nothing, as in Apache Kafka.
    """
    epochs = [log.leader_epoch_cache.latest_epoch, *(each.leader_epoch for each in snapshots)]
    if quorum_state is not None and quorum_state.leader_epoch < max(epochs):
        raise MetadataLogError(
            f"{os.path.join(directory, QUORUM_STATE)}: leaderEpoch {quorum_state.leader_epoch} is "
            f"below {max(epochs)}, the epoch of the log beside it: this file is older than the log"
        )
    if quorum_state is None and max(epochs) > 0:
        logger.warning(
            "%s has no %s: what this node voted for is forgotten", directory, QUORUM_STATE
        )


def _check_gap(filesystem: Filesystem, directory: str, snapshots: list[SnapshotId]) -> None:
    """Before anything is opened: the log must begin where the latest snapshot ends, or below."""
    segments = [name for name in filesystem.listdir(directory) if name.endswith(".log")]
    first_offset = min((int(name[:-4]) for name in segments if name[:-4].isdigit()), default=0)
    latest_end = snapshots[-1].end_offset if snapshots else 0
    if first_offset > latest_end:
        raise MetadataLogError(
            f"{directory}: the log begins at offset {first_offset}, "
            f"the latest snapshot ends at {latest_end}: records in between are missing"
        )


def _finish_trim(files: LogFiles) -> None:
    """Remove snapshots below the log's start, which a crash kept from being removed with it."""
    first_offset = files.log.segments[0].base_offset
    for snapshot_id in list(files.snapshots[:-1]):
        if snapshot_id.end_offset < first_offset:
            files.filesystem.unlink(snapshot_path(files.directory, snapshot_id))
            files.snapshots.remove(snapshot_id)
