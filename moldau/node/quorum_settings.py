"""From configuration keys to what the quorum and the controller of a node are told.

Owns the translation, key by key. Must not: read anything but configuration. Invariant: a key that
the quorum honours is named here, once.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping

from moldau.config import NodeConfig
from moldau.protocol.messages.p70_controller_registration import (
    ControllerRegistrationRequest,
    Listener,
)
from moldau.protocol.types import ZERO_UUID
from moldau.raft import MetadataLogSettings, VoterDescription, VoterEndpoint, VoterSet
from moldau.raft.core.values import Destination

NO_PORTS: Mapping[str, int] = {}
_UNKNOWN_HOST = "localhost"
_FIRST_BOOTSTRAP_ID = -2
"""Bootstrap servers have negative ids, as in Apache Kafka: their own are not known yet."""


def metadata_log_settings(
    config: NodeConfig, directory_id: uuid.UUID, bound_ports: Mapping[str, int] = NO_PORTS
) -> MetadataLogSettings:
    """What this node's replica of the metadata log is told at its start.

    Args:
        bound_ports: by controller listener, for those configured with port 0.
    """
    return MetadataLogSettings(
        metadata_directory=config.metadata_log_directory,
        node_id=config.node_id,
        directory_id=directory_id,
        endpoints=controller_endpoints(config, bound_ports),
        is_controller=config.is_controller,
        static_voters=static_voters(config),
        bootstrap_servers=tuple(
            Destination(_FIRST_BOOTSTRAP_ID - index, address.host, address.port)
            for index, address in enumerate(config.controller_addresses)
        ),
        election_timeout_ms=config.get_int("controller.quorum.election.timeout.ms"),
        election_backoff_max_ms=config.get_int("controller.quorum.election.backoff.max.ms"),
        fetch_timeout_ms=config.get_int("controller.quorum.fetch.timeout.ms"),
        request_timeout_ms=config.get_int("controller.quorum.request.timeout.ms"),
        retry_backoff_ms=config.get_int("controller.quorum.retry.backoff.ms"),
        fetch_max_bytes=config.get_int("controller.quorum.fetch.max.bytes"),
        fetch_snapshot_max_bytes=config.get_int("controller.quorum.fetch.snapshot.max.bytes"),
        segment_bytes=config.get_int("metadata.log.segment.bytes"),
        segment_ms=config.get_int("metadata.log.segment.ms"),
        retention_bytes=config.get_int("metadata.max.retention.bytes"),
        retention_ms=config.get_int("metadata.max.retention.ms"),
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
    """What this start of the controller registers, under an incarnation id of its own (KIP-919).
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
