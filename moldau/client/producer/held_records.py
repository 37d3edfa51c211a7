"""Records whose partition cannot be chosen yet, because the metadata does not say what there is.

Owns the records of one topic that nobody knows so far, or that is said to have fewer partitions
than a record asks for, and their time limit (`max.block.ms`). Must not ask for metadata itself.
Invariant: records leave in the order in which they came, into batches or with an error.
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.client.producer.core.batch import Outcome
from moldau.protocol.records import BATCH_HEADER_SIZE, RecordHeaders, record_size_bound

HELD_OVERHEAD_BYTES = BATCH_HEADER_SIZE + 64
"""What a held record takes besides its encoded size: a batch's header, should it be alone in one,
and the objects that hold it."""


class HeldRecord(NamedTuple):
    """One record as it will be appended."""

    partition: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders
    reserved_bytes: int


class HeldRecords(Outcome):
    """Records of one topic; deliveries look through it to the batches they get into.

    Args:
        expires_ms: when those that are here then fail.
    """

    __slots__ = ("expires_ms", "records")

    def __init__(self, topic: str, expires_ms: float) -> None:
        super().__init__(topic, -1)
        self.expires_ms: float = expires_ms
        self.records: list[HeldRecord] = []

    @property
    def reserved_bytes(self) -> int:
        """What all of them take of `buffer.memory`."""
        return sum(record.reserved_bytes for record in self.records)


def held_size_bytes(key: bytes | None, value: bytes | None, headers: RecordHeaders) -> int:
    """What a held record takes of `buffer.memory`."""
    return record_size_bound(key, value, headers) + HELD_OVERHEAD_BYTES
