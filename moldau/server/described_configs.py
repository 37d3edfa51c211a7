"""The permissions and the entries of one DescribeConfigs answer, of brokers and controllers alike.

Owns: how a resource is described, the translation of a described key to its entry, what entries of
one answer share, and how many there may be. Must not: decide which resources are served.
Invariants: documentation and synonyms are there only when the request asks for them; resources that
are alike share the entries, which stay as they are then; an answer has at most
MAX_DESCRIBED_ENTRIES.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from moldau.config import (
    DescribedConfig,
    NodeConfig,
    changes_listener,
    describe_broker_config,
    describe_cluster_default_config,
    describe_group_config,
    describe_topic_config,
)
from moldau.metadata.image import ConfigResourceType, ConfigsImage
from moldau.protocol.access_control import Operation, ResourceType
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p32_describe_configs as p32
from moldau.protocol.messages import p33_alter_configs as p33
from moldau.server.request import Sender


def config_entry(
    request: p32.DescribeConfigsRequest, config: DescribedConfig
) -> p32.DescribeConfigsResourceResult:
    entry = p32.DescribeConfigsResourceResult(
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.sensitive,
        config_type=config.type,
        documentation=(config.documentation or None) if request.include_documentation else None,
    )
    if request.include_synonyms:
        entry.synonyms = [
            p32.DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in config.synonyms
        ]
    return entry


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


def description(
    config: NodeConfig,
    configs: ConfigsImage,
    resource_type: int,
    name: str,
    keys: Collection[str] | None,
) -> tuple[Hashable, Callable[[], Iterable[DescribedConfig]]]:
    """What is equal for resources that are described alike, and how to describe this one: a topic,
    a group, the node itself or, with no name, what is set for all brokers.
    """
    defaults = configs.get(ConfigResourceType.BROKER, "")
    if resource_type == ConfigResourceType.BROKER and name == "":
        return (resource_type, name, keys), partial(describe_cluster_default_config, defaults, keys)
    own = configs.get(ConfigResourceType.BROKER, str(config.node_id))
    if resource_type == ConfigResourceType.BROKER:
        return (
            (resource_type, name, keys),
            partial(describe_broker_config, config, defaults, own, keys),
        )
    overrides = configs.get(resource_type, name)
    describe = (
        describe_group_config
        if resource_type == ConfigResourceType.GROUP
        else describe_topic_config
    )
    return (
        (resource_type, frozenset(overrides.items()), keys),
        partial(describe, config, defaults, own, overrides, keys),
    )


MAX_DESCRIBED_ENTRIES: Final = 500_000
"""15,000 topics with all their keys, or 25 to 200 MB. A request of 1 MB may name four times as
many, and each as often as it likes.
"""

TOO_MANY_ENTRIES: Final = (
    f"the answer has {MAX_DESCRIBED_ENTRIES} entries already: ask for this one in another request"
)


class DescribedEntries:
    """Makes the entries of one answer, resource by resource."""

    __slots__ = ("_entries", "_entry_count", "_request")

    def __init__(self, request: p32.DescribeConfigsRequest) -> None:
        self._request = request
        self._entries: dict[Hashable, list[p32.DescribeConfigsResourceResult]] = {}
        self._entry_count = 0

    def fill(
        self,
        result: p32.DescribeConfigsResult,
        likeness: Hashable,
        describe: Callable[[], Iterable[DescribedConfig]],
    ) -> None:
        """Give one more resource its entries, or the error that they are too many for the answer.

        Args:
            likeness: equal for resources whose descriptions are equal.
        """
        entries = self._entries.get(likeness)
        if entries is None and self._entry_count < MAX_DESCRIBED_ENTRIES:
            entries = [config_entry(self._request, config) for config in describe()]
            self._entries[likeness] = entries
        if entries is None or self._entry_count + len(entries) > MAX_DESCRIBED_ENTRIES:
            result.error_code, result.error_message = ErrorCode.POLICY_VIOLATION, TOO_MANY_ENTRIES
            return
        self._entry_count += len(entries)
        result.configs = entries
