"""Requests that name topics or other resources: what of them the sender may ask for.

Owns: splitting such a request into the part that goes to the controller and the refusals that join
its response. Must not: check anything else about a resource; the controller does. Invariant: what
is refused here never reaches the controller, and every named resource is answered.

A filter returns the allowed request (None when nothing is left) and a function that makes the whole
response out of the controller's, or of None; both work in steps, since a request may name much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from moldau.metadata.image import ConfigResourceType, MetadataImage
from moldau.metadata.steps import Steps, repeated
from moldau.protocol.api_keys import ApiKey
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
    DeleteTopicState,
)
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from moldau.protocol.schema import AnyRequest, Message
from moldau.protocol.types import METADATA_TOPIC_NAME, ZERO_UUID
from moldau.server.authorizer import Operation, ResourceType
from moldau.server.request import Sender

NAMED_TWICE: Final = "named twice in one request"

Merge = Callable[[Any], Steps[Message]]
Filtered = Steps[tuple[AnyRequest | None, Merge]]
Filter = Callable[[Any, Sender, MetadataImage], Filtered]


def _create_topics(
    request: CreateTopicsRequest, context: Sender, _image: MetadataImage
) -> Filtered:
    """CREATE on the cluster or the topic; without DESCRIBE_CONFIGS the configuration is hidden."""
    named_twice = yield from repeated(topic.name for topic in request.topics)
    cluster_wide = context.authorized_cluster(Operation.CREATE)
    refused = []
    for name in sorted(named_twice):
        refused.append(
            CreatableTopicResult(
                name=name, error_code=ErrorCode.INVALID_REQUEST, error_message=NAMED_TWICE
            )
        )
        yield
    allowed = []
    for topic in request.topics:
        yield
        if topic.name in named_twice:
            continue
        if topic.name == METADATA_TOPIC_NAME or not (
            cluster_wide or context.authorized_topic(Operation.CREATE, topic.name)
        ):
            refused.append(
                CreatableTopicResult(
                    name=topic.name,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message="creating it is not allowed",
                )
            )
        else:
            allowed.append(topic)

    def merge(response: CreateTopicsResponse | None) -> Steps[Message]:
        response = response or CreateTopicsResponse()
        for result in response.topics:
            yield
            if not context.authorized_topic(Operation.DESCRIBE_CONFIGS, result.name):
                if result.error_code == ErrorCode.NONE:
                    result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                result.configs, result.num_partitions, result.replication_factor = [], -1, -1
        response.topics += refused
        return response

    if not allowed:
        return None, merge
    return (
        CreateTopicsRequest(
            topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only
        ),
        merge,
    )


def _delete_topics(request: DeleteTopicsRequest, context: Sender, image: MetadataImage) -> Filtered:
    """DELETE on the topic; a sender without DESCRIBE is not told what an id's name is."""
    states = [*request.topics, *(DeleteTopicState(name=name) for name in request.topic_names)]
    yield
    named_twice = yield from repeated(
        state.topic_id if state.topic_id != ZERO_UUID else state.name for state in states
    )
    refused: list[DeletableTopicResult] = []
    allowed: list[DeleteTopicState] = []
    seen: set[UUID | str | None] = set()
    for state in states:
        yield
        identity = state.topic_id if state.topic_id != ZERO_UUID else state.name
        if identity in seen:
            continue
        seen.add(identity)
        refusal = _may_delete(state, context, image)
        if identity in named_twice:
            refusal = ErrorCode.INVALID_REQUEST, NAMED_TWICE
        if refusal is None:
            allowed.append(state)
        else:
            hidden = refusal[0] is ErrorCode.TOPIC_AUTHORIZATION_FAILED and state.name is None
            refused.append(
                DeletableTopicResult(
                    name=None if hidden else state.name,
                    topic_id=state.topic_id,
                    error_code=refusal[0],
                    error_message=refusal[1],
                )
            )

    def merge(response: DeleteTopicsResponse | None) -> Steps[Message]:
        response = response or DeleteTopicsResponse()
        response.responses += refused
        yield
        if context.api_version is not None and context.api_version < 6:
            for result in response.responses:
                result.name = result.name or ""
                yield
        return response

    if not allowed:
        return None, merge
    return DeleteTopicsRequest(topics=allowed, timeout_ms=request.timeout_ms), merge


def _may_delete(
    state: DeleteTopicState, context: Sender, image: MetadataImage
) -> tuple[ErrorCode, str] | None:
    if (state.topic_id != ZERO_UUID) == (state.name is not None):
        return (
            ErrorCode.INVALID_REQUEST,
            "name the topic by its name or by its id, not by both or neither",
        )
    name = state.name
    if name is None:
        known = image.topics.topics_by_id.get(state.topic_id)
        if known is None:
            return None  # the controller says UNKNOWN_TOPIC_ID
        name = known.name
    if not context.authorized_topic(Operation.DELETE, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, "deleting it is not allowed"
    return None


def _create_partitions(
    request: CreatePartitionsRequest, context: Sender, _image: MetadataImage
) -> Filtered:
    """ALTER on the topic."""
    named_twice = yield from repeated(topic.name for topic in request.topics)
    refused = []
    for name in sorted(named_twice):
        refused.append(
            CreatePartitionsTopicResult(
                name=name, error_code=ErrorCode.INVALID_REQUEST, error_message=NAMED_TWICE
            )
        )
        yield
    allowed = []
    for topic in request.topics:
        yield
        if topic.name in named_twice:
            continue
        if context.authorized_topic(Operation.ALTER, topic.name):
            allowed.append(topic)
        else:
            refused.append(
                CreatePartitionsTopicResult(
                    name=topic.name,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message="altering it is not allowed",
                )
            )

    def merge(response: CreatePartitionsResponse | None) -> Steps[Message]:
        response = response or CreatePartitionsResponse()
        response.results += refused
        yield
        return response

    if not allowed:
        return None, merge
    return (
        CreatePartitionsRequest(
            topics=allowed, timeout_ms=request.timeout_ms, validate_only=request.validate_only
        ),
        merge,
    )


def may_see_config(
    operation: Operation, resource_type: int, name: str, context: Sender
) -> ErrorCode:
    """NONE, or why the sender may not do `operation` to a resource's configuration."""
    if resource_type == ConfigResourceType.TOPIC:
        allowed = context.authorized_topic(operation, name)
        return ErrorCode.NONE if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if resource_type == ConfigResourceType.GROUP:
        allowed = context.authorized(operation, ResourceType.GROUP, name)
        return ErrorCode.NONE if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
    allowed = context.authorized_cluster(operation)
    return ErrorCode.NONE if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _config_filter(
    request_class: Callable[..., AnyRequest],
    response_class: Callable[[], Message],
    entry_class: Callable[..., object],
) -> Filter:
    def restrict(request: Any, context: Sender, _image: MetadataImage) -> Filtered:
        allowed, refused = [], []
        for resource in request.resources:
            yield
            error = may_see_config(
                Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name, context
            )
            if error is ErrorCode.NONE:
                allowed.append(resource)
            else:
                refused.append(
                    entry_class(
                        error_code=error,
                        error_message="altering its configuration is not allowed",
                        resource_type=resource.resource_type,
                        resource_name=resource.resource_name,
                    )
                )

        def merge(response: Any) -> Steps[Message]:
            response = response or response_class()
            response.responses += refused
            yield
            merged: Message = response
            return merged

        if not allowed:
            return None, merge
        return request_class(resources=allowed, validate_only=request.validate_only), merge

    return restrict


FILTERS: Final[dict[ApiKey, Filter]] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.ALTER_CONFIGS: _config_filter(
        legacy.AlterConfigsRequest, legacy.AlterConfigsResponse, legacy.AlterConfigsResourceResponse
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _config_filter(
        incremental.IncrementalAlterConfigsRequest,
        incremental.IncrementalAlterConfigsResponse,
        incremental.AlterConfigsResourceResponse,
    ),
}
"""By API."""
