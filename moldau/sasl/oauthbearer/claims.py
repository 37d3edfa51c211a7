"""What a bearer token must say of itself: its times, its issuer, its audience and its user.

Owns the rules of Kafka's two validators (`sasl.oauthbearer.expected.*`): for signed tokens
(KIP-768), whose signature is checked elsewhere, and for the unsecured ones of development clusters
(KIP-255). Must not verify a signature, or read a clock. Invariants: a claim of the wrong type is as
bad as a missing one; no reason holds anything of the token but the names of claims.
"""

from __future__ import annotations

import json
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from moldau.config.settings import KeyedSettings, of_key

Claims: TypeAlias = Mapping[str, Any]

MAX_TOKEN_LENGTH: Final = 64 * 1024
INVALID_TOKEN: Final = "invalid_token"
INSUFFICIENT_SCOPE: Final = "insufficient_scope"


class TokenRefused(Exception):
    """A token that proves nothing.

    Attributes:
        status: what the client reads (RFC 6750, section 3.1).
        scope: the scope that the client should ask for; None for none.
    """

    def __init__(self, reason: str, status: str = INVALID_TOKEN, scope: str | None = None) -> None:
        """`reason` is for the log: it holds nothing of the token."""
        super().__init__(reason)
        self.status = status
        self.scope = scope


class TokenUser(NamedTuple):
    """Who a token is about, and how many ms of its life are left; 0 when none is."""

    name: str
    left_ms: float


@dataclass(frozen=True, slots=True)
class ClaimRules(KeyedSettings):
    """What a signed token must say: `sasl.oauthbearer.*`.

    Attributes:
        audiences: one of them must be in the token; with none, the token must not have any.
        issuer: None for any.
    """

    issuer: str | None = of_key("sasl.oauthbearer.expected.issuer")
    audiences: tuple[str, ...] = of_key("sasl.oauthbearer.expected.audience")
    subject_claim: str = of_key("sasl.oauthbearer.sub.claim.name")
    scope_claim: str = of_key("sasl.oauthbearer.scope.claim.name")
    clock_skew_ms: float = of_key(
        "sasl.oauthbearer.clock.skew.seconds", made=lambda seconds: max(0, seconds) * 1_000.0
    )


class UnsecuredRules(NamedTuple):
    """The `unsecuredValidator…` options of Kafka's OAuthBearerLoginModule."""

    principal_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()
    clock_skew_ms: float = 0.0


def check_claims(claims: Claims, rules: ClaimRules, now_ms: float) -> TokenUser:
    """The user of a token whose signature is good. Times in ms since 1970.

    Raises:
        TokenRefused: it is out of date, for others, or does not say what it must.
    """
    expires_ms, issued_ms = _needed_time_ms(claims, "exp"), _needed_time_ms(claims, "iat")
    not_before_ms = _time_ms(claims, "nbf")
    if now_ms - rules.clock_skew_ms >= expires_ms:
        raise TokenRefused("the token has expired")
    if not_before_ms is not None and now_ms + rules.clock_skew_ms < not_before_ms:
        raise TokenRefused("the token is not valid yet: nbf is in the future")
    if expires_ms < max(issued_ms, not_before_ms or 0):
        raise TokenRefused("the token expires before it is issued or valid")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRefused("iss is not sasl.oauthbearer.expected.issuer")
    _check_audience(claims.get("aud"), rules.audiences)
    _check_scope(claims.get(rules.scope_claim), rules.scope_claim)
    name = _name(claims, rules.subject_claim)
    return TokenUser(name, max(0.0, expires_ms - now_ms))


def check_unsecured(token: str, rules: UnsecuredRules, now_ms: float) -> TokenUser:
    """The user of an unsecured token: one that its client made up. Times in ms since 1970.

    Raises:
        TokenRefused: it is signed, malformed, out of date, or lacks a scope.
    """
    header, payload, signature = sections_of(token)
    if json_object(header, "header").get("alg") != "none" or signature:
        raise TokenRefused("an unsecured token has the algorithm none, and no signature")
    claims = json_object(payload, "claims")
    name = _name(claims, rules.principal_claim)
    issued_ms, expires_ms = _time_ms(claims, "iat"), _needed_time_ms(claims, "exp")
    if issued_ms is not None and issued_ms > now_ms + rules.clock_skew_ms:
        raise TokenRefused("the token is issued in the future")
    if now_ms - rules.clock_skew_ms >= expires_ms:
        raise TokenRefused("the token has expired")
    if issued_ms is not None and expires_ms <= issued_ms:
        raise TokenRefused("the token expires before it is issued")
    scope = claims.get(rules.scope_claim, ())
    held = [scope.strip()] if isinstance(scope, str) else scope  # one scope, as in Apache Kafka
    if not isinstance(held, list | tuple) or not set(rules.required_scope) <= {
        each for each in held if isinstance(each, str)
    }:
        needed = " ".join(rules.required_scope)
        raise TokenRefused("the token lacks a scope", INSUFFICIENT_SCOPE, needed)
    return TokenUser(name, max(0.0, expires_ms - now_ms))


def sections_of(token: str) -> tuple[bytes, bytes, bytes]:
    """Header, payload and signature of a JWS in its compact form (RFC 7515, section 7.1).

    Only the one encoding of their bytes is taken: no padding, no bits to spare.

    Raises:
        TokenRefused: it is not of that form.
    """
    if len(token) > MAX_TOKEN_LENGTH:
        raise TokenRefused(f"the token has more than {MAX_TOKEN_LENGTH} characters")
    parts = token.split(".")
    if len(parts) != 3:
        raise TokenRefused("the token does not have the three parts of a JWT")
    header, payload, signature = (_decoded(part) for part in parts)
    return header, payload, signature


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """Raises: TokenRefused"""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TokenRefused(f"the token's {what} are no JSON object")
    return found


def _decoded(part: str) -> bytes:
    try:
        data = urlsafe_b64decode(part.encode("ascii") + b"=" * (-len(part) % 4))
    except (Base64Error, ValueError):
        data = b""
    if urlsafe_b64encode(data).rstrip(b"=") != part.encode("ascii", "replace"):
        raise TokenRefused("a part of the token is not base64url")
    return data


def _time_ms(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise TokenRefused(f"{name} is no time in seconds since 1970")
    return float(min(value, MAX_SECONDS)) * 1000.0


MAX_SECONDS: Final = 1e12
"""Later times are as good as this one, 30,000 years from now."""


def _needed_time_ms(claims: Claims, name: str) -> float:
    time_ms = _time_ms(claims, name)
    if time_ms is None:
        raise TokenRefused(f"the token has no {name}")
    return time_ms


def _name(claims: Claims, claim: str) -> str:
    name = claims.get(claim)
    if not isinstance(name, str) or not name.strip():
        raise TokenRefused(f"{claim}, which names the user, is missing or no text")
    return name


def _check_audience(audience: object, expected: tuple[str, ...]) -> None:
    held = [audience] if isinstance(audience, str) else audience
    if held is None and not expected:
        return
    if not isinstance(held, list) or not any(each in expected for each in held):
        raise TokenRefused("none of aud is in sasl.oauthbearer.expected.audience")


def _check_scope(scope: object, claim: str) -> None:
    """Kafka asks nothing of a scope but its form, and so does an authorizer of access rules."""
    held = [scope] if isinstance(scope, str) else scope
    if not isinstance(held, list):
        return
    texts = [each for each in held if isinstance(each, str) and each.strip()]
    if len(texts) < len(held) or len(set(texts)) < len(texts):
        raise TokenRefused(f"{claim} has an element that is empty, repeated or no text")
