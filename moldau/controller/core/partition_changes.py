"""What becomes of partitions when anything about them, or about their brokers, is to change.

Owns: the transition of one partition (ISR, eligible leaders of KIP-966, the choice of the leader,
the end of a reassignment of KIP-455) with its record, and the PartitionChangeRecords for a broker
that stops, is lost, loses directories, or is back. Must not: register or fence brokers. Invariants:
a clean election takes a member of the ISR or an eligible leader replica; anything else is marked as
recovering, with the leader alone in the ISR. Once the last step is applied, a broker that is about
to be fenced leads nothing; a step changes at most `max_changes_per_step` partitions, and what it
leaves over is found by the next one in the index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from typing import Final, NamedTuple
from uuid import UUID

from moldau.controller.core.partition_index import PartitionKey
from moldau.controller.core.placement import default_directory
from moldau.controller.core.result import VersionedRecord
from moldau.controller.core.state import ControllerState, is_named_directory
from moldau.metadata.features import (
    DIRECTORY_ASSIGNMENT_LEVEL,
    ISR_SHRINK_KEEPS_LEADER_EPOCH_LEVEL,
    partition_record_version,
)
from moldau.metadata.image import NO_LEADER, PartitionRegistration, TopicImage
from moldau.metadata.image.topics import or_old
from moldau.metadata.image.values import LOST_DIRECTORY, NO_LEADER_CHANGE, RECOVERED, RECOVERING
from moldau.protocol.metadata_records import PartitionChangeRecord

NOT_NAMED: Final = -1
"""A leader recovery state that a record leaves as it is."""
NO_LISTS: Final = (None,) * 7


class Election(Enum):
    """How far an election may go.

    ONLINE keeps a leader that still may lead. PREFERRED takes the first replica if it may lead.
    UNCLEAN lets any live replica lead when no replica in sync can.
    """

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class ElectionRules(NamedTuple):
    """How a partition's topic wants its leaders chosen, and how records are written.

    `min_insync_replicas` counts only while eligible leader replicas are enabled; it is capped by
    the number of replicas.
    """

    eligible_leader_replicas_enabled: bool
    min_insync_replicas: int
    election: Election = Election.ONLINE
    metadata_level: int = 0


class PartitionTarget(NamedTuple):
    """What a partition is to become; None leaves a part as it is.

    `lost` are brokers that may have lost flushed data (an unclean stop, a damaged log): they are
    not in `isr`, and leave the eligible leaders too. `gone` are those of them whose log certainly
    is not where it was: they are no last known leaders either, and even the last member leaves the
    ISR. `directories` names log directories of single replicas.
    """

    isr: Sequence[int] | None = None
    replicas: Sequence[int] | None = None
    removing_replicas: Sequence[int] | None = None
    adding_replicas: Sequence[int] | None = None
    leader_recovery_state: int | None = None
    lost: Collection[int] = ()
    gone: Collection[int] = ()
    directories: dict[int, UUID] | None = None


UNCHANGED: Final = PartitionTarget()


def change_partition(
    topic_id: UUID,
    partition_index: int,
    partition: PartitionRegistration,
    target: PartitionTarget,
    is_acceptable: Callable[[int], bool],
    rules: ElectionRules,
    default_directory: Callable[[int], UUID],
) -> VersionedRecord | None:
    """The record that takes the partition to its target, None when it has reached it already.

    Args:
        is_acceptable: whether a broker may lead now.
        default_directory: the log directory of a replica that is new on its broker.
    """
    transition = _Transition(partition, target, is_acceptable, rules)
    transition.complete_reassignment()
    transition.find_eligible_leaders()
    transition.elect()
    record = transition.record(topic_id, partition_index, default_directory)
    return None if record is None else (record, partition_record_version(rules.metadata_level))


class _Transition:
    """One partition's change: first the reassignment, then eligible leaders, then the leader."""

    def __init__(
        self,
        partition: PartitionRegistration,
        target: PartitionTarget,
        is_acceptable: Callable[[int], bool],
        rules: ElectionRules,
    ) -> None:
        self.partition = partition
        self.rules = rules
        self.is_acceptable = is_acceptable
        self.isr = or_old(target.isr, partition.isr)
        self.replicas = or_old(target.replicas, partition.replicas)
        self.removing = or_old(target.removing_replicas, partition.removing_replicas)
        self.adding = or_old(target.adding_replicas, partition.adding_replicas)
        # While they are not counted, those of a partition with an ISR are of an earlier time.
        counts = rules.eligible_leader_replicas_enabled or not partition.isr
        self.elr = partition.elr if counts else ()
        self.gone = target.gone
        self.last_known_elr = self._without_gone(partition.last_known_elr)
        self.leader = partition.leader
        self.lost = target.lost
        self.directories = target.directories
        self.was_unclean = False
        self.recovery_state = (
            partition.leader_recovery_state
            if target.leader_recovery_state is None
            else target.leader_recovery_state
        )

    def _without_gone(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(replica for replica in replicas if replica not in self.gone)

    def complete_reassignment(self) -> None:
        """Once all added replicas are in sync, the removed ones go (KIP-455).

        When fewer come than go, all that stay must be in sync first, or the partition would be
        left with fewer copies than was asked for.
        """
        if not self.removing and not self.adding:
            return
        isr = tuple(replica for replica in self.isr if replica not in self.removing)
        replicas = tuple(replica for replica in self.replicas if replica not in self.removing)
        needed = replicas if len(self.adding) < len(self.removing) else self.adding
        if not isr or not set(needed).issubset(isr):
            return
        self.isr, self.replicas = isr, replicas
        self.removing = self.adding = ()

    def find_eligible_leaders(self) -> None:
        """While the ISR is smaller than `min.insync.replicas`, nothing can be committed, so
        a replica that leaves it still holds everything committed: these are the eligible leaders
        (KIP-966).
        """
        if not self.rules.eligible_leader_replicas_enabled:
            return
        partition = self.partition
        if self._is_isr_large_enough():
            self.elr = ()
            return
        self.elr = tuple(
            replica
            for replica in dict.fromkeys((*partition.elr, *partition.isr))
            if replica in self.replicas and replica not in self.isr and replica not in self.lost
        )

    def _is_isr_large_enough(self) -> bool:
        return len(self.isr) >= min(self.rules.min_insync_replicas, len(self.replicas))

    def elect(self) -> None:
        """Choose the leader, and fit ISR and eligible leaders to it."""
        self.leader, self.was_unclean = self._elected()
        if self.was_unclean:
            self.isr = (self.leader,)
            self.recovery_state = RECOVERING
        elif self.leader in self.elr and self.leader not in self.isr:
            self.isr = (self.leader,)
            self.elr = tuple(replica for replica in self.elr if replica != self.leader)
            if self._is_isr_large_enough():
                # `min.insync.replicas` was lowered since: the leader may commit alone from now on,
                # and replicas that do not follow it are not eligible any more.
                self.elr = ()

    def _elected(self) -> tuple[int, bool]:
        election = self.rules.election
        current = self.partition.leader
        if election is Election.PREFERRED and self._may_lead(self.replicas[0]):
            return self.replicas[0], False
        if self._may_lead(current):
            return current, False
        for replica in self.replicas:
            if self._may_lead(replica):
                return replica, False
        last_known = self.last_known_elr
        if (
            self.rules.eligible_leader_replicas_enabled
            and not self.elr
            and len(last_known) == 1
            and last_known[0] in self.replicas
            and self.is_acceptable(last_known[0])
        ):
            return last_known[0], True
        if election is Election.UNCLEAN:
            for replica in self.replicas:
                if self.is_acceptable(replica):
                    return replica, True
        return NO_LEADER, False

    def _may_lead(self, replica: int) -> bool:
        eligible = self.isr or self.elr
        return replica in eligible and self.is_acceptable(replica)

    def record(
        self, topic_id: UUID, partition_index: int, default_directory: Callable[[int], UUID]
    ) -> PartitionChangeRecord | None:
        """What differs from the partition as it was; None when nothing does."""
        partition = self.partition
        record = PartitionChangeRecord(partition_id=partition_index, topic_id=topic_id)
        self._record_leader(record)
        self._record_eligible_leaders(record)
        if self.replicas != partition.replicas:
            record.replicas = list(self.replicas)
        if self.removing != partition.removing_replicas:
            record.removing_replicas = list(self.removing)
        if self.adding != partition.adding_replicas:
            record.adding_replicas = list(self.adding)
        self._record_directories(record, default_directory)
        lists = (
            record.isr,
            record.replicas,
            record.removing_replicas,
            record.adding_replicas,
            record.directories,
            record.eligible_leader_replicas,
            record.last_known_elr,
        )
        is_blank = record.leader == NO_LEADER_CHANGE and record.leader_recovery_state == NOT_NAMED
        return None if is_blank and lists == NO_LISTS else record

    def _record_leader(self, record: PartitionChangeRecord) -> None:
        partition = self.partition
        may_be_empty = self.rules.eligible_leader_replicas_enabled or self.gone
        if self.isr != partition.isr and (self.isr or may_be_empty):
            record.isr = list(self.isr)
        if self.leader != partition.leader or self._needs_leader_epoch(record):
            record.leader = self.leader
        assert record.leader != NO_LEADER_CHANGE or self.leader == partition.leader
        if self.recovery_state != partition.leader_recovery_state:
            assert self.recovery_state in (RECOVERED, RECOVERING)
            record.leader_recovery_state = self.recovery_state

    def _needs_leader_epoch(self, record: PartitionChangeRecord) -> bool:
        """Whether the leader has to forget how far its followers are, although it stays: a replica
        that goes, or whose log is lost, may be back with less. A fetch of its former log, and a
        proposal to let that into the ISR, are of an older leader epoch from now on.
        """
        partition = self.partition
        if not set(partition.replicas).issubset(self.replicas):
            return True
        if any(
            directory == LOST_DIRECTORY != partition.directory(replica)
            for replica, directory in (self.directories or {}).items()
        ):
            return True
        return (
            record.isr is not None
            and not set(partition.isr).issubset(self.isr)
            and self.rules.metadata_level < ISR_SHRINK_KEEPS_LEADER_EPOCH_LEVEL
        )

    def _record_eligible_leaders(self, record: PartitionChangeRecord) -> None:
        partition = self.partition
        if self.was_unclean or not self.rules.eligible_leader_replicas_enabled:
            self.elr = self.last_known_elr = ()
        elif record.leader == NO_LEADER and partition.leader != NO_LEADER:
            self.last_known_elr = self._without_gone((partition.leader,))
        elif record.leader >= 0:
            self.last_known_elr = ()
        if self.elr != partition.elr:
            record.eligible_leader_replicas = list(self.elr)
        if self.last_known_elr != partition.last_known_elr:
            record.last_known_elr = list(self.last_known_elr)

    def _record_directories(
        self, record: PartitionChangeRecord, default_directory: Callable[[int], UUID]
    ) -> None:
        """Kept replicas keep their directories, new ones get their broker's (KIP-858)."""
        partition = self.partition
        if self.rules.metadata_level < DIRECTORY_ASSIGNMENT_LEVEL:
            return
        if self.replicas == partition.replicas and not self.directories:
            return
        known = dict(zip(partition.replicas, partition.directories, strict=True))
        known.update(self.directories or {})
        directories = [
            known[replica] if replica in known else default_directory(replica)
            for replica in self.replicas
        ]
        if self.replicas != partition.replicas or directories != list(partition.directories):
            record.directories = directories


class Step(NamedTuple):
    """Records of one step, and whether it is the last one."""

    records: list[VersionedRecord]
    is_last: bool


class PartitionChanger:
    """Makes the records of one decision; remembers topics' rules and the live brokers for it, since
    none of them changes before the records are applied.

    `may_lead` says whether a broker counts as live in this decision; the directory of its replica
    is looked at besides.
    """

    def __init__(
        self,
        state: ControllerState,
        *,
        may_lead: Callable[[int], bool] | None = None,
        election: Election | None = None,
    ) -> None:
        """`election` None: unclean where the topic's configuration allows it, else online."""
        self._state = state
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
        """The record that takes a partition to its target, None when it has reached it already."""
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
        max_changes: int | None = None,
    ) -> Step:
        """Change candidates until the step is full; a target of None skips one.

        Args:
            max_changes: what makes a step full, if not `max_changes_per_step`.
        """
        topics = self._state.image.topics.topics_by_id
        if max_changes is None:
            max_changes = self._state.settings.max_changes_per_step
        records: list[VersionedRecord] = []
        for topic_id, partition_index in candidates:
            topic = topics.get(topic_id)
            partition = None if topic is None else topic.partitions.get(partition_index)
            target = None if partition is None else target_of(partition)
            if topic is None or partition is None or target is None:
                continue
            if len(records) == max_changes:
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
        state, election = self._state, self._election
        if election is None:
            is_allowed = state.unclean_election_allowed(topic_name)
            election = Election.UNCLEAN if is_allowed else Election.ONLINE
        return ElectionRules(
            eligible_leader_replicas_enabled=state.eligible_leader_replicas_enabled,
            min_insync_replicas=state.min_insync_replicas(topic_name),
            election=election,
            metadata_level=state.metadata_level,
        )


def leaving_step(
    state: ControllerState, broker_id: int, *, is_clean: bool, directories: Collection[UUID] = ()
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
            return None  # the last member stays, or no replica could ever lead again
        return _target_without(broker_id, partition, is_lost=is_lost)

    candidates: Iterable[PartitionKey] = state.index.with_isr_member(broker_id)
    if not is_clean or directories:
        candidates = _believed(state, broker_id)
    changer = PartitionChanger(state, may_lead=_all_but(state, broker_id))
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


def _target_without(
    broker_id: int, partition: PartitionRegistration, *, is_lost: bool
) -> PartitionTarget:
    isr = tuple(replica for replica in partition.isr if replica != broker_id)
    return PartitionTarget(isr=isr, lost=(broker_id,) if is_lost else ())


def return_step(state: ControllerState, broker_id: int) -> Step:
    """A broker may lead again: partitions without a leader may get one."""
    changer = PartitionChanger(
        state, may_lead=lambda candidate: candidate == broker_id or state.is_active(candidate)
    )

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        return UNCHANGED if broker_id in partition.replicas else None

    return changer.step(state.index.without_leader(), target_of)


def election_step(state: ControllerState, candidates: Iterable[PartitionKey]) -> Step:
    """Partitions without a leader get one if they can."""
    changer = PartitionChanger(state)

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        return UNCHANGED if partition.leader == NO_LEADER else None

    return changer.step(candidates, target_of)


def lost_directories_step(
    state: ControllerState, broker_id: int, directories: Collection[UUID]
) -> Step:
    """Directories of a broker failed: its replicas there leave every ISR (KIP-858).

    They stay eligible: the directory may be back as it was. Should it not, the broker's next start
    is an unclean one, or names the directory no more.
    """

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        replicas = partition.replicas
        if broker_id not in replicas or partition.directory(broker_id) not in directories:
            return None
        return _target_without(broker_id, partition, is_lost=False)

    changer = PartitionChanger(state, may_lead=_all_but(state, broker_id))
    return changer.step(state.index.with_isr_member(broker_id), target_of)


def unregistered_directories_step(
    state: ControllerState, broker_id: int, directories: Collection[UUID]
) -> Step:
    """A living broker names these directories and no others: what it has in others is lost."""

    def target_of(partition: PartitionRegistration) -> PartitionTarget | None:
        if not _is_elsewhere(partition, broker_id, directories):
            return None
        return _target_without(broker_id, partition, is_lost=True)

    changer = PartitionChanger(state, may_lead=_all_but(state, broker_id))
    return changer.step(_believed(state, broker_id), target_of)


def _all_but(state: ControllerState, broker_id: int) -> Callable[[int], bool]:
    return lambda candidate: candidate != broker_id and state.is_active(candidate)
