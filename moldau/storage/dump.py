"""The engine of `moldau log dump`: every file of a log directory as rows.

Owns: which file holds what, and one row (a flat dict, JSON-ready) per batch, record or entry.
Must not: change a file, need a running node, or stop at damage it can step over.
Invariant: a row's "row" key says what it is: file, batch, record, index, timeindex, txnindex,
producer, leader_epoch, checkpoint, property, note, error. Memory is bounded by one batch or one
small file. Field names are those of Kafka's own dump tool where it shows the field.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from moldau.config.errors import ConfigError
from moldau.config.properties import parse_properties
from moldau.runtime.filesystem import Filesystem
from moldau.storage.checkpoints import (
    CLEAN_SHUTDOWN_MARKER,
    LEADER_EPOCH_CHECKPOINT,
    OFFSET_CHECKPOINTS,
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
)
from moldau.storage.corrupt_file import CorruptFile
from moldau.storage.dump_batches import DumpOptions, Row, batch_rows
from moldau.storage.dump_records import bytes_to_json
from moldau.storage.log_directory import describe, marked_partition, parse_partition_directory
from moldau.storage.meta_properties import META_PROPERTIES
from moldau.storage.partition_metadata import PARTITION_METADATA
from moldau.storage.producer_snapshot import decode_snapshot

__all__ = ["MAX_SMALL_FILE_BYTES", "DumpOptions", "Row", "dump_path", "format_row"]

MAX_SMALL_FILE_BYTES: Final = 64 * 1024 * 1024
"""Larger indexes, snapshots and checkpoints are refused: nobody writes such."""

_NAME = re.compile(r"(\d{20})(-\d{10})?(\.[a-z]+)(\.deleted|\.swap|\.cleaned)?")
_INDEX_ENTRY = Struct(">ii")
_TIME_INDEX_ENTRY = Struct(">qi")
_TXN_INDEX_ENTRY = Struct(">hqqqq")
_PROPERTY_FILES = (META_PROPERTIES, PARTITION_METADATA)
_JSON_FILES = (CLEAN_SHUTDOWN_MARKER, "quorum-state")
_BOOTSTRAP = "bootstrap.checkpoint"


def dump_path(
    filesystem: Filesystem, path: str, options: DumpOptions | None = None
) -> Iterator[Row]:
    """Rows of one file, of a partition's directory, or of everything in a log directory.

    Raises: FileNotFoundError. Other trouble with a file becomes an error row of that file.
    """
    options = options or DumpOptions()
    path = path.rstrip("/") or "/"
    if not filesystem.exists(path):
        raise FileNotFoundError(2, "there is no such file or directory", path)
    if not filesystem.is_directory(path):
        yield from _dump_file(filesystem, path, options)
        return
    for name in filesystem.listdir(path):
        child = os.path.join(path, name)
        if filesystem.is_directory(child):
            if parse_partition_directory(name) or marked_partition(name):
                yield from dump_path(filesystem, child, options)
        elif _reader_for(name) is not None:
            yield from _dump_file(filesystem, child, options)


def _dump_file(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    name = os.path.basename(path)
    reader = _reader_for(name)
    try:
        size_bytes = filesystem.size_bytes(path)
        yield {"row": "file", "file": path, "size": size_bytes}
        if reader is None:
            yield {"row": "error", "reason": "this kind of file is not known"}
        elif reader is not _log_rows and size_bytes > MAX_SMALL_FILE_BYTES:
            yield {"row": "error", "reason": f"{size_bytes} bytes are no such file"}
        else:
            yield from reader(filesystem, path, options)
    except CorruptFile as error:
        yield {"row": "error", "reason": error.reason}
    except OSError as error:
        yield {"row": "error", "reason": describe(error)}


Reader = Callable[[Filesystem, str, DumpOptions], Iterator[Row]]


def _reader_for(name: str) -> Reader | None:
    if name in OFFSET_CHECKPOINTS:
        return _offset_checkpoint_rows
    if name == LEADER_EPOCH_CHECKPOINT:
        return _leader_epoch_rows
    if name in _PROPERTY_FILES:
        return _property_rows
    if name in _JSON_FILES:
        return _text_rows
    if name == _BOOTSTRAP:
        return _log_rows
    match = _NAME.fullmatch(name)
    return None if match is None else _READERS.get(match[3])


def _base_offset(path: str) -> int:
    return int(os.path.basename(path)[:20])


def _topic_of(path: str) -> str:
    directory = os.path.basename(os.path.dirname(os.path.abspath(path)))
    found = parse_partition_directory(directory) or marked_partition(directory)
    return found.topic if found is not None else ""


def _log_rows(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    name = os.path.basename(path)
    topic = _topic_of(path)
    if name.endswith(".checkpoint"):
        # Snapshots and bootstrap records are the metadata log's, wherever they lie.
        topic = "__cluster_metadata"
    match = _NAME.fullmatch(name)
    if match is not None and match[2]:
        yield {
            "row": "note",
            "reason": "snapshot",
            "endOffset": int(match[1]),
            "leaderEpoch": int(match[2][1:]),
        }
    file = filesystem.open(path, write=False)
    try:
        yield from batch_rows(file, topic, options)
    finally:
        file.close()


def _entry_rows(
    filesystem: Filesystem, path: str, entry: Struct, show: Callable[..., Row]
) -> Iterator[Row]:
    data = filesystem.read_bytes(path)
    # What an open index has preallocated reads as zeros.
    used = len(data.rstrip(b"\0"))
    count = min(-(-used // entry.size), len(data) // entry.size)
    for number in range(count):
        yield show(*entry.unpack_from(data, number * entry.size))
    whole = len(data) // entry.size * entry.size
    if used > whole:
        left = len(data) - whole
        yield {"row": "error", "position": whole, "reason": f"{left} bytes are no whole entry"}
    elif count * entry.size < len(data):
        reason = f"{len(data) - count * entry.size} preallocated bytes follow"
        yield {"row": "note", "position": count * entry.size, "reason": reason}


def _index_rows(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    base_offset = _base_offset(path)

    def show(relative_offset: int, position: int) -> Row:
        return {"row": "index", "offset": base_offset + relative_offset, "position": position}

    return _entry_rows(filesystem, path, _INDEX_ENTRY, show)


def _time_index_rows(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    base_offset = _base_offset(path)

    def show(timestamp_ms: int, relative_offset: int) -> Row:
        offset = base_offset + relative_offset
        return {"row": "timeindex", "timestamp": timestamp_ms, "offset": offset}

    return _entry_rows(filesystem, path, _TIME_INDEX_ENTRY, show)


def _txn_index_rows(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    def show(version: int, producer_id: int, first: int, last: int, stable: int) -> Row:
        return {
            "row": "txnindex",
            "version": version,
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": stable,
        }

    return _entry_rows(filesystem, path, _TXN_INDEX_ENTRY, show)


def _snapshot_rows(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    try:
        entries = decode_snapshot(filesystem.read_bytes(path))
    except ValueError as error:
        raise CorruptFile(path, str(error)) from None
    for entry in entries:
        transaction = entry.current_txn_first_offset
        has_batch = entry.last_offset >= 0
        sequence = entry.last_sequence - entry.offset_delta
        yield {
            "row": "producer",
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": transaction if transaction >= 0 else None,
            "lastTimestamp": entry.last_timestamp_ms,
            "firstSequence": sequence & 0x7FFF_FFFF if has_batch else None,
            "lastSequence": entry.last_sequence if has_batch else None,
            "lastOffset": entry.last_offset if has_batch else None,
            "offsetDelta": entry.offset_delta if has_batch else None,
        }


def _leader_epoch_rows(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    for entry in read_leader_epoch_checkpoint(filesystem, path):
        yield {
            "row": "leader_epoch",
            "leaderEpoch": entry.leader_epoch,
            "startOffset": entry.start_offset,
        }


def _offset_checkpoint_rows(
    filesystem: Filesystem, path: str, options: DumpOptions
) -> Iterator[Row]:
    for (topic, partition), offset in sorted(read_offset_checkpoint(filesystem, path).items()):
        yield {"row": "checkpoint", "topic": topic, "partition": partition, "offset": offset}


def _property_rows(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    try:
        values = parse_properties(filesystem.read_bytes(path).decode(), source=path)
    except (UnicodeDecodeError, ConfigError) as error:
        raise CorruptFile(path, str(error)) from None
    for key, value in sorted(values.items()):
        yield {"row": "property", "key": key, "value": value}


def _text_rows(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    text = bytes_to_json(filesystem.read_bytes(path))
    yield {"row": "property", "key": os.path.basename(path), "value": text}


_READERS: Final[dict[str, Reader]] = {
    ".log": _log_rows,
    ".checkpoint": _log_rows,
    ".index": _index_rows,
    ".timeindex": _time_index_rows,
    ".txnindex": _txn_index_rows,
    ".snapshot": _snapshot_rows,
}


def format_row(row: Row) -> str:
    """A row as one line for people: `name: value` pairs, records indented under their batch."""
    kind = row["row"]
    if kind == "file":
        return f"Dumping {row['file']} ({row['size']} bytes)"
    pairs = " ".join(
        f"{name}: {_format_value(value)}" for name, value in row.items() if name != "row"
    )
    if kind in ("note", "error"):
        return f"{kind.upper()} {pairs}"
    return f"| {pairs}" if kind == "record" else pairs


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return f"[{','.join(value)}]"
    if isinstance(value, dict | list):
        import json

        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value).replace("\n", "\\n").replace("\r", "\\r")
