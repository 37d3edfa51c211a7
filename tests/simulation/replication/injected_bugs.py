"""Bugs put into replication one at a time, to prove that the simulation finds such bugs.

Owns: what each replaces, and which faults bring it to light. Must not: be active unless asked for.
"""

from __future__ import annotations

import errno
from typing import Any

from moldau.broker.replica import delayed_produce
from moldau.broker.replica.context import ReplicationContext
from moldau.broker.replica.core.in_sync_set import InSyncSet
from moldau.broker.replica.core.partition_core import PartitionCore, ReplicaRole
from moldau.broker.replica.followed_partitions import FollowedPartition
from moldau.broker.replica.log_opener import LogOpener
from moldau.broker.replica.partition import Partition
from moldau.broker.replica.replica_manager import ReplicaManager
from moldau.client.cluster import metadata_cache
from moldau.client.consumer.fetcher import Fetcher
from moldau.client.producer.core.accumulator import Accumulator
from moldau.client.producer.core.queues import PartitionQueue, TopicQueues
from moldau.client.producer.core.results import Results
from moldau.client.producer.sender import Sender
from moldau.controller.core import cluster_control, partition_changes, replica_reports
from moldau.controller.core.cluster_control import ClusterControl
from moldau.controller.core.partition_changes import Election, PartitionTarget, Step
from moldau.metadata.image import NO_LEADER
from moldau.metadata.image.values import LOST_DIRECTORY
from moldau.protocol.errors import ErrorCode
from moldau.storage import faults, log_directory
from moldau.storage.batch_scan import BatchOrder
from moldau.storage.checkpoints import UNKNOWN_BROKER_EPOCH, CleanShutdown
from moldau.storage.found_partitions import FoundPartitions
from moldau.storage.leader_epoch_cache import EpochComparison
from moldau.storage.producer_entry import ProducerUpdate
from moldau.storage.producer_state import ProducerState
from tests.kit.injected_bugs import InjectedBug, Patch, table
from tests.simulation.replication.broker_directories import BrokerDirectories

MOST_AT_ONCE = 5

# -- the leader: what counts as committed ----------------------------------------------------------


def own_end_is_high_watermark(patch: Patch) -> None:
    """The high watermark follows the leader's own log, whatever followers have."""
    patch.setattr(PartitionCore, "_replicated_end", lambda self, local_end: local_end)


def pending_shrink_counts(patch: Patch) -> None:
    """Who is proposed to leave the ISR is not waited for, committed or not."""

    def update(self: Any) -> None:
        pending = self.pending
        self.maximal = self.committed if pending is None else frozenset(pending.isr)

    patch.setattr(InSyncSet, "_update_maximal", update)


def pending_expansion_forgotten(patch: Patch) -> None:
    """Who is proposed to join the ISR is not waited for, although it may be a member by now."""

    def update(self: Any) -> None:
        self.maximal = self.committed

    patch.setattr(InSyncSet, "_update_maximal", update)
    patch.setattr(PartitionCore, "_is_about_to_join", lambda *_: False)


def min_isr_ignored(patch: Patch) -> None:
    """Records are committed however few are in sync."""
    patch.setattr(PartitionCore, "is_under_min_isr", lambda self, min_insync_replicas: False)


def acknowledged_before_committed(patch: Patch) -> None:
    """A leader answers acks=all as soon as its own log has the records."""
    original = PartitionCore.is_committed

    def is_committed(self: Any, required_offset: int, min_insync_replicas: int) -> Any:
        return original(self, min(required_offset, self.high_watermark), min_insync_replicas)

    patch.setattr(PartitionCore, "is_committed", is_committed)


def new_leader_commits_all(patch: Patch) -> None:
    """Who begins to lead takes all of its log for committed."""
    original = PartitionCore.apply_state

    def apply_state(self: Any, state: Any, *, log_end_offset: int, high_watermark: int) -> bool:
        begins = original(self, state, log_end_offset=log_end_offset, high_watermark=high_watermark)
        if begins:
            self.high_watermark = log_end_offset
        return begins

    patch.setattr(PartitionCore, "apply_state", apply_state)


def high_watermark_back(patch: Patch) -> None:
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

    patch.setattr(PartitionCore, "advance_high_watermark", advance)


# -- the leader: who is in sync --------------------------------------------------------------------


def joins_before_caught_up(patch: Patch) -> None:
    """A follower joins the ISR with its first fetch, wherever its log ends."""

    def may_join(self: Any, progress: Any) -> bool:
        return self.in_sync.pending is None and self.cluster.is_isr_eligible(
            progress.replica_id, progress.broker_epoch
        )

    patch.setattr(PartitionCore, "_may_join", may_join)


def lagging_stays_in_sync(patch: Patch) -> None:
    """No replica leaves the ISR for lagging, and the leader waits for no silent one in it."""
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

    patch.setattr(PartitionCore, "_replicated_end", replicated_end)


# -- followers -------------------------------------------------------------------------------------


def truncates_to_high_watermark(patch: Patch) -> None:
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

    patch.setattr(Partition, "apply_state", apply_state)


def never_truncates(patch: Patch) -> None:
    """A follower does not say which epoch its log ends with, and so never learns of a fork."""
    original = FollowedPartition.position

    def position(self: Any) -> Any:
        found = original(self)
        return None if found is None else found._replace(last_fetched_epoch=-1)

    patch.setattr(FollowedPartition, "position", position)


def any_leader_epoch_served(patch: Patch) -> None:
    """No replica compares the leader epoch of a request with its own, and followers append whatever
    comes, from whichever leader they asked.
    """
    patch.setattr(PartitionCore, "check_leader_epoch", lambda self, current: ErrorCode.NONE)

    def is_still_at(_self: Any, log: Any, requested: Any) -> bool:
        return bool(log.log_end_offset == requested.fetch_offset)

    patch.setattr(FollowedPartition, "_is_still_at", is_still_at)


def follower_believes_high_watermark(patch: Patch) -> None:
    """Consumers of a follower are shown everything it has."""
    original = PartitionCore.follow_high_watermark

    def follow(self: Any, leader_high_watermark: int, log_end_offset: int) -> bool:
        return original(self, log_end_offset, log_end_offset)

    patch.setattr(PartitionCore, "follow_high_watermark", follow)


def header_bits_believed(patch: Patch) -> None:
    """Base offsets and leader epochs of batches are taken as they are, wherever a log is read."""

    def check(self: Any, _position: int, header: Any) -> None:
        self.next_offset = header.next_offset

    patch.setattr(BatchOrder, "check", check)
    patch.setattr(EpochComparison, "difference", lambda *_a: "")


# -- producers -------------------------------------------------------------------------------------


def retries_are_appended(patch: Patch) -> None:
    """What an idempotent producer sends again is appended again."""
    patch.setattr(ProducerState, "find_duplicate", lambda self, header: None)
    patch.setattr(ProducerUpdate, "check_data", lambda self, header, verification: None)


# -- unclean starts --------------------------------------------------------------------------------


def unclean_start_keeps_isr(patch: Patch) -> None:
    """The controller lets a broker that lost its unflushed records keep its places."""
    original = cluster_control.leaving_step

    def leaving_step(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        if not is_clean:
            return Step([], is_last=True)
        return original(state, broker_id, is_clean=is_clean, **more)

    patch.setattr(cluster_control, "leaving_step", leaving_step)


def unclean_start_stays_eligible(patch: Patch) -> None:
    """The controller takes every start for a clean one."""
    original = cluster_control.leaving_step

    def leaving_step(state: Any, broker_id: int, *, is_clean: bool, **more: Any) -> Step:
        return original(state, broker_id, is_clean=True, **more)

    patch.setattr(cluster_control, "leaving_step", leaving_step)


def every_start_is_clean(patch: Patch) -> None:
    """A broker takes every start for one after an orderly stop."""
    original = log_directory.read_clean_shutdown_marker

    def read(filesystem: Any, directory: str) -> CleanShutdown:
        return original(filesystem, directory) or CleanShutdown(0)

    patch.setattr(log_directory, "read_clean_shutdown_marker", read)


def any_broker_epoch_joins(patch: Patch) -> None:
    """Neither leader nor controller looks in which life a follower has fetched."""

    def is_isr_eligible(self: Any, broker_id: int, broker_epoch: int) -> bool:
        return True

    patch.setattr(ReplicationContext, "is_isr_eligible", is_isr_eligible)
    patch.setattr(replica_reports, "_is_eligible", lambda state, member: True)


# -- log directories -------------------------------------------------------------------------------


def start_without_a_directory_is_clean(patch: Patch) -> None:
    """A broker looks only at the log directories that it has read: in them the stop was orderly."""

    def previous_broker_epoch(self: Any, found: Any) -> int:
        stops = [contents.clean_shutdown for contents in found]
        epochs = {UNKNOWN_BROKER_EPOCH if each is None else each.broker_epoch for each in stops}
        return epochs.pop() if len(epochs) == 1 else UNKNOWN_BROKER_EPOCH

    patch.setattr(FoundPartitions, "previous_broker_epoch", previous_broker_epoch)
    patch.setattr(FoundPartitions, "has_all", lambda *_: True)


def missing_log_is_begun_empty(patch: Patch) -> None:
    """A broker makes an empty log for a replica that should lie in a directory that is gone."""

    def directory_for(self: Any, partition: Any, assigned: Any, is_believed: bool) -> Any:
        return self._log_manager.directories.with_id(assigned)

    patch.setattr(LogOpener, "_directory_for", directory_for)
    patch.setattr(FoundPartitions, "note_missing", lambda *_: None)


def brokers_of_kafka(patch: Patch) -> None:
    """No injected bug of the controller: brokers do as Apache Kafka's do about a directory that was
    removed. The controller alone has to see to it that nothing is lost.
    """
    start_without_a_directory_is_clean(patch)
    missing_log_is_begun_empty(patch)
    patch.setattr(BrokerDirectories, "are_honest", False)


def controller_believes_brokers(patch: Patch) -> None:
    """As `brokers_of_kafka`, and the controller takes a replica for what it was that its broker has
    moved out of a directory that is gone.
    """
    brokers_of_kafka(patch)

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
    patch.setattr(replica_reports, "_assign", assign)
    patch.setattr(ClusterControl, "_is_clean", is_clean)
    patch.setattr(partition_changes, "is_named_directory", lambda *_: True)


def unclean_election_takes_the_first_only(patch: Patch) -> None:
    """No other replica may lead by an unclean election, however alive it is."""
    original = partition_changes._Transition._elected

    def elected(self: Any) -> tuple[int, bool]:
        leader, is_unclean = original(self)
        if self.rules.election is Election.UNCLEAN and is_unclean and leader != self.replicas[0]:
            return NO_LEADER, False
        return leader, is_unclean

    patch.setattr(partition_changes._Transition, "_elected", elected)


def offline_log_keeps_its_name(patch: Patch) -> None:
    """A log in a directory that failed stands in the way of a later topic of the same name."""
    patch.setattr(FoundPartitions, "release_name", lambda *_, **__: None)


def log_begun_under_the_old_epoch(patch: Patch) -> None:
    """A broker begins a damaged log again as soon as its metadata shows the replica out of ISR and
    ELR, whatever its leader has proposed.
    """
    original = ReplicaManager._look_after_damage

    def look_after_damage(self: Any, partition: Any, registration: Any) -> None:
        partition.damaged_in_epoch = -1
        original(self, partition, registration)

    patch.setattr(ReplicaManager, "_look_after_damage", look_after_damage)


def failed_disk_counts_as_full(patch: Patch) -> None:
    """A broker takes a broken or read-only disk for a full one: it tries again and again."""
    original = faults._OUT_OF_ROOM_ERRNOS
    patch.setattr(faults, "_OUT_OF_ROOM_ERRNOS", original | {errno.EIO, errno.EROFS})


# -- what leaders and controllers know of each other -----------------------------------------------


def answer_overtakes_metadata(patch: Patch) -> None:
    """Who left the ISR by an answer is not waited for, before the metadata say under which minimum
    that was.
    """

    def update(self: Any) -> None:
        proposed = () if self.pending is None else self.pending.isr
        self.maximal = self.committed.union(self.refused, proposed)

    patch.setattr(InSyncSet, "_update_maximal", update)


def late_copy_is_forgotten(patch: Patch) -> None:
    """A refused addition to the ISR is not waited for, although a copy may be on its way."""
    original = InSyncSet.answered

    def answered(self: Any, change: Any, error: Any, state: Any) -> Any:
        answer = original(self, change, error, state)
        self.refused = frozenset()
        self._update_maximal()
        return answer

    patch.setattr(InSyncSet, "answered", answered)


def former_leader_misses_sequences(patch: Patch) -> None:
    """A leader that may have been replaced refuses sequences that its successor may know."""
    patch.setattr(delayed_produce, "TOLD_BY_THE_LEADER", frozenset())


# -- the product's clients -------------------------------------------------------------------------


def answer_wakes_no_sender(patch: Patch) -> None:
    """A lost wake-up: what waits behind a batch is not looked at when the answer comes."""
    original = Sender._answered

    def answered(self: Any, *arguments: Any) -> None:
        self.wake = lambda: None
        original(self, *arguments)
        del self.wake

    patch.setattr(Sender, "_answered", answered)


def older_leader_is_believed(patch: Patch) -> None:
    """A stale metadata answer is applied, although a newer leader epoch is known."""
    original = metadata_cache._merged
    patch.setattr(metadata_cache, "_merged", lambda _known, *others: original(None, *others))


def retries_go_to_the_former_leader(patch: Patch) -> None:
    """A partition keeps the leader that its batches went to first, until all are acknowledged."""
    original = TopicQueues.set_leaders

    def set_leaders(self: Any, leaders: Any, *topic_id: Any) -> None:
        kept = [
            (queue.leader_id, queue.leader_epoch) if queue.outstanding else leader
            for queue, leader in zip(self.queues, leaders, strict=False)
        ]
        original(self, [*kept, *leaders[len(kept) :]], *topic_id)

    patch.setattr(TopicQueues, "set_leaders", set_leaders)


def retried_behind_the_next(patch: Patch) -> None:
    """A batch that waits to be sent again lets the next one go first, with no numbers to order
    them.
    """
    original = Accumulator._may_start

    def may_start(self: Any, queue: Any) -> bool:
        return original(self, queue) if self.identity else len(queue.outstanding) < MOST_AT_ONCE

    patch.setattr(Accumulator, "_may_start", may_start)
    patch.setattr(
        PartitionQueue,
        "is_retrying",
        lambda self: (
            any(not batch.is_on_wire for batch in self.outstanding)
            and (self.pair.is_known or not self.batch_count)
        ),
    )


def unanswered_gets_new_numbers(patch: Patch) -> None:
    """A batch whose answer is lost is sent again as one that was never sent."""
    original = Sender._answered

    def answered(self: Any, node_id: int, call: Any, answer: Any) -> None:
        if answer.cancelled() or answer.exception() is not None:
            for batch in call.batches.values():
                queue = self._accumulator.queue_of(batch)
                if batch.is_numbered and queue.outstanding == [batch]:
                    queue.number(batch)
        original(self, node_id, call, answer)

    patch.setattr(Sender, "_answered", answered)


def close_forgets(patch: Patch) -> None:
    """A producer that is closed decides nothing about what was not acknowledged in time."""
    patch.setattr(Results, "fail_all", lambda self, error: None)


def stale_fetch_is_taken(patch: Patch) -> None:
    """A consumer takes what it had asked for before a seek."""
    patch.setattr(Fetcher, "_is_current", lambda self, asked: True)


BUGS = table(
    InjectedBug(own_end_is_high_watermark, 1, ("kill_broker",)),
    InjectedBug(pending_shrink_counts, 3, ("isolate_broker", "cut_replication")),
    InjectedBug(pending_expansion_forgotten, faults=("isolate_broker", "slow_network")),
    InjectedBug(min_isr_ignored, 2, ("kill_broker",)),
    InjectedBug(acknowledged_before_committed, 1, ("kill_broker", "cut_replication")),
    InjectedBug(new_leader_commits_all, 2, ("kill_broker", "cut_replication")),
    InjectedBug(high_watermark_back, 1, ("kill_broker", "cut_replication")),
    InjectedBug(joins_before_caught_up, 3, ("kill_broker", "cut_replication")),
    InjectedBug(lagging_stays_in_sync, 3, ("isolate_broker", "cut_replication")),
    InjectedBug(truncates_to_high_watermark, 1, ("kill_broker", "broker_leaves")),
    InjectedBug(never_truncates, 2, ("isolate_broker", "stop_broker", "cut_replication")),
    InjectedBug(
        any_leader_epoch_served, faults=("isolate_broker", "stop_broker", "cut_replication")
    ),
    InjectedBug(follower_believes_high_watermark, faults=("cut_replication",)),
    InjectedBug(header_bits_believed, 29, ("flip_header_bit", "wipe_disk")),
    InjectedBug(retries_are_appended, 2, ("reset", "cut_replication")),
    InjectedBug(unclean_start_keeps_isr, 2, ("lose_power", "kill_broker")),
    InjectedBug(unclean_start_stays_eligible, 2, ("lose_power", "kill_broker")),
    InjectedBug(every_start_is_clean, 2, ("lose_power",)),
    InjectedBug(any_broker_epoch_joins, faults=("lose_power", "kill_broker")),
    InjectedBug(start_without_a_directory_is_clean, 3, ("remove_directory", "broker_leaves")),
    InjectedBug(missing_log_is_begun_empty, 40, ("remove_directory",)),
    InjectedBug(brokers_of_kafka),
    InjectedBug(
        controller_believes_brokers,
        3,
        ("remove_directory_in_the_dark",),
        is_found_beside="brokers-of-kafka",
    ),
    InjectedBug(unclean_election_takes_the_first_only, 14, ("wipe_disk", "kill_controller")),
    InjectedBug(offline_log_keeps_its_name, 7, ("fail_directory",)),
    InjectedBug(log_begun_under_the_old_epoch),
    InjectedBug(answer_overtakes_metadata, 2, ("raise_minimum",)),
    InjectedBug(late_copy_is_forgotten, 28, ("unsettle",)),
    InjectedBug(former_leader_misses_sequences, 3, ("come_back_alone",)),
    InjectedBug(answer_wakes_no_sender, 3, ("kill_broker",)),
    InjectedBug(older_leader_is_believed, 2, ("lag_metadata", "kill_broker", "broker_leaves")),
    InjectedBug(retries_go_to_the_former_leader, 1, ("kill_broker", "broker_leaves")),
    InjectedBug(retried_behind_the_next, 1, ("kill_broker", "broker_leaves")),
    InjectedBug(failed_disk_counts_as_full, 4, ("break_directory",)),
    InjectedBug(unanswered_gets_new_numbers, 10, ("lose_first_answers",)),
    InjectedBug(close_forgets, 7, ("kill_broker",)),
    InjectedBug(stale_fetch_is_taken, 1, ("slow_network",)),
)
