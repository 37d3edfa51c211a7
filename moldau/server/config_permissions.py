"""What a sender may do to the configuration of a resource, at brokers and controllers alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from moldau.config import changes_listener
from moldau.metadata.image import ConfigResourceType
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p33_alter_configs as p33
from moldau.server.request import Sender


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
