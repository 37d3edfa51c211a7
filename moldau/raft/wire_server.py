"""What replicas say to each other, as requests and responses of the protocol: the answering side.

Owns: what a request means, which ones are refused before the quorum sees them and where the error
then stands, and how an answer is written per version. Must not: know the quorum's state. Invariant:
a request of another cluster, or about anything but the metadata log, never reaches the core.
Sources: KIP-595, 630, 853, 996, 1166.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p01_fetch as fetch
from moldau.protocol.messages import p52_vote as vote
from moldau.protocol.messages import p53_begin_quorum_epoch as begin
from moldau.protocol.messages import p54_end_quorum_epoch as end
from moldau.protocol.messages import p59_fetch_snapshot as fetch_snapshot
from moldau.protocol.messages import p82_update_raft_voter as update
from moldau.protocol.schema import Message
from moldau.protocol.types import METADATA_TOPIC_ID, ZERO_UUID
from moldau.raft.core import messages as core
from moldau.raft.core.values import NO_NODE, Endpoints, ReplicaKey, SnapshotId
from moldau.raft.core.voters import VoterDescription, VoterEndpoint
from moldau.raft.values import METADATA_TOPIC
from moldau.raft.wire import FETCH_REPLICA_STATE_VERSION, FETCH_TOPIC_ID_VERSION, METADATA_PARTITION

MAX_FETCH_BYTES: Final = 8 * 1024 * 1024
"""What one answer carries at most, whatever was asked for (one larger batch excepted)."""
MAX_FETCH_WAIT_MS: Final = 60_000

T = TypeVar("T")


class Refused(Exception):
    """The request gets an error before the quorum sees it; `response` says so."""

    def __init__(self, response: Message) -> None:
        super().__init__(type(response).__name__)
        self.response = response


# -- requests ------------------------------------------------------------------------------------


def decode_request(message: Any, version: int, cluster_id: str) -> core.PeerRequest:
    """What a request of a peer means.

    Raises:
        Refused: another cluster's, about another partition, or impossible values.
    """
    match message:
        case fetch.FetchRequest():
            return _fetch_request(message, version, cluster_id)
        case vote.VoteRequest():
            _require_cluster(message, cluster_id, vote.VoteResponse, version)
            return _vote_request(message, version)
        case begin.BeginQuorumEpochRequest():
            _require_cluster(message, cluster_id, begin.BeginQuorumEpochResponse, version)
            partition = _named_partition(message, begin.BeginQuorumEpochResponse, version)
            return core.BeginQuorumEpochRequest(
                partition.leader_id,
                partition.leader_epoch,
                _voter_key(message.voter_id, partition.voter_directory_id),
                _endpoints(message.leader_endpoints),
            )
        case end.EndQuorumEpochRequest():
            _require_cluster(message, cluster_id, end.EndQuorumEpochResponse, version)
            partition = _named_partition(message, end.EndQuorumEpochResponse, version)
            return core.EndQuorumEpochRequest(
                partition.leader_id,
                partition.leader_epoch,
                _candidates(partition, version),
                _endpoints(message.leader_endpoints),
            )
        case fetch_snapshot.FetchSnapshotRequest():
            _require_cluster(message, cluster_id, fetch_snapshot.FetchSnapshotResponse, version)
            return _fetch_snapshot_request(message, version)
        case _:
            assert isinstance(message, update.UpdateRaftVoterRequest), type(message).__name__
            _require_cluster(message, cluster_id, update.UpdateRaftVoterResponse, version)
            return _update_request(message, version)


def _require_cluster(
    message: Any, cluster_id: str, response_class: type[Message], version: int
) -> None:
    if message.cluster_id is not None and message.cluster_id != cluster_id:
        raise _refused(response_class, version, ErrorCode.INCONSISTENT_CLUSTER_ID)


def _refused(response_class: Any, version: int, error: ErrorCode) -> Refused:
    return Refused(response_class(error_code=error))


def _named_partition(message: Any, response_class: type[Message], version: int) -> Any:
    """The metadata log's part of a request that must be about it alone. Raises: Refused."""
    topic = _single(message.topics)
    partition = _single(topic.partitions) if topic is not None else None
    if (
        topic is None
        or partition is None
        or topic.topic_name != METADATA_TOPIC
        or partition.partition_index != METADATA_PARTITION
    ):
        raise _refused(response_class, version, ErrorCode.INVALID_REQUEST)
    return partition


def _single(items: Sequence[T]) -> T | None:
    return items[0] if len(items) == 1 else None


def _voter_key(voter_id: int, directory_id: Any) -> ReplicaKey | None:
    return ReplicaKey(voter_id, directory_id) if voter_id >= 0 else None


def _endpoints(listeners: Sequence[Any]) -> Endpoints:
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in listeners)


def _candidates(partition: end.PartitionData, version: int) -> tuple[ReplicaKey, ...]:
    if version == 0:
        return tuple(ReplicaKey(each) for each in partition.preferred_successors)
    return tuple(
        ReplicaKey(each.candidate_id, each.candidate_directory_id)
        for each in partition.preferred_candidates
    )


def _vote_request(message: vote.VoteRequest, version: int) -> core.VoteRequest:
    partition = _named_partition(message, vote.VoteResponse, version)
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
        # A candidate has raised its epoch above every record's; who asks for a PreVote has not.
        and (request.pre_vote or request.last_leader_epoch < request.leader_epoch)
        and request.candidate.node_id >= 0
    )
    if not is_possible:
        raise Refused(
            _vote_response(core.VoteResponse(ErrorCode.INVALID_REQUEST, NO_NODE, -1), version, None)
        )
    return request


def _fetch_request(message: fetch.FetchRequest, version: int, cluster_id: str) -> core.FetchRequest:
    _require_cluster(message, cluster_id, fetch.FetchResponse, version)
    topic = _single(message.topics)
    partition = _single(topic.partitions) if topic is not None else None
    if topic is None or partition is None or partition.partition != METADATA_PARTITION:
        raise _refused(fetch.FetchResponse, version, ErrorCode.INVALID_REQUEST)
    if version >= FETCH_TOPIC_ID_VERSION:
        is_metadata = topic.topic_id == METADATA_TOPIC_ID
    else:
        is_metadata = topic.topic == METADATA_TOPIC
    if not is_metadata:
        raise _refused(fetch.FetchResponse, version, ErrorCode.INVALID_REQUEST)
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
        raise Refused(_fetch_response(refusal, version, None))
    return core.FetchRequest(
        replica=ReplicaKey(replica_id, partition.replica_directory_id),
        leader_epoch=partition.current_leader_epoch,
        fetch_offset=partition.fetch_offset,
        last_fetched_epoch=partition.last_fetched_epoch,
        high_watermark=partition.high_watermark,
        max_wait_ms=min(message.max_wait_ms, MAX_FETCH_WAIT_MS),
        max_bytes=max(min(message.max_bytes, MAX_FETCH_BYTES), 1),
    )


def _fetch_snapshot_request(
    message: fetch_snapshot.FetchSnapshotRequest, version: int
) -> core.FetchSnapshotRequest:
    topic = _single(message.topics)
    partition = _single(topic.partitions) if topic is not None else None
    if topic is None or partition is None:
        raise _refused(fetch_snapshot.FetchSnapshotResponse, version, ErrorCode.INVALID_REQUEST)
    if topic.name != METADATA_TOPIC or partition.partition != METADATA_PARTITION:
        answer = fetch_snapshot.PartitionSnapshotResponse(
            index=partition.partition,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            unaligned_records=b"",
        )
        raise Refused(
            fetch_snapshot.FetchSnapshotResponse(
                topics=[fetch_snapshot.TopicSnapshotResponse(name=topic.name, partitions=[answer])],
            )
        )
    return core.FetchSnapshotRequest(
        replica=ReplicaKey(message.replica_id, partition.replica_directory_id),
        leader_epoch=partition.current_leader_epoch,
        snapshot_id=SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
        position=partition.position,
        max_bytes=max(min(message.max_bytes, MAX_FETCH_BYTES), 1),
    )


def _update_request(
    message: update.UpdateRaftVoterRequest, version: int
) -> core.UpdateVoterRequest:
    feature = message.kraft_version_feature
    is_possible = (
        message.voter_id >= 0
        and message.voter_directory_id != ZERO_UUID
        and bool(message.listeners)
        and 0 <= feature.min_supported_version <= feature.max_supported_version
    )
    if not is_possible:
        raise _refused(update.UpdateRaftVoterResponse, version, ErrorCode.INVALID_REQUEST)
    return core.UpdateVoterRequest(
        message.current_leader_epoch,
        VoterDescription(
            message.voter_id, message.voter_directory_id, _endpoints(message.listeners)
        ),
        feature.min_supported_version,
        feature.max_supported_version,
    )


# -- responses -----------------------------------------------------------------------------------


def encode_response(response: core.PeerResponse, version: int, listener_name: str) -> Message:
    """The protocol's message for an answer; the leader's address is that of `listener_name`."""
    assert not isinstance(response, core.KraftVersionResponse), "ApiVersions is the listener's"
    endpoint = _endpoint(response.leader_endpoints, listener_name)
    match response:
        case core.FetchResponse():
            return _fetch_response(response, version, endpoint)
        case core.VoteResponse():
            return _vote_response(response, version, endpoint)
        case core.BeginQuorumEpochResponse():
            begun = begin.PartitionDataResponse(
                error_code=response.error,
                leader_id=response.leader_id,
                leader_epoch=response.leader_epoch,
            )
            return begin.BeginQuorumEpochResponse(
                topics=[begin.TopicDataResponse(topic_name=METADATA_TOPIC, partitions=[begun])],
                node_endpoints=_nodes(begin.NodeEndpoint, response, version >= 1, endpoint),
            )
        case core.EndQuorumEpochResponse():
            ended = end.PartitionDataResponse(
                error_code=response.error,
                leader_id=response.leader_id,
                leader_epoch=response.leader_epoch,
            )
            return end.EndQuorumEpochResponse(
                topics=[end.TopicDataResponse(topic_name=METADATA_TOPIC, partitions=[ended])],
                node_endpoints=_nodes(end.NodeEndpoint, response, version >= 1, endpoint),
            )
        case core.FetchSnapshotResponse():
            return _fetch_snapshot_response(response, version, endpoint)
        case core.UpdateVoterResponse():
            leader = update.CurrentLeader(
                leader_id=response.leader_id, leader_epoch=response.leader_epoch
            )
            if endpoint is not None:
                leader.host, leader.port = endpoint.host, endpoint.port
            return update.UpdateRaftVoterResponse(error_code=response.error, current_leader=leader)


def _endpoint(endpoints: Endpoints, listener_name: str) -> VoterEndpoint | None:
    for endpoint in endpoints:
        if endpoint.listener_name == listener_name:
            return endpoint
    return endpoints[0] if endpoints else None


def _nodes(
    node_class: Any, response: Any, has_field: bool, endpoint: VoterEndpoint | None
) -> list[Any]:
    if not has_field or endpoint is None or response.leader_id == NO_NODE:
        return []
    return [node_class(node_id=response.leader_id, host=endpoint.host, port=endpoint.port)]


def _vote_response(
    response: core.VoteResponse, version: int, endpoint: VoterEndpoint | None
) -> vote.VoteResponse:
    answer = vote.PartitionDataResponse(
        error_code=response.error,
        leader_id=response.leader_id,
        leader_epoch=response.leader_epoch,
        vote_granted=response.vote_granted,
    )
    return vote.VoteResponse(
        topics=[vote.TopicDataResponse(topic_name=METADATA_TOPIC, partitions=[answer])],
        node_endpoints=_nodes(vote.NodeEndpoint, response, version >= 1, endpoint),
    )


def _fetch_response(
    response: core.FetchResponse, version: int, endpoint: VoterEndpoint | None
) -> fetch.FetchResponse:
    answer = fetch.PartitionData(
        error_code=response.error,
        high_watermark=response.high_watermark,
        log_start_offset=response.log_start_offset,
        records=response.records,
    )
    if version >= 12:
        answer.current_leader = fetch.LeaderIdAndEpoch(
            leader_id=response.leader_id, leader_epoch=response.leader_epoch
        )
        if response.diverging is not None:
            answer.diverging_epoch = fetch.EpochEndOffset(
                epoch=response.diverging.leader_epoch, end_offset=response.diverging.end_offset
            )
        if response.snapshot_id is not None:
            answer.snapshot_id = fetch.SnapshotId(
                end_offset=response.snapshot_id.end_offset,
                epoch=response.snapshot_id.leader_epoch,
            )
    topic = fetch.FetchableTopicResponse(partitions=[answer])
    if version >= FETCH_TOPIC_ID_VERSION:
        topic.topic_id = METADATA_TOPIC_ID
    else:
        topic.topic = METADATA_TOPIC
    return fetch.FetchResponse(
        responses=[topic],
        # Version 16 has the field for brokers; the quorum's leader uses it from 17 on.
        node_endpoints=_nodes(fetch.NodeEndpoint, response, version >= 17, endpoint),
    )


def _fetch_snapshot_response(
    response: core.FetchSnapshotResponse, version: int, endpoint: VoterEndpoint | None
) -> fetch_snapshot.FetchSnapshotResponse:
    answer = fetch_snapshot.PartitionSnapshotResponse(
        index=METADATA_PARTITION,
        error_code=response.error,
        snapshot_id=fetch_snapshot.SnapshotId(
            end_offset=response.snapshot_id.end_offset, epoch=response.snapshot_id.leader_epoch
        ),
        current_leader=fetch_snapshot.LeaderIdAndEpoch(
            leader_id=response.leader_id, leader_epoch=response.leader_epoch
        ),
        size=response.size_bytes,
        position=response.position,
        unaligned_records=response.data,
    )
    return fetch_snapshot.FetchSnapshotResponse(
        topics=[fetch_snapshot.TopicSnapshotResponse(name=METADATA_TOPIC, partitions=[answer])],
        node_endpoints=_nodes(fetch_snapshot.NodeEndpoint, response, version >= 1, endpoint),
    )
