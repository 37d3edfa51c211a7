"""What the coming and going of a broker does to its partitions.

Owns: the PartitionChangeRecords for a broker that stops, is lost, loses directories, or is back.
Must not: register or fence. Invariant: once the last step is applied, a broker that is about to be
fenced leads nothing; a step changes at most `max_changes_per_step` partitions, and what it leaves
over is found by the next one in the index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from moldau.controller.core.assignments import default_directory
from moldau.controller.core.leader_election import (
    UNCHANGED,
    Election,
    ElectionRules,
    PartitionTarget,
    change_partition,
)
from moldau.controller.core.partition_index import PartitionKey
from moldau.controller.core.result import VersionedRecord
from moldau.controller.core.settings import ControllerSettings
from moldau.controller.core.state import ControllerState, is_named_directory
from moldau.metadata.image import NO_LEADER, PartitionRegistration, TopicImage


class Step(NamedTuple):
    """Records of one step, and whether it is the last one."""

    records: list[VersionedRecord]
    is_last: bool


class PartitionChanger:
    """Makes the records of one decision; remembers topics' rules and who is live while it does,
    since nothing of that changes before the records are applied.

    `may_lead` tells whether a broker counts as live in this decision; the directory of its replica
    is looked at besides.
    """

    __slots__ = (
        "_default_directory",
        "_election",
        "_live",
        "_may_lead",
        "_rules_by_topic",
        "_settings",
        "_state",
    )

    def __init__(
        self,
        state: ControllerState,
        settings: ControllerSettings,
        *,
        may_lead: Callable[[int], bool] | None = None,
        election: Election | None = None,
    ) -> None:
        """`election` None: unclean where the topic's configuration allows it, else online."""
        self._state = state
        self._settings = settings
        self._may_lead = state.is_active if may_lead is None else may_lead
        self._election = election
        self._rules_by_topic: dict[UUID, ElectionRules] = {}
        self._live: dict[int, bool] = {}
        self._default_directory = partial(default_directory, state)

    def change(
        self,
        topic: TopicImage,
        partition_index: int,
        partition: PartitionRegistration,
        target: PartitionTarget = UNCHANGED,
    ) -> VersionedRecord | None:
        """The record that takes a partition to its target, None when it is there already."""
        state, live = self._state, self._live
        moved = target.directories or {}

        def is_acceptable(broker_id: int) -> bool:
            if broker_id not in live:
                live[broker_id] = self._may_lead(broker_id)
            if broker_id in moved:
                return live[broker_id] and state.is_online_directory(moved[broker_id], broker_id)
            return live[broker_id] and state.has_online_directory(partition, broker_id)

        return change_partition(
            topic.topic_id,
            partition_index,
            partition,
            target,
            is_acceptable,
            self._rules(topic),
            self._default_directory,
        )

    def step(
        self,
        candidates: Iterable[PartitionKey],
        target_of: Callable[[PartitionRegistration], PartitionTarget | None],
    ) -> Step:
        """Change candidates until the step is full; a target of None skips one."""
        topics = self._state.image.topics.topics_by_id
        records: list[VersionedRecord] = []
        for topic_id, partition_index in candidates:
            topic = topics.get(topic_id)
            partition = None if topic is None else topic.partitions.get(partition_index)
            target = None if partition is None else target_of(partition)
            if topic is None or partition is None or target is None:
                continue
            if len(records) == self._settings.max_changes_per_step:
                return Step(records, is_last=False)
            record = self.change(topic, partition_index, partition, target)
            if record is not None:
                records.append(record)
        return Step(records, is_last=True)

    def _rules(self, topic: TopicImage) -> ElectionRules:
        rules = self._rules_by_topic.get(topic.topic_id)
        if rules is None:
            rules = self._rules_by_topic[topic.topic_id] = self._new_rules(topic.name)
        return rules

    def _new_rules(self, topic_name: str) -> ElectionRules:
        state, node_config = self._state, self._settings.node_config
        election = self._election
        if election is None:
            is_allowed = state.unclean_election_allowed(topic_name, node_config)
            election = Election.UNCLEAN if is_allowed else Election.ONLINE
        return ElectionRules(
            eligible_leader_replicas_enabled=state.eligible_leader_replicas_enabled,
            min_insync_replicas=state.min_insync_replicas(topic_name, node_config),
            election=election,
            metadata_level=state.metadata_level,
        )


def leaving_step(
    state: ControllerState,
    settings: ControllerSettings,
    broker_id: int,
    *,
    is_clean: bool,
    directories: Collection[UUID] = (),
) -> Step:
    """A broker stops, or stopped: it leaves every ISR, and every set of eligible leaders if
    unclean.

    Args:
        directories: the log directories with which it comes back, if it does and names any: what
            lies in others is lost, however clean the stop was.
    """
    keeps_last = not state.eligible_leader_replicas_enabled

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        is_lost = not is_clean or _is_elsewhere(partition, broker_id, directories)
        if broker_id not in partition.isr:
            if not is_lost or broker_id not in partition.elr:
                return None
        elif keeps_last and partition.leader == NO_LEADER and len(partition.isr) == 1:
            return None  # the last one standing stays, or nobody could ever lead again
        return _without(broker_id, partition, is_lost=is_lost)

    candidates: Iterable[PartitionKey] = state.index.with_isr_member(broker_id)
    if not is_clean or directories:
        candidates = _believed(state, broker_id)
    changer = PartitionChanger(state, settings, may_lead=_all_but(state, broker_id))
    return changer.step(candidates, target_of)


def _believed(state: ControllerState, broker_id: int) -> Iterable[PartitionKey]:
    """Partitions that a broker may lead by a clean election, each once: ISR and eligible leaders
    of a partition are disjoint.
    """
    return chain(state.index.with_isr_member(broker_id), state.index.with_elr_member(broker_id))


def _is_elsewhere(
    partition: PartitionRegistration, broker_id: int, directories: Collection[UUID]
) -> bool:
    """Whether a broker's replica lies in a directory that is not among these."""
    return broker_id in partition.replicas and not is_named_directory(
        partition.directory(broker_id), directories
    )


def _without(broker_id: int, partition: PartitionRegistration, *, is_lost: bool) -> PartitionTarget:
    isr = tuple(replica for replica in partition.isr if replica != broker_id)
    return PartitionTarget(isr=isr, lost=(broker_id,) if is_lost else ())


def return_step(state: ControllerState, settings: ControllerSettings, broker_id: int) -> Step:
    """A broker may lead again: partitions without a leader may get one."""
    changer = PartitionChanger(
        state,
        settings,
        may_lead=lambda candidate: candidate == broker_id or state.is_active(candidate),
    )

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        return UNCHANGED if broker_id in partition.replicas else None

    return changer.step(state.index.without_leader(), target_of)


def election_step(
    state: ControllerState, settings: ControllerSettings, candidates: Iterable[PartitionKey]
) -> Step:
    """Partitions without a leader get one if they can."""
    changer = PartitionChanger(state, settings)

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        return UNCHANGED if partition.leader == NO_LEADER else None

    return changer.step(candidates, target_of)


def lost_directories_step(
    state: ControllerState,
    settings: ControllerSettings,
    broker_id: int,
    directories: Collection[UUID],
) -> Step:
    """Directories of a broker failed: its replicas there leave every ISR (KIP-858).

    They stay eligible: the directory may be back as it was. Should it not, the broker's next start
    is an unclean one, or names the directory no more.
    """

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        replicas = partition.replicas
        if broker_id not in replicas or partition.directory(broker_id) not in directories:
            return None
        return _without(broker_id, partition, is_lost=False)

    changer = PartitionChanger(state, settings, may_lead=_all_but(state, broker_id))
    return changer.step(state.index.with_isr_member(broker_id), target_of)


def unregistered_directories_step(
    state: ControllerState,
    settings: ControllerSettings,
    broker_id: int,
    directories: Collection[UUID],
) -> Step:
    """A living broker names these directories and no others: what it has in others is lost."""

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        if not _is_elsewhere(partition, broker_id, directories):
            return None
        return _without(broker_id, partition, is_lost=True)

    changer = PartitionChanger(state, settings, may_lead=_all_but(state, broker_id))
    return changer.step(_believed(state, broker_id), target_of)


def _all_but(state: ControllerState, broker_id: int) -> Callable[[int], bool]:
    return lambda candidate: candidate != broker_id and state.is_active(candidate)
