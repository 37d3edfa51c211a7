"""Readers without a group: the product's consumer, of committed records and of all.

Owns: what a reader is configured with, when it goes back, and where it stands. Must not: know
transactions (`reads` compares with the ledger). Invariant: whatever a reader has skipped or handed
out between two positions is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from moldau.client import Consumer
from moldau.client.errors import KafkaError
from moldau.client.records import TopicPartition
from moldau.runtime.ports import Ports
from tests.simulation.clients import is_passing
from tests.simulation.transactions import reads
from tests.simulation.transactions.transactional_producer import keep_open
from tests.virtual.loop import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

COMMITTED, ALL = "read_committed", "read_uncommitted"
READ_ALL_S = 20
RACKS = ("", "rack-1", "rack-2", "rack-3")


class Reader:
    """One client that reads some partitions from the beginning, again and again."""

    def __init__(
        self,
        world: TransactionWorld,
        number: int,
        random: Random,
        places: list[tuple[str, int]],
        isolation_level: str = COMMITTED,
    ) -> None:
        self.world = world
        self.random = random
        self.host = f"reader-{number}"
        self.isolation_level = isolation_level
        self.places = [TopicPartition(*place) for place in places]
        self.process = Process(world.loop, self.host)
        self.network = world.fabric.port_of(self.process, self.host)
        self.process.spawn(self._run())

    def _consumer(self, rack: str) -> Consumer[bytes, bytes]:
        random = self.random
        consumer: Consumer[bytes, bytes] = Consumer(
            ",".join(f"{host}:{port}" for _, host, port in self.world.broker_addresses),
            ports=Ports(
                VirtualClock(self.world.loop), self.network, Random(random.getrandbits(64))
            ),
            isolation_level=self.isolation_level,
            auto_offset_reset="earliest",
            client_rack=rack,
            fetch_max_wait_ms=200,
            fetch_max_bytes=random.choice((1, 1_000, 1_000_000)),
            max_partition_fetch_bytes=random.choice((1, 100_000)),
            max_poll_records=random.choice((1, 5, 500)),
            request_timeout_ms=2_500,
            retry_backoff_ms=random.choice((10, 100)),
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=300,
            socket_connection_setup_timeout_ms=800,
            socket_connection_setup_timeout_max_ms=1_500,
            metadata_max_age_ms=random.choice((500, 300_000)),
            default_api_timeout_ms=5_000,
        )
        keep_open(consumer)
        return consumer

    async def _run(self) -> None:
        """One consumer after the other, each for a while."""
        world, random = self.world, self.random
        while True:
            consumer = self._consumer(random.choice(RACKS))
            consumer.assign(self.places)
            positions: dict[TopicPartition, int] = {}
            while random.random() > 0.01:
                await world.loop.elapse(random.uniform(5.0, 200.0))
                if random.random() < 0.03:
                    place = random.choice(self.places)
                    consumer.seek(place, 0)
                    positions[place] = 0
                await self._poll(consumer, positions)
            await consumer.close(random.choice((0, 1_000)))
            world.counts["readers_closed"] += 1

    async def _poll(
        self, consumer: Consumer[bytes, bytes], positions: dict[TopicPartition, int]
    ) -> None:
        try:
            found = await consumer.getmany(timeout_ms=self.random.choice((0, 200)))
        except KafkaError as error:
            if is_passing(error):
                return
            raise self.world.found("unexpected-error", f"{self.host}: {error!r}") from error
        self._take(consumer, positions, found)

    def _take(
        self,
        consumer: Consumer[bytes, bytes],
        positions: dict[TopicPartition, int],
        found: Mapping[TopicPartition, Any],
    ) -> None:
        """Compare what was handed out, and what was not, up to where the consumer stands now."""
        for place, position in consumer.positions().items():
            got = {record.offset: record.value for record in found.get(place, ())}
            self.world.guard(
                reads.check_read,
                self.world,
                self.host,
                place,
                (positions.get(place, 0), position.offset),
                got,
                self.isolation_level == COMMITTED,
            )
            positions[place] = position.offset

    async def read_all(self) -> None:
        """Everything from the beginning by a consumer that follows leaders; nothing is open any
        more. Raises Violation.
        """
        world = self.world
        consumer = self._consumer("")
        places = [
            TopicPartition(plan.name, index)
            for plan in world.topics[:3]
            for index in range(plan.partitions)
        ]
        wanted = {}
        for place in places:
            offsets = world.data.stream(f"{place.topic}-{place.partition}").offsets
            wanted[place] = offsets[-1] + 1 if offsets else 0
        consumer.assign(places)
        positions = dict.fromkeys(places, 0)
        deadline = world.loop.time() + READ_ALL_S
        while any(positions[place] < wanted[place] for place in places):
            if world.loop.time() > deadline:
                raise self.world.found(
                    "unreadable", f"{self.host} is at {positions}, not at {wanted}"
                )
            await self._poll(consumer, positions)
        await consumer.close()
