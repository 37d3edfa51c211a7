"""What `moldau topics describe` knows of partitions: gathered, filtered, made into rows.

Must not talk to a cluster except through `moldau.client`. Invariant: a figure that no broker told
is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any, NamedTuple

from moldau.cli.partition_targets import ids_text
from moldau.client import (
    Admin,
    AuthorizationFailed,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    KafkaError,
    OffsetSpec,
    PartitionDescription,
    Reassignment,
    TopicDescription,
    TopicPartition,
    TopicPartitionReplica,
)
from moldau.protocol.types import uuid_to_base64

MIN_ISR = "min.insync.replicas"
COLUMNS = (
    *("partition", "leader", "epoch", "replicas", "isr", "out-of-sync", "elr", "last-elr"),
    *("offline", "low", "high", "end", "behind"),
)

Offsets = Mapping[TopicPartitionReplica, int | KafkaError]


class Only(Enum):
    """The filters of kafka-topics; a partition under its replication factor, and so on."""

    UNDER_REPLICATED = "--under-replicated-partitions"
    UNAVAILABLE = "--unavailable-partitions"
    UNDER_MIN_ISR = "--under-min-isr-partitions"
    AT_MIN_ISR = "--at-min-isr-partitions"
    OVERRIDES = "--topics-with-overrides"


class Snapshot(NamedTuple):
    """Everything of some topics at about one moment."""

    topics: Mapping[str, TopicDescription]
    overrides: Mapping[str, Mapping[str, str | None]]
    min_isr: Mapping[str, int | None]
    moves: Mapping[TopicPartition, Reassignment]
    live_broker_ids: frozenset[int]
    low: Offsets
    high: Offsets
    ends: Offsets


async def gather(
    admin: Admin, names: Collection[str], only: Only | None, *, timeout_ms: float | None = None
) -> list[dict[str, Any]]:
    """The documents of topics, without the partitions that `only` leaves out. Raises: KafkaError

    Args:
        timeout_ms: how long to wait for each broker's offsets, which may stay unknown.
    """
    topics = await admin.describe_topics(names)
    overrides, min_isr = await _configurations(admin, topics)
    moves = await _moves(admin)
    brokers = (await admin.describe_cluster()).brokers
    snapshot = Snapshot(
        topics, overrides, min_isr, moves, frozenset(each.node_id for each in brokers), {}, {}, {}
    )
    chosen = {name: list(_chosen(snapshot, name, only)) for name in sorted(topics)}
    leaders = [
        TopicPartitionReplica(name, each.partition, each.leader)
        for name, partitions in chosen.items()
        for each in partitions
        if each.leader >= 0
    ]
    replicas = [
        TopicPartitionReplica(name, each.partition, broker_id)
        for name, partitions in chosen.items()
        for each in partitions
        for broker_id in each.replicas
        if broker_id in snapshot.live_broker_ids
    ]
    offsets = admin.list_replica_offsets
    snapshot = snapshot._replace(
        low=await offsets(leaders, OffsetSpec.EARLIEST, as_consumer=True, timeout_ms=timeout_ms),
        high=await offsets(leaders, OffsetSpec.LATEST, as_consumer=True, timeout_ms=timeout_ms),
        ends=await offsets(replicas, OffsetSpec.LATEST, timeout_ms=timeout_ms),
    )
    return [
        _document(snapshot, name, partitions)
        for name, partitions in chosen.items()
        if partitions or only is None or (only is Only.OVERRIDES and overrides[name])
    ]


def cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    """One partition as a row of `COLUMNS`."""
    return (
        row["partition"],
        row["leader"] if row["leader"] >= 0 else "none",
        row["leader_epoch"],
        _replicas_text(row),
        ids_text(row["isr"]),
        ids_text(row["out_of_sync_replicas"]),
        ids_text(row["eligible_leader_replicas"]),
        ids_text(row["last_known_eligible_leader_replicas"]),
        ids_text(row["offline_replicas"]),
        row["low_watermark"],
        row["high_watermark"],
        row["log_end_offset"],
        _behind_text(row["replica_logs"]),
    )


def line(name: str, row: Mapping[str, Any]) -> str:
    """One partition as one line."""
    shown = ("-" if cell is None else str(cell) for cell in cells(row)[1:])
    told = " ".join(f"{column} {cell}" for column, cell in zip(COLUMNS[1:], shown, strict=True))
    return f"{name}-{row['partition']} {told}"


def _replicas_text(row: Mapping[str, Any]) -> str:
    """The replicas; those that come have a plus, those that go a minus."""
    marks = {
        **dict.fromkeys(row["adding_replicas"], "+"),
        **dict.fromkeys(row["removing_replicas"], "-"),
    }
    return ",".join(f"{marks.get(each, '')}{each}" for each in row["replicas"]) or "-"


def _behind_text(replica_logs: Iterable[Mapping[str, Any]]) -> str:
    """The replicas that lack records, each with how many."""
    return (
        " ".join(f"{each['broker_id']}:{each['behind']}" for each in replica_logs if each["behind"])
        or "-"
    )


def _chosen(snapshot: Snapshot, name: str, only: Only | None) -> Iterable[PartitionDescription]:
    min_isr = snapshot.min_isr.get(name)
    for partition in snapshot.topics[name].partitions:
        in_sync_count = len(partition.isr)
        move = snapshot.moves.get(TopicPartition(name, partition.partition))
        # Replicas that are still being added were never promised to anybody.
        factor = len(partition.replicas) - (len(move.adding_replicas) if move else 0)
        if only is None:
            shown = True
        elif only is Only.UNDER_REPLICATED:
            shown = in_sync_count < factor
        elif only is Only.UNAVAILABLE:
            shown = partition.leader not in snapshot.live_broker_ids
        elif only is Only.UNDER_MIN_ISR:
            shown = min_isr is not None and in_sync_count < min_isr
        elif only is Only.AT_MIN_ISR:
            shown = in_sync_count == min_isr
        else:
            shown = bool(snapshot.overrides.get(name))
        if shown:
            yield partition


def _document(
    snapshot: Snapshot, name: str, partitions: Iterable[PartitionDescription]
) -> dict[str, Any]:
    topic = snapshot.topics[name]
    return {
        "name": name,
        "topic_id": uuid_to_base64(topic.topic_id),
        "internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "configs": dict(snapshot.overrides.get(name, {})),
        "min_insync_replicas": snapshot.min_isr.get(name),
        "partitions": [_row(snapshot, name, partition) for partition in partitions],
    }


def _row(snapshot: Snapshot, name: str, partition: PartitionDescription) -> dict[str, Any]:
    def of(offsets: Offsets, broker_id: int) -> int | None:
        found = offsets.get(TopicPartitionReplica(name, partition.partition, broker_id))
        return found if isinstance(found, int) and found >= 0 else None

    end = of(snapshot.ends, partition.leader)
    high = of(snapshot.high, partition.leader)
    move = snapshot.moves.get(TopicPartition(name, partition.partition))
    logs = []
    for broker_id in partition.replicas:
        own_end = of(snapshot.ends, broker_id)
        # Asked one after the other: a follower may have got more in the meantime.
        behind = None if own_end is None or end is None else max(0, end - own_end)
        logs.append({"broker_id": broker_id, "log_end_offset": own_end, "behind": behind})
    return {
        **asdict(partition),
        "out_of_sync_replicas": [each for each in partition.replicas if each not in partition.isr],
        "adding_replicas": list(move.adding_replicas) if move else [],
        "removing_replicas": list(move.removing_replicas) if move else [],
        "low_watermark": of(snapshot.low, partition.leader),
        "high_watermark": high,
        "log_end_offset": end,
        "replica_logs": logs,
    }


async def _configurations(
    admin: Admin, names: Collection[str]
) -> tuple[dict[str, dict[str, str | None]], dict[str, int | None]]:
    """What is set on each topic itself, and its min.insync.replicas wherever that comes from."""
    resources = {name: ConfigResource(ConfigResourceType.TOPIC, name) for name in names}
    configs = await admin.describe_configs(resources.values()) if resources else {}
    overrides, min_isr = {}, {}
    for name, resource in resources.items():
        entries = configs[resource]
        overrides[name] = {
            key: entry.value
            for key, entry in sorted(entries.items())
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        value = entries[MIN_ISR].value if MIN_ISR in entries else None
        min_isr[name] = None if value is None else int(value)
    return overrides, min_isr


async def _moves(admin: Admin) -> dict[TopicPartition, Reassignment]:
    """Moves in progress; none for somebody who may not know, as with Kafka's tool."""
    try:
        return await admin.list_partition_reassignments()
    except AuthorizationFailed:
        return {}
