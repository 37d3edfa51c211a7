"""The quorum's messages against the bytes that Apache Kafka 4.3's own classes write.

`golden/quorum_messages.txt` is what `golden/QuorumMessages.java` printed with Kafka 4.3.0's jars.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from moldau.protocol.messages.p18_api_versions import ApiVersionsResponse, SupportedFeatureKey
from moldau.protocol.messages.p52_vote import VoteRequest, VoteResponse
from moldau.protocol.registry import request_class, response_class
from moldau.protocol.schema import Message
from moldau.protocol.types import METADATA_TOPIC_NAME, ZERO_UUID
from moldau.raft import VoterDescription, VoterEndpoint
from moldau.raft.core import messages as core
from moldau.raft.core.values import EpochEnd, ReplicaKey, SnapshotId
from moldau.raft.wire import (
    FETCH_MIN_VERSION,
    PreVoteUnsupported,
    Refused,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

CLUSTER_ID = "cluster-of-the-tests"
LISTENER = "CONTROLLER"
ONE = ReplicaKey(1, UUID(int=0x1001))
TWO = ReplicaKey(2, UUID(int=0x1002))
ENDPOINTS = (VoterEndpoint(LISTENER, "host1", 9093),)
HEADER = (ErrorCode.NONE, 1, 7)

GOLDEN = {
    (name, int(version)): bytes.fromhex(data)
    for name, version, data in (
        line.split()
        for line in (Path(__file__).parent / "golden" / "quorum_messages.txt")
        .read_text()
        .splitlines()
    )
}

REQUESTS: dict[str, core.PeerRequest] = {
    "VoteRequest": core.VoteRequest(ONE, TWO, 7, 6, 42, pre_vote=True),
    "VoteRequestOfCandidate": core.VoteRequest(ONE, TWO, 7, 6, 42, pre_vote=False),
    "BeginQuorumEpochRequest": core.BeginQuorumEpochRequest(1, 7, TWO, ENDPOINTS),
    "EndQuorumEpochRequest": core.EndQuorumEpochRequest(1, 7, (TWO,)),
    "FetchRequest": core.FetchRequest(TWO, 7, 42, 6, 40, 500, 1024 * 1024),
    "FetchSnapshotRequest": core.FetchSnapshotRequest(TWO, 7, SnapshotId(30, 5), 99, 1024 * 1024),
    "UpdateRaftVoterRequest": core.UpdateVoterRequest(
        7, VoterDescription(1, ONE.directory_id, ENDPOINTS), 0, 1
    ),
}
RESPONSES: dict[str, core.PeerResponse] = {
    "VoteResponse": core.VoteResponse(*HEADER, ENDPOINTS, True),
    "BeginQuorumEpochResponse": core.BeginQuorumEpochResponse(
        ErrorCode.FENCED_LEADER_EPOCH, 1, 7, ENDPOINTS
    ),
    "EndQuorumEpochResponse": core.EndQuorumEpochResponse(*HEADER, ENDPOINTS),
    "FetchResponse": core.FetchResponse(*HEADER, ENDPOINTS, 40, 3, EpochEnd(5, 30), records=b""),
    "FetchSnapshotResponse": core.FetchSnapshotResponse(
        *HEADER, ENDPOINTS, SnapshotId(30, 5), 500, 99, b""
    ),
    "UpdateRaftVoterResponse": core.UpdateVoterResponse(*HEADER, ENDPOINTS),
}
ENDPOINTS_SINCE = {"FetchResponse": 17, "UpdateRaftVoterResponse": 0}
"""The first version of each response that names the leader's endpoint; 1 where not said."""


def cases(names: dict[str, Any]) -> list[tuple[str, int]]:
    found = [(name, version) for name, version in GOLDEN if name in names]
    assert {name for name, _ in found} == set(names)
    return found


@pytest.mark.parametrize(("name", "version"), cases(REQUESTS))
def test_requests_are_kafkas_bytes_and_back(name: str, version: int) -> None:
    request = REQUESTS[name]
    message, spoken = encode_request(request, lambda _class: version, CLUSTER_ID)
    assert spoken == version
    assert message.to_bytes(version).hex() == GOLDEN[name, version].hex()
    received, length = type(message).decode(GOLDEN[name, version], version)
    assert length == len(GOLDEN[name, version])
    back = decode_request(received, version, CLUSTER_ID)
    assert type(back) is type(request)
    again, _ = encode_request(back, lambda _class: version, CLUSTER_ID)
    assert again.to_bytes(version) == GOLDEN[name, version]
    if version == type(message).MAX_VERSION:
        assert back == request, "nothing is lost in the newest version"


@pytest.mark.parametrize(("name", "version"), cases(RESPONSES))
def test_responses_are_kafkas_bytes_and_back(name: str, version: int) -> None:
    response = RESPONSES[name]
    message = encode_response(response, version, LISTENER)
    assert message.to_bytes(version).hex() == GOLDEN[name, version].hex()
    request = REQUESTS[name.replace("Response", "Request")]
    received, _ = type(message).decode(GOLDEN[name, version], version)
    back = decode_response(request, received, LISTENER)
    assert type(back) is type(response)
    assert back.error is response.error
    for field in type(response).__slots__:  # type: ignore[attr-defined]
        expected = getattr(response, field)
        if field == "leader_endpoints" and version < ENDPOINTS_SINCE.get(name, 1):
            expected = ()
        assert getattr(back, field) == expected, field


@pytest.mark.parametrize(
    "name",
    [
        "AddRaftVoterRequest",
        "RemoveRaftVoterRequest",
        "AddRaftVoterResponse",
        "RemoveRaftVoterResponse",
    ],
)
def test_what_tools_send_and_get(name: str) -> None:
    api_key = 80 if name.startswith("Add") else 81
    message_class = (request_class if name.endswith("Request") else response_class)(api_key)
    for version in range(message_class.MAX_VERSION + 1):
        message, _ = message_class.decode(GOLDEN[name, version], version)
        assert message.to_bytes(version) == GOLDEN[name, version]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_another_cluster_is_refused_as_kafka_refuses_it(version: int) -> None:
    data = GOLDEN["VoteRequestOfCandidate", version]
    message, _ = VoteRequest.decode(data, version)
    with pytest.raises(Refused) as refused:
        decode_request(message, version, "another")
    assert refused.value.response.to_bytes(version) == GOLDEN["VoteOfAnotherCluster", version]
    answer, _ = VoteResponse.decode(GOLDEN["VoteOfAnotherCluster", version], version)
    with pytest.raises(RemoteProtocolError, match="INCONSISTENT_CLUSTER_ID"):
        decode_response(REQUESTS["VoteRequest"], answer, LISTENER)


def refused_code(message: Message, version: int) -> Any:
    """The whole response to a request that the quorum never sees."""
    with pytest.raises(Refused) as refused:
        decode_request(message, version, CLUSTER_ID)
    response = refused.value.response
    response.to_bytes(version)  # and it can be written
    return response


@pytest.mark.parametrize(
    "name", ["VoteRequest", "BeginQuorumEpochRequest", "EndQuorumEpochRequest"]
)
def test_other_partitions_are_invalid_requests(name: str) -> None:
    for change in ("topic", "partition", "two topics", "none"):
        message: Any
        message, version = encode_request(REQUESTS[name], lambda c: c.MAX_VERSION, CLUSTER_ID)
        if change == "topic":
            message.topics[0].topic_name = "orders"
        elif change == "partition":
            message.topics[0].partitions[0].partition_index = 1
        elif change == "two topics":
            message.topics *= 2
        else:
            message.topics = []
        assert refused_code(message, version).error_code == ErrorCode.INVALID_REQUEST


def test_impossible_fetches_are_refused_at_the_partition() -> None:
    for version in range(12, FetchRequest.MAX_VERSION + 1):
        for field in ("fetch_offset", "last_fetched_epoch", "current_leader_epoch"):
            message, _ = FetchRequest.decode(GOLDEN["FetchRequest", version], version)
            setattr(message.topics[0].partitions[0], field, -1)
            answer = refused_code(message, version)
            assert answer.error_code == ErrorCode.NONE
            partition = answer.responses[0].partitions[0]
            assert partition.error_code == ErrorCode.INVALID_REQUEST
        message, _ = FetchRequest.decode(GOLDEN["FetchRequest", version], version)
        message.topics[0].topic_id, message.topics[0].topic = UUID(int=9), "orders"
        assert refused_code(message, version).error_code == ErrorCode.INVALID_REQUEST


def test_fetches_without_the_epoch_of_the_last_record_are_refused_in_their_version() -> None:
    partition = FetchPartition(current_leader_epoch=7, fetch_offset=42)
    topic = FetchTopic(topic=METADATA_TOPIC_NAME, partitions=[partition])
    for version in range(FetchRequest.MIN_VERSION, FETCH_MIN_VERSION):
        data = FetchRequest(replica_id=TWO.node_id, topics=[topic]).to_bytes(version)
        message, _ = FetchRequest.decode(data, version)
        answer = refused_code(message, version)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST


def test_snapshots_of_other_partitions_are_unknown() -> None:
    message: Any
    message, version = encode_request(
        REQUESTS["FetchSnapshotRequest"], lambda c: c.MAX_VERSION, CLUSTER_ID
    )
    message.topics[0].name = "orders"
    answer = refused_code(message, version)
    assert answer.error_code == ErrorCode.NONE
    assert answer.topics[0].name == "orders"
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    message.topics = []
    assert refused_code(message, version).error_code == ErrorCode.INVALID_REQUEST


def test_a_candidates_impossible_vote_is_refused_at_the_partition() -> None:
    request = core.VoteRequest(ONE, TWO, 7, 7, 42, pre_vote=False)
    message, version = encode_request(request, lambda c: c.MAX_VERSION, CLUSTER_ID)
    answer = refused_code(message, version)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
    request = core.VoteRequest(ONE, TWO, 7, 7, 42, pre_vote=True)
    message, version = encode_request(request, lambda c: c.MAX_VERSION, CLUSTER_ID)
    assert decode_request(message, version, CLUSTER_ID) == request


def test_a_voter_without_directory_cannot_update_itself() -> None:
    request = core.UpdateVoterRequest(7, VoterDescription(1, ZERO_UUID, ENDPOINTS), 0, 1)
    message, version = encode_request(request, lambda c: c.MAX_VERSION, CLUSTER_ID)
    assert refused_code(message, version).error_code == ErrorCode.INVALID_REQUEST


def test_no_pre_vote_in_versions_without_it() -> None:
    for version in (0, 1):
        with pytest.raises(PreVoteUnsupported):
            encode_request(REQUESTS["VoteRequest"], lambda _class: version, CLUSTER_ID)  # noqa: B023


def test_which_kraft_versions_a_node_speaks() -> None:
    request = core.KraftVersionRequest()
    message, version = encode_request(request, lambda c: c.MAX_VERSION, CLUSTER_ID)
    message.to_bytes(version)
    answer = ApiVersionsResponse(
        supported_features=[
            SupportedFeatureKey(name="metadata.version", min_version=7, max_version=30),
            SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1),
        ]
    )
    data = answer.to_bytes(version)
    received, _ = ApiVersionsResponse.decode(data, version)
    assert decode_response(request, received, LISTENER) == core.KraftVersionResponse(
        ErrorCode.NONE, 0, 1
    )
    assert decode_response(request, ApiVersionsResponse(), LISTENER) == core.KraftVersionResponse(
        ErrorCode.NONE, 0, 0
    )


def test_a_response_that_answers_something_else() -> None:
    for answer in (FetchResponse(), FetchResponse(error_code=ErrorCode.INVALID_REQUEST)):
        with pytest.raises(RemoteProtocolError):
            decode_response(REQUESTS["FetchRequest"], answer, LISTENER)
    with pytest.raises(RemoteProtocolError):
        decode_response(REQUESTS["VoteRequest"], VoteResponse(), LISTENER)
