"""Configuration: one table of every Kafka 4.3 key, and what follows from the values.

Owns: reading, typing, checking and describing configuration.
Must not: import another room of this project; touch sockets or directories.
Invariant: a sensitive value is never part of a `repr`, an error or a description.
"""

from moldau.config.definition import ConfigError, ConfigSource, ConfigType, Status
from moldau.config.describe import (
    DescribedConfig,
    describe_broker_config,
    describe_cluster_default_config,
    describe_group_config,
    describe_topic_config,
)
from moldau.config.dynamic_config import (
    dynamic_config_warnings,
    effective_broker_config,
    validate_dynamic_broker_config,
)
from moldau.config.group_config import validate_group_config
from moldau.config.listeners import Endpoint
from moldau.config.node_config import NodeConfig
from moldau.config.properties import parse_properties, read_properties_file
from moldau.config.table import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
from moldau.config.topic_config import effective_topic_config, validate_topic_config
