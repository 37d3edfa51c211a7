"""What the handlers and coordinators of one broker work with, joined once by the node.

Owns nothing but the references. Invariant: complete before the listener accepts its first request:
the coordinators, which need the rest, are put in when everything else is there.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.broker.coordinator.expression_matcher import (
    ExpressionMatcher,
    ProcessWorker,
    SliceWorker,
    ThreadWorker,
)
from moldau.broker.coordinator.producer_ids import ProducerIds
from moldau.broker.lifecycle.controller_channel import ControllerChannel
from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.broker.replica.fetch_sessions import FetchSessionCache
from moldau.broker.replica.replica_manager import ReplicaManager
from moldau.config import NodeConfig
from moldau.metadata.token_secrets import TokenSecrets
from moldau.runtime.clock import Clock
from moldau.runtime.connector import Connector
from moldau.runtime.slices import Work, in_slices
from moldau.runtime.telemetry.metrics import Registry
from moldau.runtime.timers import TimerWheel
from moldau.server.change_log import ChangeLog
from moldau.storage.log_manager import LogManager

if TYPE_CHECKING:
    from moldau.broker.coordinator.group.coordinator import GroupCoordinator
    from moldau.broker.coordinator.internal_topics import InternalTopics
    from moldau.broker.coordinator.transaction.coordinator import TransactionCoordinator
    from moldau.broker.coordinator.transaction.verification import TransactionVerifier


logger = logging.getLogger(__name__)


class Background:
    """Runs work that takes longer than a call on the data loop. A failure is reported exactly once;
    nothing runs after `close`.

    Args:
        on_fault: told of an unexpected exception.
    """

    def __init__(self, on_fault: Callable[[BaseException], None]) -> None:
        self._on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Work, name: str | None = None) -> None:
        """Run work that ends by itself, or that its owner ends before `close`. Every caller has a
        limit of its own: no task for each request (`tests/tidy/bounds.toml` lists them).
        """
        if self._is_closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Start nothing more and wait for what runs."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("work in the background failed", exc_info=error)
            self._on_fault(error)


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
    connector: Connector
    """To the other brokers."""
    kraft_version: Callable[[], int] = field(default=lambda: 0)
    """The finalized `kraft.version`, which lives in the quorum's control records; 0 when unknown.
    """
    check_listeners: Callable[[Mapping[str, str]], None] = field(default=lambda wanted: None)
    """Tries what this broker's dynamic configuration shall be on its listeners; blocks, and raises
    ConfigError.
    """
    has_child_processes: bool = False
    """Whether what takes long may be done by child processes; a simulation has none."""
    token_secrets: TokenSecrets = field(default_factory=lambda: TokenSecrets(None))
    """What `delegation.token.secret.key` makes of tokens."""
    changes: ChangeLog = field(init=False)
    """Of what this broker decides by itself."""
    matcher: ExpressionMatcher = field(init=False)
    group_coordinator: GroupCoordinator = field(init=False)
    transaction_coordinator: TransactionCoordinator = field(init=False)
    transaction_verifier: TransactionVerifier = field(init=False)

    def __post_init__(self) -> None:
        max_lines = self.node_config["moldau.audit.log.max.lines"]
        self.changes = ChangeLog(self.clock, max_lines)
        worker: SliceWorker = ThreadWorker(self.clock, self.log_manager.filesystem.offload)
        if self.has_child_processes:
            worker = ProcessWorker(self.clock, instead=worker)
        self.matcher = ExpressionMatcher(self.clock, worker)

    def start(self, work: Work, name: str | None = None) -> None:
        self.background.start(work, name)

    def go_on(self, steps: Iterator[object]) -> None:
        """Take the steps that an answer still needs, from now on and in slices of the loop."""
        work = in_slices(self.clock, steps)
        if work is not None:
            self.background.start(work, "a large answer")
