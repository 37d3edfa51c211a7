"""What one partition has for one fetch.

Owns the checks of a read and its limits: leader epoch, divergence, range, how far a client may see.
Must not wait, or know more of the fetch than this partition. Invariants: consumers get nothing from
the high watermark on; bytes this process has not seen before leave only after they were checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.storage.faults import LogOffline

if TYPE_CHECKING:
    from moldau.broker.replica.fetch_sessions import FetchPartition
    from moldau.broker.replica.partition import Partition
    from moldau.protocol.types import RecordsSource
    from moldau.storage.log import Log
    from moldau.storage.log_segments import ReadResult

NO_OFFSET: Final = -1
EMPTY_RECORDS: Final = b""


class FetchRead:
    """What one partition has for one fetch.

    `records` are whole batches, possibly none. `pending` says that there are some which have to be
    looked at off the loop first: ask again when the partition says that it changed. `is_starved`
    says that there are some which the byte limits left out. `preferred_read_replica` is a nearer
    replica that the consumer shall read from instead, -1 without one.
    """

    __slots__ = (
        "aborted_transactions",
        "diverging_end_offset",
        "diverging_epoch",
        "error",
        "high_watermark",
        "is_starved",
        "last_stable_offset",
        "log_start_offset",
        "pending",
        "preferred_read_replica",
        "records",
        "size_bytes",
    )

    def __init__(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.error = error
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.records: bytes | RecordsSource = EMPTY_RECORDS
        self.size_bytes = 0
        self.aborted_transactions: list[tuple[int, int]] | None = None
        self.diverging_epoch = -1
        self.diverging_end_offset = NO_OFFSET
        self.pending = False
        self.is_starved = False
        self.preferred_read_replica = -1

    @property
    def is_diverging(self) -> bool:
        """Whether the client's log and ours part before its fetch offset (KIP-595)."""
        return self.diverging_end_offset >= 0 or self.diverging_epoch >= 0


def read(
    partition: Partition,
    fetched: FetchPartition,
    *,
    max_bytes: int,
    min_one_batch: bool,
    read_committed: bool,
    leader_only: bool,
    for_replica: bool = False,
    without_records: bool = False,
) -> FetchRead:
    """Read for a fetch, from the batch that holds its fetch offset.

    Args:
        max_bytes: the partition's share of the response.
        min_one_batch: return the first batch even if it is larger than that.
        read_committed: stop at the last stable offset, and name aborted transactions.
        leader_only: a follower answers NOT_LEADER_OR_FOLLOWER (before KIP-392).
        for_replica: read past the high watermark, to the end of the log.
        without_records: say how the log stands, but leave out what there is to read.
    """
    core = partition.core
    current = fetched.current_leader_epoch
    if current not in (-1, core.leader_epoch) or not core.is_leader:
        error = core.check_leader_epoch(current)
        if error is ErrorCode.NONE and (leader_only or partition.is_deleted):
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error is not ErrorCode.NONE:
            return FetchRead(error)
    log = partition.log
    if log is None or log.offline:
        return FetchRead(partition.unusable_error)
    read = FetchRead()
    fetch_offset = fetched.fetch_offset
    # Where the logs part comes before our end: a client past it has to cut its log, not to begin
    # anew somewhere else. One below our start has to, wherever they part: no cut would help it.
    is_diverging = fetched.last_fetched_epoch >= 0 and _diverges(fetched, log, read)
    if read.error is not ErrorCode.NONE:
        return read
    if fetch_offset < log.log_start_offset:
        return FetchRead(ErrorCode.OFFSET_OUT_OF_RANGE)
    if not is_diverging and fetch_offset > log.log_end_offset:
        return FetchRead(ErrorCode.OFFSET_OUT_OF_RANGE)
    read.high_watermark = core.high_watermark
    read.log_start_offset = log.log_start_offset
    read.last_stable_offset = log.last_stable_offset
    if is_diverging:
        return read
    if for_replica:
        upper = log.log_end_offset
    elif read_committed:
        upper = read.last_stable_offset
    else:
        upper = read.high_watermark
    if read_committed:
        read.aborted_transactions = []
    if fetch_offset < upper and without_records:
        read.is_starved = True
    elif fetch_offset < upper:
        _read_log(partition, log, read, fetch_offset, upper, max_bytes, min_one_batch)
    return read


def _diverges(fetched: FetchPartition, log: Log, read: FetchRead) -> bool:
    """Compare the epoch of the last record the client has with our history (KIP-595)."""
    leader_epoch, end_offset = log.end_offset_for_epoch(fetched.last_fetched_epoch)
    if leader_epoch < 0 or end_offset < 0:
        read.error = ErrorCode.OFFSET_OUT_OF_RANGE
        return True
    if leader_epoch < fetched.last_fetched_epoch or end_offset < fetched.fetch_offset:
        read.diverging_epoch = leader_epoch
        read.diverging_end_offset = end_offset
        return True
    return False


def _read_log(
    partition: Partition,
    log: Log,
    read: FetchRead,
    fetch_offset: int,
    upper: int,
    max_bytes: int,
    min_one_batch: bool,
) -> None:
    result = log.read(
        fetch_offset,
        max_bytes=max_bytes,
        max_offset=upper,
        min_one_message=min_one_batch,
    )
    if result.verification is not None:
        read.pending = True
        if not partition.is_verifying:
            partition.is_verifying = True
            partition.start_work(_verify(partition, log, result))
        return
    if result.error is not ErrorCode.NONE:
        read.error = result.error
        return
    read.records = result.records
    read.size_bytes = len(result.records)
    read.is_starved = not read.size_bytes
    if read.aborted_transactions is not None and read.size_bytes:
        try:
            read.aborted_transactions = [
                (aborted.producer_id, aborted.first_offset)
                for aborted in log.aborted_transactions(fetch_offset, result.next_offset)
            ]
        except LogOffline as offline:
            read.error = offline.error
            read.records = EMPTY_RECORDS
            read.size_bytes = 0


async def _verify(partition: Partition, log: Log, result: ReadResult) -> None:
    """Check bytes that this process has not seen before, then let the fetches look again."""
    assert result.verification is not None
    await log.filesystem.offload(result.verification.run)
    partition.is_verifying = False
    verified = log.finish_verification(result).records
    if not isinstance(verified, bytes):
        verified.release()
    partition.changed()
