"""What must hold after every batch a controller writes.

The checker replays each batch into its own standby and keeps a model of where committed
records are: `holders` are the replicas that surely have all of them. It is given nothing but the
records, and of brokers that lost their unflushed tail.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import UUID

from moldau.controller.core.controller_core import ControllerCore
from moldau.controller.core.partition_index import PartitionIndex
from moldau.controller.core.result import MAX_RECORDS_PER_REQUEST, VersionedRecord
from moldau.controller.core.state import ControllerSettings
from moldau.metadata.features import (
    CONTROLLER_REGISTRATION_LEVEL,
    TRANSACTIONS_LEVEL,
    broker_registration_change_record_version,
    partition_record_version,
    register_broker_record_version,
)
from moldau.metadata.image import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    MetadataImage,
    PartitionRegistration,
    Provenance,
)
from moldau.protocol import metadata_records as kinds
from moldau.protocol.schema import Message

NO_LEADER = -1
PLACES_THAT_ARE_NONE = (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY, LOST_DIRECTORY)
RECOVERING = 1


class Violation(AssertionError):
    """An invariant does not hold."""


def require(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


class Checker:
    """A standby that looks at every batch."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self.standby = ControllerCore(settings, random.Random(0))
        self.holders: dict[tuple[UUID, int], set[int]] = {}
        self.reported: dict[tuple[UUID, int], set[int]] = {}
        """Whom a leader reports to have caught up, for as long as its request is decided."""
        self.is_unclean_asked = False

    @property
    def image(self) -> MetadataImage:
        return self.standby.state.image

    def on_batch(self, records: Sequence[VersionedRecord], last_offset: int) -> None:
        """Check a batch by itself, replay it, check what it led to."""
        require(len(records) <= 2 * MAX_RECORDS_PER_REQUEST, "a batch is too big")
        before = self.image
        self._check_versions(records)
        decoded: list[Message] = []
        for record, version in records:
            copy, _ = type(record).decode(record.to_bytes(version), version)
            require(copy == record, f"version {version} loses something of {record}")
            decoded.append(copy)
        self.standby.on_committed(decoded, Provenance(last_offset, 1, 1_000))
        if self.standby.may_snapshot:
            self._check_transitions(before, self.image)
            self._check_image(self.image)

    def on_lost_tail(self, broker_id: int) -> None:
        """A broker came back without what it had not flushed."""
        if self._counts_eligible_leaders:
            for holders in self.holders.values():
                holders.discard(broker_id)

    def copy_of_holders(self) -> dict[tuple[UUID, int], set[int]]:
        """The model as it is now, for going back to."""
        return {key: set(holders) for key, holders in self.holders.items()}

    @property
    def _counts_eligible_leaders(self) -> bool:
        return self.standby.state.eligible_leader_replicas_enabled

    # -- one batch -------------------------------------------------------------------------------

    def _check_versions(self, records: Sequence[VersionedRecord]) -> None:
        level = self.image.features.metadata_level
        for record, _version in records:
            if isinstance(record, kinds.FeatureLevelRecord) and record.name == "metadata.version":
                level = record.feature_level  # a bootstrap batch brings its own level
        limits = {
            kinds.PartitionRecord: partition_record_version(level),
            kinds.PartitionChangeRecord: partition_record_version(level),
            kinds.RegisterBrokerRecord: register_broker_record_version(level),
            kinds.BrokerRegistrationChangeRecord: broker_registration_change_record_version(level),
            kinds.RegisterControllerRecord: 0 if level >= CONTROLLER_REGISTRATION_LEVEL else -1,
            kinds.ClearElrRecord: 0 if partition_record_version(level) >= 2 else -1,
            kinds.BeginTransactionRecord: 0 if level >= TRANSACTIONS_LEVEL else -1,
        }
        for record, version in records:
            highest = limits.get(type(record), 0)
            require(version <= highest, f"level {level} does not know {record} v{version}")

    # -- from one image to the next --------------------------------------------------------------

    def _check_transitions(self, before: MetadataImage, after: MetadataImage) -> None:
        for broker_id, broker in after.cluster.brokers.items():
            old = before.cluster.brokers.get(broker_id)
            if old is not None:
                require(broker.broker_epoch >= old.broker_epoch, "a broker epoch went back")
                if broker.incarnation_id != old.incarnation_id:
                    require(broker.broker_epoch > old.broker_epoch, "an incarnation, no new epoch")
        for topic_id, topic in after.topics.topics_by_id.items():
            old_topic = before.topics.topics_by_id.get(topic_id)
            if topic is old_topic:
                continue
            for index, partition in topic.partitions.items():
                old_state = None if old_topic is None else old_topic.partitions.get(index)
                if old_state is None:
                    self.holders[topic_id, index] = set(partition.isr)
                elif partition is not old_state:
                    self._note_moved_logs(before, (topic_id, index), old_state, partition)
                    self._check_partition_change(topic_id, index, old_state, partition)
        for key in [key for key in self.holders if key[0] not in after.topics.topics_by_id]:
            del self.holders[key]
        self._commit_everywhere()

    def _note_moved_logs(
        self,
        before: MetadataImage,
        key: tuple[UUID, int],
        old: PartitionRegistration,
        new: PartitionRegistration,
    ) -> None:
        """A log that was in a directory its broker has no more is an empty one in its new place;
        one that is in no directory at all is lost.
        """
        for broker_id in set(old.replicas) & set(new.replicas):
            place = old.directory(broker_id)
            broker = before.cluster.brokers.get(broker_id)
            if broker is None or place in PLACES_THAT_ARE_NONE or not broker.directories:
                continue
            now = new.directory(broker_id)
            # Without eligible leaders the last member stays in the ISR until its log is back.
            is_lost = now == LOST_DIRECTORY and self._counts_eligible_leaders
            if is_lost or (now != place and place not in broker.directories):
                self.holders[key].discard(broker_id)

    def _check_partition_change(
        self, topic_id: UUID, index: int, old: PartitionRegistration, new: PartitionRegistration
    ) -> None:
        what = f"{topic_id}-{index}: {old} -> {new}"
        # Clearing eligible leaders is the one change that leaves the epochs alone.
        only_cleared = new == old._replace(elr=(), last_known_elr=())
        require(
            new.partition_epoch > old.partition_epoch or only_cleared, f"partition epoch {what}"
        )
        require(new.leader_epoch >= old.leader_epoch, f"leader epoch {what}")
        is_log_lost = any(
            new.directory(each) == LOST_DIRECTORY != old.directory(each)
            for each in set(old.replicas) & set(new.replicas)
        )
        if new.leader != old.leader or set(old.replicas) - set(new.replicas) or is_log_lost:
            require(new.leader_epoch > old.leader_epoch, f"the leader epoch must grow {what}")
        holders = self.holders[topic_id, index]
        holders |= self.reported.get((topic_id, index), set())
        gained = set(new.isr) - holders
        if new.leader not in (old.leader, NO_LEADER) and new.leader not in holders:
            gained.add(new.leader)
        if gained:
            require(
                new.leader_recovery_state == RECOVERING, f"unclean, not said so {what}, {holders}"
            )
            require(len(new.isr) == 1, f"a recovering leader is not alone {what}")
            require(self._may_be_unclean(topic_id, old, new), f"nobody allowed {what}, {holders}")
            self.holders[topic_id, index] = set(new.isr)

    def _may_be_unclean(
        self, topic_id: UUID, old: PartitionRegistration, new: PartitionRegistration
    ) -> bool:
        state = self.standby.state
        topic_name = state.image.topics.topics_by_id[topic_id].name
        is_last_leader = self._counts_eligible_leaders and old.last_known_elr == (new.leader,)
        return is_last_leader or self.is_unclean_asked or state.unclean_election_allowed(topic_name)

    def _commit_everywhere(self) -> None:
        """The worst that may happen: every leader that may commit does so, now."""
        state = self.standby.state
        for topic in state.image.topics.topics_by_id.values():
            needed = state.min_insync_replicas(topic.name)
            for index, partition in topic.partitions.items():
                enough = min(needed, len(partition.replicas))
                if partition.leader == NO_LEADER:
                    continue
                if len(partition.isr) >= enough or not self._counts_eligible_leaders:
                    self.holders[topic.topic_id, index] = set(partition.isr)

    # -- an image --------------------------------------------------------------------------------

    def _check_image(self, image: MetadataImage) -> None:
        brokers = image.cluster.brokers
        for topic in image.topics.topics_by_id.values():
            for index, partition in topic.partitions.items():
                what = f"{topic.name}-{index}: {partition}"
                replicas, isr, elr = partition.replicas, partition.isr, partition.elr
                require(replicas and len(set(replicas)) == len(replicas), f"replicas {what}")
                require(set(isr) <= set(replicas) and len(set(isr)) == len(isr), f"ISR {what}")
                require(set(elr) <= set(replicas) - set(isr), f"eligible leaders {what}")
                require(len(partition.directories) == len(replicas), f"directories {what}")
                if partition.leader != NO_LEADER:
                    leader = brokers.get(partition.leader)
                    require(partition.leader in isr, f"the leader is not in sync {what}")
                    require(
                        leader and not leader.fenced and not leader.in_controlled_shutdown,
                        f"the leader is not live {what}",
                    )
                for member in isr:
                    broker = brokers.get(member)
                    is_live = broker is not None and not broker.fenced
                    require(is_live or len(isr) == 1, f"a fenced broker is in the ISR {what}")
                if not isr:
                    require(partition.leader == NO_LEADER, f"leads with an empty ISR {what}")

    def check_quiet(self) -> None:
        """When nothing is half done: who can have a leader has one; the index is a scan's."""
        state = self.standby.state
        index = PartitionIndex()
        index.move({}, state.image.topics.topics_by_id)
        require(index == state.index, "the index is not what a scan finds")
        for topic in state.image.topics.topics_by_id.values():
            for number, partition in topic.partitions.items():
                if partition.leader == NO_LEADER:
                    able = [
                        each
                        for each in partition.isr or partition.elr
                        if state.is_active(each) and state.has_online_directory(partition, each)
                    ]
                    require(not able, f"{topic.name}-{number} could have a leader: {partition}")
                for each in (*partition.isr, *partition.elr):
                    holders = self.holders[topic.topic_id, number]
                    require(
                        each in holders or not self._counts_eligible_leaders,
                        f"{topic.name}-{number}: {each} may lack records: {partition}, {holders}",
                    )
