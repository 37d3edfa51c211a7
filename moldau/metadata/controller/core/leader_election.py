"""Which replica leads, and who is in sync, when brokers come and go.

Owns: the transition of one partition (ISR, eligible leaders of KIP-966, leader) and the record for
it.
Must not: look at more than one partition. Invariant: a clean election takes a member of the ISR,
or, when that is empty, an eligible leader replica; anything else is marked as recovering.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

from moldau.metadata.image import NO_LEADER, PartitionRegistration
from moldau.metadata.image.values import NO_LEADER_CHANGE, RECOVERING
from moldau.protocol.metadata_records import PartitionChangeRecord


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """How a partition's topic wants its leaders chosen.

    `min_insync_replicas` counts only while eligible leader replicas are enabled; it is capped by
    the number of replicas. `unclean_allowed` lets any live replica lead as the last resort.
    """

    eligible_leader_replicas_enabled: bool
    min_insync_replicas: int
    unclean_allowed: bool = False


def change_partition(
    topic_id: UUID,
    partition_index: int,
    partition: PartitionRegistration,
    is_acceptable: Callable[[int], bool],
    rules: ElectionRules,
    *,
    leaving: Collection[int] = (),
    lost: Collection[int] = (),
) -> PartitionChangeRecord | None:
    """The record that brings the partition in line with its live brokers, None when it is already.

    Args:
        is_acceptable: whether a broker may lead now.
        leaving: brokers that leave the ISR because they stopped or are about to.
        lost: brokers that may have lost flushed data (an unclean stop): they leave the ISR and the
            eligible leaders too.
    """
    removed = {*leaving, *lost}
    isr = tuple(replica for replica in partition.isr if replica not in removed)
    elr = tuple(replica for replica in partition.elr if replica not in lost)
    if not isr and not rules.eligible_leader_replicas_enabled:
        isr = (
            partition.isr
        )  # the last one standing stays in the ISR, or nobody could ever lead again
    leader, is_unclean, isr = _elect(partition, isr, elr, is_acceptable, rules)
    record = PartitionChangeRecord(partition_id=partition_index, topic_id=topic_id)
    changed = False
    if isr != partition.isr:
        record.isr = list(isr)
        changed = True
    if leader != partition.leader:
        record.leader = leader
        changed = True
        if is_unclean:
            record.leader_recovery_state = RECOVERING
    assert record.leader != NO_LEADER_CHANGE or leader == partition.leader
    if rules.eligible_leader_replicas_enabled:
        changed |= _keep_eligible_leaders(record, partition, isr, lost, rules)
    return record if changed else None


def _elect(
    partition: PartitionRegistration,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    is_acceptable: Callable[[int], bool],
    rules: ElectionRules,
) -> tuple[int, bool, tuple[int, ...]]:
    """Leader, whether the election was unclean, and the ISR that goes with it."""
    if partition.leader in isr and is_acceptable(partition.leader):
        return partition.leader, False, isr
    for replica in partition.replicas:
        if replica in isr and is_acceptable(replica):
            return replica, False, isr
    if not isr:
        for replica in partition.replicas:
            if replica in elr and is_acceptable(replica):
                return replica, False, (replica,)
        last_leaders = partition.last_known_elr
        if not elr and len(last_leaders) == 1 and is_acceptable(last_leaders[0]):
            return last_leaders[0], True, last_leaders
    if rules.unclean_allowed:
        for replica in partition.replicas:
            if is_acceptable(replica):
                return replica, True, (replica,)
    return NO_LEADER, False, isr


def _keep_eligible_leaders(
    record: PartitionChangeRecord,
    partition: PartitionRegistration,
    isr: tuple[int, ...],
    lost: Collection[int],
    rules: ElectionRules,
) -> bool:
    """Fill in the eligible leaders; True when they change.

    While the ISR is smaller than `min.insync.replicas`, nothing can be committed, so whoever leaves
    it still holds everything that was: those are the eligible leaders.
    """
    needed = min(rules.min_insync_replicas, len(partition.replicas))
    elr: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()
    if len(isr) < needed:
        elr = tuple(
            replica
            for replica in dict.fromkeys((*partition.isr, *partition.elr))
            if replica not in isr and replica not in lost
        )
        last_known = partition.last_known_elr
        if not isr and partition.leader != NO_LEADER:
            last_known = (partition.leader,)
    changed = False
    if elr != partition.elr:
        record.eligible_leader_replicas = list(elr)
        changed = True
    if last_known != partition.last_known_elr:
        record.last_known_elr = list(last_known)
        changed = True
    return changed
