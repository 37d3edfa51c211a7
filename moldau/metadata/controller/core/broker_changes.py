"""What the coming and going of a broker does to its partitions.

Owns: the PartitionChangeRecords for a broker that stops, is lost, loses directories, or is back.
Must not: register or fence. Invariant: a broker that is about to be fenced leads nothing
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from uuid import UUID

from moldau.metadata.controller.core.leader_election import ElectionRules, change_partition
from moldau.metadata.controller.core.result import VersionedRecord
from moldau.metadata.controller.core.settings import ControllerSettings
from moldau.metadata.controller.core.state import ControllerState
from moldau.metadata.features import partition_record_version
from moldau.metadata.image import NO_LEADER, PartitionRegistration, TopicImage

Wanted = Callable[[PartitionRegistration], bool]


def records_for_leaving(
    state: ControllerState, settings: ControllerSettings, broker_id: int, *, is_clean: bool
) -> list[VersionedRecord]:
    """A broker stops, or stopped: it leaves every ISR, and every set of eligible leaders if
    unclean.
    """
    leaving, lost = ((broker_id,), ()) if is_clean else ((), (broker_id,))

    def concerns(partition: PartitionRegistration) -> bool:
        return broker_id in partition.isr or (not is_clean and broker_id in partition.elr)

    return _changes(
        state,
        settings,
        concerns,
        lambda candidate: candidate != broker_id and state.is_active(candidate),
        leaving=leaving,
        lost=lost,
    )


def records_for_return(
    state: ControllerState, settings: ControllerSettings, broker_id: int
) -> list[VersionedRecord]:
    """A broker may lead again: partitions without a leader may get one."""

    def concerns(partition: PartitionRegistration) -> bool:
        return partition.leader == NO_LEADER and broker_id in partition.replicas

    return _changes(
        state,
        settings,
        concerns,
        lambda candidate: candidate == broker_id or state.is_active(candidate),
    )


def records_for_lost_directories(
    state: ControllerState,
    settings: ControllerSettings,
    broker_id: int,
    directories: Collection[UUID],
) -> list[VersionedRecord]:
    """Directories of a broker failed: its replicas there leave every ISR (KIP-858)."""

    def concerns(partition: PartitionRegistration) -> bool:
        return broker_id in partition.isr and partition.directory(broker_id) in directories

    return _changes(
        state,
        settings,
        concerns,
        lambda candidate: candidate != broker_id and state.is_active(candidate),
        leaving=(broker_id,),
    )


def leads_anything(state: ControllerState, broker_id: int) -> bool:
    """Whether any partition has this broker for its leader."""
    return any(
        partition.leader == broker_id
        for topic in state.image.topics.topics_by_id.values()
        for partition in topic.partitions.values()
    )


def _changes(
    state: ControllerState,
    settings: ControllerSettings,
    concerns: Wanted,
    is_acceptable: Callable[[int], bool],
    *,
    leaving: Collection[int] = (),
    lost: Collection[int] = (),
) -> list[VersionedRecord]:
    version = partition_record_version(state.metadata_level)
    records: list[VersionedRecord] = []
    for topic, partition_index, partition, rules in _concerned(state, settings, concerns):
        record = change_partition(
            topic.topic_id,
            partition_index,
            partition,
            is_acceptable,
            rules,
            leaving=leaving,
            lost=lost,
        )
        if record is not None:
            records.append((record, version))
    return records


def _concerned(
    state: ControllerState, settings: ControllerSettings, concerns: Wanted
) -> Iterator[tuple[TopicImage, int, PartitionRegistration, ElectionRules]]:
    for topic in state.image.topics.topics_by_id.values():
        rules: ElectionRules | None = None
        for partition_index, partition in topic.partitions.items():
            if not concerns(partition):
                continue
            if rules is None:
                rules = _rules(state, settings, topic.name)
            yield topic, partition_index, partition, rules


def _rules(state: ControllerState, settings: ControllerSettings, topic_name: str) -> ElectionRules:
    return ElectionRules(
        eligible_leader_replicas_enabled=state.eligible_leader_replicas_enabled,
        min_insync_replicas=state.min_insync_replicas(topic_name, settings.node_config),
        unclean_allowed=state.unclean_election_allowed(topic_name, settings.node_config),
    )
