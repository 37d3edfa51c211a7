"""Bugs that only upheavals bring to light, put into coordinators one at a time.

Owns: what each replaces, and which faults bring it to light. Must not: be active unless asked for.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from moldau.broker.coordinator.core.result import CoordinatorResult
from moldau.broker.coordinator.group.core import offset_requests
from moldau.broker.coordinator.group.core.classic_group import ClassicGroup
from moldau.broker.coordinator.group.core.classic_groups import ClassicRebalance
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.offset_removal import OffsetRemoval
from moldau.broker.coordinator.transaction.core import rules
from moldau.broker.coordinator.transaction.core.state import TransactionState
from tests.kit.injected_bugs import InjectedBug, Patch

SHORT_TIMEOUT_MS = 1_000

# -- two-phase commits -----------------------------------------------------------------------------


def two_phase_times_out(patch: Patch) -> None:
    """A transaction that an outside coordinator decides is aborted when it has had its time."""
    patch.setattr(rules, "NO_TIMEOUT_MS", SHORT_TIMEOUT_MS)


def prepared_is_not_kept(patch: Patch) -> None:
    """Who takes an id over aborts what is prepared, whatever it asks for."""
    original = rules._with_open_transaction

    def with_open_transaction(request: Any, *arguments: Any) -> Any:
        request = copy(request)  # the client's own is sent again after a disconnection
        request.keep_prepared_txn = False
        return original(request, *arguments)

    patch.setattr(rules, "_with_open_transaction", with_open_transaction)


# -- feature levels --------------------------------------------------------------------------------


def level_rules_over_the_client(patch: Patch) -> None:
    """A transaction ends by the level of the cluster, not as its client has asked."""
    original = TransactionState.end_transaction

    def end_transaction(self: Any, *arguments: Any, client_version: int, **options: Any) -> Any:
        version = min(client_version, self._transaction_version())
        return original(self, *arguments, client_version=version, **options)

    patch.setattr(TransactionState, "end_transaction", end_transaction)


# -- topics ----------------------------------------------------------------------------------------


def offsets_outlive_their_topic(patch: Patch) -> None:
    """Offsets of deleted topics stay."""
    patch.setattr(OffsetRemoval, "topics_deleted", lambda *_: CoordinatorResult())


def offsets_of_any_topic_of_the_name(patch: Patch) -> None:
    """A topic that was created again is answered what its predecessor had."""
    offsets_outlive_their_topic(patch)
    patch.setattr(offset_requests, "_is_of_another_topic", lambda *_: False)


# -- groups and offsets ----------------------------------------------------------------------------


def deleted_group_keeps_offsets(patch: Patch) -> None:
    """A group goes, its offsets do not."""
    patch.setattr(OffsetRemoval, "next_tombstones", lambda *_: [])


def offsets_expire_in_use(patch: Patch) -> None:
    """Offsets expire though members are subscribed to their topic."""

    def base_ms(self: Any, commit_timestamp_ms: float) -> float:
        del self
        return commit_timestamp_ms

    patch.setattr(ClassicGroup, "is_subscribed_to", lambda *_: False)
    patch.setattr(ClassicGroup, "expiration_base_ms", base_ms)
    patch.setattr(ConsumerGroup, "is_subscribed_to", lambda *_: False)


# -- static members --------------------------------------------------------------------------------


def static_member_joins_beside(patch: Patch) -> None:
    """A static member that comes back is one more."""

    def replace(self: Any, member: Any, *arguments: Any) -> None:
        del member
        self._add(*arguments)

    patch.setattr(ClassicRebalance, "_replace", replace)


def replaced_member_loses_assignment(patch: Patch) -> None:
    """A static member that comes back to a stable group is assigned nothing."""
    original = ClassicRebalance._replace

    def replace(self: Any, member: Any, *arguments: Any) -> None:
        member.assignment = b""
        original(self, member, *arguments)

    patch.setattr(ClassicRebalance, "_replace", replace)


def unreleased_id_is_given(patch: Patch) -> None:
    """A member of KIP-848 gets the instance id of another one that is still there."""
    patch.setattr(
        ConsumerGroup,
        "released_static_member",
        lambda group, instance_id, member_id: group.static_member(instance_id),
    )


def own_id_is_not_given_back(patch: Patch) -> None:
    """A member of KIP-848 does not get its own instance id when it joins again."""
    original = ConsumerGroup.released_static_member

    def released(self: Any, instance_id: str, member_id: str) -> Any:
        del member_id
        return original(self, instance_id, "")

    patch.setattr(ConsumerGroup, "released_static_member", released)


UPHEAVAL_BUGS = (
    InjectedBug(two_phase_times_out, 4, ("kill_coordinator_of_prepared",)),
    InjectedBug(prepared_is_not_kept, 4, ("kill_coordinator_of_prepared",)),
    InjectedBug(level_rules_over_the_client, 6, ("change_transaction_level",)),
    InjectedBug(offsets_outlive_their_topic, 3, ("recreate_topic",)),
    InjectedBug(offsets_of_any_topic_of_the_name, 1, ("recreate_topic",)),
    InjectedBug(deleted_group_keeps_offsets, 4, ("delete_group", "empty_group")),
    InjectedBug(offsets_expire_in_use, 1, ("outlive_offsets",)),
    InjectedBug(static_member_joins_beside, 5, ("race_for_id",)),
    InjectedBug(replaced_member_loses_assignment, 4, ("race_for_id",)),
    InjectedBug(unreleased_id_is_given, 2, ("race_for_id",)),
    InjectedBug(own_id_is_not_given_back, 8, ("lose_first_answers",)),
)
