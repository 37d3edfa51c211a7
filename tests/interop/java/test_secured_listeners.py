"""Java clients and Kafka's tools at our TLS and SASL listeners, with the files they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from moldau.client.sync import Admin
from tests.interop.java.tools import JavaTools
from tests.system.processes import run_cli
from tests.system.security.nodes import (
    AUTHORIZER,
    PASSWORD,
    PLAIN_MODULE,
    SCRAM_MODULE,
    SecuredNode,
    keystore,
)

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    """Formatted with a first user of SCRAM; some others may do everything, too."""
    changed = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:alice;User:admin;User:orders-client;User:carol",
    }
    secured = SecuredNode(tmp_path_factory.mktemp("secured"), changed)
    user = "SCRAM-SHA-512=[name=admin,password=adm1n]"
    done = run_cli(
        "storage", "format", "-c", secured.config_path, "--standalone", "--add-scram", user
    )
    assert done.status == 0, done.errors
    with secured:
        yield secured


def client(
    node: SecuredNode,
    path: Path,
    protocol: str,
    mechanism: str = "",
    jaas: str = "",
    **more: object,
) -> Path:
    """A properties file for Kafka's tools; `_` in the name of a key stands for a dot."""
    values: Mapping[str, object] = {
        "security.protocol": protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": node.trust_path,
        **({"sasl.mechanism": mechanism, "sasl.jaas.config": jaas} if mechanism else {}),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def scram(name: str, password: str) -> str:
    return f'{SCRAM_MODULE} required username="{name}" password="{password}";'


def test_tools_and_clients_of_every_listener(
    java: JavaTools, node: SecuredNode, tmp_path: Path
) -> None:
    plain = f'{PLAIN_MODULE} required username="alice" password="{PASSWORD}";'
    own = keystore(
        node.authority,
        tmp_path / "own.pem",
        "client",
        organization_name="moldau",
        organization_unit_name="orders",
    )
    of_certificate = {"ssl_keystore_type": "PEM", "ssl_keystore_location": own}
    ways = {
        "SSL": client(node, tmp_path / "ssl", "SSL"),
        "MTLS": client(node, tmp_path / "mtls", "SSL", **of_certificate),
        "SASL_SSL": client(node, tmp_path / "plain", "SASL_SSL", "PLAIN", plain),
        "SASL_PLAINTEXT": client(
            node, tmp_path / "scram", "SASL_PLAINTEXT", "SCRAM-SHA-512", scram("admin", "adm1n")
        ),
    }
    for listener, settings in ways.items():
        topic = f"t-{listener}"
        bootstrap = ("--bootstrap-server", node.address(listener))
        java.check("kafka-topics", *bootstrap, "--command-config", settings, "--create",
                   "--topic", topic, "--partitions", 1)  # fmt: skip
        java.check("kafka-producer-perf-test", "--topic", topic, "--num-records", 100,
                   "--record-size", 10, "--throughput", -1, "--producer-props",
                   f"bootstrap.servers={node.address(listener)}", "--producer.config",
                   settings)  # fmt: skip
        read = java.check("kafka-console-consumer", *bootstrap, "--consumer.config", settings,
                          "--topic", topic, "--from-beginning", "--max-messages", 100)  # fmt: skip
        assert "Processed a total of 100 messages" in read.output + read.errors


def test_scram_users_by_kafka_configs(java: JavaTools, node: SecuredNode, tmp_path: Path) -> None:
    settings = client(
        node, tmp_path / "admin", "SASL_SSL", "SCRAM-SHA-512", scram("admin", "adm1n")
    )
    access = (
        "kafka-configs", "--bootstrap-server", node.address("SASL_SSL"),
        "--command-config", settings, "--entity-type", "users",
    )  # fmt: skip
    added = "SCRAM-SHA-256=[iterations=8192,password=c4rol]"
    java.check(*access, "--alter", "--entity-name", "carol", "--add-config", added)
    # Its --describe asks for quotas as well, which are not served.
    with Admin(node.address("PLAINTEXT")) as admin:
        described = admin.describe_user_scram_credentials()
    assert {name: [info.iterations for info in found] for name, found in described.items()} == {  # type: ignore[union-attr]
        "admin": [4_096],
        "carol": [8_192],
    }

    def topics_as(password: str) -> str:
        own = client(
            node, tmp_path / "carol", "SASL_SSL", "SCRAM-SHA-256", scram("carol", password)
        )
        done = java.run(
            "kafka-topics", "--bootstrap-server", node.address("SASL_SSL"), "--command-config",
            own, "--list",
        )  # fmt: skip
        return done.output + done.errors

    refusal = "authentication with SCRAM-SHA-256 failed"
    assert refusal not in topics_as("c4rol")
    assert refusal in topics_as("wrong")
    java.check(*access, "--alter", "--entity-name", "carol", "--delete-config", "SCRAM-SHA-256")
    assert refusal in topics_as("c4rol")


def test_java_is_told_what_is_wrong_with_tls(
    java: JavaTools, node: SecuredNode, tmp_path: Path
) -> None:
    settings = client(node, tmp_path / "none", "SSL")
    done = java.run(
        "kafka-topics", "--bootstrap-server", node.address("MTLS"), "--command-config", settings,
        "--list",
    )  # fmt: skip
    # The text of Java's SslAuthenticationException; a connection that is only lost is retried.
    assert "Failed to process post-handshake messages" in done.output + done.errors


def test_apache_kafka_reads_the_first_users(java: JavaTools, node: SecuredNode) -> None:
    found = java.check(
        "kafka-dump-log", "--cluster-metadata-decoder", "--files",
        node.home / "data" / "bootstrap.checkpoint",
    )  # fmt: skip
    assert '"type":"USER_SCRAM_CREDENTIAL_RECORD"' in found.output
    assert '"name":"admin","mechanism":2' in found.output
