"""A broker's fetch sessions (KIP-227).

Owns what each session has asked for and been sent. Must not read logs. Invariant: a session
that was closed or forgotten is never found again; ids are not reused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moldau.protocol.messages.p01_fetch import FetchPartition

TopicKey = Any
"""A topic's name, or its id since version 13 of Fetch."""


@dataclass(slots=True)
class WantedPartition:
    """A partition of a session: where the client is, and what it was sent last."""

    asked: FetchPartition
    told: tuple[int, int, int] = (-1, -1, -1)


@dataclass(slots=True)
class FetchSession:
    """An incremental fetch session; `epoch` is the next one expected."""

    session_id: int
    epoch: int = 1
    partitions: dict[tuple[TopicKey, int], WantedPartition] = field(default_factory=dict)


class FetchSessions:
    """A broker's fetch sessions."""

    def __init__(self) -> None:
        self._sessions: dict[int, FetchSession] = {}
        self._next_id = 1

    def forget_all(self) -> None:
        """As a restart does."""
        self._sessions.clear()

    def open(self) -> FetchSession:
        """A new session."""
        session = FetchSession(self._next_id)
        self._next_id += 1
        self._sessions[session.session_id] = session
        return session

    def find(self, session_id: int) -> FetchSession | None:
        """The session with an id."""
        return self._sessions.get(session_id)

    def close(self, session_id: int) -> None:
        """Forget one."""
        self._sessions.pop(session_id, None)
