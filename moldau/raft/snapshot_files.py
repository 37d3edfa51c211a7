"""Snapshots of the metadata log: `<end offset>-<leader epoch>.checkpoint` (KIP-630).

Owns: names, the order header - records - footer, writing beside and renaming, reading back whole,
and installing a snapshot that replaces the whole log, at whatever instant a crash comes. Must not:
decide when to write, install or remove one. Invariant: a file under its final name is complete and
durable; one that is not ends in `.part` and counts for nothing. While `snapshot-install` names a
finished snapshot, the log beside it does not count, and the next start drops it; once that note is
durably gone, the log counts, from the snapshot's end on. Without the note, a log that ends below
the latest snapshot has lost what was flushed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from moldau.metadata.log import LoadedSnapshot
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.messages.quorum_records import SnapshotFooterRecord, SnapshotHeaderRecord
from moldau.protocol.records import ControlRecordType, encode_control_batch
from moldau.protocol.schema import Message
from moldau.protocol.types import Buffer
from moldau.raft.batch_codec import DecodedBatch, decode_batches, encode_data_batch
from moldau.raft.core.values import SnapshotId
from moldau.raft.core.voters import CONTROL_RECORD_VERSION, VoterSet
from moldau.raft.room import PROBE_FILE
from moldau.raft.state_files import forget_flushed_end
from moldau.raft.values import MetadataLogError
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import LEADER_EPOCH_CHECKPOINT
from moldau.storage.faults import DiskFull, is_out_of_room
from moldau.storage.log import Log

CHECKPOINT_SUFFIX: Final = ".checkpoint"
PARTIAL_SUFFIX: Final = ".checkpoint.part"
DELETED_SUFFIX: Final = ".checkpoint.deleted"
BOOTSTRAP_CHECKPOINT: Final = "bootstrap.checkpoint"
BOOTSTRAP_SNAPSHOT: Final = SnapshotId(0, 0)
RECORDS_PER_BATCH: Final = 500
"""Records encoded at a time, so that writing a big image never holds up the loop for long."""

_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


def snapshot_path(directory: str, snapshot_id: SnapshotId) -> str:
    name = f"{snapshot_id.end_offset:020d}-{snapshot_id.leader_epoch:010d}{CHECKPOINT_SUFFIX}"
    return os.path.join(directory, name)


def parse_snapshot_name(name: str) -> SnapshotId | None:
    """The snapshot that a file of this name holds; None when it is no finished snapshot's."""
    match = _NAME.fullmatch(name)
    return SnapshotId(int(match[1]), int(match[2])) if match is not None else None


def list_snapshots(filesystem: Filesystem, directory: str) -> list[SnapshotId]:
    """The finished snapshots of a directory, oldest first."""
    found = map(parse_snapshot_name, filesystem.listdir(directory))
    return sorted(each for each in found if each is not None)


def remove_unfinished(filesystem: Filesystem, directory: str) -> None:
    """Remove what a crash left of snapshots that were being written or removed, and of a probe for
    room.
    """
    for name in filesystem.listdir(directory):
        if name.endswith((PARTIAL_SUFFIX, DELETED_SUFFIX)) or name == PROBE_FILE:
            filesystem.unlink(os.path.join(directory, name))


def snapshot_batches(
    records: Iterable[tuple[Message, int]],
    *,
    leader_epoch: int,
    last_contained_log_time_ms: int,
    voters: VoterSet,
    timestamp_ms: int,
) -> Iterator[bytearray]:
    """The batches of a snapshot, one at a time; offsets count from 0 inside the file."""
    header = SnapshotHeaderRecord(
        version=CONTROL_RECORD_VERSION, last_contained_log_timestamp=last_contained_log_time_ms
    ).to_bytes(CONTROL_RECORD_VERSION)
    opening = [(ControlRecordType.SNAPSHOT_HEADER, header), *voters.control_records()]
    yield encode_control_batch(
        opening, timestamp_ms=timestamp_ms, partition_leader_epoch=leader_epoch
    )
    next_offset = len(opening)
    source = iter(records)
    while chunk := list(islice(source, RECORDS_PER_BATCH)):
        yield encode_data_batch(
            chunk, timestamp_ms=timestamp_ms, base_offset=next_offset, leader_epoch=leader_epoch
        )
        next_offset += len(chunk)
    footer = SnapshotFooterRecord(version=CONTROL_RECORD_VERSION)
    yield encode_control_batch(
        [(ControlRecordType.SNAPSHOT_FOOTER, footer.to_bytes(CONTROL_RECORD_VERSION))],
        timestamp_ms=timestamp_ms,
        base_offset=next_offset,
        partition_leader_epoch=leader_epoch,
    )


class SnapshotWriter:
    """Writes one snapshot file beside its final name. `append`* → `finish`, or `abandon`.

    All calls block on the disk. Raises OSError.
    """

    def __init__(self, filesystem: Filesystem, final_path: str) -> None:
        self._filesystem = filesystem
        self._final_path = final_path
        self.partial_path = final_path + ".part"
        if filesystem.exists(self.partial_path):
            filesystem.unlink(self.partial_path)
        self._file = filesystem.open(self.partial_path, create=True, exclusive=True)

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def append(self, data: Buffer) -> None:
        """Write the next batch, or the next piece of a snapshot that is fetched."""
        self._file.append(data)

    def finish(self) -> None:
        """Make it durable, then give it its name, durably."""
        self._file.fsync()
        self._file.close()
        self._filesystem.rename(self.partial_path, self._final_path)
        self._filesystem.fsync_directory(os.path.dirname(self._final_path))

    def abandon(self) -> None:
        """Remove what was written, as far as the disk lets us."""
        self._file.close()
        try:
            self._filesystem.unlink(self.partial_path)
        except OSError:
            return  # the next start removes it


def write_snapshot_file(
    filesystem: Filesystem, final_path: str, batches: Iterable[bytearray]
) -> None:
    """Write a whole snapshot, durably. Blocks. Raises OSError."""
    writer = SnapshotWriter(filesystem, final_path)
    try:
        for batch in batches:
            writer.append(batch)
        writer.finish()
    except OSError:
        writer.abandon()
        raise


def read_snapshot_file(
    filesystem: Filesystem, path: str, snapshot_id: SnapshotId
) -> tuple[LoadedSnapshot, VoterSet]:
    """A snapshot's content and the voters in it. Blocks.

    Raises MetadataLogError: damaged, or not complete; OSError: it cannot be read.
    """
    data = filesystem.read_bytes(path)
    batches = list(decode_batches(data, path))
    voters = VoterSet()
    records: list[Message] = []
    next_offset = 0
    try:
        last_contained_log_time_ms = _check_frame(path, batches)
        for batch in batches:
            if batch.header.base_offset != next_offset:
                raise MetadataLogError(
                    f"{path}: offset {batch.header.base_offset} where {next_offset} is next"
                )
            next_offset = batch.header.next_offset
            records.extend(batch.records)
            voters = voters.with_control_records(batch.control_records)
    except RemoteProtocolError as error:
        raise MetadataLogError(f"{path}: {error}") from None
    snapshot = LoadedSnapshot(
        end_offset=snapshot_id.end_offset,
        leader_epoch=snapshot_id.leader_epoch,
        last_contained_log_time_ms=last_contained_log_time_ms,
        size_bytes=len(data),
        records=tuple(records),
    )
    return snapshot, voters


def _check_frame(path: str, batches: Sequence[DecodedBatch]) -> int:
    """Header first, footer last; returns the time in the header."""
    header = batches[0].control_records if batches else ()
    if not header or header[0][0] != ControlRecordType.SNAPSHOT_HEADER:
        raise MetadataLogError(f"{path}: does not begin with a snapshot header")
    footer = batches[-1].control_records
    if not footer or footer[-1][0] != ControlRecordType.SNAPSHOT_FOOTER:
        raise MetadataLogError(f"{path}: is not complete: it does not end with a footer")
    record, _ = SnapshotHeaderRecord.decode(header[0][1], CONTROL_RECORD_VERSION)
    return record.last_contained_log_timestamp


INSTALL_NOTE: Final = "snapshot-install"
_SEGMENT_FILE: Final = re.compile(r"[0-9]{20}\.(log|index|timeindex|txnindex|snapshot)")


def install_snapshot(
    filesystem: Filesystem,
    directory: str,
    log: Log,
    snapshot_id: SnapshotId,
    writer: SnapshotWriter,
) -> tuple[LoadedSnapshot, VoterSet]:
    """Check the snapshot that `writer` holds, give it its name, begin the log at its end. Blocks.

    Raises MetadataLogError: it is damaged, DiskFull: there is no room to begin; it is removed and
    nothing else changed; LogOffline, OSError: the disk refuses; the next start finishes or undoes
    it.
    """
    try:
        loaded, voters = read_snapshot_file(filesystem, writer.partial_path, snapshot_id)
    except MetadataLogError:
        writer.abandon()
        raise
    note = os.path.join(directory, INSTALL_NOTE)
    name = os.path.basename(snapshot_path(directory, snapshot_id))
    try:
        filesystem.write_atomically(note, f"{name}\n".encode())
    except OSError as error:
        writer.abandon()
        if not is_out_of_room(error):
            raise
        raise DiskFull(f"{note}: {error}") from None
    forget_flushed_end(filesystem, directory)
    writer.finish()
    log.truncate_fully_and_start_at(snapshot_id.end_offset)
    # What is left of the epochs belongs to records that are gone.
    log.leader_epoch_cache.clear()
    log.leader_epoch_cache.write()
    _remove_other_snapshots(filesystem, directory, snapshot_id)
    _remove_note(filesystem, directory)
    return loaded, voters


def finish_install(filesystem: Filesystem, directory: str) -> None:
    """At the start, before the log is opened: finish or undo what a crash cut short. Blocks.

    Raises MetadataLogError: the note or its snapshot is damaged; nothing was changed; OSError: the
    disk refuses.
    """
    note = os.path.join(directory, INSTALL_NOTE)
    if not filesystem.exists(note):
        return
    name = filesystem.read_bytes(note).decode(errors="replace").strip()
    snapshot_id = parse_snapshot_name(name)
    if snapshot_id is None:
        raise MetadataLogError(f"{note}: {name[:60]!r} is not the name of a snapshot")
    path = snapshot_path(directory, snapshot_id)
    if filesystem.exists(path):
        read_snapshot_file(filesystem, path, snapshot_id)
        forget_flushed_end(filesystem, directory)
        for each in filesystem.listdir(directory):
            if _SEGMENT_FILE.fullmatch(each) or each == LEADER_EPOCH_CHECKPOINT:
                filesystem.unlink(os.path.join(directory, each))
        _remove_other_snapshots(filesystem, directory, snapshot_id)
    _remove_note(filesystem, directory)


def _remove_other_snapshots(
    filesystem: Filesystem, directory: str, snapshot_id: SnapshotId
) -> None:
    for other in list_snapshots(filesystem, directory):
        if other != snapshot_id:
            filesystem.unlink(snapshot_path(directory, other))


def _remove_note(filesystem: Filesystem, directory: str) -> None:
    """Everything before this must be durable first: no later start drops the log any more."""
    filesystem.fsync_directory(directory)
    filesystem.unlink(os.path.join(directory, INSTALL_NOTE))
    filesystem.fsync_directory(directory)
