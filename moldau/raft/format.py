"""What `storage format` writes for the metadata log: its first snapshots.

Owns: `bootstrap.checkpoint` with the feature levels, and `0-0.checkpoint` with the voters. Must
not: write `meta.properties` (the storage package does, last). Invariant: nothing is written to a
directory that holds a metadata log already.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from moldau.protocol.schema import Message
from moldau.raft.core.voters import VoterSet
from moldau.raft.snapshot_files import (
    BOOTSTRAP_CHECKPOINT,
    BOOTSTRAP_SNAPSHOT,
    list_snapshots,
    read_snapshot_file,
    snapshot_batches,
    snapshot_path,
    write_snapshot_file,
)
from moldau.raft.state_files import QUORUM_STATE
from moldau.raft.values import METADATA_DIRECTORY, MetadataLogError
from moldau.runtime.filesystem import Filesystem
from moldau.storage.log_directory import make_durably

_NO_TIME = 0


def check_unformatted(filesystem: Filesystem, metadata_directory: str) -> None:
    """Refuse a directory with a metadata log in it.

    First snapshots that an interrupted formatting left are no log: they are written again.

    Raises MetadataLogError: there is one.
    """
    directory = os.path.join(metadata_directory, METADATA_DIRECTORY)
    if not filesystem.is_directory(directory):
        return
    names = filesystem.listdir(directory)
    has_log = any(name.endswith(".log") for name in names)
    snapshots = [each for each in list_snapshots(filesystem, directory) if each.end_offset > 0]
    if has_log or QUORUM_STATE in names or snapshots:
        raise MetadataLogError(f"{directory} holds a metadata log already; it is left as it is")


def write_bootstrap(
    filesystem: Filesystem,
    metadata_directory: str,
    records: Sequence[tuple[Message, int]],
    voters: VoterSet,
    *,
    now_ms: int,
) -> None:
    """Write the first snapshots into an unformatted directory. Blocks.

    Args:
        records: what the first active controller appends: feature levels, and first users.
        voters: the first voters; without any (`--no-initial-controllers`) no snapshot names them.

    Raises:
        MetadataLogError: the directory holds a metadata log already.
        OSError: the disk refuses.
    """
    check_unformatted(filesystem, metadata_directory)
    make_durably(filesystem, metadata_directory)
    if voters.voters:
        directory = os.path.join(metadata_directory, METADATA_DIRECTORY)
        filesystem.mkdirs(directory)
        batches = snapshot_batches(
            (),
            leader_epoch=0,
            last_contained_log_time_ms=now_ms,
            voters=voters,
            timestamp_ms=now_ms,
        )
        write_snapshot_file(filesystem, snapshot_path(directory, BOOTSTRAP_SNAPSHOT), batches)
    batches = snapshot_batches(
        records,
        leader_epoch=0,
        last_contained_log_time_ms=_NO_TIME,
        voters=VoterSet(),
        timestamp_ms=now_ms,
    )
    write_snapshot_file(filesystem, os.path.join(metadata_directory, BOOTSTRAP_CHECKPOINT), batches)
    filesystem.fsync_directory(metadata_directory)


def read_bootstrap(filesystem: Filesystem, metadata_directory: str) -> list[Message]:
    """The records of `bootstrap.checkpoint`; empty when there is no such file. Blocks.

    Raises MetadataLogError: it is damaged; OSError: it cannot be read.
    """
    path = os.path.join(metadata_directory, BOOTSTRAP_CHECKPOINT)
    if not filesystem.exists(path):
        return []
    snapshot, _ = read_snapshot_file(filesystem, path, BOOTSTRAP_SNAPSHOT)
    return list(snapshot.records)
