"""Clients with tokens at a real node: every library, keys that change, providers that hang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from aiohttp import web

from moldau.client import AuthenticationFailed, OAuthBearerToken
from moldau.client.sync import Admin
from tests.kit.identity_provider import (
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    ISSUER,
    IdentityProvider,
    Signer,
    claims_of,
)
from tests.kit.waiting import until, until_async
from tests.system.security.nodes import PASSWORD, SecuredNode

VALUE = b"one"
URL = "sasl.oauthbearer.jwks.endpoint.url"
OAUTH = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


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

    until(comes_in, what="the new key")
    assert provider.asked == asked + 1


async def test_a_connection_lives_on_with_new_tokens(
    node: SecuredNode, provider: IdentityProvider
) -> None:
    """KIP-368: the node ends a session with its token, and the client renews it before."""
    for life_s in (3.0, 12.0, 24.0):  # on a busy machine the first ones may be renewed too late
        provider.token_life_s = life_s
        if await _outlives_tokens(node, provider):
            return
    raise AssertionError("the session has ended with its token")


async def _outlives_tokens(node: SecuredNode, provider: IdentityProvider) -> bool:
    """Whether a connection is still there when its client has its third token."""
    from moldau.client import Admin as AsyncAdmin

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

        await until_async(has_renewed, what="the third token", deadline_s=60)
        return await admin._client.any_connection() is connection


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
        until(lambda: provider.asked > asked, what="a request that hangs")
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
