"""What the handlers and coordinators of one broker work with, joined once by the node.

Owns nothing but the references. Invariant: complete before the listener accepts its first request:
the coordinators, which need the rest, are put in when everything else is there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moldau.broker.coordinator.expression_matcher import (
    ExpressionMatcher,
    ProcessWorker,
    SliceWorker,
    ThreadWorker,
)
from moldau.broker.coordinator.producer_ids import ProducerIds
from moldau.broker.lifecycle.background import Background
from moldau.broker.lifecycle.controller_channel import ControllerChannel
from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.broker.replica.fetch_sessions import FetchSessionCache
from moldau.broker.replica.replica_manager import ReplicaManager
from moldau.config import NodeConfig
from moldau.runtime.clock import Clock
from moldau.runtime.network import Network
from moldau.runtime.slices import in_slices
from moldau.runtime.telemetry import Registry
from moldau.runtime.timers import TimerWheel
from moldau.storage.log_manager import LogManager

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.coordinator import GroupCoordinator
    from moldau.broker.coordinator.internal_topics import InternalTopics
    from moldau.broker.coordinator.transaction.coordinator import TransactionCoordinator
    from moldau.broker.coordinator.transaction.verification import TransactionVerifier


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
    clock: Clock
    timers: TimerWheel
    registry: Registry
    random: random.Random
    background: Background
    internal_topics: InternalTopics
    broker_epoch: Callable[[], int]
    """Of this broker's registration, -1 before it."""
    is_confirmed: Callable[[], bool]
    """Whether the controller has lately said that this broker may lead (`CONFIRMED_SHARE`)."""
    inter_broker_listener_name: str
    network: Network | None = None
    """Where other brokers are; None for the machine's own."""
    kraft_version: Callable[[], int] = _unknown_level
    """The finalized `kraft.version`, which lives in the quorum's control records; 0 when unknown.
    """
    has_child_processes: bool = False
    """Whether what takes long may be done by child processes; a simulation has none."""
    matcher: ExpressionMatcher = field(init=False)
    group_coordinator: GroupCoordinator = field(init=False)
    transaction_coordinator: TransactionCoordinator = field(init=False)
    transaction_verifier: TransactionVerifier = field(init=False)

    def __post_init__(self) -> None:
        worker: SliceWorker = ThreadWorker(self.clock, self.log_manager.filesystem.offload)
        if self.has_child_processes:
            worker = ProcessWorker(self.clock, instead=worker)
        self.matcher = ExpressionMatcher(self.clock, worker)

    def start(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        """Run work that ends by itself, or that its owner ends when the broker stops; a failure is
        told to the node.
        """
        self.background.start(work, name)

    def go_on(self, steps: Iterator[object]) -> None:
        """Take the steps that an answer still needs, from now on and in slices of the loop."""
        work = in_slices(self.clock, steps)
        if work is not None:
            self.start(work, "a large answer")
