"""From configuration keys, dynamic ones too, to the settings of the parts that the node joins."""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from moldau.broker.coordinator.transaction.verification import TransactionVerifier
from moldau.broker.replica.replication import Replication
from moldau.config import ConfigError, NodeConfig, dynamic_config_warnings, effective_broker_config
from moldau.config.listeners import parse_connection_overrides
from moldau.metadata.image import ConfigResource, ConfigResourceType, MetadataDelta, MetadataImage
from moldau.protocol.messages.p62_broker_registration import Listener
from moldau.protocol.messages.p70_controller_registration import ControllerRegistrationRequest
from moldau.protocol.types import ZERO_UUID
from moldau.raft import MetadataLogSettings, VoterDescription, VoterEndpoint, VoterSet
from moldau.raft.core.values import Destination, ReplicaKey
from moldau.runtime.network import OS_DEFAULT_BYTES
from moldau.runtime.telemetry.logs import set_level
from moldau.server.connection_group import ConnectionGroup
from moldau.server.connection_limits import ServerLimits
from moldau.storage.log_config import CleanerSettings
from moldau.storage.log_manager import LogManager

HTTP_PACKAGES: Final = ("aiohttp", "prometheus_client")
CONSOLE_ENABLE: Final = "moldau.console.enable"
CONSOLE_LISTENER: Final = "moldau.console.listener"
CONNECTION_OVERRIDES: Final = "max.connections.per.ip.overrides"


def server_limits(
    config: NodeConfig, effective_values: Mapping[str, Any] | None = None
) -> ServerLimits:
    """What the listeners allow; `effective_values` adds dynamic configuration to the node's own.

    Raises:
        ConfigError: `max.connections.per.ip.overrides` is not HOST:COUNT,….
    """
    values = config if effective_values is None else effective_values
    # With a single listener, clients come by that of the brokers.
    inter_broker = config.inter_broker_listener_name if len(config.broker_listeners) > 1 else ""
    return ServerLimits.from_config(
        values,
        max_connections_per_ip_overrides=parse_connection_overrides(
            CONNECTION_OVERRIDES, values[CONNECTION_OVERRIDES]
        ),
        send_buffer_bytes=_buffer_bytes(config, "socket.send.buffer.bytes"),
        receive_buffer_bytes=_buffer_bytes(config, "socket.receive.buffer.bytes"),
        unlimited_rate_listener=inter_broker,
        node_listeners=frozenset({inter_broker, *config.controller_listener_names}),
    )


def _buffer_bytes(config: NodeConfig, key: str) -> int:
    """Only a size that the configuration names: Kafka's default of 100 KiB switches off the
    system's own tuning and doubled the CPU per request in our measurements.
    """
    return config.get_int(key) if key in config.explicit else OS_DEFAULT_BYTES


def http_address(config: NodeConfig) -> tuple[str, int] | None:
    """Where the HTTP listener binds, None when it is off. Raises: ConfigError."""
    text = config.get_string("moldau.http.listener")
    if not text:
        return None
    if not all(map(find_spec, HTTP_PACKAGES)):
        raise ConfigError("moldau.http.listener", text, "needs pip install 'moldau[server]'")
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def check_console(config: NodeConfig) -> None:
    """Raises: ConfigError: the keys of the console do not fit the node."""
    if not config.get_boolean(CONSOLE_ENABLE):
        return
    if not config.get_string("moldau.http.listener"):
        raise ConfigError(CONSOLE_ENABLE, "true", "needs moldau.http.listener, which serves it")
    name = config.get_string(CONSOLE_LISTENER).upper()
    known = [each.listener_name for each in config.broker_listeners]
    if name and known and name not in known:
        raise ConfigError(
            CONSOLE_LISTENER, name, f"must be one of the listeners: {', '.join(known)}"
        )


logger = logging.getLogger(__name__)

LOG_LEVEL = "moldau.log.level"


@dataclass(eq=False, repr=False)
class DynamicSettings:
    """A metadata publisher."""

    config: NodeConfig
    connections: ConnectionGroup
    log_manager: LogManager
    replication: Replication
    transaction_verifier: TransactionVerifier

    def __post_init__(self) -> None:
        self._resources = (
            ConfigResource(ConfigResourceType.BROKER, ""),
            ConfigResource(ConfigResourceType.BROKER, str(self.config.node_id)),
        )
        self._log_level = self.config[LOG_LEVEL]

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if not any(resource in delta.configs_delta.changes for resource in self._resources):
            return
        defaults, own = (image.configs.get(*resource) for resource in self._resources)
        for warning in dynamic_config_warnings(defaults, own):
            logger.warning("dynamic configuration: %s", warning)
        self._apply(effective_broker_config(self.config, defaults, own))

    def _apply(self, values: dict[str, Any]) -> None:
        self.connections.update_limits(server_limits(self.config, values))
        self.log_manager.update_producer_expiration(values["producer.id.expiration.ms"])
        self.log_manager.cleaner.update_settings(CleanerSettings.from_config(values))
        self.replication.fetchers.resize(values["num.replica.fetchers"])
        self.transaction_verifier.is_enabled = values["transaction.partition.verification.enable"]
        if values[LOG_LEVEL] != self._log_level:
            self._log_level = values[LOG_LEVEL]
            set_level(self._log_level)
            logger.info("log level is now %s", self._log_level)


NO_PORTS: Mapping[str, int] = {}
_UNKNOWN_HOST = "localhost"
_FIRST_BOOTSTRAP_ID = -2
"""Bootstrap servers have negative ids, as in Apache Kafka: their own are not known yet."""


def metadata_log_settings(
    config: NodeConfig, directory_id: uuid.UUID, bound_ports: Mapping[str, int] = NO_PORTS
) -> MetadataLogSettings:
    """What this node's replica of the metadata log is given at its start.

    Args:
        bound_ports: by controller listener, for those configured with port 0.
    """
    return MetadataLogSettings.from_config(
        config,
        metadata_directory=config.metadata_log_directory,
        local=ReplicaKey(config.node_id, directory_id),
        endpoints=controller_endpoints(config, bound_ports),
        is_controller=config.is_controller,
        static_voters=static_voters(config),
        bootstrap_servers=tuple(
            Destination(_FIRST_BOOTSTRAP_ID - index, address.host, address.port)
            for index, address in enumerate(config.controller_addresses)
        ),
    )


def static_voters(config: NodeConfig) -> VoterSet:
    """The voters of `controller.quorum.voters`: they count until the metadata log names others."""
    name = config.controller_listener_names[0]
    return VoterSet(
        tuple(
            VoterDescription(
                voter.node_id, ZERO_UUID, (VoterEndpoint(name, voter.host, voter.port),)
            )
            for voter in config.quorum_voters
        )
    )


def controller_endpoints(
    config: NodeConfig, bound_ports: Mapping[str, int] = NO_PORTS
) -> tuple[VoterEndpoint, ...]:
    """Where other nodes find this controller: what it advertises, or else where it listens."""
    return tuple(
        VoterEndpoint(
            endpoint.listener_name,
            endpoint.host or _UNKNOWN_HOST,
            endpoint.port or bound_ports.get(endpoint.listener_name, 0),
        )
        for endpoint in config.advertised_controller_listeners
    )


def controller_registration(
    config: NodeConfig, bound_ports: Mapping[str, int] = NO_PORTS
) -> ControllerRegistrationRequest:
    """What this start of the controller registers, under its own incarnation id (KIP-919).
    Its features depend on the metadata: they are filled in when it is sent.
    """
    protocols = config.listener_security_protocols
    return ControllerRegistrationRequest(
        controller_id=config.node_id,
        incarnation_id=uuid.UUID(int=secrets.randbits(128), version=4),
        zk_migration_ready=False,
        listeners=[
            Listener(
                name=endpoint.listener_name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=protocols[endpoint.listener_name].value,
            )
            for endpoint in controller_endpoints(config, bound_ports)
        ],
    )
