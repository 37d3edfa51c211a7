"""aiokafka, kafka-python and kcat come by Kerberos, each with the ticket of kinit."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import pytest

from tests.interop.kafka_python import kafka
from tests.kit.kerberos import HOST
from tests.system.security.kerberized import Kerberized, kerberized

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberized]:
    with kerberized(tmp_path_factory.mktemp("kerberized")) as running:
        yield running


@pytest.fixture
def ticket(secured: Kerberized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """alice's, in the cache that clients find."""
    cache = tmp_path / "cache"
    secured.realm.kinit("alice", cache)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
    return cache


@pytest.mark.usefixtures("ticket")
async def test_aiokafka(secured: Kerberized):
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=secured.node.address("SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name="kafka",
        sasl_kerberos_domain_name=HOST,
    )
    await producer.start()
    try:
        sent = await producer.send_and_wait("aiokafka", b"x")
    finally:
        await producer.stop()
    assert sent.offset == 0


@pytest.mark.usefixtures("ticket")
def test_kafka_python(secured: Kerberized):
    producer = kafka.KafkaProducer(
        bootstrap_servers=secured.node.address("SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name="kafka",
        sasl_kerberos_domain_name=HOST,
    )
    try:
        assert producer.send("kafka-python", b"x").get(DEADLINE_S).offset == 0
    finally:
        producer.close()


@pytest.mark.usefixtures("ticket")
def test_kcat(secured: Kerberized):
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed")
    done = subprocess.run(
        [kcat, "-L", "-b", secured.node.address("SASL_PLAINTEXT"),
         "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=GSSAPI",
         "-X", "sasl.kerberos.service.name=kafka", "-X", "sasl.kerberos.kinit.cmd=true"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    if "No worthy mechs found" in done.stderr or "not supported" in done.stderr:
        pytest.skip(f"this kcat has no Kerberos (libsasl2-modules-gssapi-mit): {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr
    assert "1 brokers" in done.stdout
