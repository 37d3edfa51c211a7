"""The engine of `moldau log dump`: every file of a log directory as rows.

Owns: which file holds what, one row (a flat dict, JSON-ready) per batch, record or entry, and what
is inside records that brokers themselves wrote.
Must not: change a file, need a running node, or stop at damage it can step over.
Invariant: a row's "row" key says what it is: file, batch, record, index, timeindex, txnindex,
producer, leader_epoch, checkpoint, property, note, error. Memory is bounded by one batch or one
small file; a batch larger than MAX_DECODED_BYTES is checked in pieces and its records are not
shown. Bytes that do not decode are shown with the reason. Field names are those of Kafka's own dump
tool where it shows the field.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from moldau.config.definition import ConfigError
from moldau.config.properties import parse_properties
from moldau.protocol.as_json import (
    bytes_to_json,
    coordinator_record_to_json,
    metadata_record_to_json,
    struct_to_json,
)
from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    ControlRecordType,
    InvalidBatch,
    Record,
    TimestampType,
    decode_control_key,
    decode_end_txn_marker,
    decode_records,
    read_batch_header,
)
from moldau.protocol.records.header import CRC_COVERED_FROM
from moldau.protocol.schema import Message
from moldau.runtime.files import File
from moldau.runtime.filesystem import Filesystem
from moldau.storage.batch_scan import check_frame, crc32c_from
from moldau.storage.checkpoints import (
    CLEAN_SHUTDOWN_MARKER,
    LEADER_EPOCH_CHECKPOINT,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    read_leader_epoch_checkpoint,
    read_offset_checkpoint,
)
from moldau.storage.faults import CorruptFile, describe
from moldau.storage.indexes import TXN_ENTRY, OffsetIndex, TimeIndex
from moldau.storage.log_directory import marked_partition, parse_partition_directory
from moldau.storage.meta_properties import META_PROPERTIES
from moldau.storage.producer_state import decode_snapshot

_INT16 = struct.Struct(">h")


def control_record_to_json(record: Record) -> dict[str, object]:
    try:
        key = decode_control_key(record.key)
        if key.type in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            marker = decode_end_txn_marker(record)
            return {"controlType": marker.type.name, "coordinatorEpoch": marker.coordinator_epoch}
        if not isinstance(key.type, ControlRecordType):
            return {"controlType": key.type, "value": bytes_to_json(record.value)}
        return {"controlType": key.type.name, "data": _quorum_record(key.type, record.value)}
    except (InvalidBatch, RemoteProtocolError) as error:
        return {"controlType": None, "undecodable": str(error)}


def _quorum_record(record_type: ControlRecordType, value: bytes | None) -> object:
    """Raises: RemoteProtocolError."""
    from moldau.protocol.messages import quorum_records

    classes: dict[ControlRecordType, type[Message]] = {
        ControlRecordType.LEADER_CHANGE: quorum_records.LeaderChangeMessage,
        ControlRecordType.SNAPSHOT_HEADER: quorum_records.SnapshotHeaderRecord,
        ControlRecordType.SNAPSHOT_FOOTER: quorum_records.SnapshotFooterRecord,
        ControlRecordType.KRAFT_VERSION: quorum_records.KRaftVersionRecord,
        ControlRecordType.KRAFT_VOTERS: quorum_records.VotersRecord,
    }
    if value is None or len(value) < _INT16.size:
        raise RemoteProtocolError("a control record without a version")
    # Each of these messages begins with its own version as a field.
    version = _INT16.unpack_from(value)[0]
    message, _ = classes[record_type].decode(value, version)
    return struct_to_json(message)


Row = dict[str, Any]
"""Values are JSON's."""

MAX_DECODED_BYTES = 256 * 1024 * 1024
_PIECE_BYTES = 4 * 1024 * 1024
_CODEC_NAMES = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_COORDINATOR_TOPICS = ("__consumer_offsets", "__transaction_state")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What is shown of log files.

    `deep`: a row per record too. `print_data`: with keys, values and headers (implies deep).
    `decode`: what the values are: "auto" goes by the directory's name, "metadata" and "none".
    `max_bytes`: stop after so many bytes of each log file.
    """

    deep: bool = False
    print_data: bool = False
    decode: str = "auto"
    max_bytes: int | None = None


def batch_rows(file: File, topic: str, options: DumpOptions) -> Iterator[Row]:
    """Rows of one `.log` or `.checkpoint` file. Raises: OSError."""
    position = 0
    end = file.size_bytes
    limit = end if options.max_bytes is None else min(end, options.max_bytes)
    while position < limit:
        try:
            header = read_framed_header(file, position, end)
        except InvalidBatch as error:
            if _is_zero(file, position, end):
                reason = f"{end - position} preallocated zero bytes follow"
                yield {"row": "note", "position": position, "reason": reason}
            else:
                yield _error(position, error.message)
            return
        size_bytes = header.size_bytes
        is_valid = batch_crc(file, position, header) == header.crc
        yield batch_row(header, position, is_valid)
        if options.deep or options.print_data:
            if not is_valid:
                yield _error(position, "the CRC does not match, the records are not shown")
            elif size_bytes > MAX_DECODED_BYTES:
                yield _error(position, f"{size_bytes} bytes are too many to show the records")
            else:
                yield from _record_rows(file, position, header, topic, options)
        position += size_bytes


def _is_zero(file: File, position: int, end: int) -> bool:
    while position < end:
        data = file.pread(min(_PIECE_BYTES, end - position), position)
        if not data or any(data):
            return False
        position += len(data)
    return True


def read_framed_header(file: File, position: int, end: int) -> BatchHeader:
    """The header of the batch at `position`, which is whole. Raises: InvalidBatch, OSError."""
    try:
        header = read_batch_header(file.pread(min(BATCH_HEADER_SIZE, end - position), position))
    except InvalidBatch as error:
        raise error.at(position) from None
    check_frame(header, position, end)
    return header


def batch_crc(file: File, position: int, header: BatchHeader) -> int:
    """CRC-32C over what a batch's header says it covers. Raises: OSError."""
    at = position + CRC_COVERED_FROM
    end = position + header.size_bytes
    crc = 0
    while at < end:
        data = file.pread(min(_PIECE_BYTES, end - at), at)
        if not data:
            break
        crc = crc32c_from(data, crc)
        at += len(data)
    return crc


def batch_row(header: BatchHeader, position: int, is_valid: bool) -> Row:
    """The line of a batch header, in the order of Kafka's dump tool."""
    return {
        "row": "batch",
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.base_timestamp_ms if header.has_delete_horizon else None,
        "position": position,
        _timestamp_name(header): header.max_timestamp_ms,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": _CODEC_NAMES.get(header.attributes & 7, str(header.attributes & 7)),
        "crc": header.crc,
        "isvalid": is_valid,
    }


def _timestamp_name(header: BatchHeader) -> str:
    is_create_time = header.timestamp_type is TimestampType.CREATE_TIME
    return "CreateTime" if is_create_time else "LogAppendTime"


def _record_rows(
    file: File, position: int, header: BatchHeader, topic: str, options: DumpOptions
) -> Iterator[Row]:
    try:
        records = decode_records(file.pread(header.size_bytes, position))
    except InvalidBatch as error:
        yield _error(position, error.message)
        return
    timestamp_name = _timestamp_name(header)
    for record in records:
        sequence = header.base_sequence
        if sequence >= 0:
            delta = record.offset - header.base_offset
            sequence = (sequence + delta) & 0x7FFF_FFFF
        row: Row = {
            "row": "record",
            "offset": record.offset,
            timestamp_name: record.timestamp_ms,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
            "sequence": sequence,
            "headerKeys": [key for key, _ in record.headers],
        }
        row.update(_contents(record, header, topic, options))
        yield row


def _contents(record: Record, header: BatchHeader, topic: str, options: DumpOptions) -> Row:
    if header.is_control:
        return control_record_to_json(record)
    if not options.print_data:
        return {}
    if options.decode == "metadata" or (options.decode == "auto" and topic == "__cluster_metadata"):
        return metadata_record_to_json(record.value)
    if options.decode == "auto" and topic in _COORDINATOR_TOPICS:
        return coordinator_record_to_json(topic, record.key, record.value)
    contents = {"key": bytes_to_json(record.key), "payload": bytes_to_json(record.value)}
    if record.headers:
        contents["headers"] = [[key, bytes_to_json(value)] for key, value in record.headers]
    return contents


def _error(position: int, reason: str) -> Row:
    return {"row": "error", "position": position, "reason": reason}


MAX_SMALL_FILE_BYTES: Final = 64 * 1024 * 1024
"""Larger indexes, snapshots and checkpoints are refused: there are none in practice."""

_NAME = re.compile(r"(\d{20})(-\d{10})?(\.[a-z]+)(\.deleted|\.swap|\.cleaned)?")


def dump_path(
    filesystem: Filesystem, path: str, options: DumpOptions | None = None
) -> Iterator[Row]:
    """Rows of one file, of a partition's directory, or of everything in a log directory.

    Raises: FileNotFoundError: also for a directory with nothing to show in it. Other trouble with
        a file becomes an error row of that file.
    """
    options = options or DumpOptions()
    path = path.rstrip("/") or "/"
    if not filesystem.exists(path):
        raise FileNotFoundError(2, "there is no such file or directory", path)
    if not filesystem.is_directory(path):
        yield from _dump_file(filesystem, path, options)
        return
    found = False
    for child in shown_files(filesystem, path):
        found = True
        yield from _dump_file(filesystem, child, options)
    if not found:
        raise FileNotFoundError(2, "there are no files of a log in this directory", path)


def shown_files(filesystem: Filesystem, path: str) -> Iterator[str]:
    """The files of a directory, and of partitions in it, that can be shown. Raises: OSError"""
    for name in filesystem.listdir(path):
        child = os.path.join(path, name)
        if filesystem.is_directory(child):
            if parse_partition_directory(name) or marked_partition(name):
                yield from shown_files(filesystem, child)
        elif _reader_for(name) is not None:
            yield child


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
    match = _NAME.fullmatch(name)
    return _READERS_BY_NAME.get(name) if match is None else _READERS_BY_SUFFIX.get(match[3])


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
    with closing(filesystem.open(path, write=False)) as file:
        yield from batch_rows(file, topic, options)


def _index_rows(filesystem: Filesystem, path: str, options: DumpOptions) -> Iterator[Row]:
    match = _NAME.fullmatch(os.path.basename(path))
    assert match is not None
    entry, kind, names = _INDEXES[match[3]]
    data = filesystem.read_bytes(path)
    # What an open index has preallocated reads as zeros.
    used = len(data.rstrip(b"\0"))
    count = min(-(-used // entry.size), len(data) // entry.size)
    for number in range(count):
        values = entry.unpack_from(data, number * entry.size)
        row: Row = {"row": kind, **dict(zip(names, values, strict=True))}
        if kind != "txnindex":
            row["offset"] += int(match[1])
        yield row
    whole = len(data) // entry.size * entry.size
    if used > whole:
        left = len(data) - whole
        yield {"row": "error", "position": whole, "reason": f"{left} bytes are no whole entry"}
    elif count * entry.size < len(data):
        reason = f"{len(data) - count * entry.size} preallocated bytes follow"
        yield {"row": "note", "position": count * entry.size, "reason": reason}


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


#: By suffix: the format of an entry, the kind of row, the names of its values.
_INDEXES: Final[dict[str, tuple[struct.Struct, str, tuple[str, ...]]]] = {
    ".index": (OffsetIndex.ENTRY, "index", ("offset", "position")),
    ".timeindex": (TimeIndex.ENTRY, "timeindex", ("timestamp", "offset")),
    ".txnindex": (
        TXN_ENTRY,
        "txnindex",
        ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset"),
    ),
}

_READERS_BY_NAME: Final[dict[str, Reader]] = {
    **dict.fromkeys(OFFSET_CHECKPOINTS, _offset_checkpoint_rows),
    LEADER_EPOCH_CHECKPOINT: _leader_epoch_rows,
    META_PROPERTIES: _property_rows,
    PARTITION_METADATA: _property_rows,
    CLEAN_SHUTDOWN_MARKER: _text_rows,
    "quorum-state": _text_rows,
    "bootstrap.checkpoint": _log_rows,
}

_READERS_BY_SUFFIX: Final[dict[str, Reader]] = {
    ".log": _log_rows,
    ".checkpoint": _log_rows,
    ".index": _index_rows,
    ".timeindex": _index_rows,
    ".txnindex": _index_rows,
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
