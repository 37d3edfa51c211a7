"""The schedules that Jepsen found to tear transactions (ADR 0013), on a whole simulated cluster.

With transaction version 2 nothing is torn. With version 1 they are what Apache Kafka's is known
for: the tests say so, to notice if it ever changes.
"""

from __future__ import annotations

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from tests.simulation.transactions.coordinator_link import TRANSACTION, CoordinatorLink
from tests.simulation.transactions.ledger import ClientTransaction
from tests.simulation.transactions.taps import transaction_taps
from tests.simulation.transactions.transactional_client import TransactionalClient
from tests.simulation.transactions.world import TransactionWorld
from tests.virtual.loop import Process

ID = "torn"
OTHER = ("output", 0)
LATE_MS = 2_000.0


class TornWorld(TransactionWorld):
    """No faults, one client, one schedule."""

    def __init__(self, version: int, late: ApiKey) -> None:
        super().__init__("torn", controllers=1)
        self.version = version
        self.late = late
        self.administrator_may_act = False
        self.first: ClientTransaction | None = None
        self.second: ClientTransaction | None = None

    async def _make_clients(self) -> None:
        await self._make_internal_topics()
        self._make_readers()
        process = Process(self.loop, "client")
        network = self.fabric.port_of(process, "client")
        link = CoordinatorLink(
            self.loop, process, network, self._new_random(), self.broker_addresses
        )
        self.client = TransactionalClient(self, link, ID, "1", self.version, 60_000)
        if self.version < 2:
            self.data.excuse(ID)
        await process.spawn(self._schedule(link))

    async def _move_coordinators(self) -> None:
        """Without a nemesis, a broker that stops would not be started again."""

    async def _schedule(self, link: CoordinatorLink) -> None:
        client = self.client
        await client.initialize()
        coordinator = await link.find(TRANSACTION, ID)
        assert coordinator is not None
        place = await self._place_led_elsewhere(link, coordinator)

        first = self.first = client.begin()
        await client.add(first, [place])
        await client.send(first, *place, [f"{first.name} first".encode()])
        if self.late is ApiKey.END_TXN:
            await self._end_in_vain(link, coordinator, first)
        else:
            self.tamperer.apis = frozenset({self.late})
            self.tamperer.copies, self.tamperer.longest_ms = 1.0, LATE_MS
        await client.end(first, is_commit=True)

        second = self.second = client.begin()
        await client.add(second, [place])
        await client.send(second, *place, [f"{second.name} half".encode()])
        self.tamperer.rest()
        await self.loop.elapse(LATE_MS * 1.5)
        await client.add(second, [OTHER])
        await client.send(second, *OTHER, [f"{second.name} other-half".encode()])
        await client.end(second, is_commit=False)

    async def _place_led_elsewhere(
        self, link: CoordinatorLink, coordinator: int
    ) -> tuple[str, int]:
        """A partition to which markers go over the network."""
        for topic in ("input", "side"):
            for index in range(self.partition_count(topic)):
                view = await link.leader(topic, index)
                if view is not None and view.leader_id != coordinator:
                    return topic, index
        raise AssertionError("one broker leads everything")

    async def _end_in_vain(
        self, link: CoordinatorLink, coordinator: int, transaction: ClientTransaction
    ) -> None:
        """EndTxn on a connection on which nothing arrives for long; the client gives it up."""
        connection = await link.connection(coordinator)
        transport = connection._transport
        transport.last_arrival = self.loop.time() + LATE_MS / 1000  # type: ignore[union-attr]
        transaction.asked.add(True)
        connection.submit(
            EndTxnRequest(
                transactional_id=ID,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                committed=True,
            ),
            api_version=5 if self.version >= 2 else 4,
        ).add_done_callback(lambda future: future.exception())
        await self.loop.elapse(100.0)
        link.drop(coordinator)


@pytest.mark.parametrize("late", [ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS])
@pytest.mark.parametrize("version", [1, 2])
def test_a_late_request_of_the_transaction_before(version: int, late: ApiKey) -> None:
    world = TornWorld(version, late)
    with transaction_taps(world):
        world.run(None)
    assert world.first is not None
    assert world.second is not None
    assert set(world.first.outcomes.values()) == {True}
    assert len(world.second.outcomes) == 2
    where = {name.partition("-")[0]: outcome for name, outcome in world.second.outcomes.items()}
    assert where.pop("output") is False
    assert list(where.values()) == [version == 1], "torn with version 1, whole with version 2"
