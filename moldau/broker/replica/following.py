"""A partition's replica as a follower: what the leader sent, applied to the log.

Owns what becomes of an answer to a fetch: appended, cut, put off. Must not know connections,
sessions or times. Invariants: an answer is applied only to the log it was asked for (leader epoch
and end offset are those of the request); what goes below our own high watermark is said loudly; a
log that fails stops following, and nothing else does.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.broker.replica.core import ReplicaRole
from moldau.broker.replica.core.truncation import (
    LogCut,
    cut_for_divergence,
    cut_out_of_range,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.storage.faults import LogOffline

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.broker.replica.partition import Partition
    from moldau.protocol.messages.p01_fetch import PartitionData
    from moldau.storage.log import Log

logger = logging.getLogger("moldau.broker.replica.replication")

ORDINARY_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
"""What is answered while metadata is on its way to the one or the other: no line in the log."""


class FollowerStep(Enum):
    """What to do next for a partition that was fetched."""

    FETCH_ON = "fetch on"
    BACK_OFF = "back off"
    ASK_OFFSETS = "ask for the leader's offsets"
    STOP = "stop until its metadata changes"


class FollowerPosition(NamedTuple):
    """Whom a replica follows and where its log stands. `last_fetched_epoch` is the newest leader
    epoch in its log, -1 without one.
    """

    topic_partition: TopicPartition
    topic_id: UUID
    leader_id: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    high_watermark: int


def is_follower(partition: Partition) -> bool:
    """Whether the replica has somebody to follow, be its own log usable or not."""
    core = partition.core
    return core.role is ReplicaRole.FOLLOWER and core.leader_id >= 0 and not partition.is_deleted


def follower_position(partition: Partition) -> FollowerPosition | None:
    """Where to fetch from, and whom; None for a replica that follows nobody or has no usable
    log.
    """
    core = partition.core
    log = partition.log
    if log is None or log.offline or not is_follower(partition):
        return None
    return FollowerPosition(
        partition.topic_partition,
        partition.topic_id,
        core.leader_id,
        core.leader_epoch,
        log.log_end_offset,
        log.leader_epoch_cache.latest_epoch,
        log.log_start_offset,
        log.high_watermark,
    )


def apply_fetched(
    partition: Partition, requested: FollowerPosition, data: PartitionData
) -> FollowerStep:
    """Take in what the leader answered to a fetch from `requested`.

    `data.records` are not kept. An answer that came too late, for another state of the replica, is
    ignored.
    """
    if follower_position(partition) is None:
        return FollowerStep.STOP
    log = partition.log
    assert log is not None
    if not _is_still_at(partition, log, requested):
        return FollowerStep.FETCH_ON
    try:
        if data.error_code != ErrorCode.NONE:
            return _refused(partition, ErrorCode.of(data.error_code))
        diverging = data.diverging_epoch
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            return _diverging(partition, log, data)
        return _take_in(partition, log, data)
    except LogOffline:
        partition.changed()
        return FollowerStep.STOP


def apply_leader_offsets(
    partition: Partition,
    requested: FollowerPosition,
    leader_start_offset: int,
    leader_end_offset: int,
) -> FollowerStep:
    """The fetch from `requested` was out of range, and these are the ends of the leader's log."""
    if follower_position(partition) is None:
        return FollowerStep.STOP
    log = partition.log
    assert log is not None
    if not _is_still_at(partition, log, requested):
        return FollowerStep.FETCH_ON
    cut = cut_out_of_range(
        leader_start_offset,
        leader_end_offset,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        is_blank=log.leader_epoch_cache.latest_epoch < 0,
    )
    if cut is None:
        # In range by now, or nonsense: either way not to be asked again without a pause.
        return FollowerStep.BACK_OFF
    reason = f"the leader's log reaches from {leader_start_offset} to {leader_end_offset}"
    try:
        _apply_cut(partition, log, cut, reason)
    except LogOffline:
        partition.changed()
        return FollowerStep.STOP
    return FollowerStep.FETCH_ON


def _apply_cut(partition: Partition, log: Log, cut: LogCut, reason: str) -> None:
    """Raises: LogOffline."""
    if cut.starts_anew:
        _begin_anew(partition, log, cut.offset, reason)
    else:
        _cut(partition, log, cut.offset, reason)


def _begin_anew(partition: Partition, log: Log, offset: int, reason: str) -> None:
    """Raises: LogOffline."""
    logger.warning(
        "%s: log of %d to %d is given up and begins anew at %d: %s",
        log.name,
        log.log_start_offset,
        log.log_end_offset,
        offset,
        reason,
    )
    log.truncate_fully_and_start_at(offset)
    partition.core.local_log_was_cut(log.high_watermark)
    partition.changed()


def _is_still_at(partition: Partition, log: Log, requested: FollowerPosition) -> bool:
    """Whether the replica is what it was when the request was made."""
    core = partition.core
    return (
        core.leader_epoch == requested.leader_epoch
        and log.log_end_offset == requested.fetch_offset
        and partition.topic_id == requested.topic_id
    )


def _refused(partition: Partition, error: ErrorCode) -> FollowerStep:
    if error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return FollowerStep.ASK_OFFSETS
    if error is ErrorCode.FENCED_LEADER_EPOCH:
        # The leader knows a newer epoch, and so shall we.
        return FollowerStep.STOP
    if error not in ORDINARY_ERRORS:
        _note_problem(partition, f"leader {partition.core.leader_id} answers {error.name}")
    return FollowerStep.BACK_OFF


def _diverging(partition: Partition, log: Log, data: PartitionData) -> FollowerStep:
    epoch, end_offset = data.diverging_epoch.epoch, data.diverging_epoch.end_offset
    cut = cut_for_divergence(
        epoch,
        end_offset,
        leader_start_offset=data.log_start_offset,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        end_offset_for_epoch=log.end_offset_for_epoch,
    )
    before = (log.log_end_offset, log.leader_epoch_cache.latest_epoch)
    if cut is not None:
        reason = f"the leader's log has epoch {epoch} up to offset {end_offset}"
        _apply_cut(partition, log, cut, reason)
    if (log.log_end_offset, log.leader_epoch_cache.latest_epoch) == before:
        # Asked again it would say the same again.
        _note_problem(
            partition,
            f"leader {partition.core.leader_id} says that the logs part at offset {end_offset} of "
            f"epoch {epoch}, where ours has nothing to cut",
        )
        return FollowerStep.BACK_OFF
    return FollowerStep.FETCH_ON


def _cut(partition: Partition, log: Log, offset: int, reason: str) -> None:
    """Raises: LogOffline."""
    log_end_offset, high_watermark = log.log_end_offset, log.high_watermark
    core = partition.core
    if not log.truncate_to(offset):
        return
    if log.log_end_offset < high_watermark:
        logger.error(
            "%s: cut from %d back to %d, below the high watermark %d: committed records are lost "
            "here; leader %d of epoch %d does not have them (%s)",
            log.name,
            log_end_offset,
            log.log_end_offset,
            high_watermark,
            core.leader_id,
            core.leader_epoch,
            reason,
        )
    else:
        logger.info(
            "%s: cut from %d back to %d to follow leader %d of epoch %d: %s",
            log.name,
            log_end_offset,
            log.log_end_offset,
            core.leader_id,
            core.leader_epoch,
            reason,
        )
    core.local_log_was_cut(log.high_watermark)
    partition.changed()


def _take_in(partition: Partition, log: Log, data: PartitionData) -> FollowerStep:
    """Raises: LogOffline."""
    step = FollowerStep.FETCH_ON
    records = data.records
    if records:
        assert isinstance(records, (bytearray, bytes, memoryview)), "records come from the network"
        if isinstance(records, bytes):
            records = memoryview(records)
        is_inside_a_batch = int.from_bytes(records[:8]) < log.log_end_offset
        if is_inside_a_batch and log.log_start_offset < log.log_end_offset == data.log_start_offset:
            # Only an empty log may begin inside a batch, and all of ours is deleted at the leader.
            reason = "the leader's log begins there, inside a batch"
            _begin_anew(partition, log, data.log_start_offset, reason)
        result = log.append_as_follower(records, leader_epoch=partition.core.leader_epoch)
        if log.offline:
            partition.changed()
            return FollowerStep.STOP
        if result.error is not ErrorCode.NONE:
            _note_problem(partition, f"fetched records are not appended: {result.error_message}")
            step = FollowerStep.BACK_OFF
        elif result.last_offset < 0:
            # Nothing of it is of our leader's epoch: asked again it would be the same.
            step = FollowerStep.BACK_OFF
    if step is FollowerStep.FETCH_ON and partition.follower_problem:
        logger.info("%s: follows again from offset %d", log.name, log.log_end_offset)
        partition.follower_problem = ""
    _take_over_offsets(partition, log, data.high_watermark, data.log_start_offset)
    return step


def _take_over_offsets(
    partition: Partition, log: Log, high_watermark: int, log_start_offset: int
) -> None:
    """A new leader may know less of what is committed than we do: ours does not go back.

    Raises: LogOffline.
    """
    core = partition.core
    has_changed = core.follow_high_watermark(high_watermark, log.log_end_offset)
    if has_changed:
        log.update_high_watermark(core.high_watermark)
    if log_start_offset > log.log_start_offset:
        has_changed |= log.advance_log_start_offset(log_start_offset)
    if has_changed:
        partition.changed()


def _note_problem(partition: Partition, problem: str) -> None:
    """Say it once, until it is over or another one."""
    if partition.follower_problem != problem:
        partition.follower_problem = problem
        logger.warning("%s: %s; trying again", partition.topic_partition, problem)
