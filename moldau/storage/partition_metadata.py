"""`partition.metadata`: the topic id of the partition in a directory, for good (KIP-516)."""

from __future__ import annotations

import os
from typing import Final
from uuid import UUID

from moldau.protocol.types import ZERO_UUID, TopicId, uuid_from_base64, uuid_to_base64
from moldau.runtime.filesystem import Filesystem
from moldau.storage.faults import CorruptFile

PARTITION_METADATA: Final = "partition.metadata"
_VERSION = "0"


def read_partition_metadata(filesystem: Filesystem, directory: str) -> TopicId | None:
    """The topic id recorded in a partition's directory; None when the file is not there.

    Raises:
        CorruptFile: it is there and not in the format.
        OSError: it cannot be read.
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
    if version != _VERSION:
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
    file = filesystem.open(path + ".tmp", create=True)
    try:
        file.truncate(0)
        file.append(_encode(topic_id))
    finally:
        file.close()
    filesystem.rename(path + ".tmp", path)


def sync_partition_metadata(filesystem: Filesystem, directory: str) -> None:
    """Make the file and the names in the directory durable. Raises OSError."""
    path = os.path.join(directory, PARTITION_METADATA)
    if filesystem.exists(path):
        file = filesystem.open(path)
        try:
            file.fsync()
        finally:
            file.close()
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
