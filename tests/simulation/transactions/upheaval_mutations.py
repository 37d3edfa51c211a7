"""Bugs that only upheavals bring to light, put into coordinators one at a time.

Owns: how each is put in and taken out again. Must not: be active unless asked for.
Invariant: what a mutation returns undoes it completely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.broker.coordinator.core.result import CoordinatorResult
from moldau.broker.coordinator.group.core import offset_requests
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.classic_groups import ClassicGroups
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.offset_removal import OffsetRemoval
from moldau.broker.coordinator.transaction.core import rules
from moldau.broker.coordinator.transaction.core.state import TransactionState
from tests.simulation.replication.mutations import Undo, _both, _replaced

SHORT_TIMEOUT_MS = 1_000

# -- two-phase commits -----------------------------------------------------------------------------


def two_phase_times_out() -> Undo:
    """A transaction that an outside coordinator decides is aborted when it has had its time."""
    return _replaced(rules, "NO_TIMEOUT_MS", SHORT_TIMEOUT_MS)


def prepared_is_not_kept() -> Undo:
    """Who takes an id over aborts what is prepared, whatever it asks for."""
    original = rules._with_open_transaction

    def with_open_transaction(request: Any, *arguments: Any) -> Any:
        return original(request._replace(keep_prepared=False), *arguments)

    return _replaced(rules, "_with_open_transaction", with_open_transaction)


# -- feature levels --------------------------------------------------------------------------------


def level_rules_over_the_client() -> Undo:
    """A transaction ends by the level of the cluster, not as its client has asked."""
    original = TransactionState.end_transaction

    def end_transaction(self: Any, *arguments: Any, client_version: int, **options: Any) -> Any:
        version = min(client_version, self._transaction_version())
        return original(self, *arguments, client_version=version, **options)

    return _replaced(TransactionState, "end_transaction", end_transaction)


# -- topics ----------------------------------------------------------------------------------------


def offsets_outlive_their_topic() -> Undo:
    """Offsets of deleted topics stay."""
    return _replaced(OffsetRemoval, "topics_deleted", lambda *_: CoordinatorResult())


def offsets_of_any_topic_of_the_name() -> Undo:
    """A topic that was created again is answered what its predecessor had."""
    undo = offsets_outlive_their_topic()
    return _both(undo, _replaced(offset_requests, "_is_of_another_topic", lambda *_: False))


# -- groups and offsets ----------------------------------------------------------------------------


def deleted_group_keeps_offsets() -> Undo:
    """A group goes, its offsets do not."""
    return _replaced(OffsetRemoval, "next_tombstones", lambda *_: [])


def offsets_expire_in_use() -> Undo:
    """Offsets expire whoever is subscribed to their topic."""

    def base_ms(self: Any, commit_timestamp_ms: float) -> float:
        del self
        return commit_timestamp_ms

    undo = _both(
        _replaced(ClassicGroup, "is_subscribed_to", lambda *_: False),
        _replaced(ClassicGroup, "expiration_base_ms", base_ms),
    )
    return _both(undo, _replaced(ConsumerGroup, "is_subscribed_to", lambda *_: False))


# -- static members --------------------------------------------------------------------------------


def static_member_joins_beside() -> Undo:
    """A static member that comes back is one more."""

    def replace(self: Any, group: Any, member: Any, *arguments: Any) -> None:
        del member
        self._add(group, *arguments)

    return _replaced(ClassicGroups, "_replace", replace)


def replaced_member_loses_assignment() -> Undo:
    """A static member that comes back to a stable group is assigned nothing."""
    original = ClassicGroups._replace

    def replace(self: Any, group: Any, member: Any, *arguments: Any) -> None:
        member.assignment = b""
        original(self, group, member, *arguments)

    return _replaced(ClassicGroups, "_replace", replace)


def unreleased_id_is_given() -> Undo:
    """A member of KIP-848 gets the instance id of another one that is still there."""
    return _replaced(
        ConsumerGroup,
        "released_static_member",
        lambda group, instance_id, member_id: group.static_member(instance_id),
    )


MUTATIONS: dict[str, Callable[[], Undo]] = {
    mutation.__name__.replace("_", "-"): mutation
    for mutation in (
        two_phase_times_out,
        prepared_is_not_kept,
        level_rules_over_the_client,
        offsets_outlive_their_topic,
        offsets_of_any_topic_of_the_name,
        deleted_group_keeps_offsets,
        offsets_expire_in_use,
        static_member_joins_beside,
        replaced_member_loses_assignment,
        unreleased_id_is_given,
    )
}
