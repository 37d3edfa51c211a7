"""What a sender may ask for, of requests that name resources: one function for each such API.

Must not decide about what is left. Invariant: a resource that the sender may not ask for never
reaches the controller, and every named one is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from moldau.metadata.image import MetadataImage
from moldau.metadata.steps import Steps, repeated
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.delegation_tokens import owner_of, without_token
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p19_create_topics as p19
from moldau.protocol.messages import p20_delete_topics as p20
from moldau.protocol.messages import p37_create_partitions as p37
from moldau.protocol.messages import p38_create_delegation_token as p38
from moldau.protocol.messages import p44_incremental_alter_configs as p44
from moldau.protocol.registry import response_class
from moldau.protocol.schema import AnyRequest, Message
from moldau.protocol.types import METADATA_TOPIC_NAME, ZERO_UUID
from moldau.server.config_permissions import (
    STORES_NEED_ALTER,
    config_permission,
    may_change_stores,
)
from moldau.server.request import Sender
from moldau.text import quoted

logger = logging.getLogger(__name__)

NAMED_TWICE: Final = "named twice in one request"

Merge = Callable[[Any], Steps[Message]]
Filtered = Steps[tuple[AnyRequest | None, Merge]]
Filter = Callable[[Any, Sender, MetadataImage], Filtered]
"""Makes of a request that names resources the one that the sender may ask for (None when nothing is
left), and a function that makes the whole response out of the controller's, or of None. Both work
in steps, since a request may name much.
"""


def _may_ask(
    topics: list[Any],
    is_allowed: Callable[[str], bool],
    words: str,
    result_class: Callable[..., Any],
) -> Steps[tuple[list[Any], list[Any]]]:
    """The topics that the sender may ask for, and the answers for the others."""
    named_twice = yield from repeated(topic.name for topic in topics)
    refused = []
    for name in sorted(named_twice):
        refused.append(
            result_class(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message=NAMED_TWICE)
        )
        yield
    allowed = []
    for topic in topics:
        yield
        if topic.name in named_twice:
            continue
        if is_allowed(topic.name):
            allowed.append(topic)
        else:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused.append(result_class(name=topic.name, error_code=error, error_message=words))
    return allowed, refused


def _with_topics(request: Any, topics: list[Any]) -> AnyRequest | None:
    """The request for these topics alone, None for none."""
    if not topics:
        return None
    asked: AnyRequest = type(request)(
        topics=topics, timeout_ms=request.timeout_ms, validate_only=request.validate_only
    )
    return asked


def _joined(make: Callable[[], Message], field: str, refused: list[Any]) -> Merge:
    """Merges by adding the refusals to the response's results, which are in that field."""

    def merge(response: Message | None) -> Steps[Message]:
        response = response or make()
        getattr(response, field).extend(refused)
        yield
        return response

    return merge


def create_topics(
    request: p19.CreateTopicsRequest, context: Sender, _image: MetadataImage
) -> Filtered:
    """CREATE on the cluster or the topic; without DESCRIBE_CONFIGS the configuration is hidden."""
    cluster_wide = context.authorized_cluster(Operation.CREATE, logs_denied=False)
    allowed, refused = yield from _may_ask(
        request.topics,
        lambda name: (
            name != METADATA_TOPIC_NAME
            and (cluster_wide or context.authorized_topic(Operation.CREATE, name))
        ),
        "creating it is not allowed",
        p19.CreatableTopicResult,
    )

    def merge(response: p19.CreateTopicsResponse | None) -> Steps[Message]:
        response = response or p19.CreateTopicsResponse()
        for result in response.topics:
            yield
            if not context.authorized_topic(
                Operation.DESCRIBE_CONFIGS, result.name, logs_denied=False
            ):
                if result.error_code == ErrorCode.NONE:
                    result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                result.configs, result.num_partitions, result.replication_factor = [], -1, -1
        response.topics += refused
        return response

    return _with_topics(request, allowed), merge


def delete_topics(
    request: p20.DeleteTopicsRequest, context: Sender, image: MetadataImage
) -> Filtered:
    """DELETE on the cluster, or else on the topic: a name needs DESCRIBE, too, and only with it is
    a sender learns that there is no such topic, or what an id's name is.
    """
    states = [*request.topics, *(p20.DeleteTopicState(name=name) for name in request.topic_names)]
    yield
    named_twice = yield from repeated(
        state.topic_id if state.topic_id != ZERO_UUID else state.name for state in states
    )
    refused: list[p20.DeletableTopicResult] = []
    allowed: list[p20.DeleteTopicState] = []
    seen: set[UUID | str | None] = set()
    deletes_all = context.authorized_cluster(Operation.DELETE, logs_denied=False)
    for state in states:
        yield
        identity = state.topic_id if state.topic_id != ZERO_UUID else state.name
        if identity in seen:
            continue
        seen.add(identity)
        refusal = _may_delete(state, context, image, deletes_all)
        if identity in named_twice:
            refusal = p20.DeletableTopicResult(
                name=state.name, error_code=ErrorCode.INVALID_REQUEST, error_message=NAMED_TWICE
            )
        if refusal is None:
            allowed.append(state)
        else:
            refusal.topic_id = state.topic_id
            refused.append(refusal)

    def merge(response: p20.DeleteTopicsResponse | None) -> Steps[Message]:
        response = response or p20.DeleteTopicsResponse()
        response.responses += refused
        yield
        if context.api_version is not None and context.api_version < 6:
            for result in response.responses:
                result.name = result.name or ""
                yield
        return response

    if not allowed:
        return None, merge
    return p20.DeleteTopicsRequest(topics=allowed, timeout_ms=request.timeout_ms), merge


def _may_delete(
    state: p20.DeleteTopicState, context: Sender, image: MetadataImage, deletes_all: bool
) -> p20.DeletableTopicResult | None:
    """The refusal, without the id; None when the controller decides."""
    if (state.topic_id != ZERO_UUID) == (state.name is not None):
        return p20.DeletableTopicResult(
            name=state.name,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="name the topic by its name or by its id, not by both or neither",
        )
    if deletes_all:
        return None
    refused = p20.DeletableTopicResult(
        name=state.name,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="deleting it is not allowed",
    )
    if state.name is None:
        known = image.topics.topics_by_id.get(state.topic_id)
        if known is None or context.authorized_topic(Operation.DELETE, known.name):
            return None  # the controller says UNKNOWN_TOPIC_ID
        if context.authorized_topic(Operation.DESCRIBE, known.name, logs_denied=False):
            refused.name = known.name
        return refused
    is_told = context.authorized_topic(Operation.DESCRIBE, state.name, logs_denied=False)
    if is_told and state.name not in image.topics.topics_by_name:
        return None  # the controller says UNKNOWN_TOPIC_OR_PARTITION
    # Logged is the right to ask for: DELETE, with which DESCRIBE comes unless an ACL denies it.
    may_delete = context.authorized_topic(Operation.DELETE, state.name) and (
        is_told or context.authorized_topic(Operation.DESCRIBE, state.name)
    )
    return None if may_delete else refused


def create_partitions(
    request: p37.CreatePartitionsRequest, context: Sender, _image: MetadataImage
) -> Filtered:
    """ALTER on the topic."""
    allowed, refused = yield from _may_ask(
        request.topics,
        lambda name: context.authorized_topic(Operation.ALTER, name),
        "altering it is not allowed",
        p37.CreatePartitionsTopicResult,
    )
    merge = _joined(p37.CreatePartitionsResponse, "results", refused)
    return _with_topics(request, allowed), merge


def create_delegation_token(
    request: p38.CreateDelegationTokenRequest, context: Sender, _image: MetadataImage
) -> Filtered:
    """CREATE_TOKENS on the user that it is for, unless that is the sender (KIP-373)."""
    owner = owner_of(request, context.principal)
    is_own = owner == context.principal
    is_allowed = is_own or context.authorized(Operation.CREATE_TOKENS, ResourceType.USER, owner)

    def merge(response: p38.CreateDelegationTokenResponse | None) -> Steps[Message]:
        yield
        if response is not None:
            if response.error_code == ErrorCode.POLICY_VIOLATION:
                logger.warning("%s has as many delegation tokens as it may have", quoted(owner))
            return response
        error = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        return without_token(request, context.principal, error)

    yield
    return request if is_allowed else None, merge


def alter_configs(request: Any, context: Sender, image: MetadataImage) -> Filtered:
    """ALTER_CONFIGS on the resource, of AlterConfigs and IncrementalAlterConfigs."""
    allowed, refused = [], []
    for resource in request.resources:
        yield
        kind, name = resource.resource_type, resource.resource_name
        error = config_permission(context, Operation.ALTER_CONFIGS, kind, name)
        words = "altering its configuration is not allowed"
        if error is ErrorCode.NONE and not may_change_stores(
            context, resource, image.configs.get(kind, name)
        ):
            error, words = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, STORES_NEED_ALTER
        if error is ErrorCode.NONE:
            allowed.append(resource)
        else:
            refused.append(
                p44.AlterConfigsResourceResponse(
                    error_code=error,
                    error_message=words,
                    resource_type=kind,
                    resource_name=name,
                )
            )
    merge = _joined(response_class(request.API_KEY), "responses", refused)
    if not allowed:
        return None, merge
    return type(request)(resources=allowed, validate_only=request.validate_only), merge
