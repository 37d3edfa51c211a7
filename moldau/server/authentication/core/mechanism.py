"""What a SASL mechanism is on the server's side, and PLAIN.

A mechanism object serves one authentication. Invariants: no secret is in a `repr` or in the text of
an error; what a client is told of a refusal does not depend on which part of its credentials is
wrong.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

WRONG_PASSWORD: Final = "the user name or the password is wrong"
OTHER_AUTHORIZATION_ID: Final = "a client may only act as the user that it authenticates as"


class SaslRefused(Exception):
    """The client is not authenticated.

    Attributes:
        told: what the client reads; None for a sentence that leaves open what is wrong.
        is_passing: whether the client may succeed when it comes again as it is: its connection ends
            without an answer, which clients take for a fault of the network.
    """

    def __init__(self, reason: str, told: str | None = None, *, is_passing: bool = False) -> None:
        """`reason` is for the log: it may name the user, and never holds a secret."""
        super().__init__(reason)
        self.told = told
        self.is_passing = is_passing


Wait: TypeAlias = Callable[[Callable[[], bool]], Awaitable[bool]]
"""Waits for what a step needs; it may be left out once the argument says that the client is gone.
False: too many wait already.
"""


class Postponed(Exception):
    """A step needs what is made beside the event loop. The session is as it was, and the step is
    taken again with the same token after `wait`.
    """

    def __init__(self, wait: Wait) -> None:
        super().__init__("the step has to wait")
        self.wait = wait


class Accepted(NamedTuple):
    """The client has proved its name.

    Attributes:
        answer: the last bytes to the client.
        left_ms: for how long the proof is good (a token's rest of life); None without an end.
        is_token: whether the proof is a delegation token.
    """

    user: str
    answer: bytes = b""
    left_ms: float | None = None
    is_token: bool = False


class Mechanism(Protocol):
    """One authentication on the server's side, step by step."""

    def step(self, token: bytes) -> bytes | Accepted:
        """What to send next, or who the client is.

        Raises:
            SaslRefused: the credentials are wrong, or the token breaks the mechanism's rules.
            Postponed: the step needs what is not there yet.
        """


class Plain:
    """PLAIN (RFC 4616) with the users of Kafka's PlainLoginModule.

    Args:
        users: passwords by name.
    """

    __slots__ = ("_users",)

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    def step(self, token: bytes) -> Accepted:
        parts = token.decode("utf-8", "replace").split("\0", 2)
        if len(parts) != 3:
            raise SaslRefused("the message of PLAIN does not have its three parts")
        authorization_id, name, password = parts
        if not name or not password:
            raise SaslRefused("the name or the password is empty")
        wanted = self._users.get(name)
        # For unknown names too, and whatever the lengths are: they take the same time.
        is_equal = hmac.compare_digest(_hashed(password), _hashed(wanted or ""))
        if wanted is None or not is_equal:
            problem = "there is no such user" if wanted is None else "the password is wrong"
            raise SaslRefused(f"{name!r}: {problem}", WRONG_PASSWORD)
        if authorization_id not in ("", name):
            raise SaslRefused(
                f"{name!r} asked to act as {authorization_id!r}", OTHER_AUTHORIZATION_ID
            )
        return Accepted(name)


def _hashed(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()
