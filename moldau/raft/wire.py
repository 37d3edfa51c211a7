"""What replicas of the quorum say to each other, as requests and responses of the protocol.

Owns: which message and version each request and response of the core becomes, and what a message
means, on the asking side and on the answering side; which requests are refused before the quorum
sees them, and where the error then stands. Must not: send, or know the quorum's state. Invariants:
a field that a version lacks is left out where the protocol allows it (encoders drop the fields that
are ignorable), and the request is not sent in that version where it does not; a request of another
cluster, or about anything but the metadata log, never reaches the core. Sources: KIP-595, 630, 853,
996, 1166.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeVar
from uuid import UUID

from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.messages import p01_fetch as fetch
from moldau.protocol.messages import p18_api_versions as api_versions
from moldau.protocol.messages import p52_vote as vote
from moldau.protocol.messages import p53_begin_quorum_epoch as begin
from moldau.protocol.messages import p54_end_quorum_epoch as end
from moldau.protocol.messages import p59_fetch_snapshot as fetch_snapshot
from moldau.protocol.messages import p82_update_raft_voter as update
from moldau.protocol.messages.quorum_records import KRaftVersionFeature, NodeEndpoint
from moldau.protocol.registry import response_class
from moldau.protocol.schema import AnyRequest, Message
from moldau.protocol.types import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, ZERO_UUID, Buffer, Records
from moldau.raft.core import messages as core
from moldau.raft.core.values import NO_NODE, Endpoints, EpochEnd, ReplicaKey, SnapshotId
from moldau.raft.core.voters import VoterDescription, VoterEndpoint, endpoints_of, listeners_of

METADATA_PARTITION: Final = 0
KRAFT_VERSION_FEATURE: Final = "kraft.version"
FETCH_MIN_VERSION: Final = 12
"""The first one with the epoch of the last record, without which logs cannot be compared."""
FETCH_REPLICA_STATE_VERSION: Final = 15
MAX_FETCH_BYTES: Final = 8 * 1024 * 1024
"""What one answer carries at most, whatever was asked for (one larger batch excepted)."""
MAX_FETCH_WAIT_MS: Final = 60_000

VersionOf = Callable[[type[Message]], int]
"""The version in which to send a request to the peer; raises UnsupportedByPeer."""

T = TypeVar("T")


class PreVoteUnsupported(LocalProtocolError):
    """The peer's version of Vote knows no PreVote."""


class Refused(Exception):
    """The request gets an error before the quorum sees it; `response` says so."""

    def __init__(self, response: Message) -> None:
        super().__init__(type(response).__name__)
        self.response = response


def _snapshot(snapshot_id: SnapshotId, kind: Callable[..., T]) -> T:
    return kind(end_offset=snapshot_id.end_offset, epoch=snapshot_id.leader_epoch)


def _voter_key(voter_id: int, directory_id: UUID) -> ReplicaKey | None:
    return ReplicaKey(voter_id, directory_id) if voter_id >= 0 else None


def _refused(message: Any, error: ErrorCode = ErrorCode.INVALID_REQUEST) -> Refused:
    return Refused(response_class(message.API_KEY)(error_code=error))


def _asked(message: Any) -> tuple[Any, Any]:
    """The topic and the partition of a request about one partition. Raises Refused."""
    if len(message.topics) != 1 or len(message.topics[0].partitions) != 1:
        raise _refused(message)
    return message.topics[0], message.topics[0].partitions[0]


def _named_partition(message: Any) -> Any:
    """The metadata log's part of a request that must be about it alone. Raises Refused."""
    topic, partition = _asked(message)
    if topic.topic_name != METADATA_TOPIC_NAME or partition.partition_index != METADATA_PARTITION:
        raise _refused(message)
    return partition


def _leader_of(
    said: core.LeaderResponse | core.BeginQuorumEpochRequest | core.EndQuorumEpochRequest,
    kind: Callable[..., T],
) -> T:
    return kind(leader_id=said.leader_id, leader_epoch=said.leader_epoch)


def _nodes(
    response: core.LeaderResponse,
    has_field: bool,
    endpoint: VoterEndpoint | None,
    kind: Callable[..., T],
) -> list[T]:
    if not has_field or endpoint is None or response.leader_id == NO_NODE:
        return []
    return [kind(node_id=response.leader_id, host=endpoint.host, port=endpoint.port)]


def _encode_election_response(
    parts: ModuleType,
    answer_class: type[Message],
    response: core.LeaderResponse,
    version: int,
    endpoint: VoterEndpoint | None,
) -> Message:
    """Vote, BeginQuorumEpoch and EndQuorumEpoch are answered alike, of the structs in `parts`."""
    answer = _leader_of(response, parts.PartitionDataResponse)
    answer.partition_index = METADATA_PARTITION
    answer.error_code = response.error
    if isinstance(response, core.VoteResponse):
        answer.vote_granted = response.vote_granted
    return answer_class(
        topics=[parts.TopicDataResponse(topic_name=METADATA_TOPIC_NAME, partitions=[answer])],
        node_endpoints=_nodes(response, version >= 1, endpoint, NodeEndpoint),
    )


def _decode_election_response(
    kind: Callable[..., core.PeerResponse], message: Any, listener_name: str
) -> core.PeerResponse:
    """What is said of the metadata log, and where the leader is. Raises RemoteProtocolError."""
    _require_no_error(message.error_code)
    for topic in message.topics:
        if topic.topic_name == METADATA_TOPIC_NAME:
            answer = _only(topic.partitions)
            fields = {"leader_endpoints": _leader(message, answer.leader_id, listener_name)}
            if kind is core.VoteResponse:
                fields["vote_granted"] = answer.vote_granted
            return kind(*_header(answer.error_code, answer), **fields)
    raise RemoteProtocolError("the answer says nothing of the metadata log")


def _header(error_code: int, leader: Any) -> tuple[ErrorCode, int, int]:
    return ErrorCode.of(error_code), leader.leader_id, leader.leader_epoch


def _require_no_error(error_code: int) -> None:
    if error_code != ErrorCode.NONE:
        error = ErrorCode.of(error_code)
        raise RemoteProtocolError(f"the whole request was refused: {error.name}, {error.message}")


def _only(items: list[T]) -> T:
    if len(items) != 1:
        raise RemoteProtocolError(f"{len(items)} answers to one question")
    return items[0]


def _received(records: Records | None) -> Buffer:
    """The bytes of a decoded field."""
    if records is None:
        return b""
    assert isinstance(records, bytes | bytearray | memoryview)
    return records


def _leader(message: Any, leader_id: int, listener_name: str) -> Endpoints:
    return tuple(
        VoterEndpoint(listener_name, node.host, node.port)
        for node in message.node_endpoints
        if node.node_id == leader_id and leader_id != NO_NODE
    )


def _encode_vote_request(request: core.VoteRequest, version: int, cluster_id: str) -> AnyRequest:
    if request.pre_vote and version < 2:
        raise PreVoteUnsupported("the peer knows no PreVote")
    partition = vote.PartitionData(
        partition_index=METADATA_PARTITION,
        replica_epoch=request.leader_epoch,
        replica_id=request.candidate.node_id,
        replica_directory_id=request.candidate.directory_id,
        last_offset_epoch=request.last_leader_epoch,
        last_offset=request.log_end_offset,
        pre_vote=request.pre_vote,
    )
    message = vote.VoteRequest(cluster_id=cluster_id)
    message.topics = [vote.TopicData(topic_name=METADATA_TOPIC_NAME, partitions=[partition])]
    if request.voter is not None:
        message.voter_id = request.voter.node_id
        partition.voter_directory_id = request.voter.directory_id
    return message


def _decode_vote_request(message: vote.VoteRequest, version: int) -> core.VoteRequest:
    partition: vote.PartitionData = _named_partition(message)
    request = core.VoteRequest(
        candidate=ReplicaKey(partition.replica_id, partition.replica_directory_id),
        voter=_voter_key(message.voter_id, partition.voter_directory_id),
        leader_epoch=partition.replica_epoch,
        last_leader_epoch=partition.last_offset_epoch,
        log_end_offset=partition.last_offset,
        pre_vote=partition.pre_vote,
    )
    is_possible = (
        request.log_end_offset >= 0
        and 0 <= request.last_leader_epoch <= request.leader_epoch
        # A candidate has raised its epoch above every record's; a PreVote has not.
        and (request.pre_vote or request.last_leader_epoch < request.leader_epoch)
        and request.candidate.node_id >= 0
    )
    if not is_possible:
        refusal = core.VoteResponse(ErrorCode.INVALID_REQUEST, NO_NODE, -1)
        raise Refused(_encode_election_response(vote, vote.VoteResponse, refusal, version, None))
    return request


def _encode_begin_request(
    request: core.BeginQuorumEpochRequest, _version: int, cluster_id: str
) -> AnyRequest:
    partition = _leader_of(request, begin.PartitionData)
    partition.partition_index = METADATA_PARTITION
    message = begin.BeginQuorumEpochRequest(cluster_id=cluster_id)
    message.topics = [begin.TopicData(topic_name=METADATA_TOPIC_NAME, partitions=[partition])]
    if request.voter is not None:
        message.voter_id = request.voter.node_id
        partition.voter_directory_id = request.voter.directory_id
    message.leader_endpoints = listeners_of(request.leader_endpoints)
    return message


def _decode_begin_request(
    message: begin.BeginQuorumEpochRequest, _version: int
) -> core.BeginQuorumEpochRequest:
    partition: begin.PartitionData = _named_partition(message)
    return core.BeginQuorumEpochRequest(
        partition.leader_id,
        partition.leader_epoch,
        _voter_key(message.voter_id, partition.voter_directory_id),
        endpoints_of(message.leader_endpoints),
    )


def _encode_end_request(
    request: core.EndQuorumEpochRequest, _version: int, cluster_id: str
) -> AnyRequest:
    partition = _leader_of(request, end.PartitionData)
    partition.partition_index = METADATA_PARTITION
    partition.preferred_successors = [each.node_id for each in request.preferred_candidates]
    partition.preferred_candidates = [
        end.ReplicaInfo(candidate_id=each.node_id, candidate_directory_id=each.directory_id)
        for each in request.preferred_candidates
    ]
    return end.EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=[end.TopicData(topic_name=METADATA_TOPIC_NAME, partitions=[partition])],
        leader_endpoints=listeners_of(request.leader_endpoints),
    )


def _decode_end_request(
    message: end.EndQuorumEpochRequest, version: int
) -> core.EndQuorumEpochRequest:
    partition: end.PartitionData = _named_partition(message)
    if version == 0:
        candidates = tuple(ReplicaKey(each) for each in partition.preferred_successors)
    else:
        candidates = tuple(
            ReplicaKey(each.candidate_id, each.candidate_directory_id)
            for each in partition.preferred_candidates
        )
    return core.EndQuorumEpochRequest(
        partition.leader_id,
        partition.leader_epoch,
        candidates,
        endpoints_of(message.leader_endpoints),
    )


def _encode_fetch_request(request: core.FetchRequest, version: int, cluster_id: str) -> AnyRequest:
    if version < FETCH_MIN_VERSION:
        raise LocalProtocolError(f"the peer serves Fetch up to {version}, 12 is needed")
    partition = fetch.FetchPartition(
        partition=METADATA_PARTITION,
        current_leader_epoch=request.leader_epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    topic = fetch.FetchTopic(
        topic=METADATA_TOPIC_NAME, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    message = fetch.FetchRequest(
        cluster_id=cluster_id,
        max_wait_ms=request.max_wait_ms,
        max_bytes=request.max_bytes,
        topics=[topic],
    )
    if version >= FETCH_REPLICA_STATE_VERSION:
        message.replica_state = fetch.ReplicaState(replica_id=request.replica.node_id)
    else:
        message.replica_id = request.replica.node_id
    return message


def _decode_fetch_request(message: fetch.FetchRequest, version: int) -> core.FetchRequest:
    topic, partition = _asked(message)
    is_metadata = topic.topic_id == METADATA_TOPIC_ID or topic.topic == METADATA_TOPIC_NAME
    if not is_metadata or partition.partition != METADATA_PARTITION:
        raise _refused(message)
    if version >= FETCH_REPLICA_STATE_VERSION:
        replica_id = message.replica_state.replica_id
    else:
        replica_id = message.replica_id
    if (
        partition.fetch_offset < 0
        or partition.last_fetched_epoch < 0
        or partition.current_leader_epoch < 0
        or message.max_wait_ms < 0
    ):
        refusal = core.FetchResponse(ErrorCode.INVALID_REQUEST, NO_NODE, -1)
        raise Refused(_encode_fetch_response(refusal, version, None))
    return core.FetchRequest(
        replica=ReplicaKey(replica_id, partition.replica_directory_id),
        leader_epoch=partition.current_leader_epoch,
        fetch_offset=partition.fetch_offset,
        last_fetched_epoch=partition.last_fetched_epoch,
        high_watermark=partition.high_watermark,
        max_wait_ms=min(message.max_wait_ms, MAX_FETCH_WAIT_MS),
        max_bytes=max(min(message.max_bytes, MAX_FETCH_BYTES), 1),
    )


def _encode_fetch_response(
    response: core.FetchResponse, version: int, endpoint: VoterEndpoint | None
) -> Message:
    answer = fetch.PartitionData(
        error_code=response.error,
        high_watermark=response.high_watermark,
        log_start_offset=response.log_start_offset,
        current_leader=_leader_of(response, fetch.LeaderIdAndEpoch),
        records=response.records,
    )
    if response.diverging is not None:
        answer.diverging_epoch = fetch.EpochEndOffset(
            epoch=response.diverging.leader_epoch, end_offset=response.diverging.end_offset
        )
    if response.snapshot_id is not None:
        answer.snapshot_id = _snapshot(response.snapshot_id, fetch.SnapshotId)
    topic = fetch.FetchableTopicResponse(
        topic=METADATA_TOPIC_NAME, topic_id=METADATA_TOPIC_ID, partitions=[answer]
    )
    return fetch.FetchResponse(
        responses=[topic],
        # Version 16 has the field for brokers; the quorum's leader uses it from 17 on.
        node_endpoints=_nodes(response, version >= 17, endpoint, fetch.NodeEndpoint),
    )


def _decode_fetch_response(message: fetch.FetchResponse, listener_name: str) -> core.FetchResponse:
    _require_no_error(message.error_code)
    answer = _only(_only(message.responses).partitions)
    diverging, snapshot = answer.diverging_epoch, answer.snapshot_id
    return core.FetchResponse(
        *_header(answer.error_code, answer.current_leader),
        high_watermark=answer.high_watermark,
        log_start_offset=answer.log_start_offset,
        diverging=EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        snapshot_id=SnapshotId(snapshot.end_offset, snapshot.epoch)
        if snapshot.end_offset >= 0 and snapshot.epoch >= 0
        else None,
        records=_received(answer.records),
        leader_endpoints=_leader(message, answer.current_leader.leader_id, listener_name),
    )


def _encode_fetch_snapshot_request(
    request: core.FetchSnapshotRequest, _version: int, cluster_id: str
) -> AnyRequest:
    partition = fetch_snapshot.PartitionSnapshot(
        partition=METADATA_PARTITION,
        current_leader_epoch=request.leader_epoch,
        snapshot_id=_snapshot(request.snapshot_id, fetch_snapshot.SnapshotId),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=request.replica.node_id,
        max_bytes=request.max_bytes,
        topics=[fetch_snapshot.TopicSnapshot(name=METADATA_TOPIC_NAME, partitions=[partition])],
    )


def _decode_fetch_snapshot_request(
    message: fetch_snapshot.FetchSnapshotRequest, _version: int
) -> core.FetchSnapshotRequest:
    topic, partition = _asked(message)
    if topic.name != METADATA_TOPIC_NAME or partition.partition != METADATA_PARTITION:
        answer = fetch_snapshot.PartitionSnapshotResponse(
            index=partition.partition,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            unaligned_records=b"",
        )
        raise Refused(
            fetch_snapshot.FetchSnapshotResponse(
                topics=[fetch_snapshot.TopicSnapshotResponse(name=topic.name, partitions=[answer])]
            )
        )
    return core.FetchSnapshotRequest(
        replica=ReplicaKey(message.replica_id, partition.replica_directory_id),
        leader_epoch=partition.current_leader_epoch,
        snapshot_id=SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
        position=partition.position,
        max_bytes=max(min(message.max_bytes, MAX_FETCH_BYTES), 1),
    )


def _encode_fetch_snapshot_response(
    response: core.FetchSnapshotResponse, version: int, endpoint: VoterEndpoint | None
) -> Message:
    answer = fetch_snapshot.PartitionSnapshotResponse(
        index=METADATA_PARTITION,
        error_code=response.error,
        snapshot_id=_snapshot(response.snapshot_id, fetch_snapshot.SnapshotId),
        current_leader=_leader_of(response, fetch_snapshot.LeaderIdAndEpoch),
        size=response.size_bytes,
        position=response.position,
        unaligned_records=response.data,
    )
    return fetch_snapshot.FetchSnapshotResponse(
        topics=[
            fetch_snapshot.TopicSnapshotResponse(name=METADATA_TOPIC_NAME, partitions=[answer])
        ],
        node_endpoints=_nodes(response, version >= 1, endpoint, NodeEndpoint),
    )


def _decode_fetch_snapshot_response(
    message: fetch_snapshot.FetchSnapshotResponse, listener_name: str
) -> core.FetchSnapshotResponse:
    _require_no_error(message.error_code)
    answer = _only(_only(message.topics).partitions)
    return core.FetchSnapshotResponse(
        *_header(answer.error_code, answer.current_leader),
        snapshot_id=SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch),
        size_bytes=answer.size,
        position=answer.position,
        data=_received(answer.unaligned_records),
        leader_endpoints=_leader(message, answer.current_leader.leader_id, listener_name),
    )


def _encode_update_request(
    request: core.UpdateVoterRequest, _version: int, cluster_id: str
) -> AnyRequest:
    return update.UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=request.leader_epoch,
        voter_id=request.voter.voter_id,
        voter_directory_id=request.voter.directory_id,
        listeners=listeners_of(request.voter.endpoints),
        kraft_version_feature=KRaftVersionFeature(
            min_supported_version=request.min_kraft_version,
            max_supported_version=request.max_kraft_version,
        ),
    )


def _decode_update_request(
    message: update.UpdateRaftVoterRequest, _version: int
) -> core.UpdateVoterRequest:
    feature = message.kraft_version_feature
    is_possible = (
        message.voter_id >= 0
        and message.voter_directory_id != ZERO_UUID
        and bool(message.listeners)
        and 0 <= feature.min_supported_version <= feature.max_supported_version
    )
    if not is_possible:
        raise _refused(message)
    return core.UpdateVoterRequest(
        message.current_leader_epoch,
        VoterDescription(
            message.voter_id, message.voter_directory_id, endpoints_of(message.listeners)
        ),
        feature.min_supported_version,
        feature.max_supported_version,
    )


def _encode_update_response(
    response: core.UpdateVoterResponse, _version: int, endpoint: VoterEndpoint | None
) -> Message:
    leader = _leader_of(response, update.CurrentLeader)
    if endpoint is not None:
        leader.host, leader.port = endpoint.host, endpoint.port
    return update.UpdateRaftVoterResponse(error_code=response.error, current_leader=leader)


def _decode_update_response(
    message: update.UpdateRaftVoterResponse, listener_name: str
) -> core.UpdateVoterResponse:
    leader = message.current_leader
    endpoints: Endpoints = ()
    if leader.leader_id != NO_NODE and leader.host:
        endpoints = (VoterEndpoint(listener_name, leader.host, leader.port),)
    return core.UpdateVoterResponse(*_header(message.error_code, leader), endpoints)


def _encode_kraft_version_request(
    _request: core.KraftVersionRequest, _version: int, _cluster_id: str
) -> AnyRequest:
    return api_versions.ApiVersionsRequest(
        client_software_name="moldau", client_software_version="1"
    )


def _decode_kraft_version_response(
    message: api_versions.ApiVersionsResponse, _listener_name: str
) -> core.KraftVersionResponse:
    for feature in message.supported_features:
        if feature.name == KRAFT_VERSION_FEATURE:
            return core.KraftVersionResponse(
                ErrorCode.of(message.error_code), feature.min_version, feature.max_version
            )
    return core.KraftVersionResponse(ErrorCode.of(message.error_code))


_ASKED: Final[
    dict[
        type[core.PeerRequest],
        tuple[type[AnyRequest], Callable[..., AnyRequest], Callable[..., core.PeerResponse]],
    ]
] = {
    core.VoteRequest: (
        vote.VoteRequest,
        _encode_vote_request,
        partial(_decode_election_response, core.VoteResponse),
    ),
    core.BeginQuorumEpochRequest: (
        begin.BeginQuorumEpochRequest,
        _encode_begin_request,
        partial(_decode_election_response, core.BeginQuorumEpochResponse),
    ),
    core.EndQuorumEpochRequest: (
        end.EndQuorumEpochRequest,
        _encode_end_request,
        partial(_decode_election_response, core.EndQuorumEpochResponse),
    ),
    core.FetchRequest: (fetch.FetchRequest, _encode_fetch_request, _decode_fetch_response),
    core.FetchSnapshotRequest: (
        fetch_snapshot.FetchSnapshotRequest,
        _encode_fetch_snapshot_request,
        _decode_fetch_snapshot_response,
    ),
    core.UpdateVoterRequest: (
        update.UpdateRaftVoterRequest,
        _encode_update_request,
        _decode_update_response,
    ),
    core.KraftVersionRequest: (
        api_versions.ApiVersionsRequest,
        _encode_kraft_version_request,
        _decode_kraft_version_response,
    ),
}
"""For each request of the core: the message it becomes, how, and how its answer is read."""

_SERVED: Final[dict[type[AnyRequest], Callable[..., core.PeerRequest]]] = {
    vote.VoteRequest: _decode_vote_request,
    begin.BeginQuorumEpochRequest: _decode_begin_request,
    end.EndQuorumEpochRequest: _decode_end_request,
    fetch.FetchRequest: _decode_fetch_request,
    fetch_snapshot.FetchSnapshotRequest: _decode_fetch_snapshot_request,
    update.UpdateRaftVoterRequest: _decode_update_request,
}
"""How each request that is served is read."""

_ANSWERS: Final[dict[type[core.PeerResponse], Callable[..., Message]]] = {
    core.VoteResponse: partial(_encode_election_response, vote, vote.VoteResponse),
    core.BeginQuorumEpochResponse: partial(
        _encode_election_response, end, begin.BeginQuorumEpochResponse
    ),
    core.EndQuorumEpochResponse: partial(
        _encode_election_response, end, end.EndQuorumEpochResponse
    ),
    core.FetchResponse: _encode_fetch_response,
    core.FetchSnapshotResponse: _encode_fetch_snapshot_response,
    core.UpdateVoterResponse: _encode_update_response,
}


def encode_request(
    request: core.PeerRequest, version_of: VersionOf, cluster_id: str
) -> tuple[AnyRequest, int]:
    """The protocol's message for a request, and the version to send it in.

    Raises LocalProtocolError: the peer speaks no version that can carry it.
    """
    message_class, encode, _ = _ASKED[type(request)]
    version = version_of(message_class)
    return encode(request, version, cluster_id), version


def decode_response(
    request: core.PeerRequest, message: Message, listener_name: str
) -> core.PeerResponse:
    """What the answer to `request` means.

    Args:
        listener_name: of the controllers' listener, for endpoints that come without a name.

    Raises:
        RemoteProtocolError: an error of the whole request (another cluster, say), or an answer that
            does not fit the request.
    """
    _, _, decode = _ASKED[type(request)]
    return decode(message, listener_name)


def decode_request(message: Any, version: int, cluster_id: str) -> core.PeerRequest:
    """What a request of a peer means.

    Raises Refused: another cluster's, about another partition, or impossible values.
    """
    if message.cluster_id is not None and message.cluster_id != cluster_id:
        raise _refused(message, ErrorCode.INCONSISTENT_CLUSTER_ID)
    return _SERVED[type(message)](message, version)


def encode_response(response: core.PeerResponse, version: int, listener_name: str) -> Message:
    """The protocol's message for an answer; the leader's address is that of `listener_name`."""
    assert not isinstance(response, core.KraftVersionResponse), "ApiVersions is the listener's"
    endpoints = response.leader_endpoints
    endpoint = next((each for each in endpoints if each.listener_name == listener_name), None)
    if endpoint is None and endpoints:
        endpoint = endpoints[0]
    return _ANSWERS[type(response)](response, version, endpoint)
