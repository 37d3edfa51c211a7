"""The quorum's APIs: descriptions, voters, and what a replica that is gone answers."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p55_describe_quorum as describe
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.p81_remove_raft_voter import RemoveRaftVoterRequest
from moldau.protocol.messages.quorum_records import Endpoint
from moldau.protocol.registry import response_class
from moldau.protocol.structs import MAX_STRING_BYTES
from moldau.protocol.types import ZERO_UUID
from moldau.raft import VoterDescription, VoterEndpoint, quorum_driver
from moldau.raft.core.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    UpdateVoterRequest,
)
from moldau.raft.core.values import ReplicaKey
from moldau.raft.request_handler import MAX_ENDPOINTS, MAX_EPOCH_JUMP, MAX_NAMED
from moldau.raft.wire import encode_request
from moldau.server.apis import APIS, QUORUM

from .quorums import CLUSTER_ID, LISTENER, Node, Quorum
from .test_wire import REQUESTS


async def ask(quorum: Quorum, node: Node, request: Any, version: int | None = None) -> Any:
    """The answer, as it comes out of its bytes."""
    handler = node.handler
    assert handler is not None
    api_version = type(request).MAX_VERSION if version is None else version
    task = asyncio.ensure_future(handler.handle(request, api_version, "127.0.0.1"))
    await quorum.until(task.done)
    response = task.result()
    assert type(response) is response_class(request.API_KEY)
    back, _ = type(response).decode(response.to_bytes(api_version), api_version)
    return back


def described(*partitions: int, topic: str = "__cluster_metadata") -> Any:
    return describe.DescribeQuorumRequest(
        topics=[
            describe.TopicData(
                topic_name=topic,
                partitions=[describe.PartitionData(partition_index=each) for each in partitions],
            )
        ]
    )


def new_voter(node: Node, **changes: Any) -> AddRaftVoterRequest:
    request = AddRaftVoterRequest(
        cluster_id=CLUSTER_ID,
        timeout_ms=10_000,
        voter_id=node.node_id,
        voter_directory_id=node.directory_id,
        listeners=[Endpoint(name="CONTROLLER", host=f"host{node.node_id}", port=9093)],
    )
    for name, value in changes.items():
        setattr(request, name, value)
    return request


async def test_describe_quorum_in_every_version() -> None:
    async with Quorum(1, 2, 3, seed=21) as quorum:
        leader = await quorum.leader()
        await quorum.add(9, is_controller=False).start()
        leader.append("a")
        await quorum.converged("a")
        await quorum.until(lambda: len(leader.running.status().observers) == 1)
        follower = next(node for node in quorum.nodes.values() if node is not leader)
        for version in (0, 1, 2):
            answer = await ask(quorum, leader, described(0), version)
            assert answer.error_code == 0
            (partition,) = answer.topics[0].partitions
            assert partition.error_code == 0
            assert (partition.leader_id, partition.leader_epoch) == (
                leader.node_id,
                leader.running.state.leader_epoch,
            )
            assert partition.high_watermark == leader.running.log_end_offset
            assert sorted(each.replica_id for each in partition.current_voters) == [1, 2, 3]
            assert [each.replica_id for each in partition.observers] == [9]
            now_ms = quorum.clock.now_ms()
            for each in [*partition.current_voters, *partition.observers]:
                directory_id = quorum.nodes[each.replica_id].directory_id
                assert each.replica_directory_id == (directory_id if version >= 2 else ZERO_UUID)
                assert each.log_end_offset == leader.running.log_end_offset
                if version >= 1:
                    assert now_ms - 5_000 < each.last_fetch_timestamp <= now_ms
                    assert now_ms - 5_000 < each.last_caught_up_timestamp <= now_ms
            expected = ["host1", "host2", "host3"] if version >= 2 else []
            assert [node.listeners[0].host for node in answer.nodes] == expected
            (partition,) = (await ask(quorum, follower, described(0), version)).topics[0].partitions
            assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            if version >= 2:
                assert partition.error_message == (
                    "this controller does not lead the quorum; "
                    f"in epoch {partition.leader_epoch} node {partition.leader_id} leads"
                )
        # Apache Kafka answers for its one quorum or not at all.
        answer = await ask(quorum, leader, described(0, 1))
        assert [each.error_code for each in answer.topics[0].partitions] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert answer.nodes == []
        answer = await ask(quorum, leader, described(0, topic="orders"))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_question_about_very_much_is_refused_as_a_whole() -> None:
    async with Quorum(1, seed=21) as quorum:
        leader = await quorum.leader()
        for version in (0, 1, 2):
            request = described(*range(MAX_NAMED - 1), topic="orders")
            answer = await ask(quorum, leader, request, version)
            assert len(answer.topics[0].partitions) == MAX_NAMED - 1
            assert answer.error_code == ErrorCode.NONE
            request.topics.append(described(topic="invoices").topics[0])
            answer = await ask(quorum, leader, request, version)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert not answer.topics


async def test_voters_are_added_and_removed_by_request() -> None:
    async with Quorum(1, 2, 3, seed=22) as quorum:
        leader = await quorum.leader()
        leader.append("a")
        late = quorum.add(4)
        await late.start()
        await quorum.converged("a")
        follower = next(node for node in quorum.nodes.values() if node is not leader)

        async def refused(node: Node, request: Any) -> ErrorCode:
            answer = await ask(quorum, node, request)
            assert answer.error_message
            return ErrorCode(answer.error_code)

        invalid = ErrorCode.INVALID_REQUEST
        assert await refused(follower, new_voter(late)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (
            await refused(leader, new_voter(late, cluster_id="another"))
            is ErrorCode.INCONSISTENT_CLUSTER_ID
        )
        for cluster_id in ("x" * MAX_STRING_BYTES, "\0" * MAX_STRING_BYTES):
            request = new_voter(late, cluster_id=cluster_id)
            assert await refused(leader, request) is ErrorCode.INCONSISTENT_CLUSTER_ID
            removal = RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=4)
            assert await refused(leader, removal) is ErrorCode.INCONSISTENT_CLUSTER_ID
        assert await refused(leader, new_voter(late, voter_directory_id=ZERO_UUID)) is invalid
        assert await refused(leader, new_voter(late, voter_id=-1)) is invalid
        assert await refused(leader, new_voter(late, listeners=[])) is invalid
        other = [Endpoint(name="OTHER", host="host4", port=9093)]
        assert await refused(leader, new_voter(late, listeners=other)) is invalid
        many = new_voter(late).listeners * (MAX_ENDPOINTS + 1)
        assert await refused(leader, new_voter(late, listeners=many)) is invalid
        assert await refused(leader, new_voter(follower)) is ErrorCode.DUPLICATE_VOTER
        answer = await ask(quorum, leader, new_voter(late, cluster_id=None))
        assert (answer.error_code, answer.error_message) == (0, None)
        assert len(leader.running.voters.voters) == 4
        gone = RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=4, voter_directory_id=UUID(int=1)
        )
        assert await refused(leader, gone) is ErrorCode.VOTER_NOT_FOUND
        gone.voter_directory_id = late.directory_id
        answer = await ask(quorum, leader, gone)
        assert (answer.error_code, answer.error_message) == (0, None)
        assert len(leader.running.voters.voters) == 3


async def test_a_closed_handler_says_so_to_every_request() -> None:
    async with Quorum(1, seed=23) as quorum:
        node = quorum.nodes[1]
        handler = node.handler
        await node.stop()
        node.handler = handler
        for request in REQUESTS.values():
            message, version = encode_request(request, lambda c: c.MAX_VERSION, CLUSTER_ID)
            answer = await ask(quorum, node, message, version)
            assert answer.error_code == ErrorCode.BROKER_NOT_AVAILABLE
        quorum_apis = [api for api in APIS.values() if api.controller == QUORUM]
        assert len(quorum_apis) == len({type(each) for each in REQUESTS.values()}) + 3
        answer = await ask(quorum, node, described(0))
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "it knows no leader: a majority of the voters " in str(partition.error_message)
        node.handler = None


async def test_an_epoch_that_no_election_can_have_reached_is_refused() -> None:
    """Else one request would leave the quorum without another epoch to elect a leader in."""
    async with Quorum(1, 2, 3, seed=29) as quorum:
        leader = await quorum.leader()
        leader_epoch = leader.running.state.leader_epoch
        for leap in (MAX_EPOCH_JUMP + 1, 2**31 - 1 - leader_epoch):
            for known in REQUESTS.values():
                impossible = known._replace(leader_epoch=leader_epoch + leap)
                message, version = encode_request(impossible, lambda c: c.MAX_VERSION, CLUSTER_ID)
                answer = await ask(quorum, leader, message, version)
                assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert leader.running.is_leader
        assert leader.running.state.leader_epoch == leader_epoch
        stranger = REQUESTS["VoteRequest"]._replace(
            voter=None, leader_epoch=leader_epoch + MAX_EPOCH_JUMP
        )
        message, version = encode_request(stranger, lambda c: c.MAX_VERSION, CLUSTER_ID)
        answer = await ask(quorum, leader, message, version)
        assert answer.error_code == ErrorCode.NONE
        assert leader.running.state.leader_epoch == leader_epoch + MAX_EPOCH_JUMP


async def test_leaders_at_ever_new_addresses_stop_no_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is asked for its log; those that never answer are not waited for without a limit."""
    monkeypatch.setattr(quorum_driver, "MAX_SENDS", 8)
    async with Quorum(1, 2, 3, seed=31) as quorum:
        leader = await quorum.leader()
        follower = next(each for each in quorum.nodes.values() if each is not leader)
        driver = follower.running._driver
        honest, silent = driver._peers.request, asyncio.Event()

        async def request(destination: Any, *asked: Any) -> Any:
            if destination.host.startswith("nowhere"):
                await silent.wait()
                return None
            return await honest(destination, *asked)

        monkeypatch.setattr(driver._peers, "request", request)
        for number in range(1, 40):
            begin = BeginQuorumEpochRequest(
                leader_id=1_000 + number,
                leader_epoch=follower.running.state.leader_epoch + 1,
                voter=None,
                leader_endpoints=(VoterEndpoint(LISTENER, f"nowhere{number}", 9093),),
            )
            message, version = encode_request(begin, lambda c: c.MAX_VERSION, CLUSTER_ID)
            answer = await ask(quorum, follower, message, version)
            assert answer.error_code == ErrorCode.NONE
            assert len(driver._sends) <= 8
        silent.set()
        assert follower.fatal == []
        await quorum.leader()


async def test_addresses_that_would_fill_the_memory_are_refused() -> None:
    many = tuple(VoterEndpoint(LISTENER, "host", 1) for _ in range(MAX_ENDPOINTS + 1))
    long = tuple(VoterEndpoint(LISTENER, "x" * 20_000, 1) for _ in range(6))
    async with Quorum(1, 2, 3, seed=37) as quorum:
        leader = await quorum.leader()
        epoch = leader.running.state.leader_epoch
        for endpoints in (many, long):
            voter = VoterDescription(2, UUID(int=2), endpoints)
            for known in (
                BeginQuorumEpochRequest(2, epoch + 1, None, endpoints),
                EndQuorumEpochRequest(2, epoch + 1, (), endpoints),
                UpdateVoterRequest(epoch, voter, 0, 1),
            ):
                message, version = encode_request(known, lambda c: c.MAX_VERSION, CLUSTER_ID)
                answer = await ask(quorum, leader, message, version)
                assert answer.error_code == ErrorCode.INVALID_REQUEST
        candidates = tuple(ReplicaKey(each) for each in range(MAX_ENDPOINTS + 1))
        ended = EndQuorumEpochRequest(2, epoch + 1, candidates, ())
        message, version = encode_request(ended, lambda c: c.MAX_VERSION, CLUSTER_ID)
        answer = await ask(quorum, leader, message, version)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        wordy = AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            voter_id=4,
            voter_directory_id=UUID(int=4),
            listeners=[Endpoint(name=LISTENER, host="x" * 20_000, port=1)] * 6,
        )
        assert (await ask(quorum, leader, wordy)).error_code == ErrorCode.INVALID_REQUEST
        assert leader.running.state.leader_epoch == epoch
