"""The schedules that Jepsen found to tear transactions (ADR 0013), on a whole simulated cluster.

With transaction version 2 nothing is torn. With version 1 they are what Apache Kafka's is known
for: the tests say so, to notice if it ever changes.
"""

from __future__ import annotations

import asyncio

import pytest

from moldau.broker.coordinator.key_partitions import partition_for
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from tests.simulation.transactions.ledger import ClientTransaction
from tests.simulation.transactions.scripted_world import ScriptedWorld
from tests.simulation.transactions.transactional_producer import TransactionalProducer
from tests.simulation.transactions.world import INTERNAL_PARTITIONS
from tests.virtual.loop import Process

ID = "torn"
OTHER = ("output", 0)
LATE_MS = 2_000.0
LATEST_MS = 6_000.0
"""Longer than a request is held up."""


class TornWorld(ScriptedWorld):
    """One producer, one schedule."""

    def __init__(self, version: int, late: ApiKey) -> None:
        super().__init__("torn")
        self.version = version
        self.late = late
        self.first: ClientTransaction | None = None
        self.second: ClientTransaction | None = None

    async def story(self) -> None:
        process = Process(self.loop, "client#1")
        self.client = TransactionalProducer(
            *(self, process, "client", self._new_random(), ID, self.version),
            transaction_timeout_ms=60_000,
            request_timeout_ms=300,
            delivery_timeout_ms=10_000,
        )
        self.client.cancelled_share = 0.0
        if self.version < 2:
            self.data.excuse(ID)
        await process.spawn(self._schedule())

    async def _schedule(self) -> None:
        client, tamperer = self.client, self.tamperer
        await client.initialize()
        place = self._place_led_elsewhere()

        first = self.first = client.begin()
        await client.send(first, *place, [f"{first.name} first".encode()])
        tamperer.apis = frozenset({self.late})
        if self.late is ApiKey.END_TXN:
            # Nothing arrives for long on the connection with the first one; it is given up.
            tamperer.copies, tamperer.holds = 1e-9, 1.0
            resting = asyncio.ensure_future(self._rest_after_one())
            await client.end(first, is_commit=True)
            await resting
        else:
            tamperer.copies, tamperer.longest_ms = 1.0, LATE_MS
            await client.end(first, is_commit=True)

        second = self.second = client.begin()
        await client.send(second, *place, [f"{second.name} half".encode()])
        tamperer.rest()
        await self.loop.elapse(LATEST_MS)
        await client.send(second, *OTHER, [f"{second.name} other-half".encode()])
        await client.end(second, is_commit=False)

    async def _rest_after_one(self) -> None:
        while not self.counts["holds"]:
            await self.loop.elapse(0.1)
        self.tamperer.rest()

    def _place_led_elsewhere(self) -> tuple[str, int]:
        """A partition to which markers go over the network."""
        topics = self.ledger.image.topics.topics_by_name
        index = partition_for(ID, INTERNAL_PARTITIONS)
        coordinator = topics[TRANSACTION_STATE.topic].partitions[index].leader
        for name in ("input", "side"):
            for index, partition in topics[name].partitions.items():
                if partition.leader != coordinator:
                    return name, index
        raise AssertionError("one broker leads everything")


@pytest.mark.parametrize("late", [ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS])
@pytest.mark.parametrize("version", [1, 2])
def test_a_late_request_of_the_transaction_before(version: int, late: ApiKey) -> None:
    world = TornWorld(version, late)
    world.tell()
    assert world.first is not None
    assert world.second is not None
    assert set(world.first.outcomes.values()) == {True}
    assert len(world.second.outcomes) == 2
    where = {name.partition("-")[0]: outcome for name, outcome in world.second.outcomes.items()}
    assert where.pop("output") is False
    assert list(where.values()) == [version == 1], "torn with version 1, whole with version 2"
