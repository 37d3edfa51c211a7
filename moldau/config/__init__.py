"""Configuration: one table of every Kafka 4.3 key, and what follows from the values.

Owns: reading, typing, checking and describing configuration.
Must not: import another room of this project; touch sockets or directories.
Invariant: a sensitive value is never part of a `repr`, an error or a description.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.config.definition import ConfigError, ConfigSource, ConfigType, Status
    from moldau.config.describe import (
        DescribedConfig,
        describe_broker_config,
        describe_cluster_default_config,
        describe_group_config,
        describe_topic_config,
    )
    from moldau.config.dynamic_config import (
        changes_listener,
        dynamic_config_warnings,
        dynamic_listener_values,
        effective_broker_config,
        validate_dynamic_broker_config,
    )
    from moldau.config.group_config import validate_group_config
    from moldau.config.listeners import Endpoint
    from moldau.config.node_config import NodeConfig, check_keys
    from moldau.config.properties import parse_properties, read_properties_file
    from moldau.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
    from moldau.config.topic_config import effective_topic_config, validate_topic_config

at_first_use(
    globals(),
    """
    config.definition: ConfigError ConfigSource ConfigType Status
    config.describe: DescribedConfig describe_broker_config describe_cluster_default_config
        describe_group_config describe_topic_config
    config.dynamic_config: changes_listener dynamic_config_warnings dynamic_listener_values
        effective_broker_config validate_dynamic_broker_config
    config.group_config: validate_group_config
    config.listeners: Endpoint
    config.node_config: NodeConfig check_keys
    config.properties: parse_properties read_properties_file
    config.table: BROKER_KEYS GROUP_KEYS TOPIC_KEYS
    config.topic_config: effective_topic_config validate_topic_config
    """,
)
