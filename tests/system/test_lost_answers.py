"""Answers that never arrive: idempotent producers send again, and the log has each record once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiokafka
import pytest

from moldau.testing import Cluster
from tests.interop.kafka_python import kafka
from tests.interop.topics import TopicMaker
from tests.system.lossy_proxy import LossyProxy
from tests.system.processes import Writer, check_read, read_all

WAIT_S = 30.0
LOSSES = 4
ROUNDS = 8


@pytest.fixture(scope="module")
def proxy() -> Iterator[LossyProxy]:
    with LossyProxy() as running:
        yield running


@pytest.fixture(scope="module")
def bootstrap(proxy: LossyProxy) -> Iterator[str]:
    """A node that advertises the proxy's address, so that all of a client's traffic passes it."""
    with Cluster() as cluster:
        host, _, port = cluster.bootstrap_server.rpartition(":")
        cluster.stop()
        config = cluster.node().config_path
        text = config.read_text() + f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}\n"
        config.write_text(text)
        proxy.target = (host, int(port))
        cluster.restart()
        yield f"127.0.0.1:{proxy.port}"


@pytest.fixture
def topic(bootstrap: str) -> str:
    return TopicMaker(bootstrap).create()


def assert_each_once(bootstrap: str, topic: str, sent: list[bytes]) -> None:
    check_read(bootstrap, topic, sent)


def test_confluent(proxy: LossyProxy, bootstrap: str, topic: str) -> None:
    before = proxy.lost_count
    writer = Writer(bootstrap, topic, **{"retry.backoff.ms": 20})
    for number in range(ROUNDS):
        if number % 2:
            proxy.lose(LOSSES // 4)
        writer.send(100)
        writer.flush(WAIT_S)
    assert proxy.lost_count == before + LOSSES
    assert writer.refused == []
    sent = [(b"%d:" % number).ljust(100, b".") for number in range(100 * ROUNDS)]
    assert_each_once(bootstrap, topic, sent)


def test_kafka_python(proxy: LossyProxy, bootstrap: str, topic: str) -> None:
    before = proxy.lost_count
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    sent = []
    try:
        for number in range(ROUNDS):
            if number % 2:
                proxy.lose(LOSSES // 4)
            values = [b"%d-%d" % (number, place) for place in range(50)]
            futures = [producer.send(topic, value, partition=0) for value in values]
            producer.flush(WAIT_S)
            for future in futures:
                future.get(WAIT_S)
            sent += values
    finally:
        producer.close(WAIT_S)
    assert proxy.lost_count == before + LOSSES
    assert_each_once(bootstrap, topic, sent)


def test_aiokafka(proxy: LossyProxy, bootstrap: str, topic: str) -> None:
    before = proxy.lost_count
    sent = []

    async def produce() -> None:
        producer: Any = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True
        )
        await producer.start()
        try:
            for number in range(ROUNDS):
                if number % 2:
                    proxy.lose(LOSSES // 4)
                values = [b"%d-%d" % (number, place) for place in range(50)]
                futures = [await producer.send(topic, value, partition=0) for value in values]
                await asyncio.wait_for(asyncio.gather(*futures), WAIT_S)
                sent.extend(values)
        finally:
            await producer.stop()

    asyncio.run(produce())
    assert proxy.lost_count == before + LOSSES
    assert_each_once(bootstrap, topic, sent)


def test_without_idempotence_the_loss_shows(proxy: LossyProxy, bootstrap: str, topic: str) -> None:
    """Shows that the tests above could fail: the same loss doubles a plain producer's records."""
    writer = Writer(bootstrap, topic, **{"enable.idempotence": False, "retry.backoff.ms": 20})
    proxy.lose(1)
    writer.send(10)
    writer.flush(WAIT_S)
    values = read_all(bootstrap, topic)
    assert len(values) > len(set(values)) == 10
