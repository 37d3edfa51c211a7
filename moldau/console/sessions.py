"""Who has logged in: sessions behind the cookies of pages.

Owns the secrets of sessions, and when they end. Must not know HTTP, nor open connections.
Invariants: the cookie's text is kept as a digest alone; a session that has ended holds no
credentials any more; there are never more than the limits say.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from moldau.console.people import Person

IDLE_S: Final = 30 * 60.0
"""A session without a request ends after that."""
LONGEST_S: Final = 12 * 3600.0
"""A session ends after that in any case."""
MAX_SESSIONS: Final = 500
MAX_SESSIONS_PER_PERSON: Final = 20
SECRET_BYTES: Final = 32


@dataclass(eq=False, slots=True)
class Session:
    """One person at one browser.

    Attributes:
        request_token: what requests that change something have to show.
        ends_s: when it is over in any case, by the clock of `Sessions`.
        used_s: when it was last of use.
        is_over: it has ended; what goes on for it ends, too.
    """

    person: Person
    principal: str
    ends_s: float
    used_s: float
    is_over: bool = False
    request_token: str = field(
        default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES), repr=False
    )


class Sessions:
    """All sessions of a console.

    Args:
        now_s: a clock that never goes back.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._by_digest: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._by_digest)

    def open(
        self, person: Person, principal: str, *, longest_s: float = LONGEST_S
    ) -> tuple[str, Session]:
        """A session for a person whom the cluster has let in, and the text for its cookie.

        Args:
            longest_s: less than usual where the credentials end earlier.
        """
        self.sweep()
        own = [(d, each) for d, each in self._by_digest.items() if each.person == person]
        rivals = own if len(own) >= MAX_SESSIONS_PER_PERSON else []
        if not rivals and len(self._by_digest) >= MAX_SESSIONS:
            rivals = list(self._by_digest.items())
        if rivals:
            digest, _ = min(rivals, key=lambda each: each[1].used_s)
            self._forget(digest)
        now_s, text = self._now_s(), secrets.token_urlsafe(SECRET_BYTES)
        session = Session(person, principal, now_s + min(longest_s, LONGEST_S), now_s)
        self._by_digest[_digest(text)] = session
        return text, session

    def find(self, text: str) -> Session | None:
        """The session of a cookie; None when it is over, or never was."""
        digest = _digest(text)
        session = self._by_digest.get(digest)
        if session is None:
            return None
        now_s = self._now_s()
        if _is_over(session, now_s):
            self._forget(digest)
            return None
        session.used_s = now_s
        return session

    def end(self, text: str) -> Session | None:
        """Forget the session of a cookie; returns what it was."""
        return self._forget(_digest(text))

    def end_of(self, person: Person) -> None:
        """Forget every session with these credentials, which are not good any more."""
        for digest in [d for d, each in self._by_digest.items() if each.person == person]:
            self._forget(digest)

    def has(self, person: Person) -> bool:
        """Whether a session with these credentials goes on."""
        now_s = self._now_s()
        return any(
            each.person == person and not _is_over(each, now_s) for each in self._by_digest.values()
        )

    def sweep(self) -> None:
        """Forget what is over."""
        now_s = self._now_s()
        over = [d for d, session in self._by_digest.items() if _is_over(session, now_s)]
        for digest in over:
            self._forget(digest)

    def _forget(self, digest: bytes) -> Session | None:
        session = self._by_digest.pop(digest, None)
        if session is not None:
            session.is_over = True
        return session


def _is_over(session: Session, now_s: float) -> bool:
    return now_s >= session.ends_s or now_s - session.used_s >= IDLE_S


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
