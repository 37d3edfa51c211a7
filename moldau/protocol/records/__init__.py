"""Record batches (magic 2): headers, records, compression, control records, columns.

Everything public is named here. Codec libraries load on first compressed use only.
"""

from moldau.protocol.records._implementation import IMPLEMENTATION
from moldau.protocol.records.batch import decode_records, encode_batch, recompress
from moldau.protocol.records.builder import (
    RecordBatchBuilder,
    batch_size_bound,
    record_size_bound,
)
from moldau.protocol.records.columns import (
    BytesColumn,
    RecordColumns,
    decode_columns,
    encode_columns,
)
from moldau.protocol.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    LEVEL_RANGES,
    compress,
    decompress,
)
from moldau.protocol.records.control import (
    ControlKey,
    ControlRecordType,
    EndTxnMarker,
    decode_control_key,
    decode_end_txn_marker,
    encode_control_batch,
    encode_control_key,
    encode_end_txn_batch,
)
from moldau.protocol.records.header import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Codec,
    TimestampType,
    increment_sequence,
    iter_batches,
    patch_batch,
    patch_log_append_time,
    patch_producer_state,
    read_batch_header,
    verify_crc,
)
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.records.record import Record, RecordHeaders
from moldau.protocol.records.validation import (
    RecordSummary,
    scan_keys,
    validate_header,
    validate_records,
)

__all__ = [
    "BATCH_HEADER_SIZE",
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "IMPLEMENTATION",
    "LEVEL_RANGES",
    "LOG_OVERHEAD",
    "BatchHeader",
    "BytesColumn",
    "Codec",
    "ControlKey",
    "ControlRecordType",
    "EndTxnMarker",
    "InvalidBatch",
    "InvalidBatchReason",
    "Record",
    "RecordBatchBuilder",
    "RecordColumns",
    "RecordHeaders",
    "RecordSummary",
    "TimestampType",
    "batch_size_bound",
    "compress",
    "decode_columns",
    "decode_control_key",
    "decode_end_txn_marker",
    "decode_records",
    "decompress",
    "encode_batch",
    "encode_columns",
    "encode_control_batch",
    "encode_control_key",
    "encode_end_txn_batch",
    "increment_sequence",
    "iter_batches",
    "patch_batch",
    "patch_log_append_time",
    "patch_producer_state",
    "read_batch_header",
    "recompress",
    "record_size_bound",
    "scan_keys",
    "validate_header",
    "validate_records",
    "verify_crc",
]
