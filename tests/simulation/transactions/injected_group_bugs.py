"""Faults that members, clients and clocks once brought to light in coordinators, put back.

Owns: what each replaces, and which faults bring it to light. Must not: be active unless asked for.
"""

from __future__ import annotations

from typing import Any

from moldau.broker.coordinator.core.result import Producer, SetTimer
from moldau.broker.coordinator.group.core import consumer_protocol, context, migration
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup, ClassicGroupState
from moldau.broker.coordinator.group.core.classic_groups import ClassicGroups
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.joining import Joining
from moldau.broker.coordinator.group.core.member_updates import MemberUpdates
from moldau.broker.coordinator.group.core.offset_removal import OffsetRemoval
from moldau.broker.coordinator.group.core.state import GroupState
from moldau.broker.coordinator.shard import Shard
from moldau.broker.coordinator.transaction.core.transaction import Transaction
from moldau.controller.core import topic_control
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import payload_version
from tests.kit.injected_bugs import InjectedBug, Patch

_REBALANCING = ClassicGroupState.PREPARING_REBALANCE

# -- members that change over ----------------------------------------------------------------------


def upgrade_forgets_what_is_read(patch: Patch) -> None:
    """A group that changes its protocol in a rebalance takes its members for owners of nothing."""
    begin = ClassicGroup.begin_generation
    upgraded = migration._without_duplicates

    def begin_generation(self: Any, now_ms: float) -> None:
        for member in self.members.values():
            member.assignment = b""
        begin(self, now_ms)

    patch.setattr(ClassicGroup, "begin_generation", begin_generation)
    patch.setattr(
        migration,
        "_without_duplicates",
        lambda assigned, claimed: upgraded(assigned, [{} for _ in claimed]),
    )


def downgrade_is_complete(patch: Patch) -> None:
    """A new coordinator takes a group that was to rebalance after its change for a stable one."""
    original = ClassicGroups.loaded

    def loaded(self: Any, now_ms: float) -> Any:
        for group in self._groups.values():
            if group.kind == ClassicGroup.kind and group.state is _REBALANCING:
                group.state = group.previous_state = ClassicGroupState.STABLE
                group.leader_id = next(iter(group.members))
        return original(self, now_ms)

    patch.setattr(ClassicGroups, "loaded", loaded)


def first_protocol_alone_is_read(patch: Patch) -> None:
    """What else a classic member says is found unreadable when its group is to change."""

    def write_assignment(partitions: Any, subscription: bytes, image: Any) -> bytes:
        payload_version(subscription)
        return written(partitions, subscription, image)

    written = consumer_protocol.write_assignment
    first = property(lambda self: consumer_protocol.read_subscription(self.protocols[0][1]))
    patch.setattr(Joining, "subscription", first)
    patch.setattr(migration, "write_assignment", write_assignment)


def loaded_groups_are_forgotten(patch: Patch) -> None:
    """A new coordinator has loaded offsets, but no consumer group."""
    original = GroupState.loaded

    def loaded(self: Any, now_ms: float) -> Any:
        for group_id, group in list(self.groups.items()):
            if isinstance(group, ConsumerGroup):
                del self.groups[group_id]
        return original(self, now_ms)

    patch.setattr(GroupState, "loaded", loaded)


def sessions_of_any_length(patch: Patch) -> None:
    """A consumer group lets classic members say how long their sessions are."""
    original = ClassicGroups.join_error

    def join_error(self: Any, request: Any, *, is_first: bool) -> ErrorCode:
        if isinstance(self._groups.get(request.group_id), ConsumerGroup) and not is_first:
            return ErrorCode.NONE
        return original(self, request, is_first=is_first)

    patch.setattr(ClassicGroups, "join_error", join_error)


# -- lines and clocks ------------------------------------------------------------------------------


def revocations_have_no_time(patch: Patch) -> None:
    """A member of a consumer group that has not given a partition back is put out at once."""
    original = MemberUpdates.reconcile

    def reconcile(self: Any, update: Any, *target: Any) -> None:
        original(self, update, *target)
        update.result.timers = [
            SetTimer(each.key, 1.0) if isinstance(each, SetTimer) else each
            for each in update.result.timers
        ]

    patch.setattr(MemberUpdates, "reconcile", reconcile)


def members_wait_in_line(patch: Patch) -> None:
    """What members must do in time is refused as long as too many commits wait."""
    original = Shard.refusal

    def refusal(self: Any, *, passes_limit: bool = False) -> ErrorCode:
        del passes_limit
        return original(self)

    patch.setattr(Shard, "refusal", refusal)


def timeouts_follow_the_wall_clock(patch: Patch) -> None:
    """A transaction that began in the future has its time then."""
    original = Transaction.is_timed_out
    patch.setattr(
        Transaction, "is_timed_out", lambda self, now_ms, open_ms: original(self, now_ms, -1.0)
    )


def expired_offsets_stay(patch: Patch) -> None:
    """Offsets of groups that are not used any more are kept for ever."""
    patch.setattr(OffsetRemoval, "_has_expired", lambda *_: False)


# -- topics, names, epochs -------------------------------------------------------------------------


def internal_topics_grow(patch: Patch) -> None:
    """The coordinators' topics get more partitions when they are asked to."""
    patch.setattr(topic_control, "INTERNAL_TOPICS", frozenset())


def batches_are_not_cut(patch: Patch) -> None:
    """What coordinators write on their own account goes into one batch, or nowhere."""
    append = Shard._append

    def append_as_one(self: Any, *arguments: Any, is_atomic: bool) -> Any:
        return append(self, *arguments, is_atomic=True)

    patch.setattr(Shard, "_append", append_as_one)


def epoch_of_markers_taken(patch: Patch) -> None:
    """A client may name the epoch that fences all others."""
    patch.setattr(Producer, "is_of_markers", property(lambda self: False))


def former_group_coordinator_refuses(patch: Patch) -> None:
    """A coordinator of groups refuses for good without a proof that it still leads."""
    patch.setattr(context, "_FINAL_ERRORS", frozenset())


GROUP_BUGS = (
    InjectedBug(upgrade_forgets_what_is_read, 3, ("upgrade_within",)),
    InjectedBug(downgrade_is_complete, 8, ("downgrade",)),
    InjectedBug(first_protocol_alone_is_read, 8, ("join_unreadable",)),
    InjectedBug(loaded_groups_are_forgotten, 5, ("coordinator_leaves", "kill_coordinator")),
    InjectedBug(sessions_of_any_length, 34, ("join_for_ever",)),
    InjectedBug(revocations_have_no_time, 11),
    InjectedBug(members_wait_in_line, 33, ("flood",)),
    InjectedBug(timeouts_follow_the_wall_clock, 23, ("abandon_in_the_future",)),
    InjectedBug(expired_offsets_stay, 2, ("hoard_offsets", "lose_an_hour")),
    InjectedBug(internal_topics_grow, 34, ("grow_internal_topics",)),
    InjectedBug(batches_are_not_cut, 4, ("hoard_ids",)),
    InjectedBug(epoch_of_markers_taken, 14, ("claim_last_epoch",)),
    InjectedBug(former_group_coordinator_refuses),
)
