"""What replicas say to each other, as requests and responses of the protocol: the asking side.

Owns: which message and version a core request becomes, and what a response means. Must not: send.
Invariant: a field that a version lacks is left out where the protocol allows it, and the request is
not sent in that version where it does not. Sources: KIP-595, 630, 853, 996, 1166.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from moldau.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from moldau.protocol.messages import p01_fetch as fetch
from moldau.protocol.messages import p18_api_versions as api_versions
from moldau.protocol.messages import p52_vote as vote
from moldau.protocol.messages import p53_begin_quorum_epoch as begin
from moldau.protocol.messages import p54_end_quorum_epoch as end
from moldau.protocol.messages import p59_fetch_snapshot as fetch_snapshot
from moldau.protocol.messages import p82_update_raft_voter as update
from moldau.protocol.schema import Message
from moldau.protocol.types import METADATA_TOPIC_ID
from moldau.raft.core import messages as core
from moldau.raft.core.values import NO_NODE, Endpoints, EpochEnd, SnapshotId
from moldau.raft.core.voters import VoterEndpoint
from moldau.raft.values import METADATA_TOPIC

METADATA_PARTITION: Final = 0
KRAFT_VERSION_FEATURE: Final = "kraft.version"
FETCH_MIN_VERSION: Final = 12
"""The first one with the epoch of the last record, without which logs cannot be compared."""
FETCH_TOPIC_ID_VERSION: Final = 13
FETCH_REPLICA_STATE_VERSION: Final = 15

VersionOf = Callable[[type[Message]], int]
"""The version in which to speak a request to the peer; raises UnsupportedByPeer."""


class PreVoteUnsupported(LocalProtocolError):
    """The peer's version of Vote knows no PreVote."""


class _Answer(Protocol):
    """What every partition's answer has."""

    error_code: int
    leader_id: int
    leader_epoch: int


class _HasTopics(Protocol):
    error_code: int
    topics: list[Any]


class _NodeEndpoint(Protocol):
    node_id: int
    host: str
    port: int


T = TypeVar("T")

# -- requests ------------------------------------------------------------------------------------


def encode_request(
    request: core.PeerRequest, version_of: VersionOf, cluster_id: str
) -> tuple[Message, int]:
    """The protocol's message for a request, and the version to send it in.

    Raises:
        LocalProtocolError: the peer speaks no version that can carry it.
    """
    match request:
        case core.FetchRequest():
            return _fetch_request(request, version_of(fetch.FetchRequest), cluster_id)
        case core.VoteRequest():
            return _vote_request(request, version_of(vote.VoteRequest), cluster_id)
        case core.BeginQuorumEpochRequest():
            version = version_of(begin.BeginQuorumEpochRequest)
            return _begin_request(request, version, cluster_id), version
        case core.EndQuorumEpochRequest():
            version = version_of(end.EndQuorumEpochRequest)
            return _end_request(request, version, cluster_id), version
        case core.FetchSnapshotRequest():
            version = version_of(fetch_snapshot.FetchSnapshotRequest)
            return _fetch_snapshot_request(request, version, cluster_id), version
        case core.UpdateVoterRequest():
            version = version_of(update.UpdateRaftVoterRequest)
            return _update_request(request, version, cluster_id), version
        case core.KraftVersionRequest():
            version = version_of(api_versions.ApiVersionsRequest)
            message = api_versions.ApiVersionsRequest()
            if version >= 3:
                message.client_software_name = "moldau"
                message.client_software_version = "1"
            return message, version


def _vote_request(request: core.VoteRequest, version: int, cluster_id: str) -> tuple[Message, int]:
    if request.pre_vote and version < 2:
        raise PreVoteUnsupported("the peer knows no PreVote")
    partition = vote.PartitionData(
        partition_index=METADATA_PARTITION,
        replica_epoch=request.leader_epoch,
        replica_id=request.candidate.node_id,
        last_offset_epoch=request.last_leader_epoch,
        last_offset=request.log_end_offset,
    )
    message = vote.VoteRequest(cluster_id=cluster_id)
    message.topics = [vote.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    if version >= 1:
        partition.replica_directory_id = request.candidate.directory_id
        if request.voter is not None:
            message.voter_id = request.voter.node_id
            partition.voter_directory_id = request.voter.directory_id
    if version >= 2:
        partition.pre_vote = request.pre_vote
    return message, version


def _begin_request(request: core.BeginQuorumEpochRequest, version: int, cluster_id: str) -> Message:
    partition = begin.PartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=request.leader_id,
        leader_epoch=request.leader_epoch,
    )
    message = begin.BeginQuorumEpochRequest(cluster_id=cluster_id)
    message.topics = [begin.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    if version >= 1:
        if request.voter is not None:
            message.voter_id = request.voter.node_id
            partition.voter_directory_id = request.voter.directory_id
        message.leader_endpoints = [
            begin.LeaderEndpoint(name=name, host=host, port=port)
            for name, host, port in request.leader_endpoints
        ]
    return message


def _end_request(request: core.EndQuorumEpochRequest, version: int, cluster_id: str) -> Message:
    partition = end.PartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=request.leader_id,
        leader_epoch=request.leader_epoch,
    )
    message = end.EndQuorumEpochRequest(cluster_id=cluster_id)
    message.topics = [end.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    if version >= 1:
        partition.preferred_candidates = [
            end.ReplicaInfo(candidate_id=each.node_id, candidate_directory_id=each.directory_id)
            for each in request.preferred_candidates
        ]
        message.leader_endpoints = [
            end.LeaderEndpoint(name=name, host=host, port=port)
            for name, host, port in request.leader_endpoints
        ]
    else:
        partition.preferred_successors = [each.node_id for each in request.preferred_candidates]
    return message


def _fetch_request(
    request: core.FetchRequest, version: int, cluster_id: str
) -> tuple[Message, int]:
    if version < FETCH_MIN_VERSION:
        raise LocalProtocolError(f"the peer serves Fetch up to {version}, 12 is needed")
    partition = fetch.FetchPartition(
        partition=METADATA_PARTITION,
        current_leader_epoch=request.leader_epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
    )
    topic = fetch.FetchTopic(partitions=[partition])
    if version >= FETCH_TOPIC_ID_VERSION:
        topic.topic_id = METADATA_TOPIC_ID
    else:
        topic.topic = METADATA_TOPIC
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
    if version >= 17:
        partition.replica_directory_id = request.replica.directory_id
    if version >= 18:
        partition.high_watermark = request.high_watermark
    return message, version


def _fetch_snapshot_request(
    request: core.FetchSnapshotRequest, version: int, cluster_id: str
) -> Message:
    partition = fetch_snapshot.PartitionSnapshot(
        partition=METADATA_PARTITION,
        current_leader_epoch=request.leader_epoch,
        snapshot_id=fetch_snapshot.SnapshotId(
            end_offset=request.snapshot_id.end_offset, epoch=request.snapshot_id.leader_epoch
        ),
        position=request.position,
    )
    if version >= 1:
        partition.replica_directory_id = request.replica.directory_id
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=cluster_id,
        replica_id=request.replica.node_id,
        max_bytes=request.max_bytes,
        topics=[fetch_snapshot.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
    )


def _update_request(request: core.UpdateVoterRequest, version: int, cluster_id: str) -> Message:
    return update.UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=request.leader_epoch,
        voter_id=request.voter.voter_id,
        voter_directory_id=request.voter.directory_id,
        listeners=[
            update.Listener(name=name, host=host, port=port)
            for name, host, port in request.voter.endpoints
        ],
        kraft_version_feature=update.KRaftVersionFeature(
            min_supported_version=request.min_kraft_version,
            max_supported_version=request.max_kraft_version,
        ),
    )


# -- responses -----------------------------------------------------------------------------------


def decode_response(
    request: core.PeerRequest, message: Any, listener_name: str
) -> core.PeerResponse:
    """What the answer to `request` means.

    Args:
        listener_name: of the controllers' listener, for endpoints that come without a name.

    Raises:
        RemoteProtocolError: an error of the whole request (another cluster, say), or an answer that
            does not fit the request.
    """
    match request:
        case core.VoteRequest():
            answer = _only_partition(message)
            return core.VoteResponse(
                *_header(answer),
                vote_granted=answer.vote_granted,
                leader_endpoints=_leader(message.node_endpoints, answer.leader_id, listener_name),
            )
        case core.BeginQuorumEpochRequest():
            answer = _only_partition(message)
            endpoints = _leader(message.node_endpoints, answer.leader_id, listener_name)
            return core.BeginQuorumEpochResponse(*_header(answer), leader_endpoints=endpoints)
        case core.EndQuorumEpochRequest():
            answer = _only_partition(message)
            endpoints = _leader(message.node_endpoints, answer.leader_id, listener_name)
            return core.EndQuorumEpochResponse(*_header(answer), leader_endpoints=endpoints)
        case core.FetchRequest():
            return _fetch_response(message, listener_name)
        case core.FetchSnapshotRequest():
            return _fetch_snapshot_response(message, listener_name)
        case core.UpdateVoterRequest():
            return _update_response(message, listener_name)
        case core.KraftVersionRequest():
            return _kraft_version_response(message)


def _header(answer: _Answer) -> tuple[ErrorCode, int, int]:
    return ErrorCode.of(answer.error_code), answer.leader_id, answer.leader_epoch


def _only_partition(message: _HasTopics) -> Any:
    """The answer about the metadata log. Raises: RemoteProtocolError."""
    _require_no_error(message.error_code)
    for topic in message.topics:
        if topic.topic_name == METADATA_TOPIC:
            return _only(topic.partitions)
    raise RemoteProtocolError("the answer says nothing of the metadata log")


def _require_no_error(error_code: int) -> None:
    if error_code != ErrorCode.NONE:
        error = ErrorCode.of(error_code)
        raise RemoteProtocolError(f"the whole request was refused: {error.name}, {error.message}")


def _only(items: list[T]) -> T:
    if len(items) != 1:
        raise RemoteProtocolError(f"{len(items)} answers to one question")
    return items[0]


def _leader(nodes: Iterable[_NodeEndpoint], leader_id: int, listener_name: str) -> Endpoints:
    return tuple(
        VoterEndpoint(listener_name, node.host, node.port)
        for node in nodes
        if node.node_id == leader_id and leader_id != NO_NODE
    )


def _fetch_response(message: fetch.FetchResponse, listener_name: str) -> core.FetchResponse:
    _require_no_error(message.error_code)
    answer = _only(_only(message.responses).partitions)
    leader = answer.current_leader
    diverging, snapshot = answer.diverging_epoch, answer.snapshot_id
    return core.FetchResponse(
        ErrorCode.of(answer.error_code),
        leader.leader_id,
        leader.leader_epoch,
        high_watermark=answer.high_watermark,
        log_start_offset=answer.log_start_offset,
        diverging=EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        snapshot_id=SnapshotId(snapshot.end_offset, snapshot.epoch)
        if snapshot.end_offset >= 0 and snapshot.epoch >= 0
        else None,
        records=answer.records if answer.records is not None else b"",  # type: ignore[arg-type]
        leader_endpoints=_leader(message.node_endpoints, leader.leader_id, listener_name),
    )


def _fetch_snapshot_response(
    message: fetch_snapshot.FetchSnapshotResponse, listener_name: str
) -> core.FetchSnapshotResponse:
    _require_no_error(message.error_code)
    answer = _only(_only(message.topics).partitions)
    leader = answer.current_leader
    data = answer.unaligned_records
    return core.FetchSnapshotResponse(
        ErrorCode.of(answer.error_code),
        leader.leader_id,
        leader.leader_epoch,
        snapshot_id=SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch),
        size_bytes=answer.size,
        position=answer.position,
        data=data if data is not None else b"",  # type: ignore[arg-type]
        leader_endpoints=_leader(message.node_endpoints, leader.leader_id, listener_name),
    )


def _update_response(
    message: update.UpdateRaftVoterResponse, listener_name: str
) -> core.UpdateVoterResponse:
    leader = message.current_leader
    endpoints: Endpoints = ()
    if leader.leader_id != NO_NODE and leader.host:
        endpoints = (VoterEndpoint(listener_name, leader.host, leader.port),)
    return core.UpdateVoterResponse(
        ErrorCode.of(message.error_code), leader.leader_id, leader.leader_epoch, endpoints
    )


def _kraft_version_response(
    message: api_versions.ApiVersionsResponse,
) -> core.KraftVersionResponse:
    for feature in message.supported_features:
        if feature.name == KRAFT_VERSION_FEATURE:
            return core.KraftVersionResponse(
                ErrorCode.of(message.error_code), feature.min_version, feature.max_version
            )
    return core.KraftVersionResponse(ErrorCode.of(message.error_code))
