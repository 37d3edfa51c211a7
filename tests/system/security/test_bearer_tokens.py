"""Clients with tokens at a real node: every library, keys that change, providers that hang."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiohttp import web
from aiokafka.abc import AbstractTokenProvider

from moldau.client import AuthenticationFailed, NewTopic, OAuthBearerToken
from moldau.client.sync import Admin, Consumer, Producer
from moldau.testing import wait_until
from moldau.testing.waiting import wait_until_async
from tests.interop.kafka_python import kafka
from tests.kit.identity_provider import (
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    ISSUER,
    IdentityProvider,
    Signer,
    claims_of,
)
from tests.system.security.nodes import PASSWORD, SecuredNode

VALUE = b"one"
URL = "sasl.oauthbearer.jwks.endpoint.url"
OAUTH = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider
) -> Iterator[SecuredNode]:
    """Both SASL listeners take tokens of the provider."""
    changed = {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        f"listener.name.sasl_plaintext.oauthbearer.{URL}": provider.url,
        f"listener.name.sasl_ssl.{URL}": provider.url,
        "moldau.sasl.oauthbearer.allowed.urls": provider.url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    with SecuredNode(tmp_path_factory.mktemp("tokens"), changed) as running:
        yield running


@pytest.fixture
def topic(node: SecuredNode) -> str:
    name = f"t-{uuid.uuid4().hex}"
    with Admin(node.address("PLAINTEXT")) as admin:
        admin.create_topics([NewTopic(name)])
    return name


def with_ours(node: SecuredNode, provider: IdentityProvider, topic: str) -> bytes | None:
    """A function gives the tokens."""
    settings = {
        **OAUTH,
        "sasl_oauthbearer_token_provider": lambda: provider.signer.token(),
    }
    return _with_ours(node.address("SASL_PLAINTEXT"), topic, settings)


def with_our_client_credentials(
    node: SecuredNode, provider: IdentityProvider, topic: str
) -> bytes | None:
    """The token endpoint gives the tokens (KIP-768), over TLS to the node."""
    settings = {
        **OAUTH,
        "security_protocol": "SASL_SSL",
        **node.trust,
        "sasl_oauthbearer_token_endpoint_url": provider.token_url,
        "sasl_oauthbearer_client_credentials_client_id": CLIENT_ID,
        "sasl_oauthbearer_client_credentials_client_secret": CLIENT_SECRET,
    }
    return _with_ours(node.address("SASL_SSL"), topic, settings)


def _with_ours(bootstrap: str, topic: str, settings: dict[str, Any]) -> bytes | None:
    with Producer(bootstrap, **settings) as producer:
        producer.send(topic, VALUE)
    with Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe([topic])
        return consumer.getone().value


def with_librdkafka(node: SecuredNode, provider: IdentityProvider, topic: str) -> bytes | None:
    """A function gives the tokens, with an extension."""

    def give(_: str) -> tuple[str, float, str, dict[str, str]]:
        return provider.signer.token(), time.time() + 600, "erin", {"traceId": "1"}

    return _with_librdkafka(node, topic, {"oauth_cb": give})


def with_librdkafka_s_client_credentials(
    node: SecuredNode, provider: IdentityProvider, topic: str
) -> bytes | None:
    settings = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
    }
    return _with_librdkafka(node, topic, settings)


def _with_librdkafka(node: SecuredNode, topic: str, more: dict[str, Any]) -> bytes | None:
    settings = {
        "bootstrap.servers": node.address("SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        **more,
    }
    producer = confluent_kafka.Producer(settings)
    producer.produce(topic, VALUE)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])

    def read() -> bytes | None:
        message = consumer.poll(0.1)
        return message.value() if message is not None and message.error() is None else None

    try:
        return wait_until(read, what="the record")
    finally:
        consumer.close()


def with_aiokafka(node: SecuredNode, provider: IdentityProvider, topic: str) -> bytes | None:
    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return provider.signer.token()

    settings = {
        **OAUTH,
        "bootstrap_servers": node.address("SASL_PLAINTEXT"),
        "sasl_oauth_token_provider": Tokens(),
    }

    async def travel() -> bytes | None:
        producer = aiokafka.AIOKafkaProducer(**settings)
        await producer.start()
        try:
            await producer.send_and_wait(topic, VALUE)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **settings
        )
        await consumer.start()
        try:
            async with asyncio.timeout(60):
                found: bytes | None = (await consumer.getone()).value
                return found
        finally:
            await consumer.stop()

    return asyncio.run(travel())


def with_kafka_python(node: SecuredNode, provider: IdentityProvider, topic: str) -> bytes | None:
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens

    class Tokens(KafkaPythonTokens):  # type: ignore[misc]
        def token(self) -> str:
            return provider.signer.token()

    settings = {
        **OAUTH,
        "bootstrap_servers": node.address("SASL_PLAINTEXT"),
        "sasl_oauth_token_provider": Tokens(),
    }
    producer = kafka.KafkaProducer(**settings)
    producer.send(topic, VALUE).get(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
        **settings,
    )
    try:
        found: bytes | None = next(consumer).value
        return found
    finally:
        consumer.close()


CLIENTS: dict[str, Callable[[SecuredNode, IdentityProvider, str], bytes | None]] = {
    "moldau": with_ours,
    "moldau, client credentials": with_our_client_credentials,
    "confluent-kafka": with_librdkafka,
    "confluent-kafka, client credentials": with_librdkafka_s_client_credentials,
    "aiokafka": with_aiokafka,
    "kafka-python": with_kafka_python,
}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_record_travels(
    node: SecuredNode, provider: IdentityProvider, topic: str, client: Callable[..., bytes | None]
) -> None:
    assert client(node, provider, topic) == VALUE


def _admin(node: SecuredNode, token: str) -> Admin:
    return Admin(
        node.address("SASL_PLAINTEXT"),
        **OAUTH,
        sasl_oauthbearer_token_provider=lambda: OAuthBearerToken(token, (time.time() + 600) * 1e3),
    )


def test_bad_tokens_are_refused_and_not_logged(
    node: SecuredNode, provider: IdentityProvider
) -> None:
    expired = provider.signer.token(claims_of(age_s=600, left_s=-60))
    for token in (expired, Signer("first").token(), provider.signer.token(claims_of(aud="x"))):
        with _admin(node, token) as admin, pytest.raises(AuthenticationFailed, match="invalid"):
            admin.describe_cluster()
        assert token[-40:] not in node.log()
    assert "the token has expired" in node.log()


def test_new_keys_of_the_provider_are_looked_for(
    node: SecuredNode, provider: IdentityProvider
) -> None:
    newer = Signer("newer", "EC")
    asked = provider.asked
    provider.keys.append(newer.public())

    def comes_in() -> bool:
        try:
            with _admin(node, newer.token()) as admin:
                return bool(admin.describe_cluster().brokers)
        except AuthenticationFailed:
            return False

    wait_until(comes_in, what="the new key")
    assert provider.asked == asked + 1


async def test_a_connection_lives_on_with_new_tokens(
    node: SecuredNode, provider: IdentityProvider
) -> None:
    """KIP-368: the node ends a session with its token, and the client renews it before."""
    from moldau.client import Admin as AsyncAdmin

    provider.token_life_s = 3.0
    given = provider.given
    async with AsyncAdmin(
        node.address("SASL_PLAINTEXT"),
        **OAUTH,
        sasl_oauthbearer_token_endpoint_url=provider.token_url,
        sasl_oauthbearer_client_credentials_client_id=CLIENT_ID,
        sasl_oauthbearer_client_credentials_client_secret=CLIENT_SECRET,
        sasl_login_refresh_min_period_seconds=0,
        sasl_login_refresh_buffer_seconds=0,
    ) as admin:
        connection = await admin._client.any_connection()

        async def has_renewed() -> bool:
            await admin.describe_cluster()
            return provider.given >= given + 3

        await wait_until_async(has_renewed, what="the third token")
        assert await admin._client.any_connection() is connection


def test_a_provider_that_hangs_disturbs_no_other_client(
    node: SecuredNode, provider: IdentityProvider
) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    provider.answer = hang
    try:
        asked = provider.asked
        with _admin(node, Signer("unknown").token()) as admin, pytest.raises(AuthenticationFailed):
            admin.describe_cluster()
        wait_until(lambda: provider.asked > asked, what="a request that hangs")
        plain = {"sasl_username": "alice", "sasl_password": PASSWORD}
        with Admin(
            node.address("SASL_PLAINTEXT"),
            **{**OAUTH, "sasl_mechanism": "PLAIN"},
            **plain,
        ) as admin:
            assert admin.describe_cluster().brokers
        with _admin(node, provider.signer.token()) as admin:
            assert admin.describe_cluster().brokers
    finally:
        provider.answer = None
