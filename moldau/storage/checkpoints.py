"""Kafka's small text files: offsets, a partition's topic id (KIP-516), the clean-shutdown marker.

Owns: the text format shared by `recovery-point-offset-checkpoint`, `replication-offset-checkpoint`,
`log-start-offset-checkpoint` (lines of topic, partition, offset) and `leader-epoch-checkpoint`
(lines of leader epoch, start offset), `segment-seals` (docs/adr/0019), `partition.metadata`, the
JSON of `.kafka_cleanshutdown`, and which contents of an offset file are the newest, across the loop
and the disk threads.
Must not: decide which offsets belong into a file (`log_table` does), or what they are used for.
Invariant: a file is replaced as a whole (temporary file, fsync, rename, fsync of the directory); a
reader sees the old contents or the new ones. Anything that is not exactly the format is reported as
CorruptFile, never guessed at. An offset file never goes back to older contents: a write in a disk
thread that comes after a newer one does nothing. The race this closes: (1) the loop hands over
recovery points, (2) a truncation lowers one and writes it at once, (3) the thread of (1) runs.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from moldau.protocol.types import (
    ZERO_UUID,
    TopicId,
    TopicPartition,
    uuid_from_base64,
    uuid_to_base64,
)
from moldau.runtime.filesystem import Filesystem
from moldau.storage.faults import CorruptFile

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
SEGMENT_SEALS: Final = "segment-seals"
CLEAN_SHUTDOWN_MARKER: Final = ".kafka_cleanshutdown"
PARTITION_METADATA: Final = "partition.metadata"

OFFSET_CHECKPOINTS: Final = (
    LOG_START_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
"""The order in which they are written: nothing promises more than what is in the files."""

Offsets = dict[TopicPartition, int]

UNKNOWN_BROKER_EPOCH: Final = -1
DIRECTORY_IDS: Final = "directoryIds"
_VERSION = 0
_MAX_OFFSET = (1 << 63) - 1
_MAX_INT = (1 << 31) - 1
_MAX_CRC = (1 << 32) - 1


class EpochStartOffset(NamedTuple):
    """One line of `leader-epoch-checkpoint`: the first offset written under a leader epoch."""

    leader_epoch: int
    start_offset: int


class SegmentSeal(NamedTuple):
    """One line of `segment-seals`: a closed segment and what the files beside it hold.

    `last_crc` is that of its last batch. The checksums of offset and time index cover their entry
    count and their first and last entry; that of the transaction index covers all entries, whether
    there are any or not. `snapshot_crc` is the one in the producer snapshot at the offset where the
    segment ends, 0 when that is not known. `epochs_crc` covers the leader epochs of its offsets.
    """

    base_offset: int
    size_bytes: int
    last_crc: int
    offset_index_crc: int
    time_index_crc: int
    transaction_index_crc: int
    snapshot_crc: int
    epochs_crc: int

    def speaks_of(self, size_bytes: int, last_crc: int | None) -> bool:
        """Whether these are its segment's batches: their size and the CRC of the last one."""
        return (self.size_bytes, self.last_crc) == (size_bytes, last_crc)


def read_offset_checkpoint(filesystem: Filesystem, path: str) -> Offsets:
    """The offsets in a checkpoint file; empty when there is no such file.

    Raises: OSError; CorruptFile when it is not in the format, or names a partition twice.
    """
    offsets: Offsets = {}
    for number, fields in _read_lines(filesystem, path, field_count=3):
        partition = _number(path, number, "partition", fields[1], _MAX_INT)
        offset = _number(path, number, "offset", fields[2], _MAX_OFFSET)
        topic_partition = TopicPartition(fields[0], partition)
        if topic_partition in offsets:
            raise CorruptFile(path, f"line {number} names {topic_partition} a second time")
        offsets[topic_partition] = offset
    return offsets


def write_offset_checkpoint(
    filesystem: Filesystem, path: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace a checkpoint file's contents atomically and durably. Raises OSError."""
    lines = [
        f"{each.topic} {each.partition} {offset}\n" for each, offset in sorted(offsets.items())
    ]
    filesystem.write_atomically(path, _text(lines))


def read_leader_epoch_checkpoint(filesystem: Filesystem, path: str) -> list[EpochStartOffset]:
    """The leader epochs of a log with their start offsets, ascending; empty without the file.

    Raises: OSError; CorruptFile when it is not in the format, or does not ascend.
    """
    entries: list[EpochStartOffset] = []
    for number, fields in _read_lines(filesystem, path, field_count=2):
        leader_epoch = _number(path, number, "leader epoch", fields[0], _MAX_INT)
        start_offset = _number(path, number, "start offset", fields[1], _MAX_OFFSET)
        if entries and leader_epoch <= entries[-1].leader_epoch:
            raise CorruptFile(path, f"line {number}: leader epoch {leader_epoch} does not ascend")
        if entries and start_offset < entries[-1].start_offset:
            raise CorruptFile(path, f"line {number}: start offset {start_offset} goes back")
        entries.append(EpochStartOffset(leader_epoch, start_offset))
    return entries


def write_leader_epoch_checkpoint(
    filesystem: Filesystem, path: str, entries: Iterable[tuple[int, int]]
) -> None:
    """Replace `leader-epoch-checkpoint` atomically and durably. Raises OSError."""
    lines = [f"{leader_epoch} {start_offset}\n" for leader_epoch, start_offset in entries]
    filesystem.write_atomically(path, _text(lines))


def read_segment_seals(filesystem: Filesystem, path: str) -> dict[int, SegmentSeal]:
    """The seals of a partition's segments by base offset; empty when there is no such file.

    Raises: OSError; CorruptFile when it is not in the format.
    """
    seals: dict[int, SegmentSeal] = {}
    names = SegmentSeal._fields
    maxima = (_MAX_OFFSET, _MAX_OFFSET, *[_MAX_CRC] * (len(names) - 2))
    for number, fields in _read_lines(filesystem, path, field_count=len(names)):
        columns = zip(names, fields, maxima, strict=True)
        seal = SegmentSeal(*[_number(path, number, *each) for each in columns])
        seals[seal.base_offset] = seal
    return seals


def write_segment_seals(filesystem: Filesystem, path: str, seals: Iterable[SegmentSeal]) -> None:
    """Replace `segment-seals` atomically and durably. Raises OSError."""
    lines = [" ".join(map(str, seal)) + "\n" for seal in seals]
    filesystem.write_atomically(path, _text(lines))


class CleanShutdown(NamedTuple):
    """The contents of a clean-shutdown marker.

    `broker_epoch` is UNKNOWN_BROKER_EPOCH when the marker names none (an older release writes an
    empty file). `directory_ids` are all log directories that the broker had when it stopped, failed
    ones included; empty in the markers of Apache Kafka.
    """

    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    directory_ids: frozenset[UUID] = frozenset()


def read_clean_shutdown_marker(filesystem: Filesystem, directory: str) -> CleanShutdown | None:
    """The directory's clean-shutdown marker; None when there is none. Raises: OSError."""
    try:
        data = filesystem.read_bytes(os.path.join(directory, CLEAN_SHUTDOWN_MARKER))
    except FileNotFoundError:
        return None
    try:
        value = json.loads(data)
    except ValueError:
        return CleanShutdown()
    if not isinstance(value, dict):
        return CleanShutdown()
    broker_epoch, texts = value.get("brokerEpoch"), value.get(DIRECTORY_IDS)
    try:
        directory_ids = frozenset(uuid_from_base64(each) for each in texts or ())
    except (TypeError, ValueError):
        directory_ids = frozenset()
    return CleanShutdown(
        broker_epoch if type(broker_epoch) is int else UNKNOWN_BROKER_EPOCH, directory_ids
    )


def write_clean_shutdown_marker(
    filesystem: Filesystem, directory: str, shutdown: CleanShutdown
) -> None:
    """Mark that everything in the directory is flushed and checkpointed (KIP-966).

    The ids of the directories are an addition to Apache Kafka's marker, which ignores them.
    """
    fields = {
        "version": _VERSION,
        "brokerEpoch": shutdown.broker_epoch,
        DIRECTORY_IDS: sorted(uuid_to_base64(each) for each in shutdown.directory_ids),
    }
    text = json.dumps(fields, separators=(",", ":"))
    filesystem.write_atomically(os.path.join(directory, CLEAN_SHUTDOWN_MARKER), text.encode())


def remove_clean_shutdown_marker(filesystem: Filesystem, directory: str) -> None:
    """Take the marker away durably: from now on a stop without a new one is an unclean one."""
    try:
        filesystem.unlink(os.path.join(directory, CLEAN_SHUTDOWN_MARKER))
    except FileNotFoundError:
        return
    filesystem.fsync_directory(directory)


def _text(lines: list[str]) -> bytes:
    return f"{_VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


def _read_lines(
    filesystem: Filesystem, path: str, *, field_count: int
) -> Iterable[tuple[int, list[str]]]:
    """Line numbers (from 1) with their fields, header checked and removed."""
    try:
        data = filesystem.read_bytes(path)
    except FileNotFoundError:
        return []
    if not data:
        # Kafka makes its checkpoint files empty and fills them at the first checkpoint.
        return []
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptFile(path, f"byte {error.start} is not UTF-8 text") from None
    lines = text.splitlines()
    if len(lines) < 2:
        raise CorruptFile(path, f"{len(data)} bytes hold no version and entry count")
    version = _number(path, 1, "version", lines[0], _MAX_INT)
    if version != _VERSION:
        raise CorruptFile(path, f"version {version} is unknown, {_VERSION} is expected")
    expected_count = _number(path, 2, "entry count", lines[1], _MAX_INT)
    entries = lines[2:]
    if len(entries) != expected_count:
        raise CorruptFile(
            path, f"{expected_count} entries are announced and {len(entries)} are there"
        )
    result = []
    for number, line in enumerate(entries, start=3):
        fields = line.split()
        if len(fields) != field_count:
            raise CorruptFile(path, f"line {number} has {len(fields)} fields, not {field_count}")
        result.append((number, fields))
    return result


def _number(path: str, line: int, what: str, text: str, most: int) -> int:
    digits = text.strip()
    fits = digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) <= most
    if not fits:
        raise CorruptFile(path, f"line {line}: {what} {text[:40]!r} is not a number that fits")
    return int(digits)


def read_partition_metadata(filesystem: Filesystem, directory: str) -> TopicId | None:
    """The topic id recorded in a partition's directory, for good; None without the file.

    Raises: OSError; CorruptFile when it is not in the format.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    try:
        data = filesystem.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptFile(path, f"byte {error.start} is not ASCII text") from None
    version = _field(path, lines, 0, "version")
    if version != str(_VERSION):
        raise CorruptFile(path, f"version {version!r} is unknown, {_VERSION} is expected")
    text = _field(path, lines, 1, "topic_id")
    try:
        topic_id = uuid_from_base64(text)
    except ValueError as error:
        raise CorruptFile(path, str(error)) from None
    if topic_id == ZERO_UUID:
        raise CorruptFile(path, "the topic id is zero")
    return TopicId(topic_id)


def write_partition_metadata(filesystem: Filesystem, directory: str, topic_id: UUID) -> None:
    """Record the topic id durably. Raises OSError."""
    filesystem.write_atomically(os.path.join(directory, PARTITION_METADATA), _encode(topic_id))


def write_partition_metadata_unsynced(
    filesystem: Filesystem, directory: str, topic_id: UUID
) -> None:
    """Record the topic id, safe against a kill but not yet against a power loss. Raises OSError."""
    path = os.path.join(directory, PARTITION_METADATA)
    with closing(filesystem.open(path + ".tmp", create=True)) as file:
        file.truncate(0)
        file.append(_encode(topic_id))
    filesystem.rename(path + ".tmp", path)


def sync_partition_metadata(filesystem: Filesystem, directory: str) -> None:
    """Make the file and the names in the directory durable. Raises OSError."""
    path = os.path.join(directory, PARTITION_METADATA)
    if filesystem.exists(path):
        with closing(filesystem.open(path)) as file:
            file.fsync()
    filesystem.fsync_directory(directory)


def _encode(topic_id: UUID) -> bytes:
    assert topic_id != ZERO_UUID, "a partition without a topic id has no partition.metadata"
    return f"version: {_VERSION}\ntopic_id: {uuid_to_base64(topic_id)}".encode()


def _field(path: str, lines: list[str], index: int, name: str) -> str:
    if index >= len(lines):
        raise CorruptFile(path, f"the line with {name} is missing")
    key, separator, value = lines[index].partition(":")
    if not separator or key.strip() != name:
        raise CorruptFile(path, f"line {index + 1} is {lines[index][:40]!r}, not {name!r}")
    return value.strip()


class OffsetCheckpoint:
    """One checkpoint file. Call `prepare` on the loop, its result in any thread."""

    def __init__(self, filesystem: Filesystem, path: str) -> None:
        self._filesystem = filesystem
        self._lock = threading.Lock()
        self._newest: Offsets | None = None
        self._newest_number = 0
        self._written_number = 0
        self.path = path

    def loaded(self, contents: Offsets) -> None:
        self._newest = contents

    def prepare(self, offsets: Offsets) -> Callable[[], None] | None:
        """A call that writes `offsets` to the file; None when it holds them already."""
        if offsets == self._newest:
            return None
        self._newest = offsets
        self._newest_number += 1
        return partial(self._write, offsets, self._newest_number)

    def write(self, offsets: Offsets) -> None:
        """Write `offsets` to the file now, on the loop. Raises: OSError."""
        self.prepare(offsets)
        # Also where they are the newest already: a disk thread may not have written them yet.
        self._write(offsets, self._newest_number)

    def _write(self, offsets: Offsets, number: int) -> None:
        with self._lock:
            if number <= self._written_number:
                return
            try:
                write_offset_checkpoint(self._filesystem, self.path, offsets)
            except OSError:
                self._newest = None
                raise
            self._written_number = number
