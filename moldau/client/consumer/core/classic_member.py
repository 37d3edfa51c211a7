"""A member of a classic consumer group, as a state machine (KIP-62, 345, 394, 429, 814).

Owns the member's id and generation, what it owns, when it joins, syncs, sends heartbeats
(`heartbeat.interval.ms`) and leaves, and what each answer means. Must not send, read clocks or
decode subscriptions. Invariants: one request is under way at a time, an answer to an older one
changes nothing; what is owned changes only when the driver says that a step was carried out;
commits are signed only between an assignment and the next join, with that assignment's generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import ClassVar, Final

from moldau.client.consumer.core.rebalance_steps import (
    NEVER_MS,
    NO_GENERATION,
    NOTHING,
    Assign,
    Fail,
    GroupRequest,
    Identity,
    Lose,
    Partitions,
    PollWatch,
    Revoke,
    Standing,
    Step,
)
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode


class ClassicState(Enum):
    """Where the member is between two assignments."""

    OUT = auto()
    """The member is in no generation; the next poll prepares a join."""
    READY_TO_JOIN = auto()
    """What had to be given up is given up; JoinGroup is to be sent, or under way."""
    LEADING = auto()
    """Joined as the leader; the assignment is being worked out."""
    READY_TO_SYNC = auto()
    """SyncGroup is to be sent, or under way."""
    STABLE = auto()
    """The member is in a generation, with heartbeats."""
    FATAL = auto()
    """Fenced or refused for good, until the user subscribes again."""


_ANYWHERE: Final = frozenset({ClassicState.OUT, ClassicState.READY_TO_JOIN, ClassicState.FATAL})

TRANSITIONS: Final[Mapping[ClassicState, frozenset[ClassicState]]] = MappingProxyType(
    {
        ClassicState.OUT: _ANYWHERE,
        ClassicState.READY_TO_JOIN: _ANYWHERE | {ClassicState.LEADING, ClassicState.READY_TO_SYNC},
        ClassicState.LEADING: _ANYWHERE | {ClassicState.READY_TO_SYNC},
        ClassicState.READY_TO_SYNC: _ANYWHERE | {ClassicState.STABLE},
        ClassicState.STABLE: _ANYWHERE | {ClassicState.STABLE},
        ClassicState.FATAL: frozenset({ClassicState.FATAL, ClassicState.OUT}),
    }
)

_FATAL_CODES: Final = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    }
)
"""Trying again with the same settings cannot help."""

_REFUSED_CODES: Final = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""A poll raises it; the poll after that tries again."""

_MOVED_CODES: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class ClassicMember:
    """One member's life in one group. Legal transitions: `TRANSITIONS`.

    Args:
        cooperative: keep partitions while the group rebalances (KIP-429).
        session_timeout_ms: after so long without an answer the coordinator is looked up again.
        on_attention: called when a poll has something to do.

    Attributes:
        member_id: "" until the coordinator has given one.
        owned: what the user may consume at the moment.
        owned_generation_id: in which generation it was assigned; -1 for none.
        needs_coordinator: whether the coordinator is to be looked up again; the driver resets it.
        needs_topic_names: never: this protocol names topics, not their ids.
        rejoin_reason: why the next join happens, for JoinGroup (KIP-800).
    """

    needs_topic_names: ClassVar[bool] = False

    group_instance_id: str | None
    cooperative: bool
    heartbeat_interval_ms: float
    session_timeout_ms: float
    poll_watch: PollWatch
    backoff: Backoff
    on_attention: Callable[[], None] = lambda: None
    state: ClassicState = ClassicState.OUT
    member_id: str = ""
    generation_id: int = NO_GENERATION
    owned: Partitions = NOTHING
    owned_generation_id: int = NO_GENERATION
    is_leader: bool = False
    needs_coordinator: bool = False
    rejoin_reason: str | None = None
    _subscribed: bool = False
    _topics: frozenset[str] = frozenset()
    _is_lost: bool = False
    _rejoin_wanted: bool = True
    _assignment: Partitions | None = None
    _failure: Fail | None = None
    _in_flight: GroupRequest | None = None
    _attempt: int = 0
    _not_before_ms: float = 0.0
    _heartbeat_at_ms: float = 0.0
    _heard_at_ms: float = 0.0
    _leave_reason: str | None = None
    _leaving_member_id: str = ""

    # -- the user's side ------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str], *, is_new: bool = False) -> None:
        """What to consume from now on; another set than before leads to a rebalance. `is_new`: the
        user has just subscribed: after a fatal error the member joins again.
        """
        if self.state is ClassicState.FATAL and is_new:
            self._reset(forget_member=True)
        begins = not self._subscribed
        if begins or topics != self._topics:
            self._subscribed = True
            self._topics = topics
            self.request_rejoin(None if begins else "the subscription has changed")

    def unsubscribe(self, reason: str) -> tuple[Partitions, bool]:
        """Leave the group. Returns what was owned, and whether that had been lost already."""
        owned, was_lost = self.owned, self._is_lost or self.state is ClassicState.FATAL
        self.owned = NOTHING
        if self._subscribed:
            self._subscribed = False
            self._leave(reason)
        return owned, was_lost

    def request_rejoin(self, reason: str | None) -> None:
        if not self._rejoin_wanted:
            self._rejoin_wanted = True
            self.rejoin_reason = reason
        self.on_attention()

    def next_step(self, now_ms: float) -> Step | None:
        """What a poll has to do now; None for nothing, or for waiting for the group."""
        step = self._step()
        if isinstance(step, Fail) and self.state is not ClassicState.FATAL:
            self._failure = None
        return step

    def has_step(self) -> bool:
        return self._step() is not None

    def _step(self) -> Step | None:
        if self._failure is not None:
            if self.state is ClassicState.FATAL and self.owned:
                return Lose(self.owned)
            return self._failure
        if self._is_lost and self.owned:
            return Lose(self.owned)
        if not self._subscribed:
            return None
        if self._assignment is not None:
            gone = self.owned - self._assignment
            if gone:
                return Revoke(gone)
            return Assign(self._assignment, self._assignment - self.owned)
        if self._rejoin_wanted and self.state in (ClassicState.OUT, ClassicState.STABLE):
            return Revoke(self._to_give_up_before_joining())
        return None

    @property
    def is_settled(self) -> bool:
        """Whether a poll need not wait for the group: it has its assignment, or wants none."""
        return not self._subscribed or (self.state is ClassicState.STABLE and not self.has_step())

    def revoked(self, partitions: Partitions, now_ms: float) -> None:
        if self._is_lost:
            # The membership ended while the listener was called: what is left is lost next.
            self.lost(partitions, now_ms)
            return
        self.owned -= partitions
        if not self._subscribed:
            return
        if self._assignment is not None:
            # Another member waits for what was given up: the group has to know (KIP-429).
            if partitions:
                self.request_rejoin("need to revoke partitions and re-join")
            return
        if self.state in (ClassicState.OUT, ClassicState.STABLE) and self._rejoin_wanted:
            self._rejoin_wanted = False
            self._move(ClassicState.READY_TO_JOIN)
            self._not_before_ms = max(self._not_before_ms, now_ms)

    def lost(self, partitions: Partitions, now_ms: float) -> None:
        self.owned -= partitions
        if not self.owned:
            self._is_lost = False
            self.owned_generation_id = NO_GENERATION

    def assigned(self, step: Assign, now_ms: float) -> None:
        """The step is being carried out: the user has them, the listener is yet to be called."""
        self.owned = step.partitions
        if self._assignment == step.partitions:
            self._assignment = None
            self.owned_generation_id = self.generation_id
        elif self.state in (ClassicState.OUT, ClassicState.FATAL):
            self._is_lost = bool(step.partitions)

    def acknowledge(self, now_ms: float) -> None:
        """The listener has been called; this protocol does not tell the coordinator."""

    # -- commits --------------------------------------------------------------------------------

    def standing(self) -> Standing:
        if self.state is ClassicState.STABLE:
            return Standing.MEMBER
        if self.state in (ClassicState.OUT, ClassicState.FATAL):
            return Standing.OUT
        return Standing.REBALANCING

    def identity(self) -> Identity:
        return Identity(self.generation_id, self.member_id, self.group_instance_id)

    def commit_refused(self, identity: Identity, code: ErrorCode) -> None:
        """A commit signed with `identity` was refused: what that says about the membership."""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self._fail(code, None)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("offset commit failed since the group is rebalancing")
        elif (
            code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
            and identity == self.identity()
            and self.state is ClassicState.STABLE
        ):
            self._lose(forget_member=code is ErrorCode.UNKNOWN_MEMBER_ID)

    # -- requests -------------------------------------------------------------------------------

    def next_request(self, now_ms: float) -> GroupRequest | None:
        """What to send now, if anything; say `sent` when it goes out."""
        self._look_at_polls(now_ms)
        if self._leave_reason is not None:
            return GroupRequest.LEAVE
        if self._in_flight is not None or now_ms < self._not_before_ms:
            return None
        match self.state:
            case ClassicState.READY_TO_JOIN:
                return GroupRequest.JOIN
            case ClassicState.LEADING:
                return GroupRequest.LEAD
            case ClassicState.READY_TO_SYNC:
                return GroupRequest.SYNC
            case ClassicState.STABLE if now_ms >= self._heartbeat_at_ms:
                return GroupRequest.HEARTBEAT
        return None

    def due_ms(self) -> float:
        """When `next_request` has to be called at the latest, if nothing happens before."""
        if self._leave_reason is not None:
            return 0.0
        if self.state in (ClassicState.OUT, ClassicState.FATAL):
            return NEVER_MS
        due = self.poll_watch.deadline_ms
        if self._in_flight is None:
            due = min(
                due,
                max(
                    self._not_before_ms,
                    self._heartbeat_at_ms if self.state is ClassicState.STABLE else 0.0,
                ),
            )
        return due

    def sent(self, request: GroupRequest, now_ms: float) -> int:
        """A request goes out; its number, to be given with the answer."""
        self._attempt += 1
        self._in_flight = request
        if request is GroupRequest.HEARTBEAT:
            self._heartbeat_at_ms = now_ms + self.heartbeat_interval_ms
        return self._attempt

    def take_leave(self) -> tuple[str, str] | None:
        """Member id and reason of the LeaveGroup to send; None for a member that never joined, or
        a static one, which the group expects back.
        """
        reason, member_id = self._leave_reason, self._leaving_member_id
        self._leave_reason = None
        self._leaving_member_id = ""
        if reason is None or not member_id or self.group_instance_id is not None:
            return None
        return member_id, reason

    def failed(self, attempt: int, now_ms: float) -> None:
        """No answer came: the connection ended, the coordinator is unreachable, time is over."""
        if self._answered(attempt):
            self.needs_coordinator = True
            self._try_again(now_ms)

    def joined(
        self, attempt: int, now_ms: float, *, generation_id: int, member_id: str, is_leader: bool
    ) -> bool:
        """JoinGroup succeeded. Returns whether this member still waits for it."""
        if not self._answered(attempt) or self.state is not ClassicState.READY_TO_JOIN:
            return False
        self.backoff.reset()
        self._heard_at_ms = now_ms
        self.generation_id = generation_id
        self.member_id = member_id
        self.is_leader = is_leader
        self.rejoin_reason = None
        self._move(ClassicState.LEADING if is_leader else ClassicState.READY_TO_SYNC)
        return True

    def led(self, attempt: int) -> bool:
        """The assignment is worked out. Returns whether it is still wanted."""
        if not self._answered(attempt) or self.state is not ClassicState.LEADING:
            return False
        self._move(ClassicState.READY_TO_SYNC)
        return True

    def synced(self, attempt: int, now_ms: float, partitions: Partitions) -> None:
        if not self._answered(attempt) or self.state is not ClassicState.READY_TO_SYNC:
            return
        self.backoff.reset()
        self._heard_at_ms = now_ms
        self._heartbeat_at_ms = now_ms + self.heartbeat_interval_ms
        self._move(ClassicState.STABLE)
        self._assignment = partitions
        self.on_attention()

    def heartbeat_succeeded(self, attempt: int, now_ms: float) -> None:
        if self._answered(attempt):
            self.backoff.reset()
            self._heard_at_ms = now_ms

    def refused(
        self,
        attempt: int,
        now_ms: float,
        request: GroupRequest,
        code: ErrorCode,
        *,
        member_id: str = "",
        message: str | None = None,
    ) -> None:
        """The coordinator answered with an error. `member_id` is that of a MEMBER_ID_REQUIRED."""
        if not self._answered(attempt) or self.state in (ClassicState.OUT, ClassicState.FATAL):
            return
        if code in _FATAL_CODES:
            self._fail(code, message)
        elif code in _REFUSED_CODES:
            self._lose(forget_member=False)
            self._failure = Fail(code, message)
        elif code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = member_id
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._unknown_to_coordinator(now_ms, request, forget_member=True)
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self._unknown_to_coordinator(now_ms, request, forget_member=False)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rebalance_announced(now_ms, request)
        elif code in _MOVED_CODES or code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self.needs_coordinator = self.needs_coordinator or code in _MOVED_CODES
            self._try_again(now_ms)
        elif code.retriable:
            self._try_again(now_ms)
        else:
            self._lose(forget_member=False)
            self._failure = Fail(code, message)

    def _to_give_up_before_joining(self) -> Partitions:
        if not self.cooperative:
            return self.owned
        return frozenset(each for each in self.owned if each.topic not in self._topics)

    def _rebalance_announced(self, now_ms: float, request: GroupRequest) -> None:
        if request is GroupRequest.HEARTBEAT:
            self.request_rejoin("group is already rebalancing")
            return
        # The next generation has begun before this one was complete. What is owned is what it was.
        if request is GroupRequest.JOIN:
            self._pause(now_ms)
        self._move(ClassicState.READY_TO_JOIN)

    def _unknown_to_coordinator(
        self, now_ms: float, request: GroupRequest, *, forget_member: bool
    ) -> None:
        if request is GroupRequest.JOIN and not self.owned:
            # Nothing to lose: join at once, as a new member.
            self.member_id = ""
            self.generation_id = NO_GENERATION
            self._move(ClassicState.READY_TO_JOIN)
            return
        self._lose(forget_member=forget_member)

    def _try_again(self, now_ms: float) -> None:
        self._pause(now_ms)
        if self.state in (ClassicState.LEADING, ClassicState.READY_TO_SYNC):
            # It is unknown whether the generation still waits for this member: join again.
            self._move(ClassicState.READY_TO_JOIN)
        elif self.state is ClassicState.STABLE:
            self._heartbeat_at_ms = now_ms

    def _look_at_polls(self, now_ms: float) -> None:
        if self.state in (ClassicState.OUT, ClassicState.FATAL):
            return
        if now_ms >= self.poll_watch.deadline_ms:
            # A user that does not poll makes no progress: other members get the partitions.
            self._leave("consumer poll timeout has expired")
        elif (
            self.state is ClassicState.STABLE
            and now_ms - self._heard_at_ms > self.session_timeout_ms
        ):
            self._heard_at_ms = now_ms
            self.needs_coordinator = True

    def _leave(self, reason: str) -> None:
        if self.state is ClassicState.FATAL:
            self._reset(forget_member=True)
            return
        if self.state is not ClassicState.OUT or self.member_id:
            self._leave_reason = reason
            self._leaving_member_id = self.member_id
        self._lose(forget_member=True)

    def _lose(self, *, forget_member: bool) -> None:
        """The generation is over for this member; what it owns may be others' by now."""
        self._reset(forget_member=forget_member)
        self.on_attention()

    def _reset(self, *, forget_member: bool) -> None:
        self._move(ClassicState.OUT)
        self.generation_id = NO_GENERATION
        if forget_member:
            self.member_id = ""
        self.is_leader = False
        self._is_lost = bool(self.owned)
        self._assignment = None
        self._failure = None
        self._in_flight = None
        self._attempt += 1
        self._rejoin_wanted = True

    def _fail(self, code: ErrorCode, message: str | None) -> None:
        self._reset(forget_member=True)
        self._move(ClassicState.FATAL)
        self._failure = Fail(code, message)
        self.on_attention()

    def _answered(self, attempt: int) -> bool:
        """Whether this is the request under way, which it then no longer is."""
        if attempt != self._attempt or self._in_flight is None:
            return False
        self._in_flight = None
        return True

    def _pause(self, now_ms: float) -> None:
        self._not_before_ms = now_ms + self.backoff.next_ms()

    def _move(self, state: ClassicState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} → {state}"
        self.state = state
