"""Names and passwords against the SCRAM credentials in the metadata, at a bounded cost.

Owns the memory of passwords that were right, and how many may be tried. Must not know HTTP.
Invariants: no password is kept, only digests under a key of this process; a password that has been
changed is not right any more; a name that does not exist costs what one costs that does; guessing
costs processor time on its own thread, and only `TRIES_PER_S` tries a second of it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from moldau.metadata.image import MetadataImage
from moldau.metadata.image.security import ScramCredential, ScramKey
from moldau.metadata.scram_users import InventedUsers
from moldau.protocol.scram import (
    MECHANISM_NUMBERS,
    MECHANISMS_BY_NUMBER,
    salted_password,
    scram_keys,
)

MAX_REMEMBERED: Final = 1_000
TRIES_PER_S: Final = 20.0
"""The limit for all clients together; one try takes 3 to 15 ms."""
HOSTS_TRIES_PER_S: Final = 2.0
BURST_S: Final = 5.0
"""For so many seconds' worth of tries at once there is room after a rest."""
MAX_HOSTS: Final = 1_000

Credentials = Mapping[ScramKey, ScramCredential]
_PREFERRED: Final = tuple(MECHANISM_NUMBERS[name] for name in ("SCRAM-SHA-512", "SCRAM-SHA-256"))


class TooManyTries(Exception):
    """Passwords have been tried too often; later there is room again."""


class _Cost(NamedTuple):
    """What makes the check of a password cheap or dear."""

    mechanism: int
    iterations: int


class _Tries:
    """A bucket of tries that fills with time."""

    __slots__ = ("_at_ms", "_left", "_per_s")

    def __init__(self, per_s: float, now_ms: float) -> None:
        self._per_s = per_s
        self._left = per_s * BURST_S
        self._at_ms = now_ms

    def has_one(self, now_ms: float) -> bool:
        filled = self._left + (now_ms - self._at_ms) * self._per_s / 1000
        self._left = min(filled, self._per_s * BURST_S)
        self._at_ms = now_ms
        return self._left >= 1

    def change(self, count: int) -> None:
        self._left += count


class PasswordChecks:
    """Checks passwords on its own thread, one at a time. Used on one loop.

    Args:
        image: gives the newest one, which has the users.
        now_ms: a clock that never goes back.
    """

    def __init__(self, image: Callable[[], MetadataImage], now_ms: Callable[[], float]) -> None:
        self._image = image
        self._invented = InventedUsers(image)
        self._now_ms = now_ms
        self._secret = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, bytes] = OrderedDict()
        self._all = _Tries(TRIES_PER_S, now_ms())
        self._by_host: OrderedDict[str, _Tries] = OrderedDict()
        self._share: tuple[Credentials | None, float] = (None, 1.0)
        self._worker = ThreadPoolExecutor(1, "moldau-passwords")

    def close(self) -> None:
        """End the thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def is_right(self, user: str, password: str, host: str) -> bool:
        """Whether this is the user's password.

        Args:
            host: the client's address.

        Raises:
            TooManyTries: the caller does not learn whether it is.
        """
        credentials = self._image().scram.credentials
        mechanism, credential = _find(credentials, user)
        digest = hmac.digest(self._secret, f"{len(user)} {user} {password}".encode(), "sha256")
        if credential is not None and (known := self._remembered.get(digest)) is not None:
            self._remembered.move_to_end(digest)
            if hmac.compare_digest(known, credential.stored_key):
                return True
        buckets = self._take(host)
        cost = _Cost(mechanism, credential.iterations) if credential else self._cost_of(user)
        salt = credential.salt if credential else digest
        stored_key = await asyncio.get_running_loop().run_in_executor(
            self._worker, _stored_key, cost, password, salt
        )
        wanted = credential.stored_key if credential else digest
        if not hmac.compare_digest(stored_key, wanted):
            return False
        for each in buckets:
            each.change(1)
        self._remembered[digest] = stored_key
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return True

    def _take(self, host: str) -> tuple[_Tries, _Tries]:
        """One try of the host and of all; a right password gives it back."""
        now_ms = self._now_ms()
        own = self._by_host.pop(host, None) or _Tries(HOSTS_TRIES_PER_S, now_ms)
        self._by_host[host] = own
        if len(self._by_host) > MAX_HOSTS:
            self._by_host.popitem(last=False)
        if not (own.has_one(now_ms) and self._all.has_one(now_ms)):
            raise TooManyTries
        own.change(-1)
        self._all.change(-1)
        return own, self._all

    def _cost_of(self, user: str) -> _Cost:
        """What checking this name would cost if it existed: the same on every node, as often dear
        as for names that do, and the iterations that a login with SCRAM gets.
        """
        credentials = self._image().scram.credentials
        if credentials is not self._share[0]:
            preferred = [_find(credentials, user)[0] for user in {key.user for key in credentials}]
            share = preferred.count(_PREFERRED[0]) / len(preferred) if preferred else 1.0
            self._share = credentials, share
        is_preferred = self._invented.fraction(f"mechanism {user}") < self._share[1]
        mechanism = _PREFERRED[0 if is_preferred else 1]
        keys = self._invented.keys(MECHANISMS_BY_NUMBER[mechanism], user)
        return _Cost(mechanism, keys.iterations)


def _find(credentials: Credentials, user: str) -> tuple[int, ScramCredential | None]:
    """The credential of a user that counts, and its mechanism's number."""
    for mechanism in _PREFERRED:
        found = credentials.get(ScramKey(user, mechanism))
        if found is not None:
            return mechanism, found
    return _PREFERRED[0], None


def _stored_key(cost: _Cost, password: str, salt: bytes) -> bytes:
    """The key, made off the loop; OpenSSL lets other threads run."""
    mechanism = MECHANISMS_BY_NUMBER[cost.mechanism]
    salted = salted_password(mechanism, password, salt, cost.iterations)
    return scram_keys(mechanism, salted, salt, cost.iterations).stored_key
