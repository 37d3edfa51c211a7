"""Spark's rows as the columns that records are made of, and a checksum over them.

Owns which columns a frame to be written must, may and may not have (Spark's own rules for its Kafka
sink) and their Arrow types. Owns also a checksum of keys, values and headers that says whether two
sets of rows are the same, in any order; topics, partitions and times do not count, so that rows can
be compared with the records they became. Must not send anything, nor copy rows for the checksum.
Invariants: what is checked once, on the schema, cannot fail on a row, but for a null topic; the
checksum of rows in several pieces is the sum of the pieces', modulo 2**64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from moldau.protocol.records import BytesColumn, partition_rows, string_buffers
from moldau.spark_connector.core.ledger import CHECKSUM_MODULUS
from moldau.spark_connector.errors import InvalidSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
_HASHES: Final = 2**31 - 1
"""`partition_rows` into so many partitions is murmur2 itself, but for its sign."""
_NULL: Final = 2**31
_VALUE: Final = 0x9E3779B97F4A7C15
_KEY: Final = 0xC2B2AE3D27D4EB4F
_HEADER: Final = 0x165667B19E3779F9
_PLACE: Final = 0x27D4EB2F165667C5
_MIX: Final = 0xFF51AFD7ED558CCD


@dataclass(frozen=True, slots=True)
class RowColumns:
    """What is taken of each Arrow batch.

    Attributes:
        topic: for all rows; None: the column says it.
        positions: where each column stands, by name.
        ledger_topic: where no row may go; None: there is no such topic.
    """

    topic: str | None
    positions: Mapping[str, int]
    ledger_topic: str | None = None

    @classmethod
    def of(
        cls,
        schema: StructType,
        topic: str | None,
        *,
        include_timestamp: bool,
        ledger_topic: str | None = None,
    ) -> RowColumns:
        """From the frame's schema; other columns are left out. Raises: InvalidSchema: no `value`,
        no topic, a column of another type, or one twice
        """
        positions: dict[str, int] = {}
        for position, field in enumerate(schema.fields):
            name = field.name.lower()
            if name not in _ALLOWED or (name == "timestamp" and not include_timestamp):
                continue
            if name == "topic" and topic is not None:
                continue
            if name in positions:
                raise InvalidSchema(f"there are two columns named {name!r}")
            found = field.dataType.simpleString()
            if found.startswith(("varchar", "char")):
                found = "string"
            if found not in _ALLOWED[name]:
                raise InvalidSchema(
                    f"column {name!r} is {found}: {' or '.join(_ALLOWED[name])} is needed"
                )
            positions[name] = position
        if "value" not in positions:
            names = ", ".join(schema.fieldNames()) or "no columns"
            raise InvalidSchema(
                f"there is no column 'value' (there is {names}): rename one to `value`, or make it "
                "with to_json(struct(*)) AS value"
            )
        if topic is None and "topic" not in positions:
            raise InvalidSchema(
                "no topic: set the option `topic` for all rows, or add a column 'topic'"
            )
        if include_timestamp and "timestamp" not in positions:
            raise InvalidSchema("includeTimestamp=true needs a column 'timestamp'")
        return cls(topic, positions, ledger_topic)

    def taken(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are sent, as `send_arrow` takes them. Raises: InvalidSchema: a row
        without a topic, or for the ledger's
        """
        names, columns = [], []
        for name, position in self.positions.items():
            column = batch.column(position)
            if name in ("key", "value") and not pa.types.is_binary(column.type):
                column = column.cast(pa.binary())
            if name == "topic":
                self._check_topics(column)
            names.append(name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _check_topics(self, column: pa.Array) -> None:
        if column.null_count:
            raise InvalidSchema(
                "a row has a null in column 'topic': set the option `topic`, or fill it"
            )
        if self.ledger_topic is not None and pc.any(pc.equal(column, self.ledger_topic)).as_py():
            raise InvalidSchema(
                f"a row is for {self.ledger_topic}, where sinks keep their decisions "
                "(ledgerTopic): leave out such rows"
            )


def checksum_of(batch: pa.RecordBatch | pa.Table) -> int:
    """The checksum of rows with `value`, and maybe `key`, `headers`."""
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


def _headers(column: pa.ListArray, rows: pa.Array) -> int:
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


def _hashes(column: pa.Array) -> pa.Array:
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


def _mixed(values: pa.Array) -> pa.Array:
    """Every bit of the result depends on every bit of the value."""
    values = pc.bit_wise_xor(values, pc.shift_right(values, _scalar(33)))
    values = _times(values, _MIX)
    return pc.bit_wise_xor(values, pc.shift_right(values, _scalar(29)))


def _times(values: pa.Array, factor: int) -> pa.Array:
    return pc.multiply(values, _scalar(factor))  # modulo 2**64, as all unchecked arithmetic


def _scalar(number: int) -> pa.Scalar:
    return pa.scalar(number % CHECKSUM_MODULUS, pa.uint64())


def _sum(values: pa.Array) -> int:
    """The sum, in two halves, neither of which can exceed 64 bits."""
    high: int = pc.sum(pc.shift_right(values, _scalar(32))).as_py()
    low: int = pc.sum(pc.bit_wise_and(values, _scalar(2**32 - 1))).as_py()
    return ((high << 32) + low) % CHECKSUM_MODULUS
