"""SCRAM keys of delegation tokens: who they are for, how long, and how many are kept."""

from __future__ import annotations

from base64 import b64encode

import pytest

from moldau.config.definition import Password
from moldau.metadata.image.security import DelegationToken
from moldau.metadata.token_secrets import TokenSecrets
from moldau.runtime.authentication.sasl import ScramClient
from moldau.server.authentication import token_credentials
from moldau.server.authentication.core.mechanism import SaslRefused
from moldau.server.authentication.core.scram import KnownKeys, Scram, invented_keys
from moldau.server.authentication.token_credentials import TokenCredentials
from tests.kit.manual_clock import ManualClock

NOW_MS = 1_700_000_000_000
SECRETS = TokenSecrets(Password("key"))


def token(left_ms: int = 1_000, max_left_ms: int = 5_000) -> DelegationToken:
    return DelegationToken(
        "User:bob", "User:eve", (), NOW_MS - 10, NOW_MS + max_left_ms, NOW_MS + left_ms
    )


def credentials(**tokens: DelegationToken) -> TokenCredentials:
    return TokenCredentials(SECRETS, lambda: tokens, ManualClock(NOW_MS))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_hmac_is_the_password(mechanism: str) -> None:
    find = credentials(a=token())
    hash_name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]

    def keys_of(name: str, is_token: bool) -> KnownKeys:
        found = find(mechanism, name) if is_token else None
        return found or KnownKeys(invented_keys(hash_name, name, b"secret"), None)

    def log_in(password: str, **extensions: str) -> object:
        exchange = Scram(hash_name, keys_of, "of-the-server")
        client = ScramClient(hash_name, "a", password, "of-the-client", extensions)
        proof = client.answer(exchange.step(client.first()))  # type: ignore[arg-type]
        assert proof is not None
        return exchange.step(proof)

    password = b64encode(SECRETS.hmac_of("a")).decode()
    for value in ("true", "TRUE"):
        accepted = log_in(password, tokenauth=value)
        assert (accepted.user, accepted.left_ms, accepted.is_token) == ("bob", 1_000.0, True)  # type: ignore[attr-defined]
    for wrong, extensions in (("x", {"tokenauth": "true"}), (password, {}), (password, {"x": "y"})):
        with pytest.raises(SaslRefused):
            log_in(wrong, **extensions)


def test_tokens_past_their_end_have_no_keys() -> None:
    find = credentials(over=token(0), ended=token(1_000, -1), good=token())
    assert find("SCRAM-SHA-256", "over") is None
    assert find("SCRAM-SHA-256", "ended") is None
    assert find("SCRAM-SHA-256", "gone") is None
    assert find("SCRAM-SHA-256", "good") is not None
    off = TokenCredentials(TokenSecrets(None), lambda: {"a": token()}, ManualClock(NOW_MS))
    assert off("SCRAM-SHA-256", "a") is None


def test_keys_are_made_once_and_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_credentials, "MAX_KEYS", 2)
    find = credentials(a=token(), b=token(), c=token())
    first = find("SCRAM-SHA-256", "a")
    assert first is not None
    assert "[hidden]" in repr(first)
    assert find("SCRAM-SHA-256", "a") == first
    for name in "bc":
        find("SCRAM-SHA-256", name)
    again = find("SCRAM-SHA-256", "a")
    assert again is not None
    assert again.keys.salt != first.keys.salt
