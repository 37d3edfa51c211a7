"""What is in the batches that leaders write: records, and the markers that end transactions.

Owns: decoding them once, when they are appended. Must not: know what they mean.
Invariant: a content never changes; it belongs to the batch with that offset and leader epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moldau.protocol.records import (
    ControlRecordType,
    Record,
    decode_end_txn_marker,
    decode_records,
    iter_batches,
)


@dataclass(frozen=True, slots=True)
class Content:
    """One batch. `marker`: whether it commits, and of which coordinator epoch; None for data.

    `appended_at`: virtual seconds at which its leader wrote it.
    """

    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    records: tuple[Record, ...]
    marker: tuple[bool, int] | None
    appended_at: float


def contents_of(records: Any, appended_at: float) -> list[Content]:
    """The batches of a stretch of a log."""
    found = []
    data = bytes(records)
    for position, header in iter_batches(data):
        decoded = tuple(decode_records(data, position))
        marker = None
        if header.is_control and decoded:  # compaction may have left nothing but the header
            end = decode_end_txn_marker(decoded[0])
            marker = (end.type is ControlRecordType.COMMIT, end.coordinator_epoch)
            decoded = ()
        found.append(
            Content(
                header.base_offset,
                header.partition_leader_epoch,
                header.producer_id,
                header.producer_epoch,
                header.is_transactional,
                decoded,
                marker,
                appended_at,
            )
        )
    return found
