"""The warnings about files with secrets that every user of a machine may read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.config import NodeConfig
from moldau.node.readable_secrets import readable_secrets

NODE = """\
process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
controller.listener.names=CONTROLLER
listeners=CLIENTS://localhost:9092
listener.security.protocol.map=CLIENTS:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENTS
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.clients.sasl.enabled.mechanisms=PLAIN
config.providers=file,dir
config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
config.providers.dir.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def warned(home: Path, *lines: str) -> list[str]:
    path = home / "server.properties"
    path.write_text(NODE + "".join(f"{line}\n" for line in lines))
    path.chmod(0o644)
    found = list(readable_secrets(NodeConfig.load(str(path)), str(path)))
    assert not any("s3cret" in line for line in found)
    return [line.removeprefix("every user of this machine may read ") for line in found]


def test_a_properties_file_counts_only_with_secrets_of_its_own(home: Path) -> None:
    assert warned(home) == []
    [line] = warned(home, "delegation.token.secret.key=s3cret")
    assert line.startswith(f"{home}/server.properties, which holds passwords or keys")
    home.chmod(0o700)
    assert warned(home, "delegation.token.secret.key=s3cret") == []


def test_files_that_references_name_hold_secrets(home: Path) -> None:
    (home / "secrets.properties").write_text("tokens=s3cret\n")
    (home / "password").write_text("s3cret")
    for name in ("secrets.properties", "password"):
        (home / name).chmod(0o644)
    lines = warned(
        home,
        f"delegation.token.secret.key=${{file:{home}/secrets.properties:tokens}}",
        f"ssl.key.password=${{dir:{home}:password}}",
    )
    assert [line.partition(",")[0] for line in lines] == [
        f"{home}/secrets.properties",
        f"{home}/password",
    ]
    (home / "secrets.properties").chmod(0o600)
    (home / "password").chmod(0o640)
    assert warned(home, f"ssl.key.password=${{dir:{home}:password}}") == []


def test_key_stores_private_keys_and_keytabs_are_named_with_their_key(home: Path) -> None:
    for name in ("a.pem", "b.pem", "k.keytab", "ca.pem"):
        (home / name).write_text("")
        (home / name).chmod(0o644)
    module = "com.sun.security.auth.module.Krb5LoginModule"
    jaas = f'{module} required useKeyTab=true keyTab="{home}/k.keytab" principal="kafka/h@R";'
    key = "sasl.oauthbearer.assertion.private.key.file"
    lines = warned(
        home,
        f"listener.name.clients.ssl.keystore.location={home}/a.pem",
        f"ssl.truststore.location={home}/ca.pem",
        f"{key}={home}/b.pem",
        f"listener.name.clients.gssapi.sasl.jaas.config={jaas}",
    )
    held = {line.partition(",")[0]: line for line in lines}
    assert set(held) == {f"{home}/{n}" for n in ("a.pem", "b.pem", "k.keytab", "server.properties")}
    assert "listener.name.clients.ssl.keystore.location" in held[f"{home}/a.pem"]
    assert key in held[f"{home}/b.pem"]
