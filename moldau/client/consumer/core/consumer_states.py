"""The states of a member of the new group protocol (KIP-848), and the legal transitions.

Owns the tables. Must not decide anything. Invariant: a transition that is not here never happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from moldau.protocol.errors import ErrorCode


class ConsumerState(Enum):
    """Where the member is with its coordinator."""

    UNSUBSCRIBED = auto()
    """In no group; no heartbeats."""
    JOINING = auto()
    """A heartbeat with epoch 0 is to be sent, or under way."""
    STABLE = auto()
    """What is owned is what the coordinator wants, and it knows that."""
    RECONCILING = auto()
    """The coordinator wants something else; the next poll gives up and takes over."""
    ACKNOWLEDGING = auto()
    """Done; the coordinator is to be told what is owned now."""
    FENCED = auto()
    """Thrown out; the next poll tells that all is lost, then the member joins anew."""
    STALE = auto()
    """Left because the user does not poll; the next poll joins anew."""
    FATAL = auto()
    """Refused for good; only a new subscription begins anew."""


_ANYWHERE: Final = frozenset(
    {
        ConsumerState.UNSUBSCRIBED,
        ConsumerState.FENCED,
        ConsumerState.STALE,
        ConsumerState.FATAL,
    }
)

TRANSITIONS: Final[Mapping[ConsumerState, frozenset[ConsumerState]]] = MappingProxyType(
    {
        ConsumerState.UNSUBSCRIBED: frozenset({ConsumerState.JOINING, ConsumerState.UNSUBSCRIBED}),
        ConsumerState.JOINING: _ANYWHERE
        | {ConsumerState.JOINING, ConsumerState.STABLE, ConsumerState.RECONCILING},
        ConsumerState.STABLE: _ANYWHERE | {ConsumerState.RECONCILING},
        ConsumerState.RECONCILING: _ANYWHERE | {ConsumerState.ACKNOWLEDGING, ConsumerState.STABLE},
        ConsumerState.ACKNOWLEDGING: _ANYWHERE | {ConsumerState.STABLE, ConsumerState.RECONCILING},
        ConsumerState.FENCED: frozenset(
            {ConsumerState.JOINING, ConsumerState.UNSUBSCRIBED, ConsumerState.FATAL}
        ),
        ConsumerState.STALE: frozenset({ConsumerState.JOINING, ConsumerState.UNSUBSCRIBED}),
        ConsumerState.FATAL: frozenset({ConsumerState.UNSUBSCRIBED}),
    }
)
"""The legal transitions."""

IN_GROUP: Final = frozenset(
    {ConsumerState.STABLE, ConsumerState.RECONCILING, ConsumerState.ACKNOWLEDGING}
)
"""The coordinator has given an epoch that is good for commits."""

ACTIVE: Final = IN_GROUP | {ConsumerState.JOINING}
"""Heartbeats are sent."""

FENCED_CODES: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
"""The membership is over; a new one can begin."""

PASSING_CODES: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The same heartbeat may succeed later, maybe elsewhere."""
