"""What strangers send to controllers costs them an error or a connection, the quorum nothing.

A candidate in a plausible higher epoch does raise the epoch of all, as in Apache Kafka, be it a
voter or
not: who may send that at all is a matter of permissions.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.wire import Wire
from moldau.protocol.error_responses import error_codes
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p01_fetch as fetch
from moldau.protocol.messages import p52_vote as vote
from moldau.protocol.messages import p53_begin_quorum_epoch as begin
from moldau.protocol.messages import p54_end_quorum_epoch as end
from moldau.protocol.messages import p56_alter_partition as alter
from moldau.protocol.messages import p59_fetch_snapshot as fetch_snapshot
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p58_envelope import EnvelopeRequest
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.types import METADATA_TOPIC_ID
from moldau.testing import Cluster
from tests.system.quorum.conftest import create_topic, quorum, wait_for_topics

pytestmark = pytest.mark.timeout(120)

LAST_EPOCH = 2**31 - 1
LAST_OFFSET = 2**63 - 1
TOPIC = "__cluster_metadata"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three controllers and a broker that are attacked in every test."""
    with Cluster(controllers=3, brokers=1) as cluster:
        create_topic(cluster, "first", 1)
        yield cluster


@pytest.fixture(autouse=True)
def _nothing_happens(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    before = quorum(cluster)
    with _connect(cluster, before.leader_id) as other:
        yield
        assert other.ask(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE, "another connection"
    after = quorum(cluster)
    assert (after.leader_id, after.leader_epoch) == (before.leader_id, before.leader_epoch)
    assert [each.replica_id for each in after.voters] == cluster.controller_ids
    name = f"after-{hashlib.sha256(request.node.name.encode()).hexdigest()[:20]}"
    create_topic(cluster, name, 1)
    wait_for_topics(cluster, name)
    for node_id in cluster.node_ids:
        assert cluster.node(node_id).running
        assert "Traceback" not in cluster.node(node_id).log_tail()


def _connect(cluster: Cluster, node_id: int) -> Wire:
    addresses = cluster.bootstrap_controllers.split(",")
    host, _, port = addresses[cluster.controller_ids.index(node_id)].rpartition(":")
    return Wire(host, int(port))


def _is_closed(wire: Wire) -> bool:
    try:
        return wire.socket.recv(1) == b""
    except ConnectionResetError:
        return True


def frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        struct.pack(">i", 2**31 - 1) + bytes(10),
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        frame(b""),
        frame(b"\xff"),
        frame(struct.pack(">hhih", 52, 99, 1, -1)),
        frame(struct.pack(">hhih", 999, 0, 1, -1)),
        frame(struct.pack(">hhih", 52, 2, 1, -1) + b"\0" + b"\xff" * 50),
        frame(struct.pack(">hhih", 52, 2, 1, 30_000)),
        frame(struct.pack(">hhih", 1, 17, 1, -1) + b"\0" + b"\xff" * 50),
    ],
)
def test_garbage_closes_its_own_connection(cluster: Cluster, data: bytes):
    for node_id in cluster.controller_ids:
        with _connect(cluster, node_id) as wire:
            wire.socket.sendall(data)
            assert _is_closed(wire)


def test_half_a_frame_is_waited_for_and_forgotten(cluster: Cluster):
    for node_id in cluster.controller_ids:
        with _connect(cluster, node_id) as wire:
            wire.socket.sendall(frame(bytes(100))[:50])
            with _connect(cluster, node_id) as meanwhile:
                assert meanwhile.ask(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


def refusals(cluster: Cluster, request: Any, version: int, node_id: int) -> set[ErrorCode]:
    """The errors anywhere in the answer."""
    with _connect(cluster, node_id) as wire:
        found = {ErrorCode.of(each) for each in error_codes(wire.ask(request, version))}
    return found - {ErrorCode.NONE}


def asked_of_all(cluster: Cluster, request: Any, version: int, expected: set[ErrorCode]) -> None:
    for node_id in cluster.controller_ids:
        found = refusals(cluster, request, version, node_id)
        assert found, f"{node_id} took it"
        assert found <= expected


# -- the quorum's own ----------------------------------------------------------------------------


def voting(*, cluster_id: str | None = None, topic: str = TOPIC, **values: Any) -> vote.VoteRequest:
    partition = vote.PartitionData(
        **{"replica_epoch": 5_000, "replica_id": 999, "last_offset_epoch": 4, **values}
    )
    return vote.VoteRequest(
        cluster_id=cluster_id, topics=[vote.TopicData(topic_name=topic, partitions=[partition])]
    )


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (voting(replica_epoch=-5), ErrorCode.INVALID_REQUEST),
        (voting(replica_epoch=LAST_EPOCH), ErrorCode.INVALID_REQUEST),
        (voting(replica_epoch=LAST_EPOCH, pre_vote=True), ErrorCode.INVALID_REQUEST),
        (voting(replica_epoch=LAST_EPOCH // 2), ErrorCode.INVALID_REQUEST),
        (voting(last_offset_epoch=5_000), ErrorCode.INVALID_REQUEST),
        (voting(last_offset_epoch=LAST_EPOCH), ErrorCode.INVALID_REQUEST),
        (voting(last_offset_epoch=-1), ErrorCode.INVALID_REQUEST),
        (voting(last_offset=-1), ErrorCode.INVALID_REQUEST),
        (voting(replica_id=-1), ErrorCode.INVALID_REQUEST),
        (voting(partition_index=1), ErrorCode.INVALID_REQUEST),
        (voting(topic="first"), ErrorCode.INVALID_REQUEST),
        (vote.VoteRequest(), ErrorCode.INVALID_REQUEST),
        (voting(cluster_id="AAAAAAAAQACAAAAAAAAAAQ"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (
            voting(replica_epoch=0, last_offset_epoch=0, pre_vote=True),
            ErrorCode.FENCED_LEADER_EPOCH,
        ),
    ],
)
def test_votes_that_cannot_be(cluster: Cluster, request_: vote.VoteRequest, error: ErrorCode):
    asked_of_all(cluster, request_, 2, {error})


def beginning(epoch: int, leader_id: int = 999) -> begin.BeginQuorumEpochRequest:
    partition = begin.PartitionData(leader_id=leader_id, leader_epoch=epoch)
    return begin.BeginQuorumEpochRequest(
        topics=[begin.TopicData(topic_name=TOPIC, partitions=[partition])]
    )


def ending(epoch: int, leader_id: int = 999) -> end.EndQuorumEpochRequest:
    partition = end.PartitionData(leader_id=leader_id, leader_epoch=epoch)
    return end.EndQuorumEpochRequest(
        topics=[end.TopicData(topic_name=TOPIC, partitions=[partition])]
    )


@pytest.mark.parametrize("make", [beginning, ending])
@pytest.mark.parametrize("epoch", [-1, 0, LAST_EPOCH, None])
def test_leaders_that_cannot_be(cluster: Cluster, make: Callable[..., Any], epoch: int | None):
    """None stands for the epoch that another voter leads."""
    request = make(quorum(cluster).leader_epoch if epoch is None else epoch)
    errors = {ErrorCode.INVALID_REQUEST, ErrorCode.FENCED_LEADER_EPOCH}
    asked_of_all(cluster, request, 1, errors)


def fetching(cluster: Cluster, replica_id: int, **values: Any) -> fetch.FetchRequest:
    voters = {each.replica_id: each.directory_id for each in quorum(cluster).voters}
    partition = fetch.FetchPartition(
        **{"last_fetched_epoch": 0, "partition_max_bytes": 1_000, **values}
    )
    if replica_id in voters:
        partition.replica_directory_id = voters[replica_id]  # as whom it is no stranger
    return fetch.FetchRequest(
        replica_state=fetch.ReplicaState(replica_id=replica_id),
        topics=[fetch.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


@pytest.mark.parametrize("replica_id", [101, 102, 103, 999, -1])
@pytest.mark.parametrize(
    "values",
    [
        {"current_leader_epoch": LAST_EPOCH},
        {"current_leader_epoch": -1},
        {"current_leader_epoch": 0},
        {"current_leader_epoch": 1, "fetch_offset": -1},
        {"current_leader_epoch": 1, "last_fetched_epoch": -1},
    ],
)
def test_fetches_that_cannot_be(cluster: Cluster, replica_id: int, values: dict[str, int]):
    errors = {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
    asked_of_all(cluster, fetching(cluster, replica_id, **values), 17, errors)


@pytest.mark.parametrize("replica_id", [999, -1])
def test_a_fetch_far_behind_the_end_is_answered_with_the_diverging_epoch(
    cluster: Cluster, replica_id: int
):
    told = quorum(cluster)
    request = fetching(
        cluster,
        replica_id,
        current_leader_epoch=told.leader_epoch,
        fetch_offset=LAST_OFFSET,
        last_fetched_epoch=told.leader_epoch,
    )
    with _connect(cluster, told.leader_id) as wire:
        [topic] = wire.ask(request, 17).responses
    [partition] = topic.partitions
    assert partition.error_code == ErrorCode.NONE
    assert partition.diverging_epoch.epoch == told.leader_epoch
    assert partition.diverging_epoch.end_offset < LAST_OFFSET
    assert quorum(cluster).high_watermark < LAST_OFFSET


@pytest.mark.parametrize(
    ("end_offset", "epoch", "position"),
    [(LAST_OFFSET, 1, 0), (-1, -1, 0), (0, 0, 0), (5, 1, -1), (5, 1, LAST_OFFSET)],
)
def test_snapshots_that_are_not_there(cluster: Cluster, end_offset: int, epoch: int, position: int):
    told = quorum(cluster)
    partition = fetch_snapshot.PartitionSnapshot(
        current_leader_epoch=told.leader_epoch,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=end_offset, epoch=epoch),
        position=position,
    )
    request = fetch_snapshot.FetchSnapshotRequest(
        topics=[fetch_snapshot.TopicSnapshot(name=TOPIC, partitions=[partition])]
    )
    errors = {ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE}
    asked_of_all(cluster, request, 1, {*errors, ErrorCode.NOT_LEADER_OR_FOLLOWER})


# -- the controller's ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("principal", "data"),
    [
        (b"", b""),
        (b"\xff\xff", b"\0" * 20),
        (b"\0\0\x05User\x02a\0", b""),
        (b"\0\0\x05User\x02a\0", b"\xff" * 40),
        (b"\0\0\x05User\x02a\0", struct.pack(">hhih", 58, 0, 1, -1) + b"\0" * 9),
        (b"\0\0\x05User\x02a\0", struct.pack(">hhih", 19, 7, 1, -1) + b"\0" + b"\xff" * 60),
        (b"\0\0\x05User\x02a\0", struct.pack(">hhih", 19, 99, 1, -1)),
        (b"\0\0\x05User\x02a\0", struct.pack(">hhih", 52, 2, 1, -1) + b"\0" * 12),
    ],
)
def test_envelopes_with_garbage_in_them(cluster: Cluster, principal: bytes, data: bytes):
    request = EnvelopeRequest(
        request_data=data, request_principal=principal, client_host_address=b"\x7f\0\0\1"
    )
    for node_id in cluster.controller_ids:
        with _connect(cluster, node_id) as wire:
            try:
                answer = wire.ask(request, 0)
            except ConnectionError:
                continue
            assert answer.error_code != ErrorCode.NONE


@pytest.mark.parametrize("broker_id", [-1, 1, 77, LAST_EPOCH])
def test_brokers_that_are_not_registered(cluster: Cluster, broker_id: int):
    """Broker 1 is; not under this epoch."""
    errors = {
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.NOT_CONTROLLER,
    }
    partition = alter.PartitionData(
        new_isr_with_epochs=[alter.BrokerState(broker_id=broker_id, broker_epoch=1)],
        leader_epoch=LAST_EPOCH,
        partition_epoch=LAST_EPOCH,
    )
    isr = alter.AlterPartitionRequest(
        broker_id=broker_id,
        broker_epoch=LAST_OFFSET,
        topics=[alter.TopicData(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )
    asked_of_all(cluster, isr, 3, errors)
    heartbeat = BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=LAST_OFFSET, current_metadata_offset=LAST_OFFSET
    )
    asked_of_all(cluster, heartbeat, 1, errors)
