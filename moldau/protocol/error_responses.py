"""A whole request's failure, said in the words of its own API, and failures found in a response.

Owns: where each response has its error codes. Must not: decide errors. Invariant: every API that
the controller listener serves, or that a broker forwards, has an entry, so that a request never
goes unanswered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p32_describe_configs as describe
from moldau.protocol.messages import p33_alter_configs as legacy
from moldau.protocol.messages import p43_elect_leaders as election
from moldau.protocol.messages import p44_incremental_alter_configs as incremental
from moldau.protocol.messages import p45_alter_partition_reassignments as reassignment
from moldau.protocol.messages.p01_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from moldau.protocol.messages.p01_fetch import PartitionData as FetchedPartition
from moldau.protocol.messages.p19_create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.p20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from moldau.protocol.messages.p46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from moldau.protocol.messages.p52_vote import VoteRequest, VoteResponse
from moldau.protocol.messages.p53_begin_quorum_epoch import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
)
from moldau.protocol.messages.p54_end_quorum_epoch import (
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
)
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from moldau.protocol.messages.p56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from moldau.protocol.messages.p57_update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from moldau.protocol.messages.p58_envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.messages.p59_fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from moldau.protocol.messages.p60_describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from moldau.protocol.messages.p63_broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from moldau.protocol.messages.p64_unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from moldau.protocol.messages.p67_allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from moldau.protocol.messages.p70_controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from moldau.protocol.messages.p73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from moldau.protocol.messages.p80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.p81_remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from moldau.protocol.messages.p82_update_raft_voter import (
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from moldau.protocol.schema import Message, Struct
from moldau.protocol.schema_fields import ArrayType, StructType


def error_response(
    request: Message, error: ErrorCode, message: str, *, api_version: int | None = None
) -> Any:
    """The response to `request` that says it failed as a whole.

    Args:
        api_version: what it will be encoded as; None for the latest. Some versions have no place
            for an error of the whole request.
    """
    response = _MAKERS[type(request)](request, error, message)
    if api_version is not None:
        fit_version(response, api_version)
    return response


def fit_version(response: Message, api_version: int) -> None:
    """Take out what an old version cannot say: before version 1 an ElectLeaders response has the
    errors of partitions only.
    """
    if isinstance(response, election.ElectLeadersResponse) and api_version < 1:
        response.error_code = ErrorCode.NONE


def error_codes(message: Struct) -> Iterator[int]:
    """Every error code in a response, those of its parts included."""
    for name, is_code in _ways_to_codes(type(message)):
        value = getattr(message, name)
        if is_code:
            yield value
        elif type(value) is list:
            for each in value:
                yield from error_codes(each)
        elif value is not None:
            yield from error_codes(value)


_Ways: TypeAlias = tuple[tuple[str, bool], ...]
_ways_by_kind: Final[dict[type[Struct], _Ways]] = {}


def _ways_to_codes(kind: type[Struct]) -> _Ways:
    """The fields that are error codes (True), and those with parts in which there are some: a
    response about a thousand topics has tens of thousands of parts without.
    """
    known = _ways_by_kind.get(kind)
    if known is not None:
        return known
    ways: list[tuple[str, bool]] = []
    for field in kind.spec().fields:
        part = field.type.element if isinstance(field.type, ArrayType) else field.type
        if field.name.endswith("error_code"):
            ways.append((field.name, True))
        elif isinstance(part, StructType) and _ways_to_codes(part.struct):
            ways.append((field.name, False))
    return _ways_by_kind.setdefault(kind, tuple(ways))


def has_error(message: Message, error: ErrorCode) -> bool:
    """Whether the response says `error` anywhere."""
    return _have_code(type(message), [message], int(error))


def _have_code(kind: type[Struct], structs: Sequence[Struct], code: int) -> bool:
    """Whether one of these structs of one kind says so: without a step of Python for each, of which
    a response may have 100,000.
    """
    for name, is_code in _ways_to_codes(kind):
        values = map(attrgetter(name), structs)
        if is_code:
            if code in values:
                return True
            continue
        found = list(filter(None, values))
        parts = list(chain.from_iterable(found)) if found and type(found[0]) is list else found
        if parts and _have_code(type(parts[0]), parts, code):
            return True
    return False


def _create_topics(request: Any, error: ErrorCode, message: str) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(
                name=topic.name, error_code=error, error_message=message, configs=None
            )
            for topic in request.topics
        ]
    )


def _delete_topics(request: Any, error: ErrorCode, message: str) -> DeleteTopicsResponse:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=error, error_message=message
            )
            for name, topic_id in named
        ]
        + [
            DeletableTopicResult(name=name, error_code=error, error_message=message)
            for name in request.topic_names
        ]
    )


def _create_partitions(request: Any, error: ErrorCode, message: str) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=error, error_message=message)
            for topic in request.topics
        ]
    )


def _legacy_configs(request: Any, error: ErrorCode, message: str) -> legacy.AlterConfigsResponse:
    return legacy.AlterConfigsResponse(
        responses=[
            legacy.AlterConfigsResourceResponse(
                error_code=error,
                error_message=message,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
            for each in request.resources
        ]
    )


def _incremental_configs(
    request: Any, error: ErrorCode, message: str
) -> incremental.IncrementalAlterConfigsResponse:
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(
                error_code=error,
                error_message=message,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
            for each in request.resources
        ]
    )


def _fetch(request: Any, error: ErrorCode, _message: str) -> FetchResponse:
    """Before version 7 a Fetch response has the errors of partitions only."""
    return FetchResponse(
        error_code=error,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    FetchedPartition(
                        partition_index=each.partition, error_code=error, high_watermark=-1
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _describe_configs(request: Any, error: ErrorCode, message: str) -> Any:
    return describe.DescribeConfigsResponse(
        results=[
            describe.DescribeConfigsResult(
                error_code=error,
                error_message=message,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
            for each in request.resources
        ]
    )


def _elect_leaders(request: Any, error: ErrorCode, message: str) -> election.ElectLeadersResponse:
    return election.ElectLeadersResponse(
        error_code=error,
        replica_election_results=[
            election.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    election.PartitionResult(
                        partition_id=partition, error_code=error, error_message=message
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _reassign(request: Any, error: ErrorCode, message: str) -> Any:
    return reassignment.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=error,
        error_message=message,
        responses=[
            reassignment.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    reassignment.ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=error,
                        error_message=message,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _with_message(response_class: Any) -> Callable[[Any, ErrorCode, str], Any]:
    return lambda _request, error, message: response_class(error_code=error, error_message=message)


def _with_code(response_class: Any) -> Callable[[Any, ErrorCode, str], Any]:
    return lambda _request, error, _message: response_class(error_code=error)


_MAKERS: Final[dict[type[Message], Callable[[Any, ErrorCode, str], Any]]] = {
    CreateTopicsRequest: _create_topics,
    DeleteTopicsRequest: _delete_topics,
    CreatePartitionsRequest: _create_partitions,
    legacy.AlterConfigsRequest: _legacy_configs,
    incremental.IncrementalAlterConfigsRequest: _incremental_configs,
    describe.DescribeConfigsRequest: _describe_configs,
    election.ElectLeadersRequest: _elect_leaders,
    reassignment.AlterPartitionReassignmentsRequest: _reassign,
    ListPartitionReassignmentsRequest: _with_message(ListPartitionReassignmentsResponse),
    DescribeClusterRequest: _with_message(DescribeClusterResponse),
    AddRaftVoterRequest: _with_message(AddRaftVoterResponse),
    RemoveRaftVoterRequest: _with_message(RemoveRaftVoterResponse),
    UpdateRaftVoterRequest: _with_code(UpdateRaftVoterResponse),
    FetchRequest: _fetch,
    VoteRequest: _with_code(VoteResponse),
    BeginQuorumEpochRequest: _with_code(BeginQuorumEpochResponse),
    EndQuorumEpochRequest: _with_code(EndQuorumEpochResponse),
    FetchSnapshotRequest: _with_code(FetchSnapshotResponse),
    EnvelopeRequest: _with_code(EnvelopeResponse),
    AlterPartitionRequest: _with_code(AlterPartitionResponse),
    UpdateFeaturesRequest: _with_message(UpdateFeaturesResponse),
    DescribeQuorumRequest: _with_message(DescribeQuorumResponse),
    UnregisterBrokerRequest: _with_message(UnregisterBrokerResponse),
    ControllerRegistrationRequest: _with_message(ControllerRegistrationResponse),
    BrokerRegistrationRequest: _with_code(BrokerRegistrationResponse),
    BrokerHeartbeatRequest: _with_code(BrokerHeartbeatResponse),
    AllocateProducerIdsRequest: _with_code(AllocateProducerIdsResponse),
    AssignReplicasToDirsRequest: _with_code(AssignReplicasToDirsResponse),
}
