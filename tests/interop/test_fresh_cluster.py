"""Each client's first transaction, with offsets of a group, on a cluster that was never used: there
is no `__consumer_offsets` yet.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest

from moldau.client import (
    Admin,
    ConsumerGroupMetadata,
    FeatureUpdate,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    UpgradeType,
)
from moldau.client import TopicPartition as Partition
from moldau.testing import Cluster
from tests.interop.kafka_python import kafka

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
TOPIC, GROUP = "first", "readers"
SCRIPT = ROOT / "tests" / "interop" / "kafkajs" / "transaction.js"
NODE_MODULES = next(iter(sorted(ROOT.glob(".cache/kafkajs-*/node_modules"))), None)
NODE = shutil.which("node")


def with_aiokafka(bootstrap: str) -> None:
    async def use() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="a")
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(TOPIC, b"one")
                place = aiokafka.TopicPartition(TOPIC, 0)
                await producer.send_offsets_to_transaction({place: 1}, GROUP)
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(use(), WAIT_S))


def with_kafka_python(bootstrap: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id="k")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(TOPIC, b"one").get(WAIT_S)
    offsets = {kafka.TopicPartition(TOPIC, 0): kafka.structs.OffsetAndMetadata(1, "", -1)}
    producer.send_offsets_to_transaction(offsets, GROUP)
    producer.commit_transaction()
    producer.close(WAIT_S)


def with_confluent(bootstrap: str) -> None:
    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    consumer = confluent_kafka.Consumer({**common, "group.id": GROUP})
    producer = confluent_kafka.Producer({**common, "transactional.id": "c"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b"one")
    offsets = [confluent_kafka.TopicPartition(TOPIC, 0, 1)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
    producer.commit_transaction(WAIT_S)
    consumer.close()


def with_kafkajs(bootstrap: str) -> None:
    if NODE is None or NODE_MODULES is None:
        pytest.skip("no Node, or `make setup-all` could not get kafkajs")
    subprocess.run(
        [NODE, str(SCRIPT), bootstrap, TOPIC, GROUP],
        env=dict(os.environ, NODE_PATH=str(NODE_MODULES)),
        timeout=WAIT_S,
        check=True,
    )


async def produce_with_offsets(bootstrap: str) -> None:
    async with Producer(bootstrap, transactional_id="m") as producer, producer.transaction():
        await producer.send(TOPIC, b"one")
        offsets = {Partition(TOPIC, 0): OffsetAndMetadata(1)}
        await producer.send_offsets(offsets, ConsumerGroupMetadata(GROUP))


def with_moldau(bootstrap: str) -> None:
    asyncio.run(asyncio.wait_for(produce_with_offsets(bootstrap), WAIT_S))


def with_moldau_of_version_1(bootstrap: str) -> None:
    async def use() -> None:
        async with Admin(bootstrap) as admin:
            older = FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)
            await admin.update_features({"transaction.version": older})
        await produce_with_offsets(bootstrap)

    asyncio.run(asyncio.wait_for(use(), WAIT_S))


@pytest.mark.parametrize(
    "use",
    [
        with_aiokafka,
        with_kafka_python,
        with_confluent,
        with_kafkajs,
        with_moldau,
        with_moldau_of_version_1,
    ],
)
def test_offsets_in_the_first_transaction(use: Callable[[str], None]) -> None:
    async def create(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topics([NewTopic(TOPIC, partition_count=1)])

    async def committed(bootstrap: str) -> object:
        async with Admin(bootstrap) as admin:
            return (await admin.list_group_offsets([GROUP], require_stable=True))[GROUP]

    with Cluster() as cluster:
        asyncio.run(create(cluster.bootstrap_server))
        use(cluster.bootstrap_server)
        found = asyncio.run(committed(cluster.bootstrap_server))
    assert isinstance(found, dict), found
    assert {place: each.offset for place, each in found.items()} == {Partition(TOPIC, 0): 1}
