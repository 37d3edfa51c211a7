"""Chooses the record codec: the compiled extension when it is installed, else plain Python.

Owns that choice and nothing else. `MOLDAU_PURE_PYTHON=1` in the environment forces plain Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

NATIVE_REVISION: Final = 4
"""Counts what `_native` offers: an extension built from other sources is not used."""

_OFFERED: Final = (
    "RecordBuffer RecordCursor RecordMaker decode_column_sections decode_cursors decode_records "
    "encode_record encode_records encode_rows group_rows murmur2 murmur2_partition partition_rows "
    "scaled_int64s scan_records"
)
native: Any = None
if os.environ.get("MOLDAU_PURE_PYTHON", "") in ("", "0"):
    try:
        native = import_module("moldau.protocol.records._native")
    except ImportError:
        native = None
    if getattr(native, "REVISION", None) != NATIVE_REVISION:
        native = None

IMPLEMENTATION: Final = "pure Python" if native is None else "native"

if TYPE_CHECKING or native is None:
    from moldau.protocol.records.columns_pure import (
        decode_column_sections,
        encode_rows,
        group_rows,
        murmur2,
        murmur2_partition,
        partition_rows,
        scaled_int64s,
    )
    from moldau.protocol.records.cursor_pure import RecordCursor, RecordMaker, decode_cursors
    from moldau.protocol.records.pure import (
        RecordBuffer,
        decode_records,
        encode_record,
        encode_records,
        scan_records,
    )
else:
    globals().update({name: getattr(native, name) for name in _OFFERED.split()})
