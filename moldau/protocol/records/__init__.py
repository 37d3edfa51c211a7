"""Record batches (magic 2): headers, records, compression, control records, columns.

What other rooms use is named here. Codec libraries load on first compressed use only.
"""

from moldau.protocol.records._implementation import (
    IMPLEMENTATION,
    RecordBuffer,
    RecordCursor,
    RecordMaker,
    group_rows,
    murmur2_partition,
    partition_rows,
    scaled_int64s,
)
from moldau.protocol.records.batch import (
    compress_batch,
    decode_records,
    encode_batch,
    recompress,
    record_size_bound,
    records_section,
)
from moldau.protocol.records.columns import (
    BytesColumn,
    ColumnEncoder,
    RecordColumns,
    decode_columns,
    string_buffers,
    take_columns,
)
from moldau.protocol.records.control import (
    ControlRecordType,
    EndTxnMarker,
    decode_control_key,
    decode_end_txn_marker,
    encode_control_batch,
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
    read_batch_header,
    unpack_header,
    verify_crc,
    write_header,
)
from moldau.protocol.records.invalid_batch import InvalidBatch, InvalidBatchReason
from moldau.protocol.records.record import Record, RecordHeaders
from moldau.protocol.records.validation import scan_keys, validate_header, validate_records
