"""What the other clients' tests do not reach: fetch sessions, epochs, transactions of version 2,
groups' rules, SASL.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p01_fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p03_metadata import MetadataRequest
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from moldau.protocol.messages.p12_heartbeat import HeartbeatRequest
from moldau.protocol.messages.p14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from moldau.protocol.messages.p17_sasl_handshake import SaslHandshakeRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from moldau.protocol.messages.p36_sasl_authenticate import SaslAuthenticateRequest
from tests.fake_broker import LATEST, FakeCluster, Security
from tests.fake_broker.raw_client import RawClient
from tests.fake_broker.transactions import MAX_EPOCH


def _fetch(offset: int, *, version: int = 12, **fields: Any) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    part.current_leader_epoch = fields.pop("leader_epoch", -1)
    topics = [FetchTopic(topic="t", partitions=[part])] if offset >= 0 else []
    return FetchRequest(max_wait_ms=0, max_bytes=1 << 20, topics=topics, **fields)


async def test_fetch_sessions_leave_out_what_has_nothing_new():
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        cluster.fill("t", [b"a"])
        opened = await client.ask(_fetch(1, session_epoch=0), 12)
        session_id = opened.session_id
        assert session_id > 0
        assert opened.responses[0].partitions[0].high_watermark == 1
        later = {"session_id": session_id}
        assert (await client.ask(_fetch(-1, session_epoch=1, **later), 12)).responses == []
        cluster.fill("t", [b"b"])
        news = await client.ask(_fetch(-1, session_epoch=2, **later), 12)
        assert news.responses[0].partitions[0].records
        wrong = await client.ask(_fetch(-1, session_epoch=9, **later), 12)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        cluster.nodes[0].fetch_sessions.forget_all()
        gone = await client.ask(_fetch(-1, session_epoch=3, **later), 12)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_fetch_waits_for_records():
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        request = _fetch(0)
        request.max_wait_ms, request.min_bytes = 30_000, 1
        await client.send(request, 12)
        await cluster.until(lambda: cluster.recorder.count(ApiKey.FETCH) == 1)
        cluster.fill("t", [b"a"])
        async with asyncio.timeout(20):
            assert b"a" in await client.frame()


async def test_leader_epochs_fence_and_show_where_logs_part():
    async with FakeCluster(2, topics={"t": 1}) as cluster:
        cluster.fill("t", [b"a", b"b"])
        cluster.log("t").truncate_to(0)
        cluster.move_leader("t", node_id=1)
        cluster.fill("t", [b"c"])
        async with RawClient(cluster.nodes[1]) as client:
            old = (await client.ask(_fetch(0, leader_epoch=0), 12)).responses[0].partitions[0]
            new = (await client.ask(_fetch(0, leader_epoch=2), 12)).responses[0].partitions[0]
            assert old.error_code == ErrorCode.FENCED_LEADER_EPOCH
            assert new.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
            asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=1, leader_epoch=0)
            topic = OffsetForLeaderTopic(topic="t", partitions=[asked])
            found = await client.ask(OffsetForLeaderEpochRequest(topics=[topic]), 4)
            end = found.topics[0].partitions[0]
            assert (end.leader_epoch, end.end_offset) == (0, 0)


@pytest.mark.parametrize(("timestamp", "offset"), [(-1, 3), (-2, 1), (-3, 2), (0, 1), (2**60, -1)])
async def test_offsets_are_found_by_time(timestamp: int, offset: int):
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        cluster.now_ms = iter(range(1000, 2000)).__next__  # type: ignore[method-assign]
        for value in (b"a", b"b", b"c"):
            cluster.fill("t", [value])
        cluster.log("t").delete_before(1)
        asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsTopic(name="t", partitions=[asked])
        answer = await client.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 7)
        assert answer.topics[0].partitions[0].offset == offset


async def test_epochs_of_transactional_ids():
    async with FakeCluster(1, versions=LATEST) as cluster, RawClient(cluster.nodes[0]) as client:

        async def init(producer_id: int = -1, epoch: int = -1) -> tuple[int, int, int]:
            answer = await client.ask(
                InitProducerIdRequest(
                    transactional_id="x",
                    transaction_timeout_ms=1000,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                ),
                4,
            )
            return answer.error_code, answer.producer_id, answer.producer_epoch

        _, producer_id, first_epoch = await init()
        assert await init() == (0, producer_id, first_epoch + 1)
        assert await init(producer_id, 1) == (0, producer_id, 2)
        assert await init(producer_id, 1) == (0, producer_id, 2), "a retry does not bump again"
        assert (await init(producer_id, 0))[0] == ErrorCode.PRODUCER_FENCED
        transaction = cluster.transactions.find("x")
        assert transaction is not None
        transaction.epoch = MAX_EPOCH
        assert await init() == (0, producer_id + 1, 0)


async def test_ending_a_transaction_of_version_2_bumps_and_may_be_repeated():
    async with FakeCluster(1, topics={"t": 1}) as cluster, RawClient(cluster.nodes[0]) as client:
        transaction = cluster.transactions.begin("x", 1000)

        async def end(epoch: int, *, committed: bool) -> tuple[int, int]:
            request = EndTxnRequest(
                transactional_id="x",
                producer_id=transaction.producer_id,
                producer_epoch=epoch,
                committed=committed,
            )
            answer = await client.ask(request, 5)
            return answer.error_code, answer.producer_epoch

        cluster.transactions.join(transaction, "t", 0)
        assert await end(0, committed=True) == (0, 1)
        assert await end(0, committed=True) == (0, 1)
        assert (await end(0, committed=False))[0] == ErrorCode.PRODUCER_FENCED
        assert (await end(1, committed=True))[0] == ErrorCode.INVALID_TXN_STATE
        assert await end(1, committed=False) == (0, 2)
        assert [batch.header.is_control for batch in cluster.log("t").batches] == [True]


def _join(member_id: str = "", **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
        **fields,
    )


async def _assign(client: RawClient, joined: Any, assignment: bytes) -> Any:
    return await client.ask(
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)
            ],
        ),
        3,
    )


async def _beat(client: RawClient, joined: Any, **fields: Any) -> int:
    request = HeartbeatRequest(
        group_id="g", generation_id=joined.generation_id, member_id=joined.member_id, **fields
    )
    return (await client.ask(request, 3)).error_code


async def test_a_static_member_that_returns_fences_itself_without_a_rebalance():
    async with FakeCluster(1) as cluster, RawClient(cluster.nodes[0]) as client:
        joined = await client.ask(_join(group_instance_id="i"), 9)
        assert joined.error_code == 0
        assert (await _assign(client, joined, b"mine")).assignment == b"mine"
        again = await client.ask(_join(group_instance_id="i"), 9)
        assert again.generation_id == joined.generation_id
        assert again.skip_assignment
        assert await _beat(client, joined, group_instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
        assert await _beat(client, again, group_instance_id="i") == 0


async def test_members_hear_of_a_rebalance_and_of_their_end():
    async with FakeCluster(1) as cluster, RawClient(cluster.nodes[0]) as client:
        named = await client.ask(_join(), 5)
        assert named.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = await client.ask(_join(named.member_id), 5)
        await _assign(client, joined, b"mine")
        async with RawClient(cluster.nodes[0]) as other:
            named = await other.ask(_join(), 5)
            await other.send(_join(named.member_id), 5)
            await cluster.until(lambda: cluster.groups.get("g").state_name == "PreparingRebalance")
            assert await _beat(client, joined) == ErrorCode.REBALANCE_IN_PROGRESS
            again = await client.ask(_join(joined.member_id), 5)
            assert again.generation_id == joined.generation_id + 1
            assert len(again.members) == 2
            assert await _beat(client, joined) == ErrorCode.ILLEGAL_GENERATION
        group = cluster.groups.get("g").classic
        group.remove(group.members[joined.member_id])
        assert await _beat(client, again) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_oauthbearer_and_the_end_of_a_session(tmp_path: Path):
    security = Security("SASL_PLAINTEXT", tokens={"good"}, session_lifetime_ms=60_000)
    async with FakeCluster(1, security=security) as cluster:

        async def authenticate(client: RawClient, token: str) -> Any:
            await client.ask(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
            data = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
            return await client.ask(SaslAuthenticateRequest(auth_bytes=data), 2)

        async with RawClient(cluster.nodes[0]) as client:
            assert (await authenticate(client, "bad")).auth_bytes == b'{"status":"invalid_token"}'
            failed = await client.ask(SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
            assert failed.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await client.reader.read() == b""
        async with RawClient(cluster.nodes[0]) as client:
            assert (await authenticate(client, "good")).session_lifetime_ms == 60_000
            assert (await client.ask(MetadataRequest(topics=None), 9)).error_code == 0
            assert (await authenticate(client, "good")).error_code == 0
            assert security.reauthenticated_count == 1
        async with RawClient(cluster.nodes[0]) as client:
            await client.send(MetadataRequest(topics=None), 9)
            assert await client.reader.read() == b""
            assert cluster.problems == ["METADATA without authentication"]
            cluster.problems.clear()
