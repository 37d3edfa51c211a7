"""What a replica of the quorum can be, and what it can become.

Owns: the roles, the table of legal transitions. Must not: decide when. Invariant: every change of
role goes through `QuorumState`, which checks it against the table.

Observer is no role: a replica that is not among the voters is UNATTACHED or FOLLOWER like any
other, only that it never campaigns.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class Role(Enum):
    """The states of KIP-595, with the Prospective of KIP-996."""

    UNATTACHED = "unattached"
    """Knows an epoch, but no leader it could fetch from; may have voted."""
    FOLLOWER = "follower"
    """Fetches from the leader of its epoch."""
    PROSPECTIVE = "prospective"
    """Asks in a PreVote whether an election could be won, before it raises the epoch."""
    CANDIDATE = "candidate"
    """Has raised the epoch, voted for itself and asks for votes."""
    LEADER = "leader"
    """A majority has voted for it in this epoch."""
    RESIGNED = "resigned"
    """Led this epoch, and never will again; tells the others, so that they elect."""


TRANSITIONS: Final[Mapping[Role, frozenset[Role]]] = MappingProxyType(
    {
        Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE}),
        Role.FOLLOWER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE}),
        Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.CANDIDATE}),
        Role.CANDIDATE: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE, Role.LEADER}),
        Role.LEADER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.RESIGNED}),
        Role.RESIGNED: frozenset({Role.UNATTACHED, Role.FOLLOWER}),
    }
)
"""From each role, the roles that may follow it."""

WITHIN_ONE_EPOCH: Final[frozenset[tuple[Role, Role]]] = frozenset(
    {
        (Role.UNATTACHED, Role.UNATTACHED),
        (Role.UNATTACHED, Role.FOLLOWER),
        (Role.UNATTACHED, Role.PROSPECTIVE),
        (Role.FOLLOWER, Role.UNATTACHED),
        (Role.FOLLOWER, Role.PROSPECTIVE),
        (Role.PROSPECTIVE, Role.UNATTACHED),
        (Role.PROSPECTIVE, Role.FOLLOWER),
        (Role.CANDIDATE, Role.UNATTACHED),
        (Role.CANDIDATE, Role.FOLLOWER),
        (Role.CANDIDATE, Role.PROSPECTIVE),
        (Role.CANDIDATE, Role.LEADER),
        (Role.LEADER, Role.RESIGNED),
        (Role.RESIGNED, Role.UNATTACHED),
    }
)
"""The transitions that leave the epoch as it is; every other one raises it.

No way leads back to LEADER: who resigned or restarted in an epoch cannot lead it again.
"""
