"""Whose credentials a client shows, and that no text shows them."""

from __future__ import annotations

import base64
import json

import pytest

from moldau.client import OAuthBearerToken
from moldau.console.people import (
    ANONYMOUS,
    OWN,
    Person,
    Way,
    expires_at_ms,
    principal_of,
)

ALICE = Person("password", "alice", "secret-of-alice")
ADMIN = {
    "bootstrap.servers": "localhost:9092",
    "security.protocol": "SASL_SSL",
    "ssl.truststore.location": "ca.pem",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "admin",
    "sasl.password": "secret-of-admin",
    "sasl.jaas.config": "secret-in-jaas",
    "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
}


def jwt(**claims: object) -> str:
    middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{middle}.sig"


def test_a_person_shows_own_credentials_and_none_of_the_console() -> None:
    way = Way(ADMIN, ("SCRAM-SHA-512", "SCRAM-SHA-256"))
    settings = way.settings(ALICE, "SCRAM-SHA-256")
    assert settings == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": "ca.pem",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "secret-of-alice",
    }
    assert way.settings(OWN, "") == ADMIN


async def test_a_token_is_shown_as_it_came() -> None:
    token = jwt(sub="carol", exp=2_000)
    settings = Way(ADMIN, ("OAUTHBEARER",)).settings(Person("token", "", token), "OAUTHBEARER")
    assert "sasl.username" not in settings
    assert "sasl.oauthbearer.token.endpoint.url" not in settings
    given = await settings["sasl.oauthbearer.token.provider"]()
    assert given == OAuthBearerToken(token, 2_000_000.0)


def test_secrets_are_in_no_text() -> None:
    assert "secret" not in repr(ALICE)
    assert "secret" not in repr(Way(ADMIN))


@pytest.mark.parametrize(
    ("mechanisms", "logins", "of_alice"),
    [
        ((), (), ()),
        (("GSSAPI",), (), ()),
        (("SCRAM-SHA-256", "SCRAM-SHA-512"), ("password",), ("SCRAM-SHA-512", "SCRAM-SHA-256")),
        (("PLAIN", "OAUTHBEARER"), ("password", "token"), ("PLAIN",)),
        (("OAUTHBEARER",), ("token",), ()),
    ],
)
def test_mechanisms_say_what_people_log_in_with(
    mechanisms: tuple[str, ...], logins: tuple[str, ...], of_alice: tuple[str, ...]
) -> None:
    way = Way(ADMIN, mechanisms)
    assert way.logins == logins
    assert way.mechanisms_for(ALICE) == of_alice
    assert way.mechanisms_for(OWN) == ()


def test_principals_are_what_the_cluster_calls_people() -> None:
    open_way = Way({"bootstrap.servers": "localhost:9092"})
    assert principal_of(ALICE, open_way) == "User:alice"
    assert principal_of(Person("token", "", jwt(sub="carol")), open_way) == "User:carol"
    assert principal_of(Person("token", "", "opaque"), open_way) == "User:(token)"
    assert principal_of(Person("token", "", jwt(sub=7)), open_way) == "User:(token)"
    assert principal_of(OWN, open_way) == ANONYMOUS
    assert principal_of(OWN, Way(ADMIN)) == "User:admin"
    certificate = Way({"security.protocol": "SSL", "ssl.keystore.location": "own.pem"})
    assert principal_of(OWN, certificate) == "User:(console)"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (jwt(exp=12.5), 12_500.0),
        (jwt(exp="soon"), None),
        (jwt(exp=True), None),
        (jwt(exp=-1), None),
        (jwt(), None),
        ("a.b", None),
        ("a.!.c", None),
        ("a.W10.c", None),
        ("opaque", None),
    ],
)
def test_a_token_says_when_it_ends(token: str, expected: float | None) -> None:
    assert expires_at_ms(token) == expected
