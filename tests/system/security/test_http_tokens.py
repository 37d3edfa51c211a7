"""The HTTP listener with signed tokens (RFC 6750): who comes in, who does not, and what the answers
say.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from moldau.client import AclBinding, AclOperation, AclResourceType
from moldau.client.sync import Admin
from tests.kit.identity_provider import (
    ISSUER,
    IdentityProvider,
    Signer,
    claims_of,
    symmetric,
    unsecured,
)
from tests.kit.waiting import until
from tests.system.security.nodes import AUTHORIZER, SecuredNode, keystore
from tests.system.security.test_http import Site

URL = "sasl.oauthbearer.jwks.endpoint.url"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    """Its certificate is of an authority that no system knows."""
    authority = trustme.CA()
    path = tmp_path_factory.mktemp("provider") / "ca.pem"
    authority.cert_pem.write_to_path(path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with IdentityProvider(context=context) as running:
        running.authority_path = path  # type: ignore[attr-defined]
        yield running


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[Site]:
    """Tokens are for audience "metrics", of the issuer of all listeners. root is a super user."""
    home = tmp_path_factory.mktemp("https")
    trust: Path = provider.authority_path  # type: ignore[attr-defined]
    shutil.copy(trust, home / "provider.pem")
    changed = {
        "moldau.http.listener": "127.0.0.1:0",
        "moldau.http.authentication": "BASIC,BEARER",
        "moldau.http.ssl.keystore.location": str(home / "http.pem"),
        f"moldau.http.{URL}": provider.url,
        "moldau.http.sasl.jaas.config": (
            f'{OAUTH_MODULE} required ssl.truststore.location="{home / "provider.pem"}";'
        ),
        "moldau.http.sasl.oauthbearer.expected.audience": "metrics",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": "kafka",
        "moldau.sasl.oauthbearer.allowed.urls": provider.url,
        "connection.failed.authentication.delay.ms": "0",
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:root",
    }
    made = SecuredNode(home, changed)
    keystore(made.authority, home / "http.pem")
    with made as running:
        yield Site(running)


def claims(user: str = "root", **more: Any) -> Any:
    return claims_of(user, **{"aud": "metrics", **more})


def bearer(token: str) -> str:
    return f"Bearer {token}"


def test_a_token_s_user_has_its_permissions(site: Site, provider: IdentityProvider) -> None:
    root = bearer(provider.signer.token(claims()))
    assert site.ask("/metrics", root).body.startswith(b"# HELP")
    assert site.ask("/api/v1/cluster", root.replace("Bearer", "bearer ")).status == 200
    erin = bearer(provider.signer.token(claims("erin")))
    refused = site.ask("/metrics", erin)
    assert (refused.status, refused.error) == (403, "User:erin may not Describe the cluster")
    with Admin(site.node.address("PLAINTEXT")) as admin:
        admin.create_acls(
            [
                AclBinding(
                    AclResourceType.CLUSTER, "kafka-cluster", "User:erin", AclOperation.DESCRIBE
                )
            ]
        )
    until(lambda: site.ask("/metrics", erin).status == 200, what="the permission")


def test_bad_tokens_are_refused_and_not_logged(site: Site, provider: IdentityProvider) -> None:
    signer = provider.signer
    _, by_secret = symmetric()
    for reason, token in (
        ("the token has expired", signer.token(claims(age_s=600, left_s=-60))),
        ("the token's signature is wrong", Signer("first").token(claims())),
        ("Bearer: the token", signer.token(claims(aud="kafka"))),
        ("Bearer: the token", signer.token(claims(iss="https://other.example"))),
        ("no known key has the token's kid and alg", unsecured(claims())),
        ("no known key has the token's kid and alg", signer.signed_by_hmac()),
        ("no known key has the token's kid and alg", by_secret),
        ("the token has characters that no token has", "a.b.c, ü"),
        ("Bearer: the token", "not-a-jwt"),
    ):
        refused = site.ask("/metrics", bearer(token))
        assert (refused.status, refused.error) == (401, "the token is not accepted")
        assert refused.headers["www-authenticate"] == (
            'Bearer realm="moldau", error="invalid_token"'
        )
        assert token[-20:] not in site.node.log()
        assert reason in site.node.log(), "it is written before the answer"
    assert "on listener = HTTP: " in site.node.log()


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer  ", "Digest x", "Basic !"])
def test_a_request_without_credentials_gets_a_challenge_without_an_error(
    site: Site, header: str | None
) -> None:
    refused = site.ask("/metrics", header)
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == (
        'Basic realm="moldau", charset="UTF-8", Bearer realm="moldau"'
    )
    assert site.ask("/readyz", header).status == 200


def test_new_keys_are_looked_for_and_a_provider_that_hangs_or_lies_holds_up_no_client(
    site: Site, provider: IdentityProvider
) -> None:
    newer = Signer("newer", "EC")
    root, by_newer = (bearer(each.token(claims())) for each in (provider.signer, newer))
    assert site.ask("/metrics", by_newer).status == 401
    provider.keys.append(newer.public())

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def lie(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>sign in</html>")

    try:
        for number, answer in enumerate((lie, hang)):
            provider.answer, asked = answer, provider.asked
            unknown = bearer(Signer(f"unknown-{number}").token(claims()))
            assert site.ask("/metrics", unknown).status == 401
            until(lambda asked=asked: provider.asked > asked, what="the node asks for keys")  # type: ignore[misc]
            assert site.ask("/metrics", root).status == 200
            assert site.ask("/healthz").status == 200
    finally:
        provider.answer = None


def test_the_provider_may_be_down_when_the_node_starts(tmp_path: Path) -> None:
    provider = IdentityProvider()
    with provider:
        url = provider.url
    changed = {
        "moldau.http.listener": "127.0.0.1:0",
        "moldau.http.authentication": "BEARER",
        "moldau.http.ssl.keystore.location": str(tmp_path / "http.pem"),
        URL: url,
        "moldau.sasl.oauthbearer.allowed.urls": url,
        "connection.failed.authentication.delay.ms": "0",
    }
    made = SecuredNode(tmp_path, changed)
    keystore(made.authority, tmp_path / "http.pem")
    with made as running:
        asking = Site(running)
        token = bearer(provider.signer.token(claims_of(aud=None)))
        assert asking.ask("/healthz").status == 200
        assert asking.ask("/metrics", token).status == 401
        with provider.again():
            until(lambda: asking.ask("/metrics", token).status == 200, what="the keys")
        assert asking.ask("/metrics", token).status == 200
