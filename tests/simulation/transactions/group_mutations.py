"""Faults that members, clients and clocks once brought to light in coordinators, put back.

Owns: how each is put in and taken out again. Must not: be active unless asked for.
Invariant: what a mutation returns undoes it completely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.broker.coordinator.group.core import consumer_protocol, migration
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup, ClassicGroupState
from moldau.broker.coordinator.group.core.classic_groups import ClassicGroups
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.joining import Joining
from moldau.broker.coordinator.group.core.offset_removal import OffsetRemoval
from moldau.broker.coordinator.group.core.state import GroupState
from moldau.broker.coordinator.shard import Shard
from moldau.broker.coordinator.transaction.core.transaction import ProducerIdAndEpoch, Transaction
from moldau.controller.core import topic_control
from moldau.protocol.errors import ErrorCode
from tests.simulation.replication.mutations import Undo, _both, _replaced

_REBALANCING = ClassicGroupState.PREPARING_REBALANCE

# -- members that change over ----------------------------------------------------------------------


def upgrade_forgets_what_is_read() -> Undo:
    """A group that changes its protocol in a rebalance takes its members for owners of nothing."""
    begin = ClassicGroup.begin_generation
    upgraded = migration._without_duplicates

    def begin_generation(self: Any, now_ms: float) -> None:
        for member in self.members.values():
            member.assignment = b""
        begin(self, now_ms)

    undo = _replaced(ClassicGroup, "begin_generation", begin_generation)
    return _both(
        undo,
        _replaced(
            migration,
            "_without_duplicates",
            lambda assigned, claimed: upgraded(assigned, [{} for _ in claimed]),
        ),
    )


def downgrade_is_complete() -> Undo:
    """A new coordinator takes a group that was to rebalance after its change for a stable one."""
    original = ClassicGroups.loaded

    def loaded(self: Any, now_ms: float) -> Any:
        for group in self._groups.values():
            if group.kind == ClassicGroup.kind and group.state is _REBALANCING:
                group.state = group.previous_state = ClassicGroupState.STABLE
                group.leader_id = next(iter(group.members))
        return original(self, now_ms)

    return _replaced(ClassicGroups, "loaded", loaded)


def first_protocol_alone_is_read() -> Undo:
    """What else a classic member says is found unreadable when its group is to change."""

    def write_assignment(partitions: Any, subscription: bytes, image: Any) -> bytes:
        consumer_protocol._version_of(subscription)
        return written(partitions, subscription, image)

    written = consumer_protocol.write_assignment
    first = property(lambda self: consumer_protocol.read_subscription(self.protocols[0][1]))
    undo = _replaced(Joining, "subscription", first)
    return _both(undo, _replaced(migration, "write_assignment", write_assignment))


def loaded_groups_are_forgotten() -> Undo:
    """A new coordinator has loaded offsets, but no consumer group."""
    original = GroupState.loaded

    def loaded(self: Any, now_ms: float) -> Any:
        for group_id, group in list(self.groups.items()):
            if isinstance(group, ConsumerGroup):
                del self.groups[group_id]
        return original(self, now_ms)

    return _replaced(GroupState, "loaded", loaded)


def sessions_of_any_length() -> Undo:
    """A consumer group lets classic members say how long their sessions are."""
    original = ClassicGroups.join_error

    def join_error(self: Any, request: Any, *, is_first: bool) -> ErrorCode:
        if isinstance(self._groups.get(request.group_id), ConsumerGroup) and not is_first:
            return ErrorCode.NONE
        return original(self, request, is_first=is_first)

    return _replaced(ClassicGroups, "join_error", join_error)


# -- lines and clocks ------------------------------------------------------------------------------


def members_wait_in_line() -> Undo:
    """What members must do in time is refused as long as too many commits wait."""
    original = Shard.refusal

    def refusal(self: Any, *, passes_limit: bool = False) -> ErrorCode:
        del passes_limit
        return original(self)

    return _replaced(Shard, "refusal", refusal)


def timeouts_follow_the_wall_clock() -> Undo:
    """A transaction that began in the future has its time then."""
    original = Transaction.is_timed_out
    return _replaced(
        Transaction, "is_timed_out", lambda self, now_ms, open_ms: original(self, now_ms, -1.0)
    )


def expired_offsets_stay() -> Undo:
    """Offsets of groups that are not used any more are kept for ever."""
    return _replaced(OffsetRemoval, "_has_expired", lambda *_: False)


# -- topics, names, epochs -------------------------------------------------------------------------


def internal_topics_grow() -> Undo:
    """The coordinators' topics get more partitions when they are asked to."""
    return _replaced(topic_control, "INTERNAL_TOPICS", frozenset())


def batches_are_not_cut() -> Undo:
    """What coordinators write on their own account goes into one batch, or nowhere."""
    return _replaced(Shard, "_append_each", lambda self, records: self._append(records, None))


def epoch_of_markers_taken() -> Undo:
    """A client may name the epoch that fences all others."""
    return _replaced(ProducerIdAndEpoch, "is_of_markers", property(lambda self: False))


MUTATIONS: dict[str, Callable[[], Undo]] = {
    mutation.__name__.replace("_", "-"): mutation
    for mutation in (
        upgrade_forgets_what_is_read,
        downgrade_is_complete,
        first_protocol_alone_is_read,
        loaded_groups_are_forgotten,
        sessions_of_any_length,
        members_wait_in_line,
        timeouts_follow_the_wall_clock,
        expired_offsets_stay,
        internal_topics_grow,
        batches_are_not_cut,
        epoch_of_markers_taken,
    )
}
