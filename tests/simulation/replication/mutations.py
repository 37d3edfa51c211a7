"""Bugs put into replication one at a time, to prove that the simulation finds such bugs.

Owns: how each is put in and taken out again. Must not: be active unless asked for.
Invariant: what a mutation returns undoes it completely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.broker.replica.context import ReplicationContext
from moldau.broker.replica.core.in_sync_set import InSyncSet
from moldau.broker.replica.core.partition_core import PartitionCore, ReplicaRole
from moldau.broker.replica.followed_partitions import FollowedPartition
from moldau.broker.replica.log_opener import LogOpener
from moldau.broker.replica.partition import Partition
from moldau.controller.core import cluster_control, partition_changes, replica_reports
from moldau.controller.core.cluster_control import ClusterControl
from moldau.controller.core.partition_changes import Election, PartitionTarget, Step
from moldau.metadata.image import NO_LEADER
from moldau.metadata.image.values import LOST_DIRECTORY
from moldau.protocol.errors import ErrorCode
from moldau.storage import log_directory
from moldau.storage.checkpoints import UNKNOWN_BROKER_EPOCH, CleanShutdown
from moldau.storage.found_partitions import FoundPartitions
from moldau.storage.producer_entry import ProducerUpdate
from moldau.storage.producer_state import ProducerState
from tests.simulation.replication.broker_directories import BrokerDirectories

Undo = Callable[[], None]


def _replaced(owner: Any, name: str, replacement: Any) -> Undo:
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    return lambda: setattr(owner, name, original)


def _both(first: Undo, second: Undo) -> Undo:
    def undo() -> None:
        second()
        first()

    return undo


# -- the leader: what counts as committed ----------------------------------------------------------


def own_end_is_high_watermark() -> Undo:
    """The high watermark follows the leader's own log, whatever followers have."""
    return _replaced(PartitionCore, "_replicated_end", lambda self, local_end: local_end)


def pending_shrink_counts() -> Undo:
    """Who is proposed to leave the ISR is not waited for, committed or not."""

    def update(self: Any) -> None:
        pending = self.pending
        self.maximal = self.committed if pending is None else frozenset(pending.isr)

    return _replaced(InSyncSet, "_update_maximal", update)


def pending_expansion_forgotten() -> Undo:
    """Who is proposed to join the ISR is not waited for, although it may be a member by now."""

    def update(self: Any) -> None:
        self.maximal = self.committed

    undo = _replaced(InSyncSet, "_update_maximal", update)
    return _both(undo, _replaced(PartitionCore, "_is_about_to_join", lambda *_: False))


def min_isr_ignored() -> Undo:
    """Records are committed however few are in sync."""
    return _replaced(PartitionCore, "is_under_min_isr", lambda self, min_insync_replicas: False)


def acknowledged_before_committed() -> Undo:
    """A leader answers acks=all as soon as its own log has the records."""
    original = PartitionCore.is_committed

    def is_committed(self: Any, required_offset: int, min_insync_replicas: int) -> Any:
        return original(self, min(required_offset, self.high_watermark), min_insync_replicas)

    return _replaced(PartitionCore, "is_committed", is_committed)


def new_leader_commits_all() -> Undo:
    """Who begins to lead takes all of its log for committed."""
    original = PartitionCore.apply_state

    def apply_state(self: Any, state: Any, *, log_end_offset: int, high_watermark: int) -> bool:
        begins = original(self, state, log_end_offset=log_end_offset, high_watermark=high_watermark)
        if begins:
            self.high_watermark = log_end_offset
        return begins

    return _replaced(PartitionCore, "apply_state", apply_state)


def high_watermark_back() -> Undo:
    """The high watermark is always the smallest end of all replicas that have said theirs, also
    when that is less than before.
    """

    def advance(self: Any, min_insync_replicas: int) -> bool:
        if self.role is not ReplicaRole.LEADER or self.is_under_min_isr(min_insync_replicas):
            return False
        before = self.high_watermark
        ends = [each.log_end_offset for each in self.followers.values()]
        self.high_watermark = min((end for end in ends if end >= 0), default=before)
        return bool(self.high_watermark != before)

    return _replaced(PartitionCore, "advance_high_watermark", advance)


# -- the leader: who is in sync --------------------------------------------------------------------


def joins_before_caught_up() -> Undo:
    """A follower joins the ISR with its first fetch, wherever its log ends."""

    def may_join(self: Any, progress: Any) -> bool:
        return self.in_sync.pending is None and self.cluster.is_isr_eligible(
            progress.replica_id, progress.broker_epoch
        )

    return _replaced(PartitionCore, "_may_join", may_join)


def lagging_stays_in_sync() -> Undo:
    """Nobody leaves the ISR for lagging, and nobody in it is waited for when it is silent."""
    original = PartitionCore._replicated_end

    def replicated_end(self: Any, local_end: int) -> int:
        now_ms, max_lag_ms = self.cluster.now_ms(), self.cluster.max_lag_ms
        known = self.followers
        self.followers = {
            replica_id: progress
            for replica_id, progress in known.items()
            if progress.is_caught_up(self._log_end_offset, now_ms, max_lag_ms)
        }
        end = original(self, local_end)
        self.followers = known
        return end

    return _replaced(PartitionCore, "_replicated_end", replicated_end)


# -- followers -------------------------------------------------------------------------------------


def truncates_to_high_watermark() -> Undo:
    """Who begins to follow cuts its log at its high watermark (before KIP-101)."""
    original = Partition.apply_state

    def apply_state(self: Any, state: Any) -> None:
        epoch = self.core.leader_epoch
        original(self, state)
        log, core = self.log, self.core
        if core.role is not ReplicaRole.FOLLOWER or core.leader_epoch == epoch:
            return
        if log is not None and not log.offline and log.truncate_to(log.high_watermark):
            core.high_watermark = log.high_watermark

    return _replaced(Partition, "apply_state", apply_state)


def never_truncates() -> Undo:
    """A follower does not say which epoch its log ends with, and so never learns of a fork."""
    original = FollowedPartition.position

    def position(self: Any) -> Any:
        found = original(self)
        return None if found is None else found._replace(last_fetched_epoch=-1)

    return _replaced(FollowedPartition, "position", position)


def any_leader_epoch_served() -> Undo:
    """Nobody compares the leader epoch of a request with its own, and followers append whatever
    comes, from whichever leader they asked.
    """
    undo = _replaced(PartitionCore, "check_leader_epoch", lambda self, current: ErrorCode.NONE)

    def is_still_at(_self: Any, log: Any, requested: Any) -> bool:
        return bool(log.log_end_offset == requested.fetch_offset)

    return _both(undo, _replaced(FollowedPartition, "_is_still_at", is_still_at))


def follower_believes_high_watermark() -> Undo:
    """Consumers of a follower are shown everything it has."""
    original = PartitionCore.follow_high_watermark

    def follow(self: Any, leader_high_watermark: int, log_end_offset: int) -> bool:
        return original(self, log_end_offset, log_end_offset)

    return _replaced(PartitionCore, "follow_high_watermark", follow)


# -- producers -------------------------------------------------------------------------------------


def retries_are_appended() -> Undo:
    """What an idempotent producer sends again is appended again."""
    undo = _replaced(ProducerState, "find_duplicate", lambda self, header: None)
    return _both(
        undo, _replaced(ProducerUpdate, "check_data", lambda self, header, verification: None)
    )


# -- unclean starts --------------------------------------------------------------------------------


def unclean_start_keeps_isr() -> Undo:
    """The controller lets a broker that lost its unflushed records keep its places."""
    original = cluster_control.leaving_step

    def leaving_step(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        if not is_clean:
            return Step([], is_last=True)
        return original(state, broker_id, is_clean=is_clean, **more)

    return _replaced(cluster_control, "leaving_step", leaving_step)


def unclean_start_stays_eligible() -> Undo:
    """The controller takes every start for a clean one."""
    original = cluster_control.leaving_step

    def leaving_step(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        return original(state, broker_id, is_clean=True, **more)

    return _replaced(cluster_control, "leaving_step", leaving_step)


def every_start_is_clean() -> Undo:
    """A broker takes every start for one after an orderly stop."""
    original = log_directory.read_clean_shutdown_marker

    def read(filesystem: Any, directory: str) -> CleanShutdown:
        return original(filesystem, directory) or CleanShutdown(0)

    return _replaced(log_directory, "read_clean_shutdown_marker", read)


def any_broker_epoch_joins() -> Undo:
    """Neither leader nor controller looks in which life a follower has fetched."""

    def is_isr_eligible(self: Any, broker_id: int, broker_epoch: int) -> bool:
        return True

    undo = _replaced(ReplicationContext, "is_isr_eligible", is_isr_eligible)
    return _both(undo, _replaced(replica_reports, "_is_eligible", lambda state, member: True))


# -- log directories -------------------------------------------------------------------------------


def _removed_directory_is_clean() -> Undo:
    def previous_broker_epoch(self: Any, found: Any) -> int:
        stops = [contents.clean_shutdown for contents in found]
        epochs = {UNKNOWN_BROKER_EPOCH if each is None else each.broker_epoch for each in stops}
        return epochs.pop() if len(epochs) == 1 else UNKNOWN_BROKER_EPOCH

    undo = _replaced(FoundPartitions, "previous_broker_epoch", previous_broker_epoch)
    return _both(undo, _replaced(FoundPartitions, "has_all", lambda *_: True))


def _missing_log_is_begun_empty() -> Undo:
    def directory_for(self: Any, partition: Any, assigned: Any, is_believed: bool) -> Any:
        return self._log_manager.directory_with_id(assigned)

    undo = _replaced(LogOpener, "_directory_for", directory_for)
    return _both(undo, _replaced(FoundPartitions, "note_missing", lambda *_: None))


def start_without_a_directory_is_clean() -> Undo:
    """A broker looks only at the log directories that it has read: in them the stop was orderly."""
    return _removed_directory_is_clean()


def missing_log_is_begun_empty() -> Undo:
    """A broker makes an empty log for a replica that should lie in a directory that is gone."""
    return _missing_log_is_begun_empty()


def brokers_of_kafka() -> Undo:
    """No injected bug of the controller: brokers do as Apache Kafka's do about a directory that was
    removed. The controller alone has to see to it that nothing is lost.
    """
    undo = _both(_removed_directory_is_clean(), _missing_log_is_begun_empty())
    return _both(undo, _replaced(BrokerDirectories, "are_honest", False))


def controller_believes_brokers() -> Undo:
    """As `brokers_of_kafka`, and the controller takes a replica for what it was that its broker has
    moved out of a directory that is gone.
    """
    undo = brokers_of_kafka()

    def is_clean(self: Any, existing: Any, request: Any, directories: Any) -> bool:
        return bool(existing and request.previous_broker_epoch == existing.broker_epoch)

    def assign(state: Any, changer: Any, wanted: Any, key: Any) -> Any:
        broker_id, directory_id, is_online = wanted
        topic = state.image.topics.topics_by_id.get(key[0])
        partition = None if topic is None else topic.partitions.get(key[1])
        if partition is None or broker_id not in partition.replicas:
            return original(state, changer, wanted, key)
        target = PartitionTarget(
            isr=tuple(each for each in partition.isr if is_online or each != broker_id),
            lost=(broker_id,) if directory_id == LOST_DIRECTORY else (),
            directories={broker_id: directory_id},
        )
        return changer.change(topic, key[1], partition, target)

    original = replica_reports._assign
    undo = _both(undo, _replaced(replica_reports, "_assign", assign))
    undo = _both(undo, _replaced(ClusterControl, "_is_clean", is_clean))
    return _both(undo, _replaced(partition_changes, "is_named_directory", lambda *_: True))


def unclean_election_takes_the_first_only() -> Undo:
    """No other replica may lead by an unclean election, however alive it is."""
    original = partition_changes._Transition._elected

    def elected(self: Any) -> tuple[int, bool]:
        leader, is_unclean = original(self)
        if self.rules.election is Election.UNCLEAN and is_unclean and leader != self.replicas[0]:
            return NO_LEADER, False
        return leader, is_unclean

    return _replaced(partition_changes._Transition, "_elected", elected)


def offline_log_keeps_its_name() -> Undo:
    """A log in a directory that failed stands in the way of a later topic of the same name."""
    return _replaced(FoundPartitions, "release_name", lambda *_, **__: None)


# -- what leaders and controllers know of each other -----------------------------------------------


def answer_overtakes_metadata() -> Undo:
    """Who left the ISR by an answer is not waited for, before the metadata say under which minimum
    that was.
    """

    def update(self: Any) -> None:
        proposed = () if self.pending is None else self.pending.isr
        self.maximal = self.committed.union(self.refused, proposed)

    return _replaced(InSyncSet, "_update_maximal", update)


def late_copy_is_forgotten() -> Undo:
    """A refused addition to the ISR is not waited for, although a copy may be on its way."""
    original = InSyncSet.answered

    def answered(self: Any, change: Any, error: Any, state: Any) -> Any:
        answer = original(self, change, error, state)
        self.refused = frozenset()
        self._update_maximal()
        return answer

    return _replaced(InSyncSet, "answered", answered)


MUTATIONS: dict[str, Callable[[], Undo]] = {
    mutation.__name__.replace("_", "-"): mutation
    for mutation in (
        own_end_is_high_watermark,
        pending_shrink_counts,
        pending_expansion_forgotten,
        min_isr_ignored,
        acknowledged_before_committed,
        new_leader_commits_all,
        high_watermark_back,
        joins_before_caught_up,
        lagging_stays_in_sync,
        truncates_to_high_watermark,
        never_truncates,
        any_leader_epoch_served,
        follower_believes_high_watermark,
        retries_are_appended,
        unclean_start_keeps_isr,
        unclean_start_stays_eligible,
        every_start_is_clean,
        any_broker_epoch_joins,
        start_without_a_directory_is_clean,
        missing_log_is_begun_empty,
        brokers_of_kafka,
        controller_believes_brokers,
        unclean_election_takes_the_first_only,
        offline_log_keeps_its_name,
        answer_overtakes_metadata,
        late_copy_is_forgotten,
    )
}
