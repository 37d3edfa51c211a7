"""A whole request's failure, said in the words of its own API.

Owns: where each response has its error code. Must not: decide errors. Invariant: every API that the
controller serves has an entry, so that a request never goes unanswered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p33_alter_configs as legacy
from moldau.protocol.messages import p44_incremental_alter_configs as incremental
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
from moldau.protocol.messages.p55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from moldau.protocol.messages.p57_update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
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
from moldau.protocol.schema import Message


def error_response(request: Message, error: ErrorCode, message: str) -> Any:
    """The response to `request` that says it failed as a whole."""
    return _MAKERS[type(request)](request, error, message)


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
    UpdateFeaturesRequest: _with_message(UpdateFeaturesResponse),
    DescribeQuorumRequest: _with_message(DescribeQuorumResponse),
    UnregisterBrokerRequest: _with_message(UnregisterBrokerResponse),
    ControllerRegistrationRequest: _with_message(ControllerRegistrationResponse),
    BrokerRegistrationRequest: _with_code(BrokerRegistrationResponse),
    BrokerHeartbeatRequest: _with_code(BrokerHeartbeatResponse),
    AllocateProducerIdsRequest: _with_code(AllocateProducerIdsResponse),
    AssignReplicasToDirsRequest: _with_code(AssignReplicasToDirsResponse),
}
