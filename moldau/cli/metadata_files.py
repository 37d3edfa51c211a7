"""Reading a metadata log or snapshot offline, for `moldau metadata`.

Owns: which files of a path count, and putting them together to an image. Must not: change a file or
need a lock; a running node's directory may be looked at, of which the last batches may not be
committed yet. Invariant: what is shown is what the files say up to the first damage, and the damage
is reported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from moldau.metadata.image import (
    InvalidMetadataRecord,
    MetadataDelta,
    MetadataImage,
    Provenance,
    TransactionFilter,
)
from moldau.protocol.messages.quorum_records import LeaderChangeMessage
from moldau.protocol.records import ControlRecordType
from moldau.raft import METADATA_DIRECTORY, MetadataLogError, SnapshotId, VoterSet
from moldau.raft.batch_codec import DecodedBatch, decode_batches
from moldau.raft.snapshot_files import (
    BOOTSTRAP_SNAPSHOT,
    CHECKPOINT_SUFFIX,
    list_snapshots,
    parse_snapshot_name,
    read_snapshot_file,
    snapshot_path,
)
from moldau.runtime.filesystem import Filesystem
from moldau.storage.faults import CorruptFile
from moldau.storage.meta_properties import MetaProperties, read_meta_properties
from moldau.storage.segment import LOG_SUFFIX

NO_NODE: Final = -1


@dataclass(slots=True)
class MetadataFiles:
    """What the files of a metadata log say.

    Attributes:
        sources: the files that were read, in order.
        identity: of the log directory they lie in, None when it has none.
        damage: what kept the rest from being read, one line each.
    """

    directory: str
    sources: list[str] = field(default_factory=list)
    image: MetadataImage = MetadataImage.EMPTY
    voters: VoterSet = field(default_factory=VoterSet)
    leader_id: int = NO_NODE
    leader_epoch: int = NO_NODE
    record_count: int = 0
    identity: MetaProperties | None = None
    damage: list[str] = field(default_factory=list)


def metadata_directory(filesystem: Filesystem, path: str) -> str:
    """The directory of the metadata log that a path stands for: itself, a log directory's, or that
    of a node whose data is in `data`.
    """
    for child in (METADATA_DIRECTORY, os.path.join("data", METADATA_DIRECTORY)):
        candidate = os.path.join(path, child)
        if filesystem.is_directory(candidate):
            return candidate
    return path


def metadata_log_files(filesystem: Filesystem, path: str) -> list[str]:
    """The snapshots and segments of a path, in the order of their offsets. Raises:
    FileNotFoundError: there is nothing at `path`, or no metadata in it
    """
    if not filesystem.exists(path):
        raise FileNotFoundError(2, "there is no such file or directory", path)
    if not filesystem.is_directory(path):
        return [path]
    directory = metadata_directory(filesystem, path)
    names = [
        name
        for name in filesystem.listdir(directory)
        if name.endswith((CHECKPOINT_SUFFIX, LOG_SUFFIX)) and name[:20].isdigit()
    ]
    if not names:
        raise FileNotFoundError(2, "there is no metadata log in this directory", path)
    names.sort(key=lambda name: (int(name[:20]), name.endswith(LOG_SUFFIX), name))
    return [os.path.join(directory, name) for name in names]


def read_metadata(filesystem: Filesystem, path: str) -> MetadataFiles:
    """Build the image from a snapshot, a segment, or a directory (the last snapshot and what
    follows it).

    Raises:
        MetadataLogError: nothing of it can be read.
        OSError: a file is missing or cannot be read.
    """
    metadata_log_files(filesystem, path)  # raises when there is nothing
    if filesystem.is_directory(path):
        directory = metadata_directory(filesystem, path)
        snapshots = list_snapshots(filesystem, directory)
        files = MetadataFiles(directory)
        if snapshots:
            _read_snapshot(filesystem, files, snapshots[-1])
        _read_segments(filesystem, files)
    else:
        files = MetadataFiles(os.path.dirname(os.path.abspath(path)))
        if path.endswith(CHECKPOINT_SUFFIX):
            snapshot_id = parse_snapshot_name(os.path.basename(path)) or BOOTSTRAP_SNAPSHOT
            _read_snapshot(filesystem, files, snapshot_id, path)
        else:
            _replay(files, path, filesystem.read_bytes(path), TransactionFilter())
    if files.record_count == 0 and files.damage:
        raise MetadataLogError(files.damage[0])
    _find_identity(filesystem, files)
    return files


def _read_snapshot(
    filesystem: Filesystem, files: MetadataFiles, snapshot_id: SnapshotId, path: str | None = None
) -> None:
    path = path or snapshot_path(files.directory, snapshot_id)
    snapshot, files.voters = read_snapshot_file(filesystem, path, snapshot_id)
    files.sources.append(path)
    delta = MetadataDelta(MetadataImage.EMPTY)
    for record in snapshot.records:
        delta.replay(record)
    files.record_count += len(snapshot.records) + 1
    files.image = delta.apply(snapshot.provenance)


def _read_segments(filesystem: Filesystem, files: MetadataFiles) -> None:
    paths = [
        path
        for path in metadata_log_files(filesystem, files.directory)
        if path.endswith(LOG_SUFFIX)
    ]
    transactions = TransactionFilter()
    for path, next_path in zip_longest(paths, paths[1:]):
        next_offset = files.image.provenance.last_contained_offset + 1
        if next_path is not None and int(os.path.basename(next_path)[:20]) <= next_offset:
            continue  # the snapshot covers it
        _replay(files, path, filesystem.read_bytes(path), transactions)
        if files.damage:
            return


def _replay(files: MetadataFiles, path: str, data: bytes, transactions: TransactionFilter) -> None:
    """Apply a segment's batches that lie behind the image, up to the first damage."""
    files.sources.append(path)
    read_bytes = 0
    try:
        for batch in decode_batches(data, path):
            read_bytes += batch.header.size_bytes
            if batch.header.last_offset > files.image.provenance.last_contained_offset:
                _apply(files, batch, transactions)
    except (MetadataLogError, InvalidMetadataRecord) as error:
        # An open segment may end with zeros, where nothing has been written yet.
        if any(memoryview(data)[read_bytes:]):
            files.damage.append(str(error))


def _apply(files: MetadataFiles, batch: DecodedBatch, transactions: TransactionFilter) -> None:
    header = batch.header
    delta = MetadataDelta(files.image)
    for record in transactions.feed(batch.records):
        delta.replay(record)
    files.voters = files.voters.with_control_records(batch.control_records)
    for record_type, value in batch.control_records:
        if record_type == ControlRecordType.LEADER_CHANGE:
            files.leader_id = LeaderChangeMessage.decode(value, 0)[0].leader_id
            files.leader_epoch = header.partition_leader_epoch
    files.record_count += header.record_count
    files.image = delta.apply(
        Provenance(header.last_offset, header.partition_leader_epoch, header.max_timestamp_ms)
    )


def _find_identity(filesystem: Filesystem, files: MetadataFiles) -> None:
    """Read meta.properties: around the metadata log, or beside bootstrap.checkpoint."""
    for directory in (os.path.dirname(os.path.abspath(files.directory)), files.directory):
        try:
            files.identity = read_meta_properties(filesystem, directory)
        except (CorruptFile, OSError) as error:
            files.damage.append(str(error))
        if files.identity is not None:
            return
