"""The effective settings of the topics on this broker: topic, broker and cluster level laid over
the node's own.

Owns: the broker's present values. Must not know partitions or logs. Invariant: what `of` says is
what the newest image says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.config import effective_broker_config, effective_topic_config
from moldau.metadata.image import MetadataImage
from moldau.metadata.image.configs import ConfigResourceType
from moldau.storage.log_config import LogConfig

if TYPE_CHECKING:
    from moldau.metadata.image import MetadataDelta


class SettingsOfTopic(NamedTuple):
    """What partitions of one topic need to know."""

    log_config: LogConfig
    min_insync_replicas: int


class TopicSettings:
    """Settings by topic.

    Args:
        node_values: the node's static configuration, typed.
    """

    def __init__(self, broker_id: int, node_values: Mapping[str, Any]) -> None:
        self._broker_name = str(broker_id)
        self._static_values = node_values
        self._broker_values = node_values
        self._image = MetadataImage.EMPTY

    def of(self, topic: str) -> SettingsOfTopic:
        """The settings in force."""
        values = effective_topic_config(
            self._broker_values, self._image.configs.get(ConfigResourceType.TOPIC, topic)
        )
        return SettingsOfTopic(
            LogConfig.from_topic_config(values), int(values["min.insync.replicas"])
        )

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> tuple[set[str], bool]:
        """Take over the new image.

        Returns:
            The topics whose own settings changed, and whether a broker default has, which may
            change any topic.
        """
        self._image = image
        topics: set[str] = set()
        is_default_changed = False
        for resource in delta.configs_delta.changes:
            if resource.resource_type == ConfigResourceType.TOPIC:
                topics.add(resource.name)
            elif resource.resource_type == ConfigResourceType.BROKER and resource.name in (
                "",
                self._broker_name,
            ):
                is_default_changed = True
        if is_default_changed:
            self._broker_values = effective_broker_config(
                self._static_values,
                image.configs.get(ConfigResourceType.BROKER, ""),
                image.configs.get(ConfigResourceType.BROKER, self._broker_name),
            )
        return topics, is_default_changed
