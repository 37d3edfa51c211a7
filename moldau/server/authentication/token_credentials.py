"""SCRAM keys of delegation tokens: a token's HMAC, in base64, is its password (KIP-48).

Owns the keys that were made, so that each is made once. Invariants: keys of tokens that are gone or
past their end are never found; the secret is kept nowhere.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from moldau.metadata.image.security import DelegationToken
from moldau.metadata.token_secrets import TokenSecrets
from moldau.protocol.scram import LEAST_ITERATIONS, ScramKeys, salted_password, scram_keys
from moldau.runtime.clock import Clock
from moldau.server.authentication.core.scram import KnownKeys

MAX_KEYS: Final = 10_000
"""Keys kept; those used last stay."""

SALT_BYTES: Final = 24


class TokenCredentials:
    """Finds the keys of tokens, by mechanism and token id. Belongs to one event loop.

    Making keys takes some milliseconds, once for each token and mechanism.

    Args:
        tokens: those of the newest image.
    """

    def __init__(
        self,
        token_secrets: TokenSecrets,
        tokens: Callable[[], Mapping[str, DelegationToken]],
        clock: Clock,
    ) -> None:
        self._secrets = token_secrets
        self._tokens = tokens
        self._clock = clock
        self._keys: OrderedDict[tuple[str, str], ScramKeys] = OrderedDict()

    def __call__(self, mechanism: str, token_id: str) -> KnownKeys | None:
        token = self._tokens().get(token_id)
        if token is None or not self._secrets.is_enabled:
            return None
        end_ms = min(token.expiration_timestamp, token.max_timestamp)
        left_ms = end_ms - self._clock.now_ms()
        if left_ms <= 0:
            return None
        user = token.owner.partition(":")[2]
        return KnownKeys(self._keys_of(mechanism, token_id), user, float(left_ms))

    def _keys_of(self, mechanism: str, token_id: str) -> ScramKeys:
        place = (mechanism, token_id)
        keys = self._keys.get(place)
        if keys is None:
            password = b64encode(self._secrets.hmac_of(token_id)).decode()
            salt = secrets.token_bytes(SALT_BYTES)
            salted = salted_password(mechanism, password, salt, LEAST_ITERATIONS)
            keys = self._keys[place] = scram_keys(mechanism, salted, salt, LEAST_ITERATIONS)
            if len(self._keys) > MAX_KEYS:
                self._keys.popitem(last=False)
        self._keys.move_to_end(place)
        return keys
