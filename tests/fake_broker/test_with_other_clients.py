"""The fake cluster is a cluster to clients that know nothing of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from moldau.protocol import ApiKey, ErrorCode
from tests.fake_broker import (
    RELEASES,
    AnswerError,
    Certificates,
    CutResponse,
    FakeCluster,
    Run,
    Security,
    Settings,
    ThreadedCluster,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]


async def _aiokafka_consume(cluster: FakeCluster, count: int, **options: Any) -> list[bytes]:
    values = []
    async with AIOKafkaConsumer(
        "t",
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        metadata_max_age_ms=500,
        **options,
    ) as consumer:
        async with asyncio.timeout(20):
            while len(values) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    values += [record.value for record in records]
    return values


@pytest.mark.parametrize("release", RELEASES)
async def test_aiokafka_produces_and_consumes_with_every_release(release: str):
    values = [b"%d" % number for number in range(20)]
    async with FakeCluster(2, topics={"t": 2}, versions=RELEASES[release]) as cluster:
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True
        ) as producer:
            for number, value in enumerate(values):
                await producer.send_and_wait("t", value, partition=number % 2)
        assert cluster.values("t") == values[::2] + values[1::2]
        assert sorted(await _aiokafka_consume(cluster, 20)) == sorted(values)


async def test_aiokafka_retries_what_was_refused_and_nothing_is_doubled():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        cluster.fault(
            ApiKey.PRODUCE,
            AnswerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, after_apply=True),
        )
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True
        ) as producer:
            await producer.send_and_wait("t", b"once")
        assert cluster.values("t") == [b"once"]
        assert cluster.log("t").duplicate_count == 1


async def test_aiokafka_groups_share_partitions_and_commit():
    async with FakeCluster(2, topics={"t": 4}) as cluster:
        for partition in range(4):
            cluster.fill("t", [b"%d" % partition], partition)
        options = {
            "group_id": "g",
            "bootstrap_servers": cluster.bootstrap_servers,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 50,
            "enable_auto_commit": False,
        }
        first = AIOKafkaConsumer("t", **options)
        second = AIOKafkaConsumer("t", **options)
        await first.start()
        await second.start()
        try:
            await cluster.until(lambda: cluster.groups.get("g").state_name == "Stable")
            async with asyncio.timeout(20):
                while not len(first.assignment()) == len(second.assignment()) == 2:
                    await asyncio.gather(
                        first.getmany(timeout_ms=20), second.getmany(timeout_ms=20)
                    )
            for consumer in (first, second):
                await consumer.commit({each: 1 for each in consumer.assignment()})
        finally:
            await first.stop()
            await second.stop()
        assert [cluster.groups.committed("g", "t", index) for index in range(4)] == [1] * 4
        assert cluster.groups.get("g").is_empty


async def test_aiokafka_transactions_commit_and_abort():
    settings = Settings(transaction_version=1)
    async with FakeCluster(2, topics={"t": 1}, settings=settings) as cluster:
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id="x"
        ) as producer:
            async with producer.transaction():
                await producer.send_and_wait("t", b"committed")
                await producer.send_offsets_to_transaction({TopicPartition("t", 0): 7}, "g")
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"aborted")
            await producer.abort_transaction()
        assert cluster.values("t", committed_only=True) == [b"committed"]
        assert cluster.values("t") == [b"committed", b"aborted"]
        assert cluster.groups.committed("g", "t") == 7
        read = await _aiokafka_consume(cluster, 1, isolation_level="read_committed")
        assert read == [b"committed"]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_aiokafka_authenticates_over_tls(mechanism: str, certificates: Certificates):
    from aiokafka.helpers import create_ssl_context

    security = Security("SASL_SSL", certificates, users={"alice": "secret"})
    async with FakeCluster(1, topics={"t": 1}, security=security) as cluster:
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            security_protocol="SASL_SSL",
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="secret",
            ssl_context=create_ssl_context(cafile=str(certificates.authority_path)),
        ) as producer:
            await producer.send_and_wait("t", b"secret")
        assert cluster.values("t") == [b"secret"]
        assert security.authenticated_count >= 1


def _confluent_consumer(address: str, **options: Any) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            **options,
        }
    )


def _take(consumer: Any, count: int) -> list[bytes]:
    values: list[bytes] = []
    for _ in range(200):
        for message in consumer.consume(count, 0.1):
            assert message.error() is None, message.error()
            values.append(message.value())
        if len(values) >= count:
            break
    return values


def test_librdkafka_uses_transactions_and_the_new_group_protocol():
    from confluent_kafka import Producer

    with ThreadedCluster(lambda: FakeCluster(2, topics={"t": 3})) as threaded:
        address = threaded.cluster.bootstrap_servers
        producer = Producer({"bootstrap.servers": address, "transactional.id": "x"})
        producer.init_transactions(10)
        producer.begin_transaction()
        for number in range(9):
            producer.produce("t", b"%d" % number, partition=number % 3)
        producer.commit_transaction(10)
        producer.begin_transaction()
        producer.produce("t", b"aborted", partition=0)
        producer.abort_transaction(10)
        consumer = _confluent_consumer(address, **{"group.protocol": "consumer"})
        try:
            consumer.subscribe(["t"])
            assert sorted(_take(consumer, 9)) == [b"%d" % number for number in range(9)]
            assert len(consumer.assignment()) == 3
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        committed = threaded.call(
            lambda cluster: [cluster.groups.committed("g", "t", index) for index in range(3)]
        )
        # Behind the last record, or behind the marker that follows it.
        assert {*committed[1:]} <= {3, 4}
        assert threaded.call(lambda cluster: cluster.groups.get("g").is_empty)


def test_librdkafka_shares_partitions_by_the_new_protocol():
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 4})) as threaded:
        address = threaded.cluster.bootstrap_servers
        consumers = [
            _confluent_consumer(address, **{"group.protocol": "consumer"}) for _ in range(2)
        ]
        try:
            for consumer in consumers:
                consumer.subscribe(["t"])
            for _ in range(200):
                for consumer in consumers:
                    consumer.poll(0.05)
                if [len(each.assignment()) for each in consumers] == [2, 2]:
                    break
            owned = [{part.partition for part in each.assignment()} for each in consumers]
            assert sorted(map(len, owned)) == [2, 2]
            assert owned[0] | owned[1] == {0, 1, 2, 3}
        finally:
            for consumer in consumers:
                consumer.close()


def test_librdkafka_keeps_order_over_lost_answers_and_moves():
    from confluent_kafka import Producer

    values = [b"%d" % number for number in range(200)]
    with ThreadedCluster(lambda: FakeCluster(2, topics={"t": 1})) as threaded:
        for nth in (3, 6):
            threaded.call(lambda c, n=nth: c.fault(ApiKey.PRODUCE, CutResponse(5), nth=n))
        threaded.call(lambda c: c.fault(ApiKey.PRODUCE, Run(lambda: c.move_leader("t", 0)), nth=9))
        producer = Producer(
            {
                "bootstrap.servers": threaded.cluster.bootstrap_servers,
                "enable.idempotence": True,
                "batch.num.messages": 5,
                "linger.ms": 0,
                "retry.backoff.ms": 5,
                "reconnect.backoff.ms": 1,
                "log_level": 0,
            }
        )
        for value in values:
            producer.produce("t", value, partition=0)
        assert producer.flush(20) == 0
        assert threaded.call(lambda cluster: cluster.values("t")) == values
        assert threaded.call(lambda cluster: cluster.faults.waiting) == []
