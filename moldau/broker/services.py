"""What the admin handlers of one broker work with, joined once by the node.

Owns nothing but the references. Invariant: complete before the listener accepts its first request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moldau.broker.controller_channel import ControllerChannel
from moldau.broker.fetch_sessions import FetchSessionCache
from moldau.broker.metadata_loader import MetadataLoader
from moldau.broker.producer_ids import ProducerIds
from moldau.broker.replica_manager import ReplicaManager
from moldau.config import NodeConfig
from moldau.storage.log_manager import LogManager


def _unknown_level() -> int:
    return 0


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
    fetch_sessions: FetchSessionCache
    producer_ids: ProducerIds
    kraft_version: Callable[[], int] = _unknown_level
    """The finalized `kraft.version`, which lives in the quorum's control records; 0 when unknown.
    """
