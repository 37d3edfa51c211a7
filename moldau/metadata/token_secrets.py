"""What the secret key makes of delegation tokens: the HMAC of each, which is its password (KIP-48).

Owns the HMACs of the tokens that are known, and nothing but them. Invariants: an HMAC is in no
record, log or `repr`; each is computed once, as long as its token lives.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from moldau.config.definition import Password
from moldau.metadata.image.security import DelegationToken


class TokenSecrets:
    """Belongs to one event loop.

    Args:
        secret_key: `delegation.token.secret.key`; None where tokens are switched off.
    """

    __slots__ = ("_hmacs", "_ids", "_key", "_seen")

    def __init__(self, secret_key: Password | None) -> None:
        self._key = None if secret_key is None else secret_key.value.encode()
        self._hmacs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}
        self._seen: Mapping[str, DelegationToken] | None = None

    @property
    def is_enabled(self) -> bool:
        return self._key is not None

    def hmac_of(self, token_id: str) -> bytes:
        """The HMAC of any token id; tokens must be enabled."""
        assert self._key is not None, "tokens are enabled"
        return self._hmacs.get(token_id) or hmac.digest(self._key, token_id.encode(), "sha512")

    def token_id_of(self, token_hmac: bytes, tokens: Mapping[str, DelegationToken]) -> str | None:
        """The id of the one of `tokens`, of an image, that has this HMAC."""
        self.follow(tokens)
        return self._ids.get(token_hmac)

    def follow(self, tokens: Mapping[str, DelegationToken]) -> None:
        """Know these tokens, and no others."""
        if tokens is self._seen or self._key is None:
            return
        for token_id in self._hmacs.keys() - tokens.keys():
            del self._ids[self._hmacs.pop(token_id)]
        for token_id in tokens.keys() - self._hmacs.keys():
            found = hmac.digest(self._key, token_id.encode(), "sha512")
            self._hmacs[token_id] = found
            self._ids[found] = token_id
        self._seen = tokens
