"""The pieces in which fetched records lie in memory: responses, parts of them, open batches.

Owns these, what all partitions read by, and the count of the bytes in memory. Must not keep order
nor positions. Invariant: a chunk's bytes stay valid as long as something of it is referenced, and
its whole response counts until the last chunk of it is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from moldau.client.records import ConsumerRecord, TimestampType
from moldau.protocol.records import (
    BatchHeader,
    InvalidBatch,
    InvalidBatchReason,
    RecordCursor,
    iter_batches,
)
from moldau.protocol.records.batch import append_time_ms, records_section
from moldau.protocol.records.header import Buffer

Deserialize: TypeAlias = Callable[[ConsumerRecord], None]
"""Replaces key and value of a record by what they mean. Raises RecordDeserializationError, and has
changed nothing then."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is the same for all partitions of a consumer.

    Attributes:
        check_crcs: verify every batch's CRC-32C before it is read.
        read_committed: leave out what belongs to aborted transactions.
        deserialize: None leaves keys and values as bytes.
    """

    check_crcs: bool = True
    read_committed: bool = False
    deserialize: Deserialize | None = None


class FetchedFrame:
    """The bytes of one response, in memory as long as a chunk of it is held.

    Attributes:
        size_bytes: all of them.
        chunk_count: chunks that are held.
    """

    __slots__ = ("chunk_count", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes: int = size_bytes
        self.chunk_count: int = 0


class Chunk:
    """One partition's part of one response: whole batches, or a fault in their place.

    Attributes:
        data: the batches; `at` is where the next one to open begins.
        headers: those of the batches from there on, as far as they could be read.
        size_bytes: of `data` as it came.
        frame: what keeps the bytes.
        aborted: (first offset, producer id) of the aborted transactions in it, by first offset.
        fault: raises, or clears the partition's records; called when all before it was read.
    """

    __slots__ = ("aborted", "at", "data", "fault", "frame", "headers", "size_bytes")

    def __init__(
        self,
        data: memoryview,
        frame: FetchedFrame,
        aborted: deque[tuple[int, int]] | None = None,
        fault: Callable[[], None] | None = None,
    ) -> None:
        self.data: memoryview = data
        self.size_bytes: int = len(data)
        self.frame: FetchedFrame = frame
        self.aborted: deque[tuple[int, int]] | None = aborted
        self.fault: Callable[[], None] | None = fault
        self.headers: deque[BatchHeader] = deque()
        self.at: int = 0

    def cut_to_whole_batches(self) -> int | None:
        """Leave out a batch at the end of which not all came; the first offset behind the rest.

        None: there is no batch whose header can be read. Bytes that cannot be a batch stay:
        reading them says what is wrong.
        """
        end = 0
        header = None
        try:
            for position, header in iter_batches(self.data):
                self.headers.append(header)
                end = position + header.size_bytes
        except InvalidBatch as error:
            if error.reason is not InvalidBatchReason.TRUNCATED:
                end = len(self.data)
        if end < len(self.data):
            self.data = self.data[:end]
        return None if header is None or not self.headers else self.headers[-1].next_offset


class FrameMemory:
    """How many bytes of responses one consumer keeps in memory.

    Attributes:
        pinned_bytes: of all responses of which a chunk is held; each counts whole.
    """

    __slots__ = ("pinned_bytes",)

    def __init__(self) -> None:
        self.pinned_bytes: int = 0

    def hold(self, chunk: Chunk) -> None:
        """The chunk is kept."""
        if not chunk.frame.chunk_count:
            self.pinned_bytes += chunk.frame.size_bytes
        chunk.frame.chunk_count += 1

    def release(self, chunk: Chunk) -> None:
        """Nobody reads the chunk any more."""
        chunk.frame.chunk_count -= 1
        if not chunk.frame.chunk_count:
            self.pinned_bytes -= chunk.frame.size_bytes


class OpenBatch:
    """A batch that is being read.

    Attributes:
        header: its header.
        section: its records, decompressed.
        cursor: what has been read of them.
        next_offset: the first offset behind it and behind invisible batches that follow.
        closes: the chunks that nobody needs once it has been read.
    """

    __slots__ = ("closes", "cursor", "header", "next_offset", "section")

    def __init__(self, header: BatchHeader, data: memoryview, at: int, position: int) -> None:
        """The batch at byte `at` of `data`, from offset `position` on. Raises: InvalidBatch."""
        self.header: BatchHeader = header
        self.section: Buffer = records_section(data, at, header)
        self.next_offset: int = header.next_offset
        self.closes: list[Chunk] = []
        self.rewind(position)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whose clock its timestamps come from."""
        return self.header.timestamp_type

    def rewind(self, position: int) -> None:
        """Read on from the first record at or behind `position`. Raises: InvalidBatch."""
        header = self.header
        self.cursor: RecordCursor = RecordCursor(
            self.section,
            header.record_count,
            header.base_offset,
            header.base_timestamp_ms,
            append_time_ms(header),
        )
        if position > header.base_offset:
            self.cursor.skip_before(position)
