"""Bugs of a consumer in its group, put into the client one at a time.

Owns: what each replaces, and which faults bring it to light. Must not: be active unless asked for.
"""

from __future__ import annotations

from typing import Any

from moldau.client.consumer.commits import AutomaticCommits, Commits
from moldau.client.consumer.coordinator import GroupCoordinator
from moldau.client.consumer.core.classic_member import ClassicMember
from moldau.client.consumer.core.consumer_member import ConsumerMember
from moldau.client.consumer.membership import Membership
from tests.kit.injected_bugs import InjectedBug, Patch


def commit_reordered(patch: Patch) -> None:
    """A commit that is tried again overtakes one that was asked for later."""
    original = Commits._commit_once

    async def commit_once(self: Any, commit: Any) -> None:
        commit.numbers = dict.fromkeys(commit.offsets, 2**31)
        await original(self, commit)

    patch.setattr(Commits, "_commit_once", commit_once)


def answers_of_a_former_membership(patch: Patch) -> None:
    """What a coordinator answers to a member is applied to the membership after it as well."""
    send_due = Membership._send_due

    def forgetful(self: Any, now_ms: float) -> None:
        self._exchange = None
        send_due(self, now_ms)

    def answered(self: Any, attempt: int) -> bool:
        self._in_flight = type(self._in_flight)() if isinstance(self._in_flight, bool) else None
        return True

    patch.setattr(Membership, "_send_due", forgetful)
    patch.setattr(ConsumerMember, "_answered", answered)
    patch.setattr(ClassicMember, "_answered", answered)


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


MOVING = ("coordinator_leaves", "kill_coordinator", "stop_coordinator")
SLOW = ("slow_network", "kill_coordinator", "stop_coordinator")

MEMBER_BUGS = (
    InjectedBug(commit_reordered, 1, MOVING),
    InjectedBug(answers_of_a_former_membership, 1, SLOW),
    InjectedBug(answers_wake_no_task, 1),
    InjectedBug(close_forgets_to_commit, 2),
    InjectedBug(close_forgets_to_leave, 1),
    InjectedBug(left_before_the_listener, 1),
)
