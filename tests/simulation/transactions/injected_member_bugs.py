"""Bugs of a consumer in its group, put into the client one at a time.

Owns: what each replaces, and which faults bring it to light. Must not: be active unless asked for.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from moldau.client.consumer.commits import AutomaticCommits, Commits
from moldau.client.consumer.coordinator import GroupCoordinator
from moldau.client.consumer.core.classic_member import ClassicMember
from moldau.client.consumer.core.partition_state import PartitionState
from moldau.client.consumer.core.rebalance_steps import Standing
from moldau.client.consumer.membership import Membership
from moldau.client.errors import NoBrokerAvailable
from tests.kit.injected_bugs import InjectedBug, Patch

AGAIN = 2**31
"""No commit is asked for so late: one that has this number, or a greater one, was sent before."""


def commit_reordered(patch: Patch) -> None:
    """A commit whose answer is lost is sent again after one that was asked for later."""
    original, numbers = Commits._commit_once, count(AGAIN)

    async def commit_once(self: Any, commit: Any) -> None:
        is_again = any(each.number >= AGAIN for each in commit.asked.values())
        for each in commit.asked.values():
            each.number, each.is_committed = next(numbers), False
        await original(self, commit)
        if not is_again:
            raise NoBrokerAvailable("as if its answer had been lost")

    patch.setattr(Commits, "_commit_once", commit_once)


def answer_of_a_former_join(patch: Patch) -> None:
    """The generation that JoinGroup was answered first counts for the joins after it."""
    original = ClassicMember.joined

    def joined(self: Any, attempt: int, now_ms: float, **answer: Any) -> bool:
        if self.generation_id >= 0:
            answer["generation_id"] = self.generation_id
        return original(self, attempt, now_ms, **answer)

    patch.setattr(ClassicMember, "joined", joined)


def answers_wake_no_task(patch: Patch) -> None:
    """A member's task sleeps on when an answer has come."""
    patch.setattr(Membership, "_attend", lambda self: self._on_attention())


def close_forgets_to_commit(patch: Patch) -> None:
    """What polls have handed out is not committed at the end."""

    async def commit_now(self: Any, timeout_ms: float) -> None:
        del self, timeout_ms

    patch.setattr(AutomaticCommits, "commit_now", commit_now)


def close_forgets_to_leave(patch: Patch) -> None:
    """A consumer that is closed leaves its session to end."""
    patch.setattr(Membership, "_leave", lambda _: None)


def left_before_the_listener(patch: Patch) -> None:
    """The group is left before the listener has given up what it has."""

    async def give_up(self: Any) -> None:
        self._stop_being_member("the consumer is being closed")

    patch.setattr(GroupCoordinator, "_give_up", give_up)


def topic_of_the_name_is_consumed(patch: Patch) -> None:
    """A member whose topic was created again reads and commits the new one, by its name, before
    the coordinator has assigned it.
    """
    patch.setattr(PartitionState, "is_of_another_topic", False)


def out_while_it_asks(patch: Patch) -> None:
    """A static member takes itself for out of its group while a heartbeat has no answer."""
    original = ClassicMember.standing

    def standing(self: Any) -> Standing:
        is_asking = self.group_instance_id is not None and self._in_flight is not None
        return Standing.OUT if is_asking else original(self)

    patch.setattr(ClassicMember, "standing", standing)


MEMBER_BUGS = (
    InjectedBug(commit_reordered, 3),
    InjectedBug(answer_of_a_former_join, 1),
    InjectedBug(answers_wake_no_task, 3),
    InjectedBug(close_forgets_to_commit, 2),
    InjectedBug(close_forgets_to_leave, 1),
    InjectedBug(left_before_the_listener, 1),
    InjectedBug(out_while_it_asks, 9),
    InjectedBug(
        topic_of_the_name_is_consumed,
        60,
        (
            "late_requests",
            "recreate_topic",
            "delete_group",
            "delete_offsets",
            "change_over",
            "kill_coordinator",
        ),
    ),
)
