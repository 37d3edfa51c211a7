"""What a token endpoint hears from Apache Kafka's client and from ours with the same settings."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moldau.client.sync import Admin
from tests.interop.java.tools import JavaTools, missing
from tests.kit.identity_provider import (
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    IdentityProvider,
    Signer,
    TokenRequest,
)
from tests.system.security.nodes import SecuredNode

pytestmark = [pytest.mark.interop, pytest.mark.java]

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
SYSTEM = "org.apache.kafka.sasl.oauthbearer.allowed"
PREFIX = "sasl.oauthbearer."
COMPARED_HEADERS = ("Accept", "Authorization", "Cache-Control", "Content-Type")
CLIENTS = {"RS256": Signer("rsa"), "ES256": Signer("ec", "EC")}
SECRET = {
    f"{PREFIX}client.credentials.client.id": CLIENT_ID,
    f"{PREFIX}client.credentials.client.secret": CLIENT_SECRET,
}
SIGNED = {
    f"{PREFIX}assertion.private.key.file": "{home}/RS256",
    f"{PREFIX}assertion.claim.iss": "the client",
}
BEARER = {f"{PREFIX}jwt.retriever.class": f"{PACKAGE}.JwtBearerJwtRetriever"}
CREDENTIALS = {f"{PREFIX}jwt.retriever.class": f"{PACKAGE}.ClientCredentialsJwtRetriever"}
CASES: dict[str, dict[str, str]] = {
    "a secret": SECRET,
    "a secret and a scope": {**SECRET, f"{PREFIX}scope": " read write "},
    "a secret, URL-encoded": {**SECRET, **CREDENTIALS, f"{PREFIX}header.urlencode": "true"},
    "an assertion": SIGNED,
    "an assertion with an id": {**SIGNED, **SECRET, f"{PREFIX}scope": "a/b &c"},
    "an assertion of ES256": {
        **SIGNED,
        **CREDENTIALS,
        f"{PREFIX}assertion.private.key.file": "{home}/ES256",
        f"{PREFIX}assertion.algorithm": "ES256",
    },
    "an encrypted key": {
        **SIGNED,
        f"{PREFIX}assertion.private.key.file": "{home}/encrypted",
        f"{PREFIX}assertion.private.key.passphrase": "a phrase",
    },
    "an assertion of a file": {**SECRET, **SIGNED, f"{PREFIX}assertion.file": "{home}/assertion"},
    "the JWT bearer grant": {**BEARER, **SIGNED, **SECRET, f"{PREFIX}scope": "all"},
    "the JWT bearer grant, every claim": {
        **BEARER,
        **SIGNED,
        f"{PREFIX}assertion.claim.aud": "the provider",
        f"{PREFIX}assertion.claim.sub": "the subject",
        f"{PREFIX}assertion.claim.exp.seconds": "77",
        f"{PREFIX}assertion.claim.nbf.seconds": "7",
        f"{PREFIX}assertion.claim.jti.include": "true",
    },
    "the JWT bearer grant with a template": {
        **BEARER,
        **SIGNED,
        f"{PREFIX}assertion.claim.aud": "replaced by the template's",
        f"{PREFIX}assertion.template.file": "{home}/template",
    },
    "the JWT bearer grant of a file": {**BEARER, f"{PREFIX}assertion.file": "{home}/assertion"},
}
TEMPLATE = {
    "header": {"kid": "mine", "alg": "replaced"},
    "payload": {"aud": ["a", "b"], "exp": 1, "further": {"deep": [1]}},
}


class Both(NamedTuple):
    """What logs in, and to what."""

    java: JavaTools
    node: SecuredNode
    provider: IdentityProvider
    home: Path

    def settings(self, case: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{PACKAGE}.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{PACKAGE}.OAuthBearerLoginCallbackHandler",
            f"{PREFIX}token.endpoint.url": self.provider.token_url,
            **{key: value.format(home=self.home) for key, value in CASES[case].items()},
        }


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("requests")
    files = _write_files(home)
    with IdentityProvider() as provider:
        provider.clients = list(CLIENTS.values())
        allowed = [
            f"-D{SYSTEM}.urls={provider.token_url}",
            f"-D{SYSTEM}.files={','.join(files)}",
        ]
        changed = {
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": (
                provider.url
            ),
            "listener.name.sasl_ssl.sasl.oauthbearer.jwks.endpoint.url": provider.url,
            "moldau.sasl.oauthbearer.allowed.urls": provider.url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        (home / "node").mkdir()
        with (
            (home / "java.log").open("wb") as errors,
            JavaTools(errors, allowed) as java,
            SecuredNode(home / "node", changed) as node,
        ):
            yield Both(java, node, provider, home)


def _write_files(home: Path) -> list[str]:
    files = {name: signer.private_pem() for name, signer in CLIENTS.items()}
    # Apache Kafka cannot read what OpenSSL makes by default (PBES2).
    older = ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", "pass:a phrase"]
    made = subprocess.run(older, input=files["RS256"], stdout=subprocess.PIPE, check=True)
    files["encrypted"] = made.stdout
    files["template"] = json.dumps(TEMPLATE).encode()
    files["assertion"] = f"{CLIENTS['RS256'].token()}\n".encode()
    for name, content in files.items():
        (home / name).write_bytes(content)
    return [str(home / name) for name in files]


def _seen(request: TokenRequest) -> dict[str, Any]:
    """A request without what differs from one to the next: the time, ids, signatures."""
    form: dict[str, Any] = dict(request.form)
    for name in ("assertion", "client_assertion"):
        if name in form:
            parts = form[name].split(".")[:2]
            header, claims = (json.loads(base64.urlsafe_b64decode(each + "==")) for each in parts)
            iat = claims.pop("iat", 0)
            types = {key: type(claims[key]).__name__ for key in ("exp", "nbf") if key in claims}
            after = {key: round(claims.pop(key) - iat) for key in types}
            has_id = claims.pop("jti", None) is not None
            form[name] = (header, claims, types, after, has_id)
    return {"headers": {name: request.headers.get(name) for name in COMPARED_HEADERS}, "form": form}


@pytest.mark.parametrize("case", list(CASES))
def test_the_same_request(both: Both, case: str, tmp_path: Path) -> None:
    settings, address = both.settings(case), both.node.address("SASL_PLAINTEXT")
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    before = len(both.provider.requests)
    told = both.java.run("kafka-cluster", "cluster-id", "-b", address, "-c", path)
    assert told.status == 0, told
    assert len(both.provider.requests) == before + 1
    with Admin(address, **{key.replace(".", "_"): value for key, value in settings.items()}) as us:
        cluster_id = us.describe_cluster().cluster_id
    assert cluster_id in told.output
    theirs, ours = both.provider.requests[before:]
    assert _seen(ours) == _seen(theirs)
