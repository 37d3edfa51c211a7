"""Who acts, and by which settings of the client: people's own credentials, or the console's.

Must not open connections. Invariant: a secret is in no text that shows what has it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from moldau.client import OAuthBearerToken

ANONYMOUS: Final = "User:ANONYMOUS"
PASSWORD, TOKEN = "password", "token"
SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
BEARER: Final = "OAUTHBEARER"
PASSWORD_MECHANISMS: Final = (*SCRAM, "PLAIN")
_CREDENTIALS: Final = (
    "sasl.jaas.config",
    "sasl.mechanism",
    "sasl.password",
    "sasl.username",
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
)
"""Settings of the console's own user, which no other person gets."""
_OF_TOKENS: Final = "sasl.oauthbearer."


@dataclass(frozen=True, slots=True)
class Person:
    """Whose rights count for a request.

    Attributes:
        kind: "password", "token", or "own" for whom the console itself is.
        name: the user's, where a password goes with it.
        secret: the password or the token.
    """

    kind: str = "own"
    name: str = ""
    secret: str = field(default="", repr=False)


OWN: Final = Person()


@dataclass(frozen=True, slots=True)
class Way:
    """One way into the cluster.

    Attributes:
        properties: settings of the client that every person gets there.
        mechanisms: of SASL, the first one that a person's credentials fit is taken; () without.
    """

    properties: Mapping[str, object] = field(repr=False)
    mechanisms: tuple[str, ...] = ()

    @property
    def logins(self) -> tuple[str, ...]:
        """What people may log in with here: "password", "token"."""
        kinds = ((PASSWORD, PASSWORD_MECHANISMS), (TOKEN, (BEARER,)))
        return tuple(kind for kind, known in kinds if set(known) & set(self.mechanisms))

    def mechanisms_for(self, person: Person) -> tuple[str, ...]:
        """The mechanisms that a person's credentials may fit, the best first."""
        known = {PASSWORD: PASSWORD_MECHANISMS, TOKEN: (BEARER,)}.get(person.kind, ())
        return tuple(each for each in known if each in self.mechanisms)

    def settings(self, person: Person, mechanism: str) -> dict[str, Any]:
        """The settings of a client for that person; of `OWN`, those of the console itself.

        Args:
            mechanism: one of `mechanisms_for`; "" for `OWN`.
        """
        if person == OWN:
            return dict(self.properties)
        settings = {
            key: value
            for key, value in self.properties.items()
            if key not in _CREDENTIALS and not key.startswith(_OF_TOKENS)
        }
        settings["sasl.mechanism"] = mechanism
        if person.kind == TOKEN:
            token = OAuthBearerToken(person.secret, expires_at_ms(person.secret))

            async def provide() -> OAuthBearerToken:
                return token

            settings["sasl.oauthbearer.token.provider"] = provide
        else:
            settings["sasl.username"] = person.name
            settings["sasl.password"] = person.secret
        return settings


def principal_of(person: Person, way: Way) -> str:
    """What the cluster calls a person whom it lets in, as far as that is known here."""
    if person.kind == PASSWORD:
        return f"User:{person.name}"
    if person.kind == TOKEN:
        subject = _claims(person.secret).get("sub")
        return f"User:{subject}" if isinstance(subject, str) else "User:(token)"
    name = way.properties.get("sasl.username")
    if isinstance(name, str) and name:
        return f"User:{name}"
    protocol = str(way.properties.get("security.protocol", "PLAINTEXT")).upper()
    is_known = protocol.startswith("SASL") or "ssl.keystore.location" in way.properties
    return "User:(console)" if is_known else ANONYMOUS


def expires_at_ms(token: str) -> float | None:
    """When a token ends by what it says itself; None where it does not say. What it says is only
    believed to its disadvantage: the brokers check it.
    """
    expires_s = _claims(token).get("exp")
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float):
        return None
    return float(expires_s) * 1000 if 0 < expires_s < 1e12 else None


def _claims(token: str) -> Mapping[str, Any]:
    """What the middle of a JWT says; nothing for another token."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    text = parts[1]
    try:
        found = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
