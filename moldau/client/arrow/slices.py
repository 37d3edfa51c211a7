"""Whatever holds Arrow data, as record batches of a size that is good to send.

Owns what `send_arrow` accepts, and how large a piece is looked at at once: large ones are cut, runs
of small ones put together. Must not look into columns. Invariant: all rows, in their order, each
once; at most about `SLICE_BYTES` are gathered before they are handed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from moldau.client.arrow.library import pyarrow
from moldau.client.errors import SerializationError

SLICE_BYTES: Final = 16 * 1024 * 1024
"""Rows that are grouped by partition together; also what a stream is read ahead."""
SMALL_BYTES: Final = 2 * 1024 * 1024
"""A batch below this waits for the next ones: by itself it would make small record batches."""
MAX_SLICE_ROWS: Final = 2**20


@runtime_checkable
class ArrowStream(Protocol):
    """A table, or a stream of batches, of any library that speaks Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """See Arrow's documentation."""


@runtime_checkable
class ArrowArray(Protocol):
    """One record batch of any library that speaks Arrow's PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """See Arrow's documentation."""


ArrowData: TypeAlias = ArrowStream | ArrowArray
"""`pyarrow.Table`, `RecordBatch`, `RecordBatchReader`, a polars or pandas frame, and so on."""


async def slices(data: ArrowData) -> AsyncIterator[Any]:
    """Record batches of the data, neither large nor needlessly small.

    A stream is read in a thread, as it may wait for its source.

    Raises:
        ArrowMissing: pyarrow is not installed.
        SerializationError: no Arrow data.
    """
    pa = pyarrow()
    gathered: list[Any] = []
    gathered_bytes = 0
    async for batch in _batches(data):
        size_bytes = batch.nbytes
        if gathered and (size_bytes >= SMALL_BYTES or gathered_bytes >= SLICE_BYTES):
            yield pa.concat_batches(gathered) if len(gathered) > 1 else gathered[0]
            gathered, gathered_bytes = [], 0
        if size_bytes >= SMALL_BYTES:
            for piece in cut(batch, size_bytes):
                yield piece
        elif batch.num_rows:
            gathered.append(batch)
            gathered_bytes += size_bytes
    if gathered:
        yield pa.concat_batches(gathered) if len(gathered) > 1 else gathered[0]


def cut(batch: Any, size_bytes: int) -> Iterator[Any]:
    """The batch in slices of about `SLICE_BYTES` and at most 2^20 rows. Nothing is copied."""
    row_count = batch.num_rows
    piece_count = -(-size_bytes // SLICE_BYTES)
    rows = min(MAX_SLICE_ROWS, max(1, -(-row_count // piece_count)))
    for start in range(0, row_count, rows):
        piece = batch.slice(start, rows)
        # Rows of very different sizes: halves, until it is small enough or a single row.
        if piece.nbytes > 2 * SLICE_BYTES and piece.num_rows > 1:
            yield from cut(piece, piece.nbytes)
        else:
            yield piece


async def _batches(data: ArrowData) -> AsyncIterator[Any]:
    pa = pyarrow()
    if isinstance(data, pa.Table):
        for batch in data.to_batches():
            yield batch
    elif isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, ArrowStream):
        is_reader = isinstance(data, pa.RecordBatchReader)
        reader = data if is_reader else pa.RecordBatchReader.from_stream(data)
        while (batch := await asyncio.to_thread(_next_batch, reader)) is not None:
            yield batch
    elif isinstance(data, ArrowArray):
        yield pa.record_batch(data)
    else:
        raise SerializationError(
            f"{type(data).__name__} holds no Arrow data: a pyarrow Table, RecordBatch or "
            "RecordBatchReader is needed, or an object that exports itself as one"
        )


def _next_batch(reader: Any) -> Any:
    # StopIteration cannot pass through a thread's future.
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
