"""Broker configuration that changes while the node runs, taken to the parts that honour it
(KIP-226).

Owns the list of such keys that belong to no topic: connection limits, the expiry of producer ids,
log compaction, the number of replica fetchers, the verification of transactions, the log level.
Topics' keys are the replica manager's. Invariant: what is in effect is what the newest image says.
"""

from __future__ import annotations

import logging
from typing import Any

from moldau.broker.coordinator.transaction.verification import TransactionVerifier
from moldau.broker.replica.replication import Replication
from moldau.config import NodeConfig, dynamic_config_warnings, effective_broker_config
from moldau.metadata.image import ConfigResource, ConfigResourceType, MetadataDelta, MetadataImage
from moldau.node.settings import server_limits
from moldau.runtime.telemetry import set_level
from moldau.server.server import Server
from moldau.storage.log_config import CleanerSettings
from moldau.storage.log_manager import LogManager

logger = logging.getLogger("moldau.node")

LOG_LEVEL = "moldau.log.level"
ROOT_LOGGER = "moldau"


class DynamicSettings:
    """A metadata publisher."""

    def __init__(
        self,
        config: NodeConfig,
        server: Server,
        log_manager: LogManager,
        replication: Replication,
        transaction_verifier: TransactionVerifier,
    ) -> None:
        self._config = config
        self._server = server
        self._log_manager = log_manager
        self._replication = replication
        self._transaction_verifier = transaction_verifier
        self._resources = (
            ConfigResource(ConfigResourceType.BROKER, ""),
            ConfigResource(ConfigResourceType.BROKER, str(config.node_id)),
        )
        self._log_level = config[LOG_LEVEL]

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply what changed."""
        if not any(resource in delta.configs_delta.changes for resource in self._resources):
            return
        defaults, own = (image.configs.get(*resource) for resource in self._resources)
        for warning in dynamic_config_warnings(defaults, own):
            logger.warning("dynamic configuration: %s", warning)
        self._apply(effective_broker_config(self._config, defaults, own))

    def _apply(self, values: dict[str, Any]) -> None:
        self._server.update_limits(server_limits(self._config, values))
        self._log_manager.update_producer_expiration(values["producer.id.expiration.ms"])
        self._log_manager.cleaner.update_settings(CleanerSettings.from_values(values))
        self._replication.update_settings(values)
        self._transaction_verifier.update_verification(
            values["transaction.partition.verification.enable"]
        )
        if values[LOG_LEVEL] != self._log_level:
            self._log_level = values[LOG_LEVEL]
            set_level(ROOT_LOGGER, self._log_level)
            logger.info("log level is now %s", self._log_level)
