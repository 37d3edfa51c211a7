"""Applications that write transactions over several topics, die, come back, and have zombies.

Owns: what is written, and when an instance commits, aborts, dawdles or dies. Must not: know how
brokers work. Invariant: a value names its transaction, its partition and its place.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.transactions.coordinator_link import CoordinatorLink
from tests.simulation.transactions.transactional_client import (
    Fenced,
    MustAbort,
    TransactionalClient,
    gathered,
)
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.transactions.ledger import ClientTransaction
    from tests.simulation.transactions.world import TransactionWorld

ZOMBIE_STEPS = 3


class Application:
    """One transactional id, and its instances one after the other (or at the same time)."""

    name = "application"
    id_prefix = "txn"

    def __init__(
        self, world: TransactionWorld, number: int, random: Random, places: list[tuple[str, int]]
    ) -> None:
        self.world = world
        self.random = random
        self.host = f"{self.name}-{number}"
        self.transactional_id = f"{self.id_prefix}-{number}"
        self.places = places
        self.version = world.choose_version(random)
        self.pause_ms = random.choice((40.0, 150.0, 500.0))
        self.instances: list[Instance] = []
        self.start()

    def __repr__(self) -> str:
        return f"{self.host}(version {self.version}, {self.instances})"

    @property
    def is_drained(self) -> bool:
        """Whether no instance has anything left to do."""
        return all(each.is_idle or not each.process.is_alive for each in self.instances)

    def start(self) -> None:
        """One more instance; those before it are fenced when it has its producer id."""
        self.instances.append(self._make_instance(len(self.instances) + 1))

    def _make_instance(self, number: int) -> Instance:
        return Instance(self, number)

    def restart_later(self) -> None:
        """Another instance after a while, as long as there is something to do."""
        delay_ms = self.random.uniform(1.0, 1_500.0)
        self.world.loop.call_outside(delay_ms, self.restart)

    def restart(self) -> None:
        """Another instance, as long as there is something to do."""
        if self.world.producers_may_act:
            self.start()


class Instance:
    """One process of an application."""

    make_client = TransactionalClient

    def __init__(self, application: Application, number: int) -> None:
        self.application = application
        self.world = world = application.world
        self.random = random = Random(application.random.getrandbits(64))
        self.process = Process(world.loop, f"{application.host}#{number}")
        self.is_idle = False
        network = world.fabric.port_of(self.process, application.host)
        link = CoordinatorLink(world.loop, self.process, network, random, world.broker_addresses)
        self.client = self.make_client(
            world,
            link,
            application.transactional_id,
            str(number),
            application.version,
            timeout_ms=random.choice((1_500, 4_000, 10_000)),
        )
        self.client.reuses_sequences = application.version < 2 and random.random() < 0.5
        self.process.spawn(self._run())

    def __repr__(self) -> str:
        state = "idle" if self.is_idle else "busy" if self.process.is_alive else "dead"
        return f"{self.process.name} {state}"

    async def _run(self) -> None:
        world = self.world
        try:
            await self.client.initialize()
            while world.producers_may_act:
                await world.loop.elapse(self.random.expovariate(1 / self.application.pause_ms))
                await self._one()
        except Fenced:
            world.counts["fenced_instances"] += 1
            if self.random.random() < 0.5:
                await self._go_on_fenced()
            if self is self.application.instances[-1]:
                self.application.restart_later()
        self.is_idle = True

    async def _one(self) -> None:
        """One transaction. Raises Fenced."""
        client, random = self.client, self.random
        await client.adopt_level()
        transaction = client.begin()
        is_commit = random.random() < 0.75
        try:
            await self._write(transaction)
            await self._perhaps_something_else()
            if random.random() < 0.05:
                # Longer than the coordinator waits.
                await self.world.loop.elapse(client.timeout_ms * 1.5)
            if is_commit:
                await client.end(transaction, is_commit=True)
                return
        except MustAbort:
            self.world.counts["must_abort"] += 1
        await client.end(transaction, is_commit=False)

    async def _write(self, transaction: ClientTransaction) -> None:
        random, client = self.random, self.client
        places = random.sample(
            self.application.places, random.randint(1, min(4, len(self.application.places)))
        )
        rounds = random.choice((1, 1, 2, 3))
        number = 0
        for _ in range(rounds):
            await client.add(transaction, places)
            sends = []
            for topic, index in places:
                values = []
                for _ in range(random.choice((1, 1, 3))):
                    number += 1
                    values.append(f"{transaction.name} {topic}-{index} {number}".encode())
                sends.append(client.send(transaction, topic, index, values))
            await gathered(*sends)

    async def _perhaps_something_else(self) -> None:
        """Die in the middle, or get a successor and go on as if nothing were."""
        chance = self.random.random()
        if chance < 0.04:
            self.world.note(f"{self.process.name} dies in a transaction")
            self.world.counts["application_crashes"] += 1
            self.application.restart_later()
            self.process.kill()
            await self.world.loop.elapse(1.0)  # which never comes to its end
        elif chance < 0.08 and self is self.application.instances[-1]:
            self.world.note(f"{self.process.name} gets a successor")
            self.world.counts["zombies"] += 1
            self.application.restart()

    async def _go_on_fenced(self) -> None:
        """Somebody who does not believe that it is fenced."""
        client = self.client
        client.goes_on_when_fenced = True
        for _ in range(ZOMBIE_STEPS):
            transaction = client.begin()
            try:
                await self._write(transaction)
                await client.end(transaction, is_commit=True)
            except (MustAbort, Fenced):
                await self.world.loop.elapse(self.random.uniform(1.0, 300.0))
