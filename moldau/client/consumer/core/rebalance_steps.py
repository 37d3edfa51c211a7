"""What the state machines of group membership tell their driver: requests to send, and what the
user's next poll has to do.

Owns these values, and the watch over `max.poll.interval.ms` that both machines share. Must not send
or call anything. Invariant: everything that takes partitions from a user's hands is a step, and
steps are carried out inside polls only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from moldau.client.records import TopicPartition
from moldau.protocol.errors import ErrorCode

Partitions: TypeAlias = frozenset[TopicPartition]
NOTHING: Final[Partitions] = frozenset()
NO_TOPIC_IDS: Final[Mapping[TopicPartition, UUID]] = MappingProxyType({})
NEVER_MS: Final = float("inf")

NO_GENERATION: Final = -1
"""The generation of a member that is in none; its commits are those of no group member."""


class GroupRequest(Enum):
    """A request to send; the driver makes the message."""

    JOIN = auto()
    LEAD = auto()
    """Not a request: the group's leader is to work out the assignment."""
    SYNC = auto()
    HEARTBEAT = auto()
    LEAVE = auto()


@dataclass(frozen=True, slots=True)
class Revoke:
    """Commit if commits are automatic, call the listener, take these away, then call `revoked`.
    Without partitions only the commit is due, before joining again.
    """

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Lose:
    """These are gone, other members may own them: no commit; `on_partitions_lost`, then `lost`."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Assign:
    """From now on `partitions` is all that is owned: call `assigned`, then the listener with
    `added`, then `acknowledge`. `topic_ids`: of which topics they are, where the coordinator
    assigns by id (KIP-848).
    """

    partitions: Partitions
    added: Partitions
    topic_ids: Mapping[TopicPartition, UUID] = field(
        default_factory=lambda: NO_TOPIC_IDS, compare=False
    )


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise this to the user."""

    code: ErrorCode
    message: str | None


Step: TypeAlias = Revoke | Lose | Assign | Fail


class Standing(Enum):
    """How a member stands when it wants to commit."""

    MEMBER = auto()
    REBALANCING = auto()
    """The member is between two generations: poll first."""
    OUT = auto()
    """Not in the group (any more)."""


class Identity(NamedTuple):
    """What a commit is signed with."""

    generation_id: int
    member_id: str
    group_instance_id: str | None


class PollWatch:
    """Whether the user still polls (`max.poll.interval.ms`, KIP-62). While a poll is under way the
    interval does not run.
    """

    def __init__(self, interval_ms: float, now_ms: float) -> None:
        self.interval_ms: Final = interval_ms
        self._last_ms = now_ms
        self._under_way = 0

    def begin(self, now_ms: float) -> None:
        self._under_way += 1
        self._last_ms = now_ms

    def end(self, now_ms: float) -> None:
        self._under_way -= 1
        self._last_ms = now_ms

    def note(self, now_ms: float) -> None:
        self._last_ms = now_ms

    @property
    def deadline_ms(self) -> float:
        return NEVER_MS if self._under_way else self._last_ms + self.interval_ms

    @property
    def ask_at_ms(self) -> float:
        """When to look whether the user waits in a poll: well before the deadline."""
        return NEVER_MS if self._under_way else self._last_ms + self.interval_ms / 2
