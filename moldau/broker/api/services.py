"""What the request handlers of one broker work with, joined once by the node.

Owns nothing but the references. Must not be given to anything but handlers and views: every other
part of the broker is given what it needs by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moldau.broker.coordinator.coordinators import Coordinators
from moldau.broker.coordinator.internal_topics import InternalTopics
from moldau.broker.coordinator.producer_ids import ProducerIds
from moldau.broker.lifecycle.background import Background
from moldau.broker.lifecycle.controller_channel import ControllerChannel
from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.broker.replica.fetch_sessions import FetchSessionCache
from moldau.broker.replica.replica_manager import ReplicaManager
from moldau.config import NodeConfig
from moldau.metadata.token_secrets import TokenSecrets
from moldau.runtime.clock import Clock
from moldau.server.change_log import ChangeLog
from moldau.storage.log_manager import LogManager


@dataclass(slots=True)
class BrokerServices:
    """The parts of a running broker that request handlers reach for."""

    node_config: NodeConfig
    broker_id: int
    cluster_id: str
    metadata: MetadataLoader
    replica_manager: ReplicaManager
    log_manager: LogManager
    controller: ControllerChannel
    coordinators: Coordinators
    fetch_sessions: FetchSessionCache
    producer_ids: ProducerIds
    clock: Clock
    background: Background
    internal_topics: InternalTopics
    is_confirmed: Callable[[], bool]
    """Whether the controller has lately said that this broker may lead (`CONFIRMED_SHARE`)."""
    kraft_version: Callable[[], int] = field(default=lambda: 0)
    """The finalized `kraft.version`, which lives in the quorum's control records; 0 when unknown.
    """
    check_listeners: Callable[[Mapping[str, str]], None] = field(default=lambda wanted: None)
    """Tries what this broker's dynamic configuration shall be on its listeners; blocks, and raises
    ConfigError.
    """
    token_secrets: TokenSecrets = field(default_factory=lambda: TokenSecrets(None))
    """What `delegation.token.secret.key` makes of tokens."""
    changes: ChangeLog = field(init=False)
    """The log of changes that this broker decides by itself."""

    def __post_init__(self) -> None:
        self.changes = ChangeLog(self.clock, self.node_config["moldau.audit.log.max.lines"])
