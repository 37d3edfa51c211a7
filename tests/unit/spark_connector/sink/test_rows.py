"""Spark's frames as record columns, and the checksum of rows."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.types import StructType

from moldau.spark_connector.errors import InvalidSchema
from moldau.spark_connector.sink.rows import RowColumns, checksum_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)])


def schema(text: str) -> StructType:
    """A Spark schema of a line such as `value string, key binary`."""
    fields = []
    kinds = {
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "int": types.IntegerType(),
        "long": types.LongType(),
        "timestamp": types.TimestampType(),
    }
    for each in text.split(","):
        name, kind = each.split()
        fields.append(types.StructField(name, kinds[kind]))
    return StructType(fields)


def test_columns_are_taken_by_name() -> None:
    columns = RowColumns.of(
        schema("offset long, VALUE string, timestamp timestamp, key binary"),
        "t",
        include_timestamp=False,
    )
    batch = pa.RecordBatch.from_pydict(
        {"offset": [1], "VALUE": ["v"], "timestamp": [0], "key": [b"k"]}
    )
    taken = columns.taken(batch)
    assert taken.to_pydict() == {"value": [b"v"], "key": [b"k"]}
    assert taken.column(0).type == pa.binary()


def test_timestamp_on_request() -> None:
    given = schema("value binary, timestamp timestamp")
    assert "timestamp" in RowColumns.of(given, "t", include_timestamp=True).positions
    with pytest.raises(InvalidSchema, match="needs a column 'timestamp'"):
        RowColumns.of(schema("value binary"), "t", include_timestamp=True)


def test_the_option_wins_over_the_column() -> None:
    given = schema("topic int, value binary")
    assert RowColumns.of(given, "t", include_timestamp=False).positions == {"value": 1}


@pytest.mark.parametrize(
    ("text", "topic", "problem"),
    [
        ("key binary", "t", "there is no column 'value'"),
        ("value binary", None, "no topic: set the option `topic`"),
        ("value int", "t", "'value' is int: string or binary is needed"),
        ("value binary, key long", "t", "'key' is bigint"),
        ("value binary, topic binary", None, "'topic' is binary: string"),
        ("value binary, partition long", "t", "'partition' is bigint: int"),
        ("value binary, headers string", "t", "'headers' is string: array<struct<"),
        ("value binary, Value binary", "t", "two columns named 'value'"),
    ],
)
@pytest.mark.promise("refusal-options")
def test_wrong_schemas(text: str, topic: str | None, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        RowColumns.of(schema(text), topic, include_timestamp=False)


def test_a_row_without_topic() -> None:
    columns = RowColumns.of(schema("value binary, topic string"), None, include_timestamp=False)
    batch = pa.RecordBatch.from_pydict({"value": [b"1", b"2"], "topic": ["t", None]})
    with pytest.raises(InvalidSchema, match="null in column 'topic'"):
        columns.taken(batch)


def test_a_row_for_the_ledger() -> None:
    """A copy of everything, as it was read, would overwrite decisions."""
    columns = RowColumns.of(
        schema("value binary, topic string"), None, include_timestamp=False, ledger_topic="ledger"
    )
    rows = {"value": [b"v", b"v"], "topic": ["t", "ledgers"]}
    assert columns.taken(pa.RecordBatch.from_pydict(rows)).num_rows == 2
    rows["topic"][1] = "ledger"
    with pytest.raises(InvalidSchema, match="a row is for ledger, where sinks keep their dec"):
        columns.taken(pa.RecordBatch.from_pydict(rows))


# -- checksum -----------------------------------------------------------------------------------


def rows_of(source: random.Random, count: int) -> list[dict[str, Any]]:
    def maybe(value: Any) -> Any:
        return None if source.random() < 0.2 else value

    return [
        {
            "key": maybe(b"k%d" % source.randrange(9)),
            "value": maybe(b"v" * source.randrange(5)),
            "headers": maybe(
                [
                    {"key": source.choice("ab"), "value": maybe(b"h")}
                    for _ in range(source.randrange(3))
                ]
            ),
        }
        for _ in range(count)
    ]


def checksum(rows: list[dict[str, Any]]) -> int:
    return checksum_of(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))


@pytest.mark.parametrize("seed", range(20))
def test_order_and_pieces_do_not_count(seed: int) -> None:
    source = random.Random(seed)
    rows = rows_of(source, 50)
    whole = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    expected = checksum_of(whole)
    assert 0 <= expected < 2**64
    cut = source.randrange(51)
    pieces = [whole.slice(0, cut), whole.slice(cut)]
    assert sum(map(checksum_of, pieces)) % 2**64 == expected
    assert checksum_of(pa.Table.from_batches(pieces)) == expected
    source.shuffle(rows)
    assert checksum(rows) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"key": b"other"},
        {"key": None},
        {"key": b""},
        {"value": b"other"},
        {"value": None},
        {"headers": None},
        {"headers": [{"key": "b", "value": b"1"}, {"key": "a", "value": b"1"}]},
        {"headers": [{"key": "a", "value": None}, {"key": "b", "value": b"1"}]},
        {"headers": [{"key": "a", "value": b"1"}]},
    ],
)
def test_every_part_of_a_row_counts(changed: dict[str, Any]) -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": b"1"}]
    row = {"key": b"k", "value": b"v", "headers": headers}
    other = {"key": b"k2", "value": b"v2", "headers": []}
    assert checksum([row, other]) != checksum([row | changed, other])


def test_parts_are_bound_to_their_row() -> None:
    one, two = {"key": b"1", "value": b"a"}, {"key": b"2", "value": b"b"}
    assert checksum([one, two]) != checksum([one | {"value": b"b"}, two | {"value": b"a"}])
    header = [{"key": "h", "value": b"x"}]
    assert checksum([one | {"headers": header}, two]) != checksum([one, two | {"headers": header}])
    assert checksum([one, one]) != checksum([one])


def test_a_checksum_is_the_same_in_every_release() -> None:
    """Ledgers hold them: a batch that comes again after an update is compared with them."""
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    rows = [
        {"key": b"k", "value": b"v", "headers": headers},
        {"key": None, "value": None, "headers": None},
    ]
    assert checksum(rows) == 0xF9D934FEB409DAF0


def test_no_key_is_a_null_key() -> None:
    """What is read back has every column, what was written may have only a value."""
    values = pa.array([b"1", None])
    short = pa.RecordBatch.from_arrays([values], names=["value"])
    nulls = pa.nulls(2, pa.binary())
    long = pa.RecordBatch.from_arrays([nulls, values], names=["key", "value"])
    assert checksum_of(short) == checksum_of(long)
    assert checksum_of(short.slice(0, 0)) == 0
