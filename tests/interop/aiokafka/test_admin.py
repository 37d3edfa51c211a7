"""aiokafka: the admin client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiokafka.errors
import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.admin import (
    AIOKafkaAdminClient,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
)
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.interop.drivers import AioKafka
from tests.interop.samples import Rec
from tests.interop.topics import fresh_name
from tests.kit.waiting import until_async

ERROR_OF_CREATION = 1


@pytest_asyncio.fixture
async def admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def creation_error(admin: AIOKafkaAdminClient, new: NewTopic, **options: bool) -> int:
    """The error code of one new topic, 0 when it was made."""
    response = await admin.create_topics([new], **options)
    return int(response.topic_errors[0][ERROR_OF_CREATION])


async def partition_count(admin: AIOKafkaAdminClient, topic: str) -> int:
    return len((await admin.describe_topics([topic]))[0]["partitions"])


async def test_create_describe_list_delete(admin: AIOKafkaAdminClient) -> None:
    name = fresh_name()
    new = NewTopic(name, 2, 1, topic_configs={"retention.ms": "3600000"})
    assert await creation_error(admin, new, validate_only=True) == 0
    assert name not in await admin.list_topics()
    assert await creation_error(admin, new) == 0
    assert name in await admin.list_topics()
    described = (await admin.describe_topics([name]))[0]
    assert sorted(part["partition"] for part in described["partitions"]) == [0, 1]
    assert {part["leader"] for part in described["partitions"]} == {1}
    assert await creation_error(admin, new) == aiokafka.errors.TopicAlreadyExistsError.errno
    response = await admin.delete_topics([name])
    assert response.topic_error_codes[0][1] == 0

    async def gone() -> bool:
        return name not in await admin.list_topics()

    await until_async(gone, what=f"{name} gone")


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewTopic("not a name", 1, 1), aiokafka.errors.InvalidTopicError),
        (NewTopic("a-factor", 1, 9), aiokafka.errors.InvalidReplicationFactorError),
        (NewTopic("a-count", 0, 1), aiokafka.errors.InvalidPartitionsError),
        (
            NewTopic("a-config", 1, 1, topic_configs={"retention.ms": "x"}),
            aiokafka.errors.InvalidConfigurationError,
        ),
    ],
    ids=["name", "factor", "count", "config"],
)
async def test_what_a_topic_cannot_be(
    admin: AIOKafkaAdminClient, new: NewTopic, error: type[aiokafka.errors.BrokerResponseError]
) -> None:
    assert await creation_error(admin, new) == error.errno


async def test_partitions_grow_and_never_shrink(admin: AIOKafkaAdminClient, topic: str) -> None:
    await admin.create_partitions({topic: NewPartitions(3)})

    async def grown() -> bool:
        return await partition_count(admin, topic) == 3

    await until_async(grown, what="three partitions")
    with pytest.raises(aiokafka.errors.InvalidPartitionsError):
        await admin.create_partitions({topic: NewPartitions(2)})


async def test_configs_are_described_and_altered(admin: AIOKafkaAdminClient, topic: str) -> None:
    async def values() -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        responses = await admin.describe_configs([resource])
        return {entry[0]: entry[1] for entry in responses[0].resources[0][4]}

    assert (await values())["max.message.bytes"] == "1048588"
    change = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "2000000"})
    await admin.alter_configs([change])

    async def changed() -> bool:
        return (await values())["max.message.bytes"] == "2000000"

    await until_async(changed, what="the new value")


async def test_records_before_an_offset_are_deleted(
    admin: AIOKafkaAdminClient, bootstrap: str, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    records = [Rec(b"k", b"%d" % number) for number in range(10)]
    driver = AioKafka()
    await asyncio.to_thread(driver.write, bootstrap, topic, records)
    assert await admin.delete_records({partition: RecordsToDelete(4)}) == {partition: 4}
    read = await asyncio.to_thread(lambda: driver.read(bootstrap, topic, 6, offset=4))
    assert read == records[4:]
    with pytest.raises(aiokafka.errors.OffsetOutOfRangeError):
        await admin.delete_records({partition: RecordsToDelete(11)})


async def test_the_cluster_describes_itself(admin: AIOKafkaAdminClient, bootstrap: str) -> None:
    described = await admin.describe_cluster()
    assert len(described["cluster_id"]) == 22
    assert [f"{node['host']}:{node['port']}" for node in described["brokers"]] == [bootstrap]
