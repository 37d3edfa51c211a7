"""SCRAM keys of delegation tokens: a token's HMAC, in base64, is its password (KIP-48).

The check at login is in `sasl.scram`; bearer tokens are another thing: `sasl.oauthbearer.listener`.

Owns the keys that were made, so that each is made once, and the logins that wait for keys.
Invariants: keys are made one at a time and never on the loop; however many logins wait for a
token's keys, they are made once; keys of tokens that are gone or past their end are never found;
the secret is kept nowhere.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from moldau.metadata.image.security import DelegationToken
from moldau.metadata.token_secrets import TokenSecrets
from moldau.protocol.scram import (
    LEAST_ITERATIONS,
    KnownKeys,
    ScramKeys,
    salted_password,
    scram_keys,
)
from moldau.runtime.clock import Clock
from moldau.runtime.slices import Work
from moldau.sasl.mechanism import Postponed
from moldau.server.fair_shares import FairShares
from moldau.server.outgoing import Offload

MAX_KEYS: Final = 10_000
"""Keys kept; those used last stay."""

MAX_WAITING: Final = 10_000
"""Logins that wait for keys; with more the client's connection is closed. Those of one token have
as many places as they leave to others.
"""

RESUMED_PER_TURN: Final = 50
"""Logins that go on in one turn of the loop."""


class _Login(NamedTuple):
    is_there: asyncio.Future[bool]
    is_gone: Callable[[], bool]


@dataclass(eq=False, repr=False)
class TokenCredentials:
    """Finds the keys of tokens, by mechanism and token id. Belongs to one event loop.

    Making keys takes some milliseconds of a processor, once for each token and mechanism.

    Args:
        tokens: those of the newest image.
        offload: runs a function beside the loop.
        start: runs what ends by itself on the loop.
        salt_of: the salt of a token's keys by mechanism and id, the same on every node.
    """

    _secrets: TokenSecrets
    _tokens: Callable[[], Mapping[str, DelegationToken]]
    _clock: Clock
    _offload: Offload
    _start: Callable[[Work], object]
    _salt_of: Callable[[str, str], bytes]
    _keys: OrderedDict[tuple[str, str], ScramKeys] = field(default_factory=OrderedDict)
    #: By mechanism and token id, in the order of their turns. While it has any, `_run` runs.
    _waiting: dict[tuple[str, str], list[_Login]] = field(default_factory=dict)
    _places: FairShares = field(default_factory=lambda: FairShares(MAX_WAITING))

    def __call__(self, mechanism: str, token_id: str) -> KnownKeys | None:
        """A token's keys, None for one that is not. Raises: Postponed."""
        token = self._tokens().get(token_id)
        if token is None or not self._secrets.is_enabled:
            return None
        end_ms = min(token.expiration_timestamp, token.max_timestamp)
        left_ms = end_ms - self._clock.now_ms()
        if left_ms <= 0:
            return None
        place = (mechanism, token_id)
        keys = self._keys.get(place)
        if keys is None:
            raise Postponed(partial(self._wait, place))
        self._keys.move_to_end(place)
        user = token.owner.partition(":")[2]
        return KnownKeys(keys, user, float(left_ms))

    async def _wait(self, place: tuple[str, str], is_gone: Callable[[], bool]) -> bool:
        if not self._places.take(place[1]):
            return False
        is_first = not self._waiting
        login = _Login(asyncio.get_running_loop().create_future(), is_gone)
        self._waiting.setdefault(place, []).append(login)
        if is_first:
            self._start(self._run())
        return await login.is_there

    async def _run(self) -> None:
        while self._waiting:
            place, logins = next(iter(self._waiting.items()))
            if place not in self._keys and not all(login.is_gone() for login in logins):
                keys = await self._offload(_made, self._secrets, self._salt_of(*place), *place)
                self._keys[place] = keys
                if len(self._keys) > MAX_KEYS:
                    self._keys.popitem(last=False)
            turn = logins[:RESUMED_PER_TURN]
            del logins[:RESUMED_PER_TURN]
            for login in turn:
                self._places.give_back(place[1])
                if not login.is_there.done():  # it was cancelled
                    login.is_there.set_result(True)
            if not logins:
                del self._waiting[place]
            await asyncio.sleep(0)


def _made(token_secrets: TokenSecrets, salt: bytes, mechanism: str, token_id: str) -> ScramKeys:
    """The credential, made off the loop; OpenSSL lets other threads run."""
    password = b64encode(token_secrets.hmac_of(token_id)).decode()
    salted = salted_password(mechanism, password, salt, LEAST_ITERATIONS)
    return scram_keys(mechanism, salted, salt, LEAST_ITERATIONS)
