"""The states of a classic group's member, the legal transitions, and the kinds of refusals.

Owns the tables. Must not decide anything. Invariant: a transition that is not here never happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from moldau.protocol.errors import ErrorCode


class ClassicState(Enum):
    """Where the member is between two assignments."""

    OUT = auto()
    """In no generation; the next poll prepares a join."""
    READY_TO_JOIN = auto()
    """Given up what had to be; JoinGroup is to be sent, or under way."""
    LEADING = auto()
    """Joined as the leader; the assignment is being worked out."""
    READY_TO_SYNC = auto()
    """SyncGroup is to be sent, or under way."""
    STABLE = auto()
    """In a generation, with heartbeats."""
    FATAL = auto()
    """Fenced or refused for good; only a new subscription begins anew."""


TRANSITIONS: Final[Mapping[ClassicState, frozenset[ClassicState]]] = MappingProxyType(
    {
        ClassicState.OUT: frozenset(
            {ClassicState.OUT, ClassicState.READY_TO_JOIN, ClassicState.FATAL}
        ),
        ClassicState.READY_TO_JOIN: frozenset(
            {
                ClassicState.READY_TO_JOIN,
                ClassicState.LEADING,
                ClassicState.READY_TO_SYNC,
                ClassicState.OUT,
                ClassicState.FATAL,
            }
        ),
        ClassicState.LEADING: frozenset(
            {
                ClassicState.READY_TO_SYNC,
                ClassicState.READY_TO_JOIN,
                ClassicState.OUT,
                ClassicState.FATAL,
            }
        ),
        ClassicState.READY_TO_SYNC: frozenset(
            {
                ClassicState.STABLE,
                ClassicState.READY_TO_JOIN,
                ClassicState.OUT,
                ClassicState.FATAL,
            }
        ),
        ClassicState.STABLE: frozenset(
            {
                ClassicState.STABLE,
                ClassicState.READY_TO_JOIN,
                ClassicState.OUT,
                ClassicState.FATAL,
            }
        ),
        ClassicState.FATAL: frozenset({ClassicState.FATAL, ClassicState.OUT}),
    }
)
"""The legal transitions."""

FATAL_CODES: Final = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    }
)
"""Trying again with the same settings cannot help."""

REFUSED_CODES: Final = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""The user is told; the poll after that tries again."""

MOVED_CODES: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
