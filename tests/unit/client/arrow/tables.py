"""Tables in every layout, and what they say, row by row."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

texts = st.one_of(st.none(), st.text(max_size=12))
header_lists = st.one_of(
    st.none(),
    st.lists(
        st.fixed_dictionaries(
            {"key": st.text(max_size=5), "value": st.one_of(st.none(), st.binary(max_size=6))}
        ),
        max_size=3,
    ),
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": texts,
            "value": texts,
            "headers": header_lists,
            "timestamp": st.one_of(st.none(), st.integers(0, 2**40)),
            "partition": st.one_of(st.none(), st.integers(0, 4)),
            "topic": st.sampled_from(["a", "b", "c"]),
        }
    ),
    max_size=40,
)

STRING_LAYOUTS = {
    "binary": pa.binary(),
    "string": pa.string(),
    "large_binary": pa.large_binary(),
    "large_string": pa.large_string(),
    "binary_view": pa.binary_view(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
}
layouts = st.sampled_from(sorted(STRING_LAYOUTS))


def strings(values: list[str | None], layout: str) -> pa.Array:
    """The texts in one of Arrow's layouts."""
    kind = STRING_LAYOUTS[layout]
    raw: list[Any] = values
    if layout in ("binary", "large_binary", "binary_view"):
        raw = [None if value is None else value.encode() for value in values]
    return (
        pa.array(raw, pa.string()).dictionary_encode()
        if layout == "dictionary"
        else pa.array(raw, kind)
    )


def table_of(found: list[dict[str, Any]], key_layout: str, value_layout: str) -> pa.Table:
    """The rows as one table of one chunk."""
    return pa.table(
        {
            "key": strings([row["key"] for row in found], key_layout),
            "value": strings([row["value"] for row in found], value_layout),
            "headers": pa.array([row["headers"] for row in found], HEADERS),
            "timestamp": pa.array([row["timestamp"] for row in found], pa.timestamp("ms")),
            "partition": pa.array([row["partition"] for row in found], pa.int32()),
            "topic": pa.array([row["topic"] for row in found], pa.string()),
        }
    )


def rechunked(table: pa.Table, seed: int) -> pa.Table:
    """The same table in chunks that are slices of other buffers, each column cut elsewhere."""
    source = random.Random(seed)
    columns = []
    for column in table.columns:
        whole = column.combine_chunks()
        if isinstance(whole, pa.ChunkedArray):
            whole = whole.chunk(0) if whole.num_chunks else pa.array([], whole.type)
        chunks = []
        at = 0
        while at < len(whole):
            size = source.randint(1, 9)
            piece = whole.slice(at, size)
            # In the middle of something larger, so that offsets do not begin with 0.
            wide = pa.concat_arrays([whole.slice(0, source.randint(0, 9)), piece])
            chunks.append(wide.slice(len(wide) - len(piece)))
            at += size
        columns.append(pa.chunked_array(chunks, column.type))
    return pa.table(columns, names=table.column_names)
