"""What can be sent, and in pieces of which size: nothing is lost, doubled or put out of order."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.arrow import ArrowMissing
from moldau.client.arrow import sending as module
from moldau.client.arrow.sending import cut, slices
from moldau.client.errors import KafkaError, SerializationError


async def pieces(data) -> list[pa.RecordBatch]:
    return [piece async for piece in slices(data)]


def numbered(count: int, chunk: int) -> pa.Table:
    columns = {"value": [str(number) for number in range(count)]}
    table = pa.table(columns, schema=pa.schema([("value", pa.string())]))
    return pa.Table.from_batches(table.to_batches(max_chunksize=chunk), schema=table.schema)


class Exported:
    """A frame of another library, as a stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class ExportedBatch:
    """A batch of another library."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema=None):
        return self._batch.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize("kind", ["table", "reader", "stream"])
async def test_every_row_comes_once_and_in_order(kind) -> None:
    table = numbered(5000, 7)
    data = {"table": table, "reader": table.to_reader(), "stream": Exported(table)}[kind]
    found = await pieces(data)
    assert [value for piece in found for value in piece.column(0).to_pylist()] == [
        str(number) for number in range(5000)
    ]
    # 715 chunks of seven rows would be as many batches on the wire.
    assert len(found) == 1


async def test_single_batches() -> None:
    [batch] = numbered(9, 9).to_batches()
    assert await pieces(batch) == [batch]
    assert await pieces(ExportedBatch(batch)) == [batch]
    assert await pieces(batch.slice(0, 0)) == []


async def test_large_and_small_ones_keep_their_order(monkeypatch) -> None:
    monkeypatch.setattr(module, "SMALL_BYTES", 1000)
    monkeypatch.setattr(module, "SLICE_BYTES", 3000)
    small, large = numbered(20, 5), numbered(2000, 2000)
    table = pa.concat_tables([small, large, small, small, large])
    found = await pieces(table)
    assert pa.Table.from_batches(found).combine_chunks() == table.combine_chunks()
    assert max(piece.nbytes for piece in found) <= 6000
    assert len(found) < 20


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=50), limit=st.integers(1, 1000))
def test_cutting_loses_nothing(sizes, limit) -> None:
    batch = pa.record_batch({"value": [b"x" * size for size in sizes]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICE_BYTES", limit)
        found = list(cut(batch, batch.nbytes))
    assert pa.Table.from_batches(found).combine_chunks() == pa.Table.from_batches([batch])
    for piece in found:
        assert piece.nbytes <= 2 * limit or piece.num_rows == 1


@pytest.mark.parametrize("data", [None, [{"value": b"a"}], "text", {"value": [b"a"]}])
async def test_other_things_are_refused(data) -> None:
    with pytest.raises(SerializationError, match="holds no Arrow data"):
        await pieces(data)


async def test_a_reader_that_fails_ends_it_with_its_own_error() -> None:
    def batches():
        yield numbered(1, 1).to_batches()[0]
        raise OSError("the disk is gone")

    reader = pa.RecordBatchReader.from_batches(numbered(1, 1).schema, batches())
    with pytest.raises(OSError, match="the disk is gone"):
        await pieces(reader)


async def test_without_pyarrow_there_is_one_clear_error(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    unused = type(module.pa)("pyarrow")
    monkeypatch.setattr(module, "pa", unused)
    with pytest.raises(ArrowMissing, match=r"pip install 'moldau\[arrow\]'") as caught:
        await pieces(object())
    assert isinstance(caught.value, KafkaError)
    assert isinstance(caught.value, ImportError)
