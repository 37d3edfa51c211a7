"""Requests that come late, or twice: on connections between clients and brokers, and brokers.

Owns: which requests suffer what. Must not: change a request. Invariant: what is delivered was once
sent to that address, as it was; the order within one connection stays, across connections it does
not.

A copy is what a retry, a proxy or a kernel that retransmits into a new life can do; a connection
that is held up makes its client give up and go on over another while the request is still coming.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from moldau.protocol.api_keys import ApiKey
from moldau.runtime.connection import Connection
from tests.simulation.transactions.coordinator_link import NO_ANSWER
from tests.virtual.loop import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

TAMPERED = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.OFFSET_COMMIT,
    }
)
FIRST_PROTECTED = {ApiKey.END_TXN: 5, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.ADD_PARTITIONS_TO_TXN: 4}
"""Below these versions nothing distinguishes a late request from one for the next transaction."""

EPOCH_BUMP_VERSION = 2
TOPIC_ID_VERSION = 10
"""Below it a late OffsetCommit is taken for one of a topic that was created again by its name."""

LIFE_MS = 4_000.0


class Tamperer:
    """One per world. `copies`, `holds`: the share of requests that suffer it, from `disturb` on."""

    def __init__(self, world: TransactionWorld, random: Random) -> None:
        self.world = world
        self.random = random
        self.copies = self.holds = self.longest_ms = 0.0
        self.apis = TAMPERED
        self.process = Process(world.loop, "late-requests")
        self._network = world.fabric.port_of(self.process, "late-requests")

    def disturb(self) -> None:
        """From now on, until `rest`."""
        self.copies, self.holds = self.random.choice(
            ((0.03, 0.01), (0.2, 0.0), (0.1, 0.03), (0.5, 0.02))
        )
        self.longest_ms = self.random.choice((50.0, 1_000.0, 4_000.0))

    def rest(self) -> None:
        """Requests arrive in time, and once."""
        self.copies = self.holds = 0.0

    def wrote(self, connection: Any, message: Any, version: int, data: bytes) -> None:
        """A request is about to leave."""
        if not self.copies or not self._may_suffer(message, version):
            return
        chance = self.random.random()
        if chance < self.copies:
            self._excuse(message, version)
            self.world.counts["copies"] += 1
            delay_ms = self.random.uniform(0.0, self.longest_ms)
            address = (connection.host, connection.port)
            self.world.loop.call_outside(delay_ms, self._deliver, address, data)
        elif chance < self.copies + self.holds:
            self._excuse(message, version)
            self.world.counts["holds"] += 1
            transport = connection._transport
            until = self.world.loop.time() + self.random.uniform(500.0, 5_000.0) / 1000
            transport.last_arrival = max(transport.last_arrival, until)

    def _may_suffer(self, message: Any, version: int) -> bool:
        if message.API_KEY == ApiKey.OFFSET_COMMIT and version < TOPIC_ID_VERSION:
            recreated = self.world.data.recreated
            if any(topic.name in recreated for topic in message.topics):
                return False
        return message.API_KEY in self.apis

    def _excuse(self, message: Any, version: int) -> None:
        data = self.world.data
        if message.API_KEY == ApiKey.OFFSET_COMMIT:
            data.group_log.may_come_late(message, data.topic_names)
            return
        if message.API_KEY == ApiKey.WRITE_TXN_MARKERS:
            for marker in message.markers:
                name = data.id_of_producer.get(marker.producer_id)
                if marker.transaction_version < EPOCH_BUMP_VERSION and name is not None:
                    data.excuse(name)
        elif version < FIRST_PROTECTED.get(message.API_KEY, 0):
            name = getattr(message, "v3_and_below_transactional_id", "")
            data.excuse(name or message.transactional_id)

    def _deliver(self, address: tuple[str, int], data: bytes) -> None:
        self.process.spawn(self._send(address, data))

    async def _send(self, address: tuple[str, int], data: bytes) -> None:
        try:
            connection = await Connection.connect(
                self._network,
                *address,
                clock=VirtualClock(self.world.loop),
                connect_timeout_ms=1_000,
                negotiate=False,
            )
        except NO_ANSWER:
            return
        transport: Any = connection._transport
        transport.write(data)
        await self.world.loop.elapse(LIFE_MS)
        connection.close()
