"""A child process that makes Arrow and Parquet of records, so that pyarrow is never in a server.

Its input is frames, each a length and what `marshal` makes: first what table is wanted, then rows,
some at a time, in the end a report of what was read. Its output is the table. Invariants: it holds
no more than one batch of the table; without its parent it ends, and makes no whole table.
"""

from __future__ import annotations

import marshal
import os
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

ARROW, PARQUET = "arrow", "parquet"
LENGTH: Final = struct.Struct(">I")
BATCH_BYTES: Final = 8 << 20
BATCH_ROWS: Final = 65_536
REPORT_KEY: Final = b"moldau.read"
"""The metadata of a table has the report under it, in JSON."""
Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record as a row of the table; text where the table has text."""

    partition: int
    record_offset: int
    timestamp_ms: int | None
    timestamp_type: str
    key: bytes | str | None
    value: bytes | str | None
    headers: Headers
    leader_epoch: int | None


class Wanted(NamedTuple):
    """A table; whether its keys and values are text, else bytes."""

    kind: str
    has_text_keys: bool
    has_text_values: bool


def framed(document: object) -> bytes:
    """What the child reads: a `Wanted`, a list of rows, or in the end the report as bytes."""
    plain: Any = tuple(document) if isinstance(document, tuple) else document
    if isinstance(plain, list):
        plain = [tuple(each) for each in plain]
    data = marshal.dumps(plain)
    return LENGTH.pack(len(data)) + data


def main() -> None:
    """Make a table of what comes in, and end."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what else is printed does not get into it
    try:
        write_table(sys.stdin.buffer, output)
        output.close()
    except (BrokenPipeError, EOFError):
        os._exit(1)  # the parent has gone


def write_table(source: BinaryIO, output: BinaryIO) -> None:
    """Write the table that frames say. Raises: EOFError: they break off."""
    import pyarrow as pa

    wanted = Wanted(*_read(source))
    schema = schema_of(wanted)
    with pa.PythonFile(output, mode="w") as sink:
        if wanted.kind == PARQUET:
            _write_parquet(source, sink, schema)
        else:
            _write_arrow(source, sink, schema)


def schema_of(wanted: Wanted) -> pa.Schema:
    """The columns of a table."""
    import pyarrow as pa

    header = pa.struct([("name", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
            pa.field("timestamp_type", pa.string(), nullable=False),
            pa.field("key", pa.string() if wanted.has_text_keys else pa.binary()),
            pa.field("value", pa.string() if wanted.has_text_values else pa.binary()),
            pa.field("headers", pa.list_(header), nullable=False),
            pa.field("leader_epoch", pa.int32()),
        ]
    )


def _write_arrow(source: BinaryIO, sink: pa.PythonFile, schema: pa.Schema) -> None:
    import pyarrow as pa

    with pa.ipc.new_file(sink, schema) as writer:
        for batch, report in _batches(source, schema):
            metadata = None if report is None else {REPORT_KEY: report}
            writer.write_batch(batch, custom_metadata=metadata)


def _write_parquet(source: BinaryIO, sink: pa.PythonFile, schema: pa.Schema) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch, report in _batches(source, schema):
            if batch.num_rows:
                writer.write_batch(batch)
            if report is not None:
                writer.add_key_value_metadata({REPORT_KEY: report})


def _batches(source: BinaryIO, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, bytes | None]]:
    """Batches of rows, the last one with the report."""
    rows: list[tuple[Any, ...]] = []
    size_bytes = 0
    while not isinstance(found := _read(source), bytes):
        rows += found
        size_bytes += sum(_size_of(each) for each in found)
        if size_bytes >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
            yield _batch(rows, schema), None
            rows, size_bytes = [], 0
    yield _batch(rows, schema), found


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [*zip(*rows, strict=True)] if rows else [()] * len(schema)
    arrays = [
        pa.array(column, type=kind) for column, kind in zip(columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _size_of(row: tuple[Any, ...]) -> int:
    made = Row(*row)
    headers = sum(len(name) + len(value or b"") for name, value in made.headers)
    return 64 + len(made.key or b"") + len(made.value or b"") + headers


def _read(source: BinaryIO) -> Any:
    """The next frame. Raises: EOFError."""
    (length,) = LENGTH.unpack(_exactly(source, LENGTH.size))
    return marshal.loads(_exactly(source, length))


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise EOFError
    return data
