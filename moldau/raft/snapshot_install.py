"""A snapshot that replaces the whole log: installing it, whatever instant a crash hits.

Owns: the order of the steps and `snapshot-install`, the note that says one is under way. Must not:
fetch, or decide that a snapshot is wanted. Invariant: while the note names a finished snapshot the
log beside it does not count, and starting anew drops it; once the note is durably gone, the log
does count, from the snapshot's end on. Without the note a log that ends below the latest snapshot
has lost what was flushed.
"""

from __future__ import annotations

import os
import re
from typing import Final

from moldau.raft.core.values import SnapshotId
from moldau.raft.core.voters import VoterSet
from moldau.raft.flushed_end import forget_flushed_end
from moldau.raft.snapshot_files import (
    SnapshotWriter,
    list_snapshots,
    parse_snapshot_name,
    read_snapshot_file,
    snapshot_path,
)
from moldau.raft.values import LoadedSnapshot, MetadataLogError
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import LEADER_EPOCH_CHECKPOINT
from moldau.storage.log import Log

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

    Raises:
        MetadataLogError: it is damaged; it is removed and nothing else changed.
        LogOffline, OSError: the disk refuses; the next start finishes or undoes it.
    """
    try:
        loaded, voters = read_snapshot_file(filesystem, writer.partial_path, snapshot_id)
    except MetadataLogError:
        writer.abandon()
        raise
    note = os.path.join(directory, INSTALL_NOTE)
    name = os.path.basename(snapshot_path(directory, snapshot_id))
    filesystem.write_atomically(note, f"{name}\n".encode())
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

    Raises:
        MetadataLogError: the note or its snapshot is damaged; nothing was changed.
        OSError: the disk refuses.
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
    """Everything before it must be durable first: from here on nobody drops the log any more."""
    filesystem.fsync_directory(directory)
    filesystem.unlink(os.path.join(directory, INSTALL_NOTE))
    filesystem.fsync_directory(directory)
