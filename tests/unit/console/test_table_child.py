"""Tables of records, as the child process makes them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from moldau.console import table_child
from moldau.console.table_child import ARROW, PARQUET, Row, Wanted, framed, write_table

pa = pytest.importorskip("pyarrow")
REPORT = b'{"stopped_by":"end"}'


class Output(io.BytesIO):
    """Bytes that can be had after the end."""

    data = b""

    def close(self) -> None:
        self.data = self.data or self.getvalue()
        super().close()


def table_of(wanted: Wanted, *frames: object) -> tuple[Any, bytes]:
    """The table that frames make, and the report in its metadata."""
    output = Output()
    source = io.BytesIO(b"".join(framed(each) for each in (wanted, *frames, REPORT)))
    write_table(source, output)
    if wanted.kind == PARQUET:
        from pyarrow import parquet

        file = parquet.ParquetFile(io.BytesIO(output.data))
        return file.read(), file.metadata.metadata[table_child.REPORT_KEY]
    with pa.ipc.open_file(io.BytesIO(output.data)) as reader:
        last = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        return reader.read_all(), last.custom_metadata[table_child.REPORT_KEY]


def row(number: int, **more: Any) -> Row:
    made = Row(0, number, 1_000 + number, "create", b"k", b"v", (), 3)
    return made._replace(**more)


@pytest.mark.parametrize("kind", [ARROW, PARQUET])
def test_rows_become_columns(kind: str) -> None:
    rows = [
        row(0, key=b"\xff", headers=(("h", b"1"), ("h", None))),
        row(1, key=None, value=None, timestamp_ms=None, leader_epoch=None),
    ]
    table, report = table_of(Wanted(kind, False, False), rows[:1], rows[1:])
    assert json.loads(report) == {"stopped_by": "end"}
    assert table.column("offset").to_pylist() == [0, 1]
    assert table.column("key").to_pylist() == [b"\xff", None]
    assert table.column("value").to_pylist() == [b"v", None]
    assert table.column("headers").to_pylist() == [
        [{"name": "h", "value": b"1"}, {"name": "h", "value": None}],
        [],
    ]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [1_000, None]
    assert table.column("leader_epoch").to_pylist() == [3, None]


@pytest.mark.parametrize("kind", [ARROW, PARQUET])
def test_text_stays_text(kind: str) -> None:
    table, _ = table_of(Wanted(kind, False, True), [row(0, value="<ä>")])
    assert table.column("value").to_pylist() == ["<ä>"]
    assert table.schema.field("key").type == pa.binary()


@pytest.mark.parametrize("kind", [ARROW, PARQUET])
def test_table_without_rows_is_one(kind: str) -> None:
    table, report = table_of(Wanted(kind, False, False))
    assert table.num_rows == 0
    assert report == REPORT
    assert "offset" in table.schema.names


@pytest.mark.parametrize("kind", [ARROW, PARQUET])
def test_rows_are_written_in_batches(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_child, "BATCH_BYTES", 500)
    frames = [[row(number)] for number in range(100)]
    table, _ = table_of(Wanted(kind, False, False), *frames)
    assert table.column("offset").to_pylist() == [*range(100)]
    assert table.column("offset").num_chunks > 1 or kind == PARQUET


def test_frames_that_break_off_make_no_table() -> None:
    output = Output()
    whole = framed(Wanted(PARQUET, False, False)) + framed([row(0)])
    with pytest.raises(EOFError):
        write_table(io.BytesIO(whole), output)
