"""What a sender may do to the configuration of a resource, at brokers and controllers alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from moldau.config import changes_listener
from moldau.metadata.image import ConfigResourceType, MetadataImage
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p33_alter_configs as p33
from moldau.protocol.types import topic_name_problem
from moldau.server.request import Sender
from moldau.text import short_name

Problem: TypeAlias = tuple[ErrorCode, str]

_NOT_ALLOWED: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not allowed on this topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "not allowed on this group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not allowed on the cluster",
}


def config_permission(
    sender: Sender, operation: Operation, resource_type: int, name: str
) -> ErrorCode:
    """NONE, or why the sender may not do `operation` to a resource's configuration."""
    if resource_type == ConfigResourceType.TOPIC:
        allowed = sender.authorized_topic(operation, name)
        return ErrorCode.NONE if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if resource_type == ConfigResourceType.GROUP:
        allowed = sender.authorized(operation, ResourceType.GROUP, name)
        return ErrorCode.NONE if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
    allowed = sender.authorized_cluster(operation)
    return ErrorCode.NONE if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def config_problem(
    sender: Sender,
    operation: Operation,
    resource: Any,
    image: MetadataImage,
    node_id: int,
    *,
    has_loggers: bool,
) -> Problem | None:
    """What is wrong with a resource that a request names, or why the sender may not do this; None
    for nothing. Resources of nodes are those of `node_id`.
    """
    kind, name = resource.resource_type, resource.resource_name
    error = config_permission(sender, operation, kind, name)
    if error is not ErrorCode.NONE:
        return error, _NOT_ALLOWED[error]
    is_logger = kind == ConfigResourceType.BROKER_LOGGER
    if kind == ConfigResourceType.TOPIC:
        illegal = topic_name_problem(name)
        if illegal is not None:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, illegal
        if name not in image.topics.topics_by_name:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {short_name(name)}"
    elif kind == ConfigResourceType.GROUP:
        if not name:
            return ErrorCode.INVALID_REQUEST, "a group's name must not be empty"
    elif kind != ConfigResourceType.BROKER and not (is_logger and has_loggers):
        loggers = "8 (broker logger) and 32 (group) are" if has_loggers else "32 (group) are"
        return (
            ErrorCode.INVALID_REQUEST,
            f"resource type {kind} is not served here; 2 (topic), 4 (broker), {loggers}",
        )
    elif name != str(node_id) and (name or is_logger):
        words = f"this node answers for {node_id}, not for {short_name(name)!r}"
        return ErrorCode.INVALID_REQUEST, words
    return None


STORES_NEED_ALTER: Final = "key and trust stores of listeners need ALTER on the cluster, too"


def may_change_stores(sender: Sender, resource: Any, current: Mapping[str, str]) -> bool:
    """Whether a sender that may alter a resource's configuration may change what the request does
    to key and trust stores of listeners: these decide who a super user is.

    Args:
        resource: of AlterConfigs, which takes away what it does not name, or of
            IncrementalAlterConfigs.
        current: the resource's configuration now.
    """
    if resource.resource_type != ConfigResourceType.BROKER:
        return True
    changed = {each.name for each in resource.configs}
    if isinstance(resource, p33.AlterConfigsResource):
        wanted = {each.name: each.value for each in resource.configs}
        changed = {key for key in {**current, **wanted} if wanted.get(key) != current.get(key)}
    return not any(map(changes_listener, changed)) or sender.authorized_cluster(Operation.ALTER)
