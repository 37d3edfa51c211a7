"""Every kind of fault does what it says, to exactly the requests it names."""

from __future__ import annotations

import asyncio

import pytest

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.records import Record, encode_batch
from tests.fake_broker import (
    KAFKA_2_1,
    KAFKA_4_3,
    AnswerError,
    Change,
    CutRequest,
    CutResponse,
    FakeCluster,
    Garbage,
    Replace,
    Run,
    Stall,
    Throttle,
    WrongCorrelation,
    limited,
)
from tests.fake_broker.raw_client import RawClient
from tests.fake_broker.versions import Versions

PRODUCE_VERSION = 9


def _produce(value: bytes = b"v", *, partition: int = 0, **producer: int) -> ProduceRequest:
    batch = encode_batch([Record(0, 1, None, value)], **producer)
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )


async def _write(client: RawClient, request: ProduceRequest | None = None) -> tuple[int, int]:
    response = await client.ask(request or _produce(), PRODUCE_VERSION)
    answer = response.responses[0].partition_responses[0]
    return answer.error_code, answer.base_offset


async def _is_closed(client: RawClient) -> bool:
    async with asyncio.timeout(20):
        try:
            return await client.reader.read(1) == b""
        except ConnectionResetError:
            return True


async def test_the_nth_request_and_so_many_after_it_meet_an_error():
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        error = ErrorCode.NOT_ENOUGH_REPLICAS
        fault = cluster.fault(ApiKey.PRODUCE, AnswerError(error), nth=2, times=2)
        assert [(await _write(client))[0] for _ in range(4)] == [0, error, error, 0]
        assert fault.fired_count == 2
        assert len(cluster.records("t")) == 2
        assert cluster.recorder.count(ApiKey.PRODUCE) == 4


async def test_a_sequence_of_faults_meets_one_request_each():
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        first, second = ErrorCode.CORRUPT_MESSAGE, ErrorCode.REQUEST_TIMED_OUT
        cluster.faults.sequence(
            ApiKey.PRODUCE, AnswerError(first), None, AnswerError(second, after_apply=True)
        )
        assert [(await _write(client))[0] for _ in range(4)] == [first, 0, second, 0]
        assert len(cluster.records("t")) == 3
        assert cluster.faults.waiting == []


async def test_a_fault_may_pick_its_requests():
    async with FakeCluster(1, topics={"t": 2}) as cluster, RawClient(cluster.nodes[0]) as client:
        cluster.fault(
            ApiKey.PRODUCE, AnswerError(ErrorCode.REQUEST_TIMED_OUT, partition=1), times=None
        )
        assert (await _write(client))[0] == 0
        assert (await _write(client, _produce(partition=1)))[0] == ErrorCode.REQUEST_TIMED_OUT
        cluster.faults.clear()
        cluster.fault(None, Replace(lambda _: None), when=lambda each: each.api_version == 0)
        assert (await client.ask(MetadataRequest(topics=None), 1)).topics[0].name == "t"
        await client.send(MetadataRequest(topics=[]), 0)
        assert await _is_closed(client)


@pytest.mark.parametrize("reset", [False, True])
async def test_a_cut_request_is_not_carried_out(reset: bool):
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        cluster.fault(ApiKey.PRODUCE, CutRequest(40, reset=reset))
        await client.send(_produce(), PRODUCE_VERSION)
        assert await _is_closed(client)
        assert cluster.records("t") == []
        assert cluster.recorder.count(ApiKey.PRODUCE) == 0


async def test_a_cut_response_is_carried_out_and_ends_at_its_byte():
    async with FakeCluster(1, topics={"t": 1}) as cluster:
        for at_byte in (0, 3, 4, 20):
            async with RawClient(cluster.nodes[0]) as client:
                cluster.fault(ApiKey.PRODUCE, CutResponse(at_byte))
                await client.send(_produce(), PRODUCE_VERSION)
                async with asyncio.timeout(20):
                    assert len(await client.reader.read()) == at_byte
        assert len(cluster.records("t")) == 4


async def test_a_stall_waits_to_be_released():
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        before = cluster.fault(ApiKey.PRODUCE, Stall())
        await client.send(_produce(), PRODUCE_VERSION)
        await before.fired()
        assert cluster.records("t") == []
        before.release()
        await client.frame()
        after = cluster.fault(ApiKey.PRODUCE, Stall(after_apply=True, after_bytes=6))
        await client.send(_produce(), PRODUCE_VERSION)
        await after.fired()
        assert len(await client.reader.readexactly(6)) == 6
        assert len(cluster.records("t")) == 2
        after.release()
        assert await client.reader.read(1)


async def test_answers_can_be_wrong_in_other_ways():
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        cluster.fault(ApiKey.PRODUCE, WrongCorrelation(5))
        correlation_id = await client.send(_produce(), PRODUCE_VERSION)
        assert int.from_bytes((await client.frame())[:4], "big") == correlation_id + 5
        cluster.fault(ApiKey.PRODUCE, Garbage(b"not an answer", framed=True))
        correlation_id = await client.send(_produce(), PRODUCE_VERSION)
        assert await client.frame() == correlation_id.to_bytes(4, "big") + b"not an answer"
        cluster.fault(ApiKey.PRODUCE, Throttle(70))
        assert (await client.ask(_produce(), PRODUCE_VERSION)).throttle_time_ms == 70
        cluster.fault(ApiKey.METADATA, Change(lambda response: response.brokers.clear()))
        assert (await client.ask(MetadataRequest(topics=None), 9)).brokers == []


async def test_something_can_happen_just_before_a_request_is_carried_out():
    async with FakeCluster(2, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        cluster.fault(ApiKey.PRODUCE, Run(lambda: cluster.move_leader("t")))
        assert (await _write(client))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        async with RawClient(cluster.nodes[1]) as other:
            assert (await _write(other))[0] == 0


async def test_a_moved_leader_is_named_to_clients_that_can_read_it():
    async with FakeCluster(2, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        assert cluster.move_leader("t") == 1
        request = _produce()
        request.topic_data[0].topic_id = cluster.topics["t"].topic_id
        answer = await client.ask(request, 13)
        leader = answer.responses[0].partition_responses[0].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (1, 1)
        assert [(node.node_id, node.port) for node in answer.node_endpoints] == [
            (1, cluster.nodes[1].port)
        ]


async def test_a_stopped_broker_refuses_and_comes_back_on_its_port():
    async with FakeCluster(2, topics={"t": 2}) as cluster:
        port = cluster.nodes[0].port
        async with RawClient(cluster.nodes[0]) as client:
            await cluster.stop_node(0)
            assert await _is_closed(client)
        with pytest.raises(ConnectionRefusedError):
            await RawClient(cluster.nodes[0]).__aenter__()
        assert [each.leader_id for each in cluster.topics["t"].partitions] == [1, 1]
        await cluster.start_node(0)
        async with RawClient(cluster.nodes[0]) as client:
            brokers = (await client.ask(MetadataRequest(topics=None), 9)).brokers
            assert {broker.port for broker in brokers} == {port, cluster.nodes[1].port}


async def test_coordinators_move():
    async with FakeCluster(2) as cluster, RawClient(cluster.nodes[0]) as client:
        before = cluster.coordinator_of("group", "g")
        after = cluster.move_coordinator("group", "g")
        assert {before, after} == {0, 1}
        assert (await client.ask(FindCoordinatorRequest(key="g"), 1)).node_id == after
        many = await client.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        assert many.coordinators[0].node_id == after


@pytest.mark.parametrize(
    ("versions", "named"),
    [(KAFKA_2_1, []), (limited(KAFKA_4_3, api_versions=(0, 3)), [(ApiKey.API_VERSIONS, 3)])],
)
async def test_too_new_api_versions_are_answered_as_each_release_does(
    versions: Versions, named: list[tuple[ApiKey, int]]
):
    async with FakeCluster(1, versions=versions) as cluster, RawClient(cluster.nodes[0]) as client:
        refusal = await client.ask(ApiVersionsRequest(), 4)
        assert refusal.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(each.api_key, each.max_version) for each in refusal.api_keys] == named
        response = await client.ask(ApiVersionsRequest(), 0)
        served = {each.api_key: each.max_version for each in response.api_keys}
        assert served[ApiKey.PRODUCE] == versions[ApiKey.PRODUCE][1]


async def test_what_a_client_does_wrong_fails_the_test():
    cluster = FakeCluster(1, topics={"t": 1}, versions=KAFKA_2_1)
    async with cluster, RawClient(cluster.nodes[0]) as client:
        await client.send(_produce(), 9)
        assert await _is_closed(client)
        assert cluster.problems == ["PRODUCE of version 9, which is not advertised"]
        cluster.problems.clear()
    cluster = FakeCluster(1)
    cluster.problems.append("something")
    with pytest.raises(AssertionError, match="something"):
        async with cluster:
            pass


async def test_sequences_are_checked_as_a_leader_does():
    identity = {"producer_id": 7, "producer_epoch": 0}
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        steps = [
            ({"base_sequence": 0}, 0, 0),
            ({"base_sequence": 1}, 0, 1),
            ({"base_sequence": 0}, 0, 0),
            ({"base_sequence": 3}, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
            ({"producer_epoch": 1, "base_sequence": 1}, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
            ({"producer_epoch": 1, "base_sequence": 0}, 0, 2),
            ({"base_sequence": 2}, ErrorCode.INVALID_PRODUCER_EPOCH, -1),
        ]
        for change, error, base_offset in steps:
            written = await _write(client, _produce(**{**identity, **change}))
            assert written == (error, base_offset), change
        assert cluster.log("t").duplicate_count == 1
        damaged = _produce()
        damaged.topic_data[0].partition_data[0].records[-1] ^= 1
        assert (await _write(client, damaged))[0] == ErrorCode.CORRUPT_MESSAGE
        assert len(cluster.records("t")) == 3
