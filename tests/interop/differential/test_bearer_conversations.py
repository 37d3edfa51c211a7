"""The same conversations of OAUTHBEARER with our listener and Apache Kafka's, for signed tokens and
unsecured ones: answers and the ends of connections are equal, lifetimes of sessions to the minute.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moldau.protocol.messages.p03_metadata import MetadataRequest
from tests.interop.differential.test_sasl_conversations import Both, Talk, heard
from tests.interop.java.server import KafkaServer
from tests.interop.java.tools import JavaTools, missing
from tests.kit.identity_provider import (
    AUDIENCE,
    ISSUER,
    IdentityProvider,
    Signer,
    claims_of,
    encoded,
    symmetric,
    unsecured,
)
from tests.kit.ports import free_port
from tests.system.security.nodes import SecuredNode

pytestmark = [pytest.mark.interop, pytest.mark.java]

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule required"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
SIGNED, UNSECURED = "SASL_PLAINTEXT", "SASL_SSL"
"""Listeners' names; both speak SASL_PLAINTEXT here."""

SIGNERS = {
    "RS256": Signer("rsa"),
    "RS512": Signer("rsa-512", algorithm="RS512"),
    "PS256": Signer("pss", algorithm="PS256"),
    "ES256": Signer("ec", "EC"),
}
RSA = SIGNERS["RS256"]
KEYS = {
    "listener.security.protocol.map": (
        "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,"
        "SASL_SSL:SASL_PLAINTEXT,SSL:SSL,MTLS:SSL"
    ),
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "connection.failed.authentication.delay.ms": "10",
    "sasl.oauthbearer.expected.issuer": ISSUER,
    "sasl.oauthbearer.expected.audience": AUDIENCE,
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f"{MODULE};",
    "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": (
        f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
    ),
    "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
        f'{MODULE} unsecuredLoginStringClaim_sub="node" unsecuredValidatorRequiredScope="a b" '
        'unsecuredValidatorAllowableClockSkewMs="1000";'
    ),
}


class Nodes(NamedTuple):
    """Addresses of the listeners of both."""

    signed: Both
    unsecured: Both
    provider: IdentityProvider


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("bearer")
    with (
        (home / "java.log").open("wb") as errors,
        IdentityProvider(RSA) as provider,
        JavaTools(errors, [f"-D{ALLOWED}={provider.token_url}"]) as java,
    ):
        provider.keys = [*(each.public() for each in SIGNERS.values()), symmetric()[0]]
        yield from _running(java, home, provider)


def _running(java: JavaTools, home: Path, provider: IdentityProvider) -> Iterator[Nodes]:
    (home / "ours").mkdir()
    url = {"listener.name.sasl_plaintext.sasl.oauthbearer.jwks.endpoint.url": provider.url}
    ours = SecuredNode(
        home / "ours", {**KEYS, **url, "moldau.sasl.oauthbearer.allowed.urls": provider.url}
    )
    kafka = KafkaServer(java, home / "kafka", system_properties={ALLOWED: provider.url})
    addresses = {name: f"127.0.0.1:{free_port()}" for name in (SIGNED, UNSECURED)}
    properties = home / "kafka" / "server.properties"
    listeners = ",".join(f"{name}://{address}" for name, address in addresses.items())
    text = re.sub(
        "^(listeners=.*)$", rf"\1,{listeners}", properties.read_text(), flags=re.MULTILINE
    )
    more = "".join(f"{key}={value}\n" for key, value in {**KEYS, **url}.items())
    properties.write_text(text + more)
    with ours, kafka:
        yield Nodes(
            Both(ours.address(SIGNED), addresses[SIGNED]),
            Both(ours.address(UNSECURED), addresses[UNSECURED]),
            provider,
        )


def message(token: str, before: str = "n,,", more: str = "") -> bytes:
    return f"{before}\x01auth=Bearer {token}\x01{more}\x01".encode()


def _says(*tokens: bytes) -> Callable[[Talk], Awaitable[None]]:
    """Tokens one after the other, then a request."""

    async def conversation(talk: Talk) -> None:
        await talk.choose("OAUTHBEARER")
        for token in tokens:
            response = await talk.token(token)
            if response is None or response.error_code:
                await talk.ends()
                return
        await talk.ask(MetadataRequest(topics=[]), 12)

    return conversation


def refused(token: str) -> Callable[[Talk], Awaitable[None]]:
    """A token whose refusal the client confirms, as clients do."""

    async def conversation(talk: Talk) -> None:
        await talk.choose("OAUTHBEARER")
        response = await talk.token(message(token))
        if response is not None and not response.error_code and response.auth_bytes:
            await talk.token(b"\x01")
            await talk.ends()
        else:
            await talk.ask(MetadataRequest(topics=[]), 12)

    return conversation


def _claims(**changed: Any) -> str:
    return RSA.token(claims_of(**changed))


def _mixed(header: dict[str, Any]) -> str:
    _, payload, signature = RSA.token().split(".")
    return f"{encoded(header)}.{payload}.{signature}"


TOKENS: dict[str, Callable[[], str]] = {
    **{f"signed by {name}": signer.token for name, signer in SIGNERS.items()},
    "two audiences": lambda: _claims(aud=["x", AUDIENCE]),
    "no scope": lambda: _claims(scope=None),
    "a list of scopes": lambda: _claims(scope=["a", "b"]),
    "an empty scope": lambda: _claims(scope=""),
    "a scope twice": lambda: _claims(scope=["a", "a"]),
    "nbf now": lambda: _claims(nbf=int(time.time())),
    "issued soon": lambda: _claims(age_s=-300),
    "expired, within the skew": lambda: _claims(age_s=100, left_s=-10),
    "expired": lambda: _claims(age_s=100, left_s=-40),
    "no exp": lambda: _claims(exp=None),
    "exp is text": lambda: _claims(exp="soon"),
    "no iat": lambda: _claims(iat=None),
    "iat is text": lambda: _claims(iat="now"),
    "issued after its end": lambda: _claims(age_s=-700),
    "not yet": lambda: _claims(nbf=int(time.time()) + 300),
    "another issuer": lambda: _claims(iss="x"),
    "no issuer": lambda: _claims(iss=None),
    "another audience": lambda: _claims(aud="x"),
    "no audience": lambda: _claims(aud=None),
    "no subject": lambda: _claims(sub=None),
    "an empty subject": lambda: _claims(sub=""),
    "the subject is a number": lambda: _claims(sub=1),
    "another key of the same name": lambda: Signer("rsa").token(),
    "an unknown key": lambda: Signer("unknown").token(),
    "no signature": lambda: RSA.token().rpartition(".")[0] + ".",
    "none": unsecured,
    "the public key as a secret": RSA.signed_by_hmac,
    "another algorithm of the key": lambda: _mixed({"alg": "PS256", "kid": "rsa"}),
    "no alg": lambda: _mixed({"kid": "rsa"}),
    "no JSON": lambda: RSA.token([1]),
    "two parts": lambda: "a.b",
    "a word": lambda: "x",
}
MESSAGES: dict[str, Callable[[], tuple[bytes, ...]]] = {
    "an extension": lambda: (message(RSA.token(), more="traceId=1\x01"),),
    "host and port": lambda: (message(RSA.token(), more="host=h\x01port=1\x01"),),
    "own authorization id": lambda: (message(RSA.token(), "n,a=erin,"),),
    "another authorization id": lambda: (message(RSA.token(), "n,a=bob,"),),
    "lower case": lambda: (message(RSA.token()).replace(b"Bearer", b"bearer"),),
    "spaces": lambda: (message(RSA.token()).replace(b"Bearer", b"Bearer   "),),
    "channel binding": lambda: (message(RSA.token(), "p=tls-unique,,"),),
    "no auth": lambda: (b"n,,\x01host=h\x01\x01",),
    "nothing": lambda: (b"",),
    "only a confirmation": lambda: (b"\x01",),
    "no end": lambda: (message(RSA.token())[:-1],),
    "an extension with a number": lambda: (message(RSA.token(), more="a1=1\x01"),),
    "an extension without a value": lambda: (message(RSA.token(), more="a=\x01"),),
    "garbage": lambda: (b"\xff\xfe",),
}
SCOPED = {"scope": ["a", "b", "c"]}
UNSECURED_TOKENS: dict[str, Callable[[], str]] = {
    "good": lambda: unsecured(claims_of(**SCOPED)),
    "a list of scopes": lambda: unsecured(claims_of(scope=["b", "a"])),
    "scopes as one text": lambda: unsecured(claims_of(scope="a b")),
    "a scope is missing": lambda: unsecured(claims_of(scope="a")),
    "no scope": lambda: unsecured(claims_of(scope=None)),
    "signed": lambda: RSA.token(claims_of(**SCOPED)),
    "with a signature": lambda: unsecured(claims_of(**SCOPED), signature=b"x"),
    "expired": lambda: unsecured(claims_of(**SCOPED, age_s=100, left_s=-50)),
    "issued in the future": lambda: unsecured(claims_of(**SCOPED, age_s=-50)),
    "no exp": lambda: unsecured(claims_of(**SCOPED, exp=None)),
    "no iat": lambda: unsecured(claims_of(**SCOPED, iat=None)),
    "no subject": lambda: unsecured(claims_of(**SCOPED, sub=None)),
    "the subject is a number": lambda: unsecured(claims_of(**SCOPED, sub=1)),
    "a word": lambda: "x",
}


def plain(answers: list[Any]) -> list[Any]:
    """With lifetimes to the minute, and refusals in JSON without their spaces. The scope that a
    token lacks is in them as RFC 6750 has it, and with Apache Kafka as Java writes a list.
    """
    for answer in answers:
        if isinstance(answer, dict) and "lifetime" in answer:
            answer["lifetime"] = round(answer["lifetime"] / 60_000)
            if answer["token"].startswith(b"{"):
                answer["token"] = json.loads(answer["token"].replace(b"[a, b]", b"a b"))
    return answers


async def _compare(both: Both, conversation: Callable[[Talk], Awaitable[None]]) -> None:
    ours = plain(await heard(both.ours, conversation))
    kafka = plain(await heard(both.kafka, conversation))
    assert ours == kafka
    assert len(ours) > 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", TOKENS)
async def test_signed_tokens(nodes: Nodes, name: str) -> None:
    await _compare(nodes.signed, refused(TOKENS[name]()))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", MESSAGES)
async def test_messages(nodes: Nodes, name: str) -> None:
    await _compare(nodes.signed, _says(*MESSAGES[name]()))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", UNSECURED_TOKENS)
async def test_unsecured_tokens(nodes: Nodes, name: str) -> None:
    await _compare(nodes.unsecured, refused(UNSECURED_TOKENS[name]()))


async def test_another_scheme_is_answered(nodes: Nodes) -> None:
    """Apache Kafka 4.3 fails at its own error's text, and closes the connection."""
    basic = _says(message(RSA.token()).replace(b"Bearer", b"Basic"))
    assert (await heard(nodes.signed.ours, basic))[1]["error"] == 58
    assert (await heard(nodes.signed.kafka, basic))[1] == "closed"


async def test_a_request_in_place_of_the_confirmation(nodes: Nodes) -> None:
    """As aiokafka does. Apache Kafka answers it before it closes, without a broker, and aiokafka
    asks again for forty seconds.
    """
    request = _says(message("x"))
    assert (await heard(nodes.signed.ours, request))[2:] == ["closed"]
    answered = {"": "MetadataResponse", "error": 0}
    assert (await heard(nodes.signed.kafka, request))[2:] == [answered]


async def test_what_only_ours_refuses(nodes: Nodes) -> None:
    """Symmetric keys of a set, and a second try in place of the confirmation."""
    shared = refused(symmetric()[1])
    again = _says(message("x"), message(RSA.token()))
    for conversation in (shared, again):
        ours = await heard(nodes.signed.ours, conversation)
        kafka = await heard(nodes.signed.kafka, conversation)
        assert ours[-1] == "closed"
        assert kafka[-1]["error"] == 0
