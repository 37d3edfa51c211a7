"""A real node whose secrets come from a file, a directory and the environment: none is shown."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from moldau.client import ConfigResource, ConfigResourceType
from moldau.client.sync import Admin
from tests.kit.waiting import until
from tests.system.processes import run_cli
from tests.system.security.nodes import AUTHORIZER, HOST, PLAIN_MODULE, SecuredNode, keystore
from tests.system.security.test_http import Site

ALICE, KEY_PASSWORD, TOKEN_KEY = "alice-sesame", "key-sesame", "token-sesame"
CLIENT_SECRET = "client-sesame"
HIDDEN_KEYS = ("delegation.token.secret.key", "ssl.key.password", "moldau.http.ssl.keystore.key")
PACKAGE = "org.apache.kafka.common.config.provider."


def locked(path: Path) -> bytes:
    """The private key of a key store goes behind a password; gives its text as it was."""
    key, mark, certificates = path.read_bytes().partition(b"-----BEGIN CERTIFICATE")
    encrypted = serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(KEY_PASSWORD.encode()),
    )
    path.write_bytes(encrypted + mark + certificates)
    return key


def refused_start(node: SecuredNode) -> str:
    """Why the node does not start."""
    node.process.start()
    until(lambda: not node.process.running, what="the end of the start")
    node.process.stop()
    return node.process.complaint()


def test_secrets_of_providers_are_used_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "all.properties").write_text(f"alice={ALICE}\nclient={CLIENT_SECRET}\n")
    (secrets / "key-password").write_text(KEY_PASSWORD)
    monkeypatch.setenv("MOLDAU_TEST_TOKENS", TOKEN_KEY)
    of_file = f"${{file:{secrets / 'all.properties'}:"
    changed = {
        "config.providers": "file,dir,env",
        "config.providers.file.class": f"{PACKAGE}FileConfigProvider",
        "config.providers.dir.class": f"{PACKAGE}DirectoryConfigProvider",
        "config.providers.dir.param.allowed.paths": str(secrets),
        "config.providers.env.class": f"{PACKAGE}EnvVarConfigProvider",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} required user_alice="{of_file}alice}}";'
        ),
        "ssl.key.password": f"${{dir:{secrets}:key-password}}",
        "delegation.token.secret.key": "${env:MOLDAU_TEST_TOKENS}",
        "sasl.oauthbearer.client.credentials.client.secret": f"{of_file}client}}",
        "moldau.http.listener": f"{HOST}:0",
        "moldau.http.ssl.keystore.type": "PEM",
        "moldau.http.ssl.keystore.key": f"${{dir:{secrets}:http.key}}",
        "moldau.http.ssl.keystore.certificate.chain": f"${{dir:{secrets}:http.chain}}",
        "moldau.log.level": "DEBUG",
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:alice",
    }
    made = SecuredNode(tmp_path, changed)
    private_key = locked(made.keystore)
    store = keystore(made.authority, tmp_path / "http.pem").read_bytes()
    http_key, mark, chain = store.partition(b"-----BEGIN CERTIFICATE")
    (secrets / "http.key").write_bytes(http_key)
    (secrets / "http.chain").write_bytes(mark + chain)
    shown: list[str] = []
    with made as node:
        site = Site(node)
        with Admin(
            node.address("SASL_PLAINTEXT"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password=ALICE,
        ) as admin:
            assert admin.create_delegation_token().owner == "User:alice"
            resource = ConfigResource(ConfigResourceType.BROKER, "1")
            described = admin.describe_configs([resource], include_synonyms=True)[resource]
        for key in HIDDEN_KEYS:
            assert (described[key].value, described[key].sensitive) == (None, True)
        shown.append(repr(described))
        with Admin(node.address("SSL"), security_protocol="SSL", **node.trust) as admin:
            assert admin.describe_cluster().brokers
        assert ssl.get_server_certificate((HOST, site.port)).strip().encode() in mark + chain
        for path in ("/metrics", "/api/v1/cluster", "/api/v1/metadata"):
            shown.append(site.ask(path).body.decode())
        bootstrap = ("--bootstrap-server", node.address("PLAINTEXT"))
        told = run_cli("configs", "describe", "brokers", "1", "--all", "--json", *bootstrap)
        assert "ssl.key.password" in told.output
        shown.append(told.output + told.errors)
        shown.append(node.log())
    (secrets / "key-password").write_text("wrong-sesame")
    shown.append(refused_start(node))
    assert "the key cannot be used" in shown[-1]
    (secrets / "key-password").unlink()
    shown.append(refused_start(node))
    assert "ssl.key.password: ${dir:" in shown[-1]
    shown.append(node.log())
    keys = [key.splitlines()[1].decode() for key in (private_key, http_key)]
    assert not [text for text in shown for secret in ("sesame", *keys) if secret in text]
