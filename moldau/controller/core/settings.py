"""What the controller takes from the node's configuration.

Owns: nothing but the values. Invariant: immutable while the controller runs; what may change at run
time is in the image.
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.config import NodeConfig
from moldau.controller.core.result import MAX_CHANGES_PER_STEP


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Static settings. `node_config` gives the defaults behind topic and broker configuration."""

    node_id: int
    cluster_id: str
    node_config: NodeConfig
    default_partition_count: int = 1
    default_replication_factor: int = 1
    delete_topic_enabled: bool = True
    broker_session_timeout_ms: int = 9_000
    auto_leader_rebalance_enabled: bool = True
    leader_imbalance_check_interval_ms: int = 300_000
    unclean_leader_election_interval_ms: int = 300_000
    max_changes_per_step: int = MAX_CHANGES_PER_STEP

    @classmethod
    def from_node_config(cls, node_config: NodeConfig, cluster_id: str) -> ControllerSettings:
        """Take over what the configuration says."""
        return cls(
            node_id=node_config.node_id,
            cluster_id=cluster_id,
            node_config=node_config,
            default_partition_count=node_config.get_int("num.partitions"),
            default_replication_factor=node_config.get_int("default.replication.factor"),
            delete_topic_enabled=node_config.get_boolean("delete.topic.enable"),
            broker_session_timeout_ms=node_config.get_int("broker.session.timeout.ms"),
            auto_leader_rebalance_enabled=node_config.get_boolean("auto.leader.rebalance.enable"),
            leader_imbalance_check_interval_ms=1_000
            * node_config.get_int("leader.imbalance.check.interval.seconds"),
            unclean_leader_election_interval_ms=node_config.get_int(
                "unclean.leader.election.interval.ms"
            ),
        )
