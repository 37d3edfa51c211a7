"""A consumer group as its coordinator holds it: members of either protocol, generations, offsets.

Owns the classic protocol's states. Must not know requests: `groups` and `group_apis` do. Sources:
KIP-62, KIP-345, KIP-394, KIP-814. Invariant: every join and sync that waits is answered when the
state it waits for comes, or when the group is unloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from moldau.protocol import ErrorCode

Offsets = dict[tuple[str, int], "StoredOffset"]


class GroupState(Enum):
    """The classic protocol's states, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class StoredOffset:
    """A committed offset."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


@dataclass(eq=False, slots=True)
class Member:
    """A member of the classic protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    assignment: bytes = b""
    join: asyncio.Future[Any] | None = None
    sync: asyncio.Future[Any] | None = None
    timer: asyncio.TimerHandle | None = None

    def metadata_for(self, protocol: str) -> bytes:
        """What it said with a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class JoinResult:
    """What a join is answered with."""

    error: ErrorCode = ErrorCode.NONE
    generation_id: int = -1
    protocol: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: list[Member] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class ClassicGroup:
    """One group of the classic protocol."""

    group_id: str
    on_change: Callable[[], object]
    initial_delay_ms: int = 0
    state: GroupState = GroupState.EMPTY
    generation_id: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """Ids that were handed out and not used yet; they end with the session timeout (KIP-394)."""
    rebalance_timer: asyncio.TimerHandle | None = None
    rebalance_count: int = 0

    # -- joining --------------------------------------------------------------------------------

    def static_member(self, instance_id: str | None) -> Member | None:
        """The member that holds an instance id."""
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def supports(self, protocol_type: str, protocols: list[tuple[str, bytes]]) -> bool:
        """Whether a member with these protocols fits the others."""
        if not protocols or not protocol_type:
            return False
        if not self.members:
            return True
        common = set.intersection(*({n for n, _ in m.protocols} for m in self.members.values()))
        return protocol_type == self.protocol_type and bool(common & {n for n, _ in protocols})

    def add(self, member: Member) -> None:
        """A new member; the caller waits on its join."""
        self.forget_pending(member.member_id)
        if not self.members:
            self.protocol_type = member.protocol_type
        self.members[member.member_id] = member
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.touch(member)

    def hand_out_id(self, member_id: str, session_timeout_ms: int) -> None:
        """An id that its member has to come back with; others wait for it so long."""
        self.pending[member_id] = asyncio.get_running_loop().call_later(
            session_timeout_ms / 1000, self._expire_pending, member_id
        )

    def forget_pending(self, member_id: str) -> None:
        """The id is used, or given up."""
        timer = self.pending.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def _expire_pending(self, member_id: str) -> None:
        self.forget_pending(member_id)
        self._complete_if_all_joined()

    def wait_to_join(self, member: Member) -> asyncio.Future[JoinResult]:
        """A future of the join's result; begins a rebalance unless one is being prepared."""
        if member.join is not None and not member.join.done():
            # A retry of the join: the earlier one is not waited for any more.
            member.join.set_result(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID))
        future: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        member.join = future
        self.prepare()
        self._complete_if_all_joined()
        return future

    def prepare(self) -> None:
        """Begin a rebalance."""
        if self.state is GroupState.PREPARING:
            return
        was_empty = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        self.rebalance_count += 1
        for member in self.members.values():
            if member.sync is not None and not member.sync.done():
                member.sync.set_result((ErrorCode.REBALANCE_IN_PROGRESS, b""))
        loop = asyncio.get_running_loop()
        longest_ms = max((m.rebalance_timeout_ms for m in self.members.values()), default=0)
        delay_ms = self.initial_delay_ms if was_empty and self.initial_delay_ms else longest_ms
        self.rebalance_timer = loop.call_later(delay_ms / 1000, self._complete)
        self.on_change()

    def _complete_if_all_joined(self) -> None:
        if self.state is not GroupState.PREPARING or self._waits_for_first_members():
            return
        if all(m.join is not None for m in self.members.values()) and not self.pending:
            self._complete()

    def _waits_for_first_members(self) -> bool:
        return self.initial_delay_ms > 0 and self.generation_id == 0

    def _complete(self) -> None:
        if self.rebalance_timer is not None:
            self.rebalance_timer.cancel()
            self.rebalance_timer = None
        if self.state is not GroupState.PREPARING:
            return
        for member in list(self.members.values()):
            if member.join is None and member.instance_id is None:
                self._drop(member)
        for member_id in tuple(self.pending):
            self.forget_pending(member_id)
        self.generation_id += 1
        if not self.members:
            self.state = GroupState.EMPTY
            self.protocol = None
            self.on_change()
            return
        self.protocol = self._choose_protocol()
        if self.leader_id not in self.members:
            self.leader_id = next(iter(self.members))
        self.state = GroupState.COMPLETING
        for member in self.members.values():
            join, member.join = member.join, None
            member.assignment = b""
            self.touch(member)
            if join is not None and not join.done():
                is_leader = member.member_id == self.leader_id
                everybody = list(self.members.values()) if is_leader else []
                join.set_result(self.joined(everybody))
        self.on_change()

    def joined(self, members: list[Member], *, skip_assignment: bool = False) -> JoinResult:
        """The generation as a member hears of it."""
        return JoinResult(
            ErrorCode.NONE,
            self.generation_id,
            self.protocol,
            self.leader_id or "",
            skip_assignment,
            members,
        )

    def _choose_protocol(self) -> str:
        """The one that most members like best, among those that all support."""
        common = set.intersection(*({n for n, _ in m.protocols} for m in self.members.values()))
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    # -- syncing --------------------------------------------------------------------------------

    def wait_to_sync(self, member: Member) -> asyncio.Future[tuple[ErrorCode, bytes]]:
        """A future of the member's assignment."""
        future: asyncio.Future[tuple[ErrorCode, bytes]] = asyncio.get_running_loop().create_future()
        member.sync = future
        return future

    def assign(self, assignments: dict[str, bytes]) -> None:
        """The leader's assignment: the generation is complete."""
        self.state = GroupState.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync is not None and not member.sync.done():
                member.sync.set_result((ErrorCode.NONE, member.assignment))
            member.sync = None
        self.on_change()

    # -- staying and leaving --------------------------------------------------------------------

    def touch(self, member: Member) -> None:
        """The member has been heard of."""
        if member.timer is not None:
            member.timer.cancel()
        member.timer = asyncio.get_running_loop().call_later(
            member.session_timeout_ms / 1000, self._expire, member
        )

    def _expire(self, member: Member) -> None:
        if self.members.get(member.member_id) is not member:
            return
        if member.join is not None and not member.join.done():
            self.touch(member)
            return
        self.remove(member)

    def remove(self, member: Member) -> None:
        """The member has gone, by its own wish or not."""
        self._drop(member)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self.prepare()
        self._complete_if_all_joined()
        self.on_change()

    def _drop(self, member: Member) -> None:
        self.members.pop(member.member_id, None)
        if member.timer is not None:
            member.timer.cancel()
        for future, result in (
            (member.join, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID)),
            (member.sync, (ErrorCode.UNKNOWN_MEMBER_ID, b"")),
        ):
            if future is not None and not future.done():
                future.set_result(result)
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_static(self, old: Member, new_id: str) -> Member:
        """A static member is back under a new id; a member that still uses the old one is
        fenced.
        """
        if old.join is not None and not old.join.done():
            old.join.set_result(JoinResult(ErrorCode.FENCED_INSTANCE_ID))
        if old.sync is not None and not old.sync.done():
            old.sync.set_result((ErrorCode.FENCED_INSTANCE_ID, b""))
        old.join = old.sync = None
        was_leader = self.leader_id == old.member_id
        del self.members[old.member_id]
        old.member_id = new_id
        self.members[new_id] = old
        if was_leader:
            self.leader_id = new_id
        self.touch(old)
        return old

    def close(self, error: ErrorCode) -> None:
        """Answer all waiting requests with an error and stop the timers (an unload)."""
        if self.rebalance_timer is not None:
            self.rebalance_timer.cancel()
            self.rebalance_timer = None
        for member_id in tuple(self.pending):
            self.forget_pending(member_id)
        for member in self.members.values():
            if member.timer is not None:
                member.timer.cancel()
            if member.join is not None and not member.join.done():
                member.join.set_result(JoinResult(error))
            if member.sync is not None and not member.sync.done():
                member.sync.set_result((error, b""))
            member.join = member.sync = None
