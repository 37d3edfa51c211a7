"""Batches and records of a log file as rows, for `moldau log dump`.

Owns: walking a file that may be damaged. Must not: know other kinds of files.
Invariant: at most one batch is in memory; a batch larger than MAX_DECODED_BYTES is checked in
pieces and its records are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from moldau.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    InvalidBatch,
    Record,
    TimestampType,
    decode_records,
    read_batch_header,
)
from moldau.runtime.filesystem import File
from moldau.storage.dump_records import (
    bytes_to_json,
    control_record_to_json,
    coordinator_record_to_json,
    metadata_record_to_json,
)

Row = dict[str, Any]

MAX_DECODED_BYTES = 256 * 1024 * 1024
_PIECE_BYTES = 4 * 1024 * 1024
_CRC_COVERED_FROM = 21
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

    @property
    def wants_records(self) -> bool:
        """Whether a row per record is shown."""
        return self.deep or self.print_data


def batch_rows(file: File, topic: str, options: DumpOptions) -> Iterator[Row]:
    """Rows of one `.log` or `.checkpoint` file. Raises: OSError."""
    position = 0
    end = file.size_bytes
    limit = end if options.max_bytes is None else min(end, options.max_bytes)
    while position < limit:
        head = file.pread(min(BATCH_HEADER_SIZE, end - position), position)
        if not any(head) and _is_zero(file, position, end):
            yield {
                "row": "note",
                "position": position,
                "reason": f"{end - position} preallocated zero bytes follow",
            }
            return
        try:
            header = read_batch_header(head)
        except InvalidBatch as error:
            yield _error(position, error.message)
            return
        size_bytes = header.size_bytes
        if position + size_bytes > end:
            left = end - position
            yield _error(position, f"a batch of {size_bytes} bytes where {left} are left")
            return
        is_valid = batch_crc(file, position, header) == header.crc
        yield batch_row(header, position, is_valid)
        if options.wants_records:
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


def batch_crc(file: File, position: int, header: BatchHeader) -> int:
    """CRC-32C over what a batch's header says it covers. Raises: OSError."""
    at = position + _CRC_COVERED_FROM
    end = position + header.size_bytes
    crc = 0
    while at < end:
        data = file.pread(min(_PIECE_BYTES, end - at), at)
        if not data:
            break
        crc = crc32c(data, crc)
        at += len(data)
    return crc


def batch_row(header: BatchHeader, position: int, is_valid: bool) -> Row:
    """The line of a batch header, in the order of Kafka's dump tool."""
    row: Row = {
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
    return row


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


def _contents(
    record: Record, header: BatchHeader, topic: str, options: DumpOptions
) -> dict[str, Any]:
    if header.is_control:
        return control_record_to_json(record)
    if not options.print_data:
        return {}
    if options.decode == "metadata" or (options.decode == "auto" and topic == "__cluster_metadata"):
        return metadata_record_to_json(record)
    if options.decode == "auto" and topic in _COORDINATOR_TOPICS:
        return coordinator_record_to_json(topic, record)
    contents = {"key": bytes_to_json(record.key), "payload": bytes_to_json(record.value)}
    if record.headers:
        contents["headers"] = [[key, bytes_to_json(value)] for key, value in record.headers]
    return contents


def _error(position: int, reason: str) -> Row:
    return {"row": "error", "position": position, "reason": reason}
