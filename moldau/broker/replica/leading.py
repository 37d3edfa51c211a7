"""A partition's replica as the leader: what followers say, applied; what it proposes, said.

Owns the way from a follower's fetch and from the controller's answer to the high watermark, and the
log lines about the ISR. Must not decide (the core does), or know requests. Invariant: a proposal
that the core has made is submitted or returned, never dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from moldau.broker.replica.core import RECOVERING, IsrAnswer
from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.replica.core import FollowerFetch, IsrChange, PartitionState
    from moldau.broker.replica.partition import Partition
    from moldau.storage.log import Log

logger = logging.getLogger("moldau.broker.replica")


def follower_fetched(partition: Partition, fetch: FollowerFetch) -> ErrorCode:
    """A follower's fetch, which found its log in line with ours, says how far that reaches.

    Call it once for a request, however often that is looked at again.

    Returns:
        Why it does not count, or NONE.
    """
    core = partition.core
    error = core.check_follower(fetch.replica_id, fetch.broker_epoch, -1)
    log = partition.log
    if error is ErrorCode.NONE and (log is None or log.offline):
        error = partition.unusable_error
    if error is not ErrorCode.NONE or log is None:
        return error
    if core.follower_fetched(fetch, partition.min_insync_replicas):
        partition.high_watermark_moved(log)
    elif partition.low_watermark_waits:
        partition.tell_low_watermark()
    submit(partition, core.propose_expansion(fetch.replica_id))
    return ErrorCode.NONE


def check_isr(partition: Partition) -> None:
    """Propose what is due: who lags leaves the ISR, who could not join before joins now.

    Call it every half of `replica.lag.time.max.ms`, and when metadata says that brokers have
    come or gone: who was waited for may not be any more.
    """
    log = partition.log
    if not partition.core.is_leader or log is None or log.offline:
        return
    if partition.core.advance_high_watermark(partition.min_insync_replicas):
        partition.high_watermark_moved(log)
    submit(partition, partition.core.propose(again=True))
    if partition.low_watermark_waits:
        partition.tell_low_watermark()


def submit(partition: Partition, change: IsrChange | None) -> None:
    """Send a proposal of the core, if there is one, on its way to the controller."""
    if change is not None:
        _say_proposed(partition, change)
        partition.context.submit_isr_change(partition, change)


def _say_proposed(partition: Partition, change: IsrChange) -> None:
    core = partition.core
    logger.info(
        "%s: proposing ISR %s instead of %s (leader epoch %d, partition epoch %d, high "
        "watermark %d, log end offset %d): %s",
        partition.topic_partition,
        _joined(change.isr),
        _joined(core.in_sync.members),
        change.leader_epoch,
        change.partition_epoch,
        core.high_watermark,
        -1 if partition.log is None else partition.log.log_end_offset,
        change.reason,
    )


def count_isr_change(partition: Partition, before: frozenset[int]) -> None:
    """The controller has taken a proposal over; its answer or the metadata told so first.

    Args:
        before: the ISR until now.
    """
    counts = partition.context.isr_counts
    counts.shrinks += not partition.core.isr >= before
    counts.expands += not partition.core.isr <= before


def isr_change_answered(
    partition: Partition, change: IsrChange, error: ErrorCode, state: PartitionState | None
) -> IsrChange | None:
    """The controller has answered a proposal.

    Args:
        error: what it said; anything that is no answer to this proposal, a lost connection for
            instance, means that the proposal has to be sent again.
        state: with NONE, what the partition is now; its replicas may be left out.

    Returns:
        What to send next: the same proposal again, or one that is due now.
    """
    core = partition.core
    before = core.isr
    answer = core.isr_change_answered(change, error, state)
    if answer is IsrAnswer.RETRY:
        return change
    counts = partition.context.isr_counts
    if answer is IsrAnswer.REFUSED:
        counts.failed_updates += 1
        logger.info(
            "%s: the controller refused ISR %s (%s); it stays %s",
            partition.topic_partition,
            _joined(change.isr),
            error.name,
            _joined(core.in_sync.members),
        )
    log = partition.log
    if answer is not IsrAnswer.COMMITTED:
        if log is None or log.offline or core.in_sync.refused.isdisjoint(change.isr):
            return None
        return _next_change(partition)
    logger.info(
        "%s: ISR %s from %s to %s in partition epoch %d",
        partition.topic_partition,
        "shrank" if core.isr < before else "grew" if core.isr > before else "confirmed,",
        _joined(sorted(before)),
        _joined(core.in_sync.members),
        core.partition_epoch,
    )
    count_isr_change(partition, before)
    if log is None or log.offline:
        return None
    core.advance_high_watermark(partition.min_insync_replicas)
    partition.high_watermark_moved(log)
    return _next_change(partition)


def _next_change(partition: Partition) -> IsrChange | None:
    next_change = partition.core.propose()
    if next_change is not None:
        _say_proposed(partition, next_change)
    return next_change


def say_if_unclean(partition: Partition, log: Log) -> None:
    """Nobody shall find out by accident that acknowledged records may be gone."""
    if partition.core.leader_recovery_state == RECOVERING:
        logger.error(
            "%s: UNCLEAN LEADER ELECTION: broker %d leads in epoch %d without having been in "
            "sync; its log ends at %d (high watermark known here: %d), and records that "
            "earlier leaders acknowledged from there on are LOST",
            partition.topic_partition,
            partition.core.local_broker_id,
            partition.core.leader_epoch,
            log.log_end_offset,
            partition.core.high_watermark,
        )


def _joined(replica_ids: Iterable[int]) -> str:
    return ",".join(map(str, replica_ids))
