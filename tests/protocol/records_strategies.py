"""Hypothesis strategies and fixtures that the record tests share."""

from __future__ import annotations

import importlib
import random
from types import ModuleType

from hypothesis import strategies as st

from moldau.protocol.records import Record, _implementation, columns_pure, pure

CODEC_FUNCTIONS = ("decode_records", "scan_records", "encode_record", "encode_records")
COLUMN_FUNCTIONS = ("decode_column_sections", "encode_rows")

#: Any two of them differ by an int64, as the timestamps of one batch must.
int64s = st.integers(-(2**62), 2**62 - 1)
blobs = st.one_of(st.none(), st.binary(max_size=200))
header_lists = st.lists(st.tuples(st.text(max_size=20), blobs), max_size=4).map(tuple)
timestamps = st.one_of(st.integers(0, 2**43), int64s)
record_lists = st.lists(
    st.builds(Record, st.just(0), timestamps, blobs, blobs, header_lists), max_size=30
).map(lambda records: numbered(records))


def numbered(records: list[Record], base_offset: int = 0) -> list[Record]:
    """The records with the offsets they get in a batch."""
    for index, record in enumerate(records):
        record.offset = base_offset + index
    return records


def sample_records(count: int, seed: int = 7) -> list[Record]:
    """A fixed mixture: null and empty keys and values, headers, time going back and forth."""
    source = random.Random(seed)
    choices: list[bytes | None] = [None, b"", b"key", "žluťoučký".encode()]
    return [
        Record(
            index,
            1_700_000_000_000 + source.randrange(-5_000, 5_000),
            source.choice(choices),
            source.choice([None, b"", source.randbytes(source.randrange(300)), b"text " * 20]),
            source.choice([(), (("trace", b"\x00\x01"),), (("a", None), ("ž", b""), ("a", b"2"))]),
        )
        for index in range(count)
    ]


def native_module() -> ModuleType | None:
    """The compiled extension, or None when it was not built."""
    try:
        return importlib.import_module("moldau.protocol.records._native")
    except ImportError:
        return None


def use_implementation(monkeypatch, name: str) -> None:
    """Make the package's public functions run on "native" or "pure"."""
    native = native_module()
    for function in CODEC_FUNCTIONS:
        source = native if name == "native" else pure
        monkeypatch.setattr(_implementation, function, getattr(source, function))
    for function in COLUMN_FUNCTIONS:
        source = native if name == "native" else columns_pure
        monkeypatch.setattr(_implementation, function, getattr(source, function))
