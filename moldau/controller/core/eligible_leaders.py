"""What a change of `min.insync.replicas` does to the eligible leader replicas (KIP-966).

Owns: which changes are refused while eligible leaders count, and the records that forget those that
an earlier value made eligible. Must not: elect.
Invariant: whoever is eligible has every committed record. That holds only for the value under which
a replica became eligible: with a lower one, the ISR may since have committed without it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from moldau.controller.core.result import (
    MAX_RECORDS_PER_REQUEST,
    Refusal,
    VersionedRecord,
)
from moldau.controller.core.state import ControllerState
from moldau.metadata.features import partition_record_version
from moldau.metadata.image import ConfigResourceType, TopicImage
from moldau.protocol.errors import ErrorCode
from moldau.protocol.metadata_records import ClearElrRecord, ConfigRecord, PartitionChangeRecord

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"


def check_min_insync_replicas(
    resource_type: int, name: str, changed: Collection[str], removed: Collection[str]
) -> None:
    """One value for the whole cluster must exist, and no broker may have its own.

    Raises:
        Refusal: INVALID_CONFIG.
    """
    if resource_type != ConfigResourceType.BROKER:
        return
    if name and (MIN_INSYNC_REPLICAS in changed or MIN_INSYNC_REPLICAS in removed):
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"a broker cannot have its own {MIN_INSYNC_REPLICAS} "
            "while eligible leader replicas are enabled",
        )
    if not name and MIN_INSYNC_REPLICAS in removed:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"the cluster-wide {MIN_INSYNC_REPLICAS} cannot be removed "
            "while eligible leader replicas are enabled",
        )


def clear_eligible_leaders(
    state: ControllerState, records: Sequence[VersionedRecord]
) -> list[VersionedRecord]:
    """The records that forget eligible leaders where `records` change `min.insync.replicas`.

    Raises:
        Refusal: POLICY_VIOLATION, too many partitions would change at once.
    """
    cleared: list[VersionedRecord] = []
    if not state.eligible_leader_replicas_enabled:
        return cleared
    for record, _version in records:
        if isinstance(record, ConfigRecord) and record.name == MIN_INSYNC_REPLICAS:
            if record.resource_type == ConfigResourceType.TOPIC:
                topic = state.topic(record.resource_name)
                assert topic is not None, "the resource was checked"
                cleared += _clear(state, [topic], record.resource_name)
            elif record.resource_type == ConfigResourceType.BROKER and not record.resource_name:
                cleared += _clear(state, list(state.image.topics.topics_by_id.values()), "")
    return cleared


def _clear(
    state: ControllerState, topics: Sequence[TopicImage], topic_name: str
) -> list[VersionedRecord]:
    """One record for all, unless that would leave partitions nobody could ever lead again.

    While nobody is in sync, nothing is committed: the eligible leaders stay eligible then.
    """
    is_stranding = any(
        not partition.isr and partition.elr
        for topic in topics
        for partition in topic.partitions.values()
    )
    if not is_stranding:
        return [(ClearElrRecord(topic_name=topic_name), 0)]
    version = partition_record_version(state.metadata_level)
    records: list[VersionedRecord] = [
        (
            PartitionChangeRecord(
                partition_id=partition_index,
                topic_id=topic.topic_id,
                eligible_leader_replicas=[],
                last_known_elr=[] if partition.last_known_elr else None,
            ),
            version,
        )
        for topic in topics
        for partition_index, partition in topic.partitions.items()
        if partition.isr and partition.elr
    ]
    if len(records) > MAX_RECORDS_PER_REQUEST:
        raise Refusal(
            ErrorCode.POLICY_VIOLATION,
            f"{len(records)} partitions with eligible leaders would change at once, at most "
            f"{MAX_RECORDS_PER_REQUEST} may: bring their replicas back first",
        )
    return records
