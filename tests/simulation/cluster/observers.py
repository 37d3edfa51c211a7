"""A broker's production replica of the metadata log, and its production way to the controller.

Owns: the joining of log, loader and channel, as a broker node does it, and how late the loader
hears of a batch that is committed. Must not: decide anything. Invariants: the loader gets batches
in order; the image it builds is compared with the ledger's after every batch.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.broker.lifecycle.controller_channel import NetworkControllerChannel
from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.config import NodeConfig
from moldau.metadata.image import Provenance
from moldau.node.quorum_node import leader_address
from moldau.raft import QuorumLog
from moldau.runtime.connector import Connector
from tests.simulation.cluster.logs import (
    LISTENER,
    broker_config,
    directory_of,
    open_metadata_log,
)
from tests.virtual.loop import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.cluster.base_world import BaseWorld


class Observer:
    """States: made -> `start` -> following the quorum."""

    def __init__(
        self,
        world: BaseWorld,
        process: Process,
        broker_id: int,
        host: str,
        *,
        config: NodeConfig | None = None,
        directory_id: UUID | None = None,
    ) -> None:
        """Without a configuration it is a broker's with nothing but the way to the quorum."""
        self.config = config or broker_config(broker_id, host, world.quorum_keys)
        self.directory_id = directory_id or directory_of(broker_id)
        self.world = world
        self.process = process
        self.broker_id = broker_id
        self.host = host
        self.loader = MetadataLoader(broker_id)
        self.log: QuorumLog | None = None
        self.channel: NetworkControllerChannel | None = None
        self._random = Random(0)
        self._late: deque[Any] = deque()
        self._next_delivery = 0.0
        self._lags_until = 0.0

    def lag(self, duration_ms: float) -> None:
        """Let the loader hear of nothing for a while; requests and their answers go on."""
        self._lags_until = self.world.loop.time() + duration_ms / 1000

    async def start(self, disk: Any, network: Any, random: Random) -> None:
        """Open the log and listen. Raises as `QuorumLog.open`."""
        world = self.world
        self._random = Random(random.getrandbits(64))
        clock = VirtualClock(world.loop, world.wall_clocks.of(self.host))
        log = self.log = await open_metadata_log(
            self.config,
            disk,
            clock,
            network,
            lambda reason: world.process_failed(self.process, reason),
            random,
            self.directory_id,
        )
        channel = self.channel = NetworkControllerChannel(
            lambda: leader_address(log.leadership, [LISTENER]),
            client_id=self.process.name,
            connector=Connector(network, clock),
            request_timeout_ms=2_000,
        )
        log.on_leadership_change(lambda _leadership: channel.leader_changed())
        log.add_listener(self)

    async def subscribe(self, _feed: object) -> None:
        """As `QuorumNode`: the loader is fed already."""

    async def peer_problems(self) -> dict[str, str]:
        """As `QuorumNode`: nothing to say."""
        return {}

    # -- the log's listener ----------------------------------------------------------------------

    def handle_snapshot(self, snapshot: Any) -> None:
        world = self.world
        world.guard(world.ledger.on_snapshot, self.process.name, snapshot)
        while self._late:
            self._load(self._late.popleft())
        provenance = Provenance(
            snapshot.end_offset - 1, snapshot.leader_epoch, snapshot.last_contained_log_time_ms
        )
        self.loader.handle_snapshot(snapshot.records, provenance)
        self._compare()

    def handle_commit(self, batch: Any) -> None:
        world, now = self.world, self.world.loop.time()
        world.guard(world.ledger.on_commit, self.process.name, batch)
        lag_ms = self._random.uniform(0.0, world.observer_lag_ms) if world.observer_lag_ms else 0.0
        at = max(now + lag_ms / 1000, self._lags_until, self._next_delivery)
        if at <= now and not self._late:
            self._load(batch)
            return
        self._next_delivery = at
        self._late.append(batch)
        world.loop.call_at(at, self._load_next, context=self.process.context)

    def _load_next(self) -> None:
        if self._late:
            self._load(self._late.popleft())

    def _load(self, batch: Any) -> None:
        provenance = Provenance(batch.last_offset, batch.leader_epoch, batch.append_timestamp_ms)
        self.loader.handle_commit(batch.records, provenance)
        self._compare()

    def handle_leader_change(self, leader_id: int, leader_epoch: int) -> None:
        self.world.note(f"{self.process.name} hears that {leader_id} leads epoch {leader_epoch}")

    def _compare(self) -> None:
        world, image = self.world, self.loader.image
        last_offset = image.provenance.last_contained_offset
        world.guard(world.ledger.compare, self.process.name, image, last_offset)
