"""Offsets that come with a newer leader epoch than the metadata of a broker that lags (KIP-320)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from moldau.client import Consumer, NoOffsetForPartition, OffsetAndMetadata
from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p02_list_offsets import ListOffsetsResponse
from moldau.protocol.messages.p03_metadata import MetadataResponse
from moldau.protocol.messages.p23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tests.fake_broker import Change, FakeCluster, Replace, Settings, Stall
from tests.fake_broker.faults import Fault
from tests.fake_broker.group import StoredOffset
from tests.unit.client.faults.harness import CONSUMER, MEMBER, ends, partition, take, values_of
from tests.virtual.machine import pass_time

P0 = partition(0)
RECORDS = [b"a", b"b", b"c", b"d"]
FIRST_OF_NEW_EPOCH = 2
POSITION = 3
GARBAGE_EPOCH = 10**9


def _cluster() -> FakeCluster:
    return FakeCluster(2, topics={"t": 1}, settings=Settings(leader_hints=False))


def moved(cluster: FakeCluster) -> None:
    """Broker 1 leads the partition of broker 0 since the third of the four records."""
    for offset, value in enumerate(RECORDS):
        if offset == FIRST_OF_NEW_EPOCH:
            cluster.move_leader("t", node_id=1)
        cluster.fill("t", [value])


def lagging(cluster: FakeCluster, *, told_by: int | None) -> list[Fault]:
    """Broker 0 takes itself for the leader of epoch 0; so say all brokers (None), or one."""

    def former_metadata(response: MetadataResponse) -> None:
        for topic in response.topics:
            for part in topic.partitions:
                part.leader_id, part.leader_epoch = 0, 0

    def former_ends(request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        (topic,) = request.topics
        (asked,) = topic.partitions
        end = EpochEndOffset(partition=asked.partition)
        if asked.current_leader_epoch > 0:
            end.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
        elif asked.leader_epoch == 0:
            end.leader_epoch, end.end_offset = 0, FIRST_OF_NEW_EPOCH
        return OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic=topic.topic, partitions=[end])]
        )

    def former_offsets(response: ListOffsetsResponse) -> None:
        part = response.topics[0].partitions[0]
        part.error_code, part.leader_epoch, part.offset = ErrorCode.NONE, 0, FIRST_OF_NEW_EPOCH

    return [
        cluster.fault(ApiKey.METADATA, Change(former_metadata), times=None, node_id=told_by),
        cluster.fault(ApiKey.OFFSET_FOR_LEADER_EPOCH, Replace(former_ends), times=None, node_id=0),
        cluster.fault(ApiKey.LIST_OFFSETS, Change(former_offsets), times=None, node_id=0),
    ]


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
async def test_a_committed_offset_of_a_newer_epoch_is_read_on_from(reset: str):
    """All brokers lag at first: nothing is read, and no leader of before is asked."""
    async with _cluster() as cluster:
        moved(cluster)
        faults = lagging(cluster, told_by=None)
        cluster.groups.get("g").offsets["t", 0] = StoredOffset(POSITION, 1, "")
        async with Consumer(
            cluster.bootstrap_servers, **{**MEMBER, "auto_offset_reset": reset}
        ) as consumer:
            consumer.subscribe(["t"])
            polling = asyncio.ensure_future(take(consumer, 1))
            await cluster.until(lambda: cluster.recorder.count(ApiKey.OFFSET_FETCH) >= 1)
            await pass_time(5_000)
            assert consumer.positions()[P0].offset == POSITION
            assert not polling.done()
            assert cluster.recorder.count(ApiKey.OFFSET_FOR_LEADER_EPOCH) == 0
            for fault in faults:
                cluster.faults.remove(fault)
            assert values_of(await ends(polling, "the record")) == RECORDS[POSITION:]


async def test_where_one_broker_lags_for_long_another_is_asked():
    async with _cluster() as cluster:
        moved(cluster)
        lagging(cluster, told_by=0)
        async with Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer:
            consumer.assign([P0])
            consumer.seek(P0, OffsetAndMetadata(POSITION, "", 1))
            assert values_of(await take(consumer, 1)) == RECORDS[POSITION:]


async def test_ends_of_the_log_are_not_those_of_a_leader_of_before():
    async with _cluster() as cluster:
        moved(cluster)
        faults = lagging(cluster, told_by=None)
        async with Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer:
            consumer.assign([P0])
            consumer.seek(P0, OffsetAndMetadata(POSITION, "", 1))
            asking = asyncio.ensure_future(consumer.end_offsets([P0]))
            await pass_time(5_000)
            assert not asking.done()
            for fault in faults:
                cluster.faults.remove(fault)
            assert await ends(asking, "the end") == {P0: len(RECORDS)}


async def test_an_epoch_that_never_was_is_raised_and_given_up_by_another_seek(
    caplog: pytest.LogCaptureFixture,
):
    """As with Apache Kafka's consumer nothing is read, nor reset; but a warning says why."""
    async with _cluster() as cluster:
        moved(cluster)
        async with Consumer(cluster.bootstrap_servers, **CONSUMER) as consumer:
            consumer.assign([P0])
            consumer.seek(P0, OffsetAndMetadata(POSITION, "", GARBAGE_EPOCH))
            polling = asyncio.ensure_future(take(consumer, 1))
            await pass_time(5_000)
            before = cluster.recorder.count(ApiKey.METADATA)
            await pass_time(60_000)
            assert cluster.recorder.count(ApiKey.METADATA) - before < 100
            assert not polling.done()
            told = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
            assert f"with leader epoch {GARBAGE_EPOCH}, and the brokers name epoch 1" in told[0]
            consumer.seek(P0, POSITION)
            assert values_of(await ends(polling, "the record")) == RECORDS[POSITION:]


async def test_the_epoch_of_a_deleted_topic_is_not_waited_for():
    async with _cluster() as cluster:
        moved(cluster)
        async with Consumer(
            cluster.bootstrap_servers, **{**CONSUMER, "metadata_max_age_ms": 1_000}
        ) as consumer:
            consumer.assign([P0])
            consumer.seek(P0, OffsetAndMetadata(POSITION, "", 7))
            polling = asyncio.ensure_future(take(consumer, 1))
            await pass_time(5_000)
            assert not polling.done()
            del cluster.topics["t"]
            cluster.create_topic("t")
            cluster.fill("t", [b"new"])
            assert values_of(await ends(polling, "the record")) == [b"new"]


async def test_what_was_committed_in_a_deleted_topic_is_no_position_in_the_new_one():
    """The answer was under way when the topic was created again."""
    async with _cluster() as cluster:
        moved(cluster)
        cluster.move_coordinator("group", "g", 1)  # the metadata come from broker 0
        offsets = cluster.groups.get("g").offsets
        offsets["t", 0] = StoredOffset(POSITION, 1, "")
        answer = cluster.fault(ApiKey.OFFSET_FETCH, Stall(after_apply=True))
        settings = {**MEMBER, "auto_offset_reset": "none", "metadata_max_age_ms": 1_000}
        async with Consumer(cluster.bootstrap_servers, **settings) as consumer:
            consumer.assign([P0])
            polling = asyncio.ensure_future(take(consumer, 1))
            await answer.fired()
            await pass_time(5_000)
            del cluster.topics["t"], offsets["t", 0]
            cluster.create_topic("t")
            await pass_time(5_000)
            answer.release()
            with pytest.raises(NoOffsetForPartition, match="t-0"):
                await ends(polling, "the poll")
