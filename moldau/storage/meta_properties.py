"""`meta.properties`: the identity of a log directory (KIP-631, KIP-858).

Invariant: an existing file is rewritten only to add a missing directory id; cluster id and node id
of a directory never change.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.config.definition import ConfigError
from moldau.config.properties import parse_properties
from moldau.protocol.types import RESERVED_TOPIC_IDS, uuid_from_base64, uuid_to_base64
from moldau.runtime.filesystem import Filesystem
from moldau.storage.faults import CorruptFile

META_PROPERTIES: Final = "meta.properties"
CURRENT_VERSION: Final = 1
MAX_FILE_BYTES: Final = 64 * 1024
_MAX_NODE_ID = (1 << 31) - 1
_ESCAPES = str.maketrans(
    {each: "\\" + each for each in "\\=:#! "} | {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
)
"""Java's escapes, so that any cluster id reads back as it was."""


@dataclass(slots=True, frozen=True)
class MetaProperties:
    """`directory_id` is None in files written before directories had ids."""

    cluster_id: str
    node_id: int
    directory_id: UUID | None = None
    version: int = CURRENT_VERSION

    def __post_init__(self) -> None:
        assert self.cluster_id, "a cluster id is not empty"
        assert 0 <= self.node_id <= _MAX_NODE_ID


def read_meta_properties(filesystem: Filesystem, directory: str) -> MetaProperties | None:
    """The identity of a log directory; None when it has not been formatted.

    Version 0 (`broker.id` in the place of `node.id`) must name a cluster, although the cluster id
    is optional there: without one the directory's identity cannot be checked.

    Raises: OSError; CorruptFile when the file is unusable.
    """
    path = os.path.join(directory, META_PROPERTIES)
    try:
        size_bytes = filesystem.size_bytes(path)
        if size_bytes > MAX_FILE_BYTES:
            raise CorruptFile(path, f"{size_bytes} bytes are no identity of a directory")
        data = filesystem.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        values = parse_properties(data.decode(), source=path)
    except (UnicodeDecodeError, ConfigError) as error:
        raise CorruptFile(path, str(error)) from None
    version = _integer(path, "version", values.get("version", "0"))
    if version not in (0, CURRENT_VERSION):
        raise CorruptFile(path, f"version {version} is unknown, 0 or {CURRENT_VERSION} is expected")
    node_key = "node.id" if version == CURRENT_VERSION else "broker.id"
    node_id = _integer(path, node_key, _required(path, values, node_key))
    cluster_id = _required(path, values, "cluster.id")
    return MetaProperties(cluster_id, node_id, _directory_id(path, values), version)


def write_meta_properties(
    filesystem: Filesystem, directory: str, properties: MetaProperties
) -> None:
    """Write version 1 atomically and durably. Raises OSError."""
    values = {"version": str(CURRENT_VERSION), "cluster.id": properties.cluster_id}
    values["node.id"] = str(properties.node_id)
    if properties.directory_id is not None:
        values["directory.id"] = uuid_to_base64(properties.directory_id)
    lines = [f"{key}={value.translate(_ESCAPES)}\n" for key, value in sorted(values.items())]
    data = "".join(["#\n", *lines]).encode()
    filesystem.write_atomically(os.path.join(directory, META_PROPERTIES), data)


def _required(path: str, values: dict[str, str], key: str) -> str:
    value = values.get(key, "").strip()
    if not value:
        raise CorruptFile(path, f"{key} is missing")
    return value


def _integer(path: str, key: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and int(digits) <= _MAX_NODE_ID):
        raise CorruptFile(path, f"{key}={text[:40]!r} is not a number from 0 to {_MAX_NODE_ID}")
    return int(digits)


def _directory_id(path: str, values: dict[str, str]) -> UUID | None:
    text = values.get("directory.id", "").strip()
    if not text:
        return None
    try:
        directory_id = uuid_from_base64(text)
    except ValueError as error:
        raise CorruptFile(path, f"directory.id: {error}") from None
    if directory_id in RESERVED_TOPIC_IDS:
        raise CorruptFile(path, f"directory.id={text} is one of the reserved ids")
    return directory_id
