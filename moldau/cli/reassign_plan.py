"""What a plan of moves is made of: the wish, what there is, and what would become of it.

Must not talk to a cluster except through `moldau.client`. Invariant: every broker and partition
of a plan exists, and partitions that stay as they are are no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.cli.output import fail
from moldau.cli.partition_targets import Target, describe_targets, ids_text
from moldau.cli.reassign_throttle import Move
from moldau.client import (
    Admin,
    ClusterDescription,
    Reassignment,
    ReplicaLog,
    TopicPartition,
    TopicPartitionReplica,
)
from moldau.client.admin.replica_planner import PlanImpossible, RackUnknown, plan_replicas

SIZES_TIMEOUT_MS = 5_000


class Wish(NamedTuple):
    """What somebody wants: listed replicas, or rules for a plan."""

    targets: list[Target]
    listed: Mapping[TopicPartition, Sequence[int]] | None = None
    replicas: list[int] | None = None
    brokers: list[int] | None = None
    without: list[int] | None = None
    racks: list[str] | None = None
    replication_factor: int | None = None
    rack_aware: bool = True


class Plan(NamedTuple):
    """What would become of which partitions; those that stay as they are are left out of `moves`,
    and so are those that are on their way to where they are wanted.
    """

    wanted: dict[TopicPartition, tuple[int, ...]]
    moves: dict[TopicPartition, Move]
    ongoing: dict[TopicPartition, Reassignment]
    cluster: ClusterDescription

    @property
    def live_broker_ids(self) -> set[int]:
        """The brokers that serve."""
        return {each.node_id for each in self.cluster.brokers if not each.fenced}

    @property
    def after(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas there will be."""
        return {partition: move.after for partition, move in self.moves.items()}

    @property
    def before(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas there are."""
        return {partition: move.before for partition, move in self.moves.items()}


async def make_plan(admin: Admin, wish: Wish) -> Plan:
    """What fulfils a wish; exits with status 1 when nothing can. Raises: KafkaError"""
    listed = wish.listed or {}
    targets = wish.targets or [(each.topic, each.partition) for each in listed]
    topics, partitions = await describe_targets(admin, targets)
    cluster = await admin.describe_cluster(include_fenced_brokers=True)
    ongoing = await admin.list_partition_reassignments()
    before = {}
    for partition in partitions:
        described = next(
            each
            for each in topics[partition.topic].partitions
            if each.partition == partition.partition
        )
        move = ongoing.get(partition)
        before[partition] = move.target_replicas if move else described.replicas
    after: Mapping[TopicPartition, Sequence[int]]
    if wish.listed is not None:
        after = wish.listed
    elif wish.replicas is not None:
        after = dict.fromkeys(partitions, wish.replicas)
    else:
        try:
            after = plan_replicas(
                before, _usable(cluster, wish), replication_factor=wish.replication_factor
            )
        except RackUnknown as unknown:
            fail(f"{unknown}: set it, or give --disable-rack-aware")
        except PlanImpossible as impossible:
            fail(str(impossible))
    _check_brokers(cluster, after)
    moves = {
        partition: Move(before[partition], tuple(after[partition]))
        for partition in partitions
        if before[partition] != tuple(after[partition])
    }
    wanted = {partition: tuple(after[partition]) for partition in partitions}
    return Plan(wanted, moves, ongoing, cluster)


def _usable(cluster: ClusterDescription, wish: Wish) -> dict[int, str | None]:
    """The brokers a plan may use, with their racks; exits with status 1 when one is missing."""
    brokers = {each.node_id: each for each in cluster.brokers}
    unknown = [
        each for each in (*(wish.brokers or ()), *(wish.without or ())) if each not in brokers
    ]
    if unknown:
        fail(_no_broker(unknown, cluster))
    fenced = [each for each in wish.brokers or () if brokers[each].fenced]
    if fenced:
        fail(f"broker {ids_text(fenced)} does not serve at the moment")
    known_racks = {each.rack for each in cluster.brokers if each.rack is not None}
    for rack in wish.racks or ():
        if rack not in known_racks:
            known = ", ".join(sorted(known_racks)) or "none"
            fail(f"no broker is in rack {rack!r}; racks are {known}")
    return {
        each.node_id: each.rack if wish.rack_aware else None
        for each in cluster.brokers
        if not each.fenced
        and (wish.brokers is None or each.node_id in wish.brokers)
        and (wish.racks is None or each.rack in wish.racks)
        and each.node_id not in (wish.without or ())
    }


def _check_brokers(
    cluster: ClusterDescription, after: Mapping[TopicPartition, Sequence[int]]
) -> None:
    known = {each.node_id for each in cluster.brokers}
    unknown = sorted({each for replicas in after.values() for each in replicas} - known)
    if unknown:
        fail(_no_broker(unknown, cluster))


def _no_broker(unknown: Sequence[int], cluster: ClusterDescription) -> str:
    known = ", ".join(str(each.node_id) for each in cluster.brokers)
    return f"there is no broker {', '.join(map(str, unknown))}; there are {known}"


async def partition_sizes(admin: Admin, made: Plan) -> dict[TopicPartition, int | None]:
    """The size of each partition, as the first of its replicas that answers tells it."""
    wanted = [
        TopicPartitionReplica(*partition, broker_id)
        for partition, move in made.moves.items()
        if move.added
        for broker_id in move.before
        if broker_id in made.live_broker_ids
    ]
    logs = await admin.describe_replica_logs(wanted, timeout_ms=SIZES_TIMEOUT_MS)
    sizes: dict[TopicPartition, int | None] = dict.fromkeys(made.moves)
    for (topic, index, _), log in logs.items():
        partition = TopicPartition(topic, index)
        if isinstance(log, ReplicaLog):
            sizes[partition] = max(sizes[partition] or 0, log.size_bytes)
    return sizes
