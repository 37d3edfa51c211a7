"""Chooses the record codec: the compiled extension when it is there, else plain Python.

Owns that choice and nothing else. `MOLDAU_PURE_PYTHON=1` in the environment forces plain Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final

from moldau.protocol.records import columns_pure, pure

native: Any = None
if os.environ.get("MOLDAU_PURE_PYTHON", "") in ("", "0"):
    try:
        native = import_module("moldau.protocol.records._native")
    except ImportError:
        native = None

IMPLEMENTATION: Final = "pure Python" if native is None else "native"

if native is None:
    decode_records = pure.decode_records
    scan_records = pure.scan_records
    encode_record = pure.encode_record
    encode_records = pure.encode_records
    decode_column_sections = columns_pure.decode_column_sections
    encode_rows = columns_pure.encode_rows
else:
    decode_records = native.decode_records
    scan_records = native.scan_records
    encode_record = native.encode_record
    encode_records = native.encode_records
    decode_column_sections = native.decode_column_sections
    encode_rows = native.encode_rows
