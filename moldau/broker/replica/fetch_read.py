"""What one partition has for one fetch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.protocol.types import RecordsSource

NO_OFFSET: Final = -1
EMPTY_RECORDS: Final = b""


@dataclass(slots=True, eq=False)
class FetchRead:
    """What one partition has for one fetch.

    `records` are whole batches, possibly none. `pending`: there are records that have to be
    verified off the loop first; the partition reports a change when they are. `is_starved`: there
    are records that the byte limits left out. `preferred_read_replica` is a nearer replica that the
    consumer should read from instead, -1 without one.
    """

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    records: bytes | RecordsSource = EMPTY_RECORDS
    size_bytes: int = 0
    aborted_transactions: list[tuple[int, int]] | None = None
    diverging_epoch: int = -1
    diverging_end_offset: int = NO_OFFSET
    pending: bool = False
    is_starved: bool = False
    preferred_read_replica: int = -1

    @property
    def is_diverging(self) -> bool:
        """Whether the client's log and this one part before its fetch offset (KIP-595)."""
        return self.diverging_end_offset >= 0 or self.diverging_epoch >= 0
