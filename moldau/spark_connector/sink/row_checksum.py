"""A number that says whether two heaps of rows are the same, whatever their order.

Owns the checksum of keys, values and headers; topics, partitions and times do not count, so that
rows can be compared with the records they became. Must not copy rows. Invariant: the checksum of
rows in several pieces is the sum of the pieces', modulo 2**64.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from moldau.protocol.records import BytesColumn, partition_rows, string_buffers
from moldau.spark_connector.core.ledger import CHECKSUM_MODULUS

_HASHES: Final = 2**31 - 1
"""`partition_rows` into so many partitions is murmur2 itself, but for its sign."""
_NULL: Final = 2**31

_VALUE: Final = 0x9E3779B97F4A7C15
_KEY: Final = 0xC2B2AE3D27D4EB4F
_HEADER: Final = 0x165667B19E3779F9
_PLACE: Final = 0x27D4EB2F165667C5
_MIX: Final = 0xFF51AFD7ED558CCD


def checksum_of(batch: Any) -> int:
    """The checksum of a `pyarrow.RecordBatch` or Table with `value`, and maybe `key`, `headers`."""
    if not batch.num_rows:
        return 0
    if isinstance(batch, pa.Table):
        return sum(map(checksum_of, batch.to_batches())) % CHECKSUM_MODULUS
    names = batch.schema.names
    rows = _times(_hashes(batch.column(names.index("value"))), _VALUE)
    if "key" in names:
        rows = pc.add(rows, _times(_hashes(batch.column(names.index("key"))), _KEY))
    else:
        rows = pc.add(rows, _scalar(_NULL * _KEY))
    total = _sum(_mixed(rows))
    if "headers" in names:
        total += _headers(batch.column(names.index("headers")), rows)
    return total % CHECKSUM_MODULUS


def _headers(column: Any, rows: Any) -> int:
    """Every header with its place, bound to its row."""
    entries = column.flatten()
    if not len(entries):
        return 0
    parents = pc.list_parent_indices(column)
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
    starts = pc.subtract(pc.cumulative_sum(lengths), lengths)
    places = pc.subtract(pa.array(range(len(entries)), pa.int64()), starts.take(parents))
    hashed = pc.add(
        _times(_hashes(entries.field(0).cast(pa.binary())), _KEY),
        _times(_hashes(entries.field(1)), _VALUE),
    )
    hashed = pc.add(hashed, _times(places.cast(pa.uint64()), _PLACE))
    bound = pc.add(_times(_mixed(hashed), _HEADER), rows.take(parents))
    return _sum(_mixed(bound))


def _hashes(column: Any) -> Any:
    """A number of 31 bits per row as uint64, and another one for null."""
    if pa.types.is_null(column.type):
        return pa.array([_NULL] * len(column), pa.uint64())
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    count = len(column)
    _, offsets, data = column.buffers()
    if offsets is None:
        return pa.array([], pa.uint64())
    start = 4 * column.offset
    plain = BytesColumn(offsets.slice(start, 4 * (count + 1)), None, b"" if data is None else data)
    hashed = pa.Array.from_buffers(
        pa.int32(),
        count,
        [None, pa.py_buffer(partition_rows(string_buffers(plain), count, _HASHES))],
    ).cast(pa.uint64())
    return pc.if_else(column.is_null(), _scalar(_NULL), hashed) if column.null_count else hashed


def _mixed(values: Any) -> Any:
    """Every bit of the result depends on every bit of the value."""
    values = pc.bit_wise_xor(values, pc.shift_right(values, _scalar(33)))
    values = _times(values, _MIX)
    return pc.bit_wise_xor(values, pc.shift_right(values, _scalar(29)))


def _times(values: Any, factor: int) -> Any:
    return pc.multiply(values, _scalar(factor))  # modulo 2**64, as all unchecked arithmetic


def _scalar(number: int) -> Any:
    return pa.scalar(number % CHECKSUM_MODULUS, pa.uint64())


def _sum(values: Any) -> int:
    """In two halves, neither of which can exceed 64 bits."""
    high: int = pc.sum(pc.shift_right(values, _scalar(32))).as_py()
    low: int = pc.sum(pc.bit_wise_and(values, _scalar(2**32 - 1))).as_py()
    return ((high << 32) + low) % CHECKSUM_MODULUS
