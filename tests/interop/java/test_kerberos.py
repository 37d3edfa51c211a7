"""Kerberos between Apache Kafka's clients, tools and broker and ours."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.client import Admin, AuthenticationFailed, NewTopic
from tests.interop.java.jvm import jvm_command
from tests.interop.java.server import SMALL, KafkaServer
from tests.interop.java.sessions import ask_beyond_a_session
from tests.interop.java.tools import JavaTools
from tests.kit.kerberos import HOST, MODULE, SERVICE
from tests.kit.ports import free_port
from tests.system.security.kerberized import Kerberized, kerberized
from tests.unit.sasl.gssapi.local_name_cases import CASES

pytestmark = pytest.mark.timeout(300)
SESSION_MS = 5_000


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberized]:
    with kerberized(tmp_path_factory.mktemp("kerberized")) as running:
        yield running


@pytest.fixture(scope="module")
def kerberos_java(
    java: JavaTools, secured: Kerberized, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaTools]:
    """A JVM that knows the realm."""
    options = [f"-Djava.security.krb5.conf={secured.realm.config_path}"]
    log = tmp_path_factory.mktemp("java") / "jvm.log"
    with log.open("wb") as errors, JavaTools(errors, options) as tools:
        yield tools


def settings(secured: Kerberized, path: Path, listener: str, jaas: str) -> Path:
    """A properties file for Kafka's tools."""
    path.write_text(
        f"security.protocol={listener}\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.node.trust_path}\n"
        f"sasl.jaas.config={jaas}\n"
    )
    return path


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_kafka_s_tools_at_our_node(
    kerberos_java: JavaTools, secured: Kerberized, tmp_path: Path, listener: str
) -> None:
    jaas = secured.realm.jaas("alice", secured.alice)
    if listener == "SASL_SSL":
        cache = tmp_path / "cache"
        secured.realm.kinit("alice", cache)
        jaas = f'{MODULE} required useTicketCache=true ticketCache="{cache}" principal="alice";'
    own = settings(secured, tmp_path / "client.properties", listener, jaas)
    topic = f"t-{listener}"
    bootstrap = ("--bootstrap-server", secured.node.address(listener))
    kerberos_java.check("kafka-topics", *bootstrap, "--command-config", own, "--create",
                        "--topic", topic, "--partitions", 1)  # fmt: skip
    # For longer than a session at SASL_SSL lasts: Java's client renews it.
    kerberos_java.check("kafka-producer-perf-test", "--topic", topic, "--num-records", 60,
                        "--record-size", 10, "--throughput", 30, "--producer-props",
                        f"bootstrap.servers={secured.node.address(listener)}",
                        "--producer.config", own)  # fmt: skip
    read = kerberos_java.check("kafka-console-consumer", *bootstrap, "--consumer.config", own,
                               "--topic", topic, "--from-beginning", "--max-messages",
                               60)  # fmt: skip
    assert "Processed a total of 60 messages" in read.output + read.errors


def test_the_java_client_reports_that_it_is_refused(
    kerberos_java: JavaTools, secured: Kerberized, tmp_path: Path
) -> None:
    """A principal that no rule makes a user of."""
    keytab = tmp_path / "x.keytab"
    secured.realm.add("bob-x/admin/other", keytab)
    jaas = secured.realm.jaas("bob-x/admin/other", keytab)
    own = settings(secured, tmp_path / "client.properties", "SASL_PLAINTEXT", jaas)
    done = kerberos_java.run(
        "kafka-topics", "--bootstrap-server", secured.node.address("SASL_PLAINTEXT"),
        "--command-config", own, "--list",
    )  # fmt: skip
    assert "authentication with GSSAPI failed" in done.output + done.errors


def test_apache_kafka_makes_the_same_user_names(java: JavaTools, tmp_path: Path) -> None:
    file = tmp_path / "cases.tsv"
    file.write_text("".join(f"{each.rules}\t{each.principal}\n" for each in CASES))
    source = Path(__file__).parent / "ShortNames.java"
    utf8 = ["-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
    done = subprocess.run(
        jvm_command(str(source), str(file), heap_mib=256, options=utf8),
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    told = [None if line.startswith("!") else line[1:] for line in done.stdout.splitlines()]
    assert told == [each.user for each in CASES]


@pytest.fixture(scope="module")
def kafka(
    java: JavaTools, secured: Kerberized, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of an Apache Kafka broker's listener with Kerberos."""
    home = tmp_path_factory.mktemp("kafka")
    options = {"java.security.krb5.conf": str(secured.realm.config_path)}
    server = KafkaServer(java, home / "node", config=SMALL, system_properties=options)
    properties = home / "node" / "server.properties"
    text = properties.read_text()
    found = re.search(r"^listeners=(.*)$", text, re.MULTILINE)
    assert found is not None
    address = f"{HOST}:{free_port()}"
    jaas = secured.realm.jaas(SERVICE, secured.realm.keytab)
    properties.write_text(
        text + f"listeners={found.group(1)},SASL_PLAINTEXT://{address}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT\n"
        "sasl.enabled.mechanisms=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        f"listener.name.sasl_plaintext.gssapi.sasl.jaas.config={jaas}\n"
        f"connections.max.reauth.ms={SESSION_MS}\n"
    )
    with server:
        yield address


async def test_our_client_at_apache_kafka_s_broker(kafka: str, secured: Kerberized) -> None:
    async with Admin(**{**secured.by_keytab(), "bootstrap_servers": kafka}) as admin:
        await admin.create_topics([NewTopic("t", partition_count=1)])
        connection = await admin._client.any_connection()
        await ask_beyond_a_session(admin, SESSION_MS)
        # Kafka closes a connection whose session is over at its next request.
        assert await admin._client.any_connection() is connection
    wrong = {**secured.by_keytab("bob/admin"), "bootstrap_servers": kafka}
    async with Admin(**wrong) as admin:
        # Its default rules take bob/admin for bob.
        assert (await admin.describe_cluster()).brokers
    wrong["sasl_kerberos_service_name"] = "none"
    async with Admin(**wrong) as admin:
        with pytest.raises(AuthenticationFailed, match=r"Server none/localhost"):
            await admin.describe_cluster()
