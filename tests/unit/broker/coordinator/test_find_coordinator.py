"""FindCoordinator: the leader of the key's partition, and the topic made when first needed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.coordinator.internal_topics import RETRY_AFTER_MS, creatable_topic
from moldau.broker.coordinator.key_partitions import partition_for
from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.config import BROKER_KEYS
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p19_create_topics import CreatableTopicResult, CreateTopicsResponse
from moldau.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
)
from tests.kit.waiting import until_async
from tests.unit.broker.coordinator.harness import create_internal_topic, running_data_path
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath, topic_id_of

GROUP, TRANSACTION, SHARE = 0, 1, 2
OFFSETS = CONSUMER_OFFSETS.topic


async def find(broker: DataPath, key: str = "k", *, version: int = 6, kind: int = GROUP) -> Any:
    request = FindCoordinatorRequest(key_type=kind)
    if version >= 4:
        request.coordinator_keys = [key]
    else:
        request.key = key
    response = await broker.ask(request, version)
    return response.coordinators[0] if version >= 4 else response


@pytest.mark.parametrize("version", range(7))
async def test_the_leader_of_the_keys_partition(tmp_path: Path, version: int) -> None:
    async with running_data_path(tmp_path) as broker:
        broker.create_topic(OFFSETS, 5, replicas=(BROKER_ID, OTHER_BROKER_ID))
        index = partition_for("k", 5)
        broker.replay(
            PartitionChangeRecord(
                partition_id=index, topic_id=topic_id_of(OFFSETS), leader=OTHER_BROKER_ID
            )
        )
        found = await find(broker, "k", version=version)
        assert (found.error_code, found.node_id) == (ErrorCode.NONE, OTHER_BROKER_ID)
        assert (found.host, found.port) == ("host-2", 9092)
        other = next(key for key in "abcdefgh" if partition_for(key, 5) != index)
        assert (await find(broker, other, version=version)).node_id == BROKER_ID


async def test_keys_in_batches(tmp_path: Path) -> None:
    async with running_data_path(tmp_path) as broker:
        create_internal_topic(broker, CONSUMER_OFFSETS, 3)
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=["a", "b", "", "ü"])
        response = await broker.ask(request, 4)
        assert [(found.key, found.node_id) for found in response.coordinators] == [
            (key, BROKER_ID) for key in ["a", "b", "", "ü"]
        ]


async def test_a_leader_that_cannot_be_reached(tmp_path: Path) -> None:
    async with running_data_path(tmp_path) as broker:
        create_internal_topic(broker, CONSUMER_OFFSETS)
        broker.replay(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1))
        found = await find(broker)
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        broker.change_partition(OFFSETS, leader=-1)
        assert (await find(broker)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_the_first_question_makes_the_topic(tmp_path: Path) -> None:
    async with running_data_path(tmp_path, offsets_topic_replication_factor=1) as broker:
        for _ in range(3):
            found = await find(broker)
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        sent = await broker.channel.next()
        [topic] = sent.request.topics
        assert (topic.name, topic.num_partitions, topic.replication_factor) == (OFFSETS, 50, 1)
        assert {config.name: config.value for config in topic.configs} == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }
        assert broker.channel.sent == [], "once"
        sent.answer(CreateTopicsResponse(topics=[CreatableTopicResult(name=OFFSETS)]))
        create_internal_topic(broker, CONSUMER_OFFSETS, 50)
        assert (await find(broker)).node_id == BROKER_ID


async def test_a_creation_that_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_data_path(tmp_path) as broker:
        refusal = CreatableTopicResult(
            name=TRANSACTION_STATE.topic,
            error_code=ErrorCode.INVALID_REPLICATION_FACTOR,
            error_message="only 1 broker",
        )
        key = "transaction.state.log.replication.factor"
        why = f"INVALID_REPLICATION_FACTOR: only 1 broker ({key}={broker.node_values[key]})"
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                found = await find(broker, kind=TRANSACTION)
                assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                (await broker.channel.next()).answer(CreateTopicsResponse(topics=[refusal]))
                await until_async(lambda: not len(broker.background))
                found = await find(broker, kind=TRANSACTION)
                assert found.error_message == f"{TRANSACTION_STATE.topic} cannot be created: {why}"
                assert broker.channel.sent == [], "not again at once"
                broker.clock.advance(RETRY_AFTER_MS + 1)
            await find(broker, kind=TRANSACTION)
            (await broker.channel.next()).fail(ControllerUnavailable("nobody leads"))
            await until_async(lambda: not len(broker.background))
        assert [record.message for record in caplog.records] == [
            *3 * [f"__transaction_state cannot be created: {why}"],
            "__transaction_state cannot be created: REQUEST_TIMED_OUT: nobody leads",
        ]


async def test_keys_that_name_nothing_here(tmp_path: Path) -> None:
    async with running_data_path(tmp_path) as broker:
        create_internal_topic(broker, CONSUMER_OFFSETS)
        for version in range(1, 7):
            found = await find(broker, version=version, kind=9)
            assert found.error_code == ErrorCode.INVALID_REQUEST
        assert (await find(broker, version=5, kind=SHARE)).error_code == ErrorCode.INVALID_REQUEST
        share = await find(broker, kind=SHARE)
        assert share.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert broker.channel.sent == []


def test_kafkas_settings_of_the_transaction_topic() -> None:
    values = {name: key.default_value for name, key in BROKER_KEYS.items()}
    topic = creatable_topic(values, TRANSACTION_STATE.topic)
    assert topic is not None
    assert (topic.num_partitions, topic.replication_factor) == (50, 3)
    assert {config.name: config.value for config in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert creatable_topic(values, "orders") is None
