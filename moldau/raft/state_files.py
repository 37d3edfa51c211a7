"""The two small files beside the metadata log: `quorum-state` and `flushed-end-offset`.

Owns: both formats. Must not: decide epochs, or when to write.

Invariants: `quorum-state` says which epoch this node is in, which candidate it voted for and who
leads (KIP-595, KIP-853; version 1 and the older version 0). The file is replaced as a whole and
durably; an epoch that was once in it never goes back.

`flushed-end-offset` says how far the log was on stable storage when that was last noted. It never
says more than what was flushed, and is lowered durably before the log is cut: records below it that
are missing or damaged at a start are therefore lost promises, not the ordinary end of a crash, and
must not be cut off. Apache Kafka has no such file and ignores it: there, damage anywhere above the
latest snapshot is taken for the tail of a crash.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Final
from uuid import UUID

from moldau.constants import MAX_INT16, MAX_INT32
from moldau.protocol.types import ZERO_UUID, uuid_from_base64, uuid_to_base64
from moldau.raft.core.values import NO_NODE, ElectionState, ReplicaKey
from moldau.raft.values import MetadataLogError
from moldau.runtime.filesystem import Filesystem

QUORUM_STATE: Final = "quorum-state"
CURRENT_VERSION: Final = 1
MAX_FILE_BYTES: Final = 64 * 1024


def read_quorum_state(filesystem: Filesystem, directory: str) -> ElectionState | None:
    """The state in `directory`, None when there is no file.

    Raises MetadataLogError: the file exists and makes no sense; OSError: it cannot be read.
    """
    path = os.path.join(directory, QUORUM_STATE)
    try:
        if filesystem.size_bytes(path) > MAX_FILE_BYTES:
            raise MetadataLogError(f"{path}: too large to be an election state")
        data = filesystem.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        values = json.loads(data)
    except ValueError as error:
        raise MetadataLogError(f"{path}: not JSON: {error}") from None
    if not isinstance(values, dict):
        raise MetadataLogError(f"{path}: not a JSON object")
    version = _number(path, values, "data_version", 0, MAX_INT16)
    if version > CURRENT_VERSION:
        raise MetadataLogError(
            f"{path}: data_version {version} is newer than {CURRENT_VERSION}, which is known here"
        )
    voted_id = _number(path, values, "votedId", NO_NODE, MAX_INT32)
    voted_directory_id = _directory_id(path, values) if version >= 1 else ZERO_UUID
    return ElectionState(
        leader_id=_number(path, values, "leaderId", NO_NODE, MAX_INT32),
        leader_epoch=_number(path, values, "leaderEpoch", 0, MAX_INT32 - 1),
        voted=None if voted_id == NO_NODE else ReplicaKey(voted_id, voted_directory_id),
    )


def write_quorum_state(filesystem: Filesystem, directory: str, state: ElectionState) -> None:
    """Replace the file, durably. Raises OSError."""
    voted = state.voted or ReplicaKey(NO_NODE)
    text = json.dumps(
        {
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": voted.node_id,
            "votedDirectoryId": uuid_to_base64(voted.directory_id),
            "data_version": CURRENT_VERSION,
        },
        separators=(",", ":"),
    )
    filesystem.write_atomically(os.path.join(directory, QUORUM_STATE), text.encode())


def _number(path: str, values: dict[str, object], key: str, lowest: int, highest: int) -> int:
    value = values.get(key)
    if type(value) is not int or not lowest <= value <= highest:
        raise MetadataLogError(f"{path}: {key} is {value!r}, not a number that fits")
    return value


def _directory_id(path: str, values: dict[str, object]) -> UUID:
    text = values.get("votedDirectoryId")
    try:
        return uuid_from_base64(str(text))
    except ValueError as error:
        raise MetadataLogError(f"{path}: votedDirectoryId: {error}") from None


logger = logging.getLogger(__name__)

FLUSHED_END: Final = "flushed-end-offset"
NOTE_EVERY: Final = 10_000
"""Offsets that may be flushed before they are noted; a start and an orderly stop note all."""

_MAX_BYTES: Final = 20


def read_flushed_end(filesystem: Filesystem, directory: str) -> int:
    """The offset noted, 0 when there is no note or it makes no sense. Raises OSError."""
    path = os.path.join(directory, FLUSHED_END)
    try:
        size_bytes = filesystem.size_bytes(path)
        data = filesystem.read_bytes(path) if size_bytes <= _MAX_BYTES else b""
    except FileNotFoundError:
        return 0
    digits = data.strip()
    if not digits.isdigit():
        logger.warning(
            "%s holds no offset: damage above the latest snapshot counts as a crash's", path
        )
        return 0
    return int(digits)


def write_flushed_end(filesystem: Filesystem, directory: str, end_offset: int) -> None:
    """Note that everything below `end_offset` is on stable storage, durably. Raises OSError."""
    assert end_offset >= 0
    filesystem.write_atomically(os.path.join(directory, FLUSHED_END), b"%d\n" % end_offset)


def forget_flushed_end(filesystem: Filesystem, directory: str) -> None:
    """Durably promise nothing; before a snapshot replaces the log. Raises OSError."""
    path = os.path.join(directory, FLUSHED_END)
    if filesystem.exists(path):
        filesystem.unlink(path)
        filesystem.fsync_directory(directory)
