"""`quorum-state`: which epoch this node is in, whom it voted for, who leads (KIP-595, KIP-853).

Owns: the JSON file, version 1 and the older version 0. Must not: decide epochs.
Invariant: the file is replaced as a whole and durably; an epoch that was once in it never goes
back.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final
from uuid import UUID

from moldau.protocol.types import ZERO_UUID, uuid_from_base64, uuid_to_base64
from moldau.raft.core.values import NO_NODE, ElectionState, ReplicaKey
from moldau.raft.values import MetadataLogError
from moldau.runtime.filesystem import Filesystem

QUORUM_STATE: Final = "quorum-state"
CURRENT_VERSION: Final = 1
MAX_FILE_BYTES: Final = 64 * 1024
_MAX_EPOCH: Final = 2**31 - 1


def read_quorum_state(filesystem: Filesystem, directory: str) -> ElectionState | None:
    """The state in `directory`, None when there is no file.

    Raises:
        MetadataLogError: the file is there and makes no sense.
        OSError: it cannot be read.
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
    version = _number(path, values, "data_version", 0, 2**15 - 1)
    if version > CURRENT_VERSION:
        raise MetadataLogError(
            f"{path}: data_version {version} is newer than {CURRENT_VERSION}, which is known here"
        )
    voted_id = _number(path, values, "votedId", NO_NODE, _MAX_EPOCH)
    voted_directory_id = _directory_id(path, values) if version >= 1 else ZERO_UUID
    return ElectionState(
        leader_id=_number(path, values, "leaderId", NO_NODE, _MAX_EPOCH),
        leader_epoch=_number(path, values, "leaderEpoch", 0, _MAX_EPOCH - 1),
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


def _number(path: str, values: dict[str, Any], key: str, lowest: int, highest: int) -> int:
    value = values.get(key)
    if type(value) is not int or not lowest <= value <= highest:
        raise MetadataLogError(f"{path}: {key} is {value!r}, not a number that fits")
    return value


def _directory_id(path: str, values: dict[str, Any]) -> UUID:
    text = values.get("votedDirectoryId")
    try:
        return uuid_from_base64(str(text))
    except ValueError as error:
        raise MetadataLogError(f"{path}: votedDirectoryId: {error}") from None
