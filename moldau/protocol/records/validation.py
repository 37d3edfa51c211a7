"""What a broker requires of a batch before it appends it.

Owns the rules but the CRC's (`verify_crc` in `header`), not the answers: every refusal is an
`InvalidBatch` whose reason names the error code. `validate_header` costs no look into the records
and is for the hot path; `scan_keys` (for compacted topics) and `validate_records` (for the
verification of files) walk all of them.
"""

from __future__ import annotations

from moldau.protocol.records import _implementation
from moldau.protocol.records.batch import decode_records, records_section
from moldau.protocol.records.control import decode_control_key
from moldau.protocol.records.header import BatchHeader, TimestampType
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.types import Buffer


def validate_header(header: BatchHeader, position: int = 0, *, from_client: bool = True) -> None:
    """Check what the header alone can be wrong in.

    `from_client`: the batch comes from a produce request, where control batches and offsets other
    than 0 are forbidden (a follower's fetch has both). Raises InvalidBatch: BAD_ATTRIBUTES,
    BAD_COUNT, BAD_OFFSET, BAD_CONTROL, BAD_SEQUENCE, BAD_PRODUCER.
    """

    def refuse(reason: InvalidBatchReason, message: str) -> InvalidBatch:
        return InvalidBatch(reason, message, position=position)

    try:
        _ = header.codec
    except InvalidBatch as error:
        raise error.at(position) from None
    if header.record_count < 0 or (from_client and header.record_count == 0):
        raise refuse(InvalidBatchReason.BAD_COUNT, f"record count {header.record_count}")
    if header.last_offset_delta < 0 or header.record_count > header.last_offset_delta + 1:
        raise refuse(
            InvalidBatchReason.BAD_COUNT,
            f"{header.record_count} records up to offset delta {header.last_offset_delta}",
        )
    if from_client:
        _validate_client_header(header, refuse_position=position)
    if header.is_transactional and not header.has_producer_id:
        raise refuse(InvalidBatchReason.BAD_PRODUCER, "a transactional batch without producer id")
    if header.is_control and header.is_compressed:
        raise refuse(InvalidBatchReason.BAD_CONTROL, "a compressed control batch")


def _validate_client_header(header: BatchHeader, *, refuse_position: int) -> None:
    reason = message = None
    if header.base_offset != 0:
        reason = InvalidBatchReason.BAD_OFFSET
        message = f"base offset {header.base_offset} from a producer, not 0"
    elif header.record_count != header.last_offset_delta + 1:
        reason = InvalidBatchReason.BAD_COUNT
        message = f"{header.record_count} records but last offset delta {header.last_offset_delta}"
    elif header.is_control:
        reason = InvalidBatchReason.BAD_CONTROL
        message = "a control batch from a producer"
    elif header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        reason = InvalidBatchReason.BAD_TIMESTAMP
        message = "a batch with log append time from a producer"
    elif header.has_producer_id and header.base_sequence < 0:
        reason = InvalidBatchReason.BAD_SEQUENCE
        message = f"sequence {header.base_sequence} with producer id {header.producer_id}"
    elif header.has_producer_id and header.producer_epoch < 0:
        reason = InvalidBatchReason.BAD_PRODUCER
        message = f"producer epoch {header.producer_epoch} with producer id {header.producer_id}"
    if reason is not None and message is not None:
        raise InvalidBatch(reason, message, position=refuse_position)


def validate_records(
    buffer: Buffer, position: int, header: BatchHeader, *, from_client: bool = True
) -> None:
    """Check the batch at `position` with every record in it.

    Number of records, exact lengths, offset deltas 0 … n-1, last offset delta, the rules of
    `validate_header`; keys of control batches. The CRC is the caller's. Raises InvalidBatch.
    """
    validate_header(header, position, from_client=from_client)
    section = records_section(buffer, position, header)
    try:
        _implementation.scan_records(section, header.record_count, header.base_timestamp_ms, False)
        if header.record_count != header.last_offset_delta + 1:
            raise InvalidBatch(
                InvalidBatchReason.BAD_COUNT,
                f"{header.record_count} records but last offset delta {header.last_offset_delta}",
            )
        if header.is_control:
            _validate_control_keys(buffer, position)
    except InvalidBatch as error:
        raise error.at(position) from None


def scan_keys(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Check every record of the data batch at `position`, and that it has a key.

    The header's rules and the CRC are the caller's. Raises InvalidBatch; MISSING_KEY names the
    first record without one.
    """
    section = records_section(buffer, position, header)
    try:
        _implementation.scan_records(section, header.record_count, header.base_timestamp_ms, True)
    except InvalidBatch as error:
        raise error.at(position) from None


def _validate_control_keys(buffer: Buffer, position: int) -> None:
    for index, record in enumerate(decode_records(buffer, position)):
        try:
            decode_control_key(record.key)
        except InvalidBatch as error:
            error.record_index = index
            raise
