"""Chooses the record codec: the compiled extension when it is there, else plain Python.

Owns that choice and nothing else. `MOLDAU_PURE_PYTHON=1` in the environment forces plain Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from moldau.protocol.records import columns_pure, partitions_pure, pure

NATIVE_REVISION: Final = 4
"""Counts what `_native` offers: an extension built from other sources is not used."""

native: Any = None
if os.environ.get("MOLDAU_PURE_PYTHON", "") in ("", "0"):
    try:
        native = import_module("moldau.protocol.records._native")
    except ImportError:
        native = None
    if getattr(native, "REVISION", None) != NATIVE_REVISION:
        native = None

IMPLEMENTATION: Final = "pure Python" if native is None else "native"

if native is None:
    decode_records = pure.decode_records
    scan_records = pure.scan_records
    encode_record = pure.encode_record
    encode_records = pure.encode_records
    decode_column_sections = columns_pure.decode_column_sections
    encode_rows = columns_pure.encode_rows
    scaled_int64s = columns_pure.scaled_int64s
    murmur2 = partitions_pure.murmur2
    murmur2_partition = partitions_pure.murmur2_partition
    partition_rows = partitions_pure.partition_rows
    group_rows = partitions_pure.group_rows
else:
    decode_records = native.decode_records
    scan_records = native.scan_records
    encode_record = native.encode_record
    encode_records = native.encode_records
    decode_column_sections = native.decode_column_sections
    encode_rows = native.encode_rows
    scaled_int64s = native.scaled_int64s
    murmur2 = native.murmur2
    murmur2_partition = native.murmur2_partition
    partition_rows = native.partition_rows
    group_rows = native.group_rows

if TYPE_CHECKING or native is None:
    from moldau.protocol.records.buffer_pure import RecordBuffer
    from moldau.protocol.records.cursor_pure import RecordCursor, RecordMaker, decode_cursors
else:
    RecordBuffer = native.RecordBuffer
    RecordCursor = native.RecordCursor
    RecordMaker = native.RecordMaker
    decode_cursors = native.decode_cursors

__all__ = [
    "IMPLEMENTATION",
    "RecordBuffer",
    "RecordCursor",
    "RecordMaker",
    "decode_column_sections",
    "decode_cursors",
    "decode_records",
    "encode_record",
    "encode_records",
    "encode_rows",
    "group_rows",
    "murmur2",
    "murmur2_partition",
    "native",
    "partition_rows",
    "scaled_int64s",
    "scan_records",
]
