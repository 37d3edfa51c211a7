"""Applications of transactional ids, which die, are closed and are fenced in every phase.

Owns: what an application writes, in which transactions, and its instances one after the other (or
at the same time). Must not: check anything (the ledger does). Invariant: a value names its
transaction, its partition and its number there.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.transactions.transactional_producer import (
    Fenced,
    MustAbort,
    TransactionalProducer,
    gathered,
)
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.transactions.ledger import ClientTransaction
    from tests.simulation.transactions.world import TransactionWorld


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

    application: Application

    def __init__(self, application: Application, number: int) -> None:
        self.application = application
        self.world = world = application.world
        self.random = random = Random(application.random.getrandbits(64))
        self.process = Process(world.loop, f"{application.host}#{number}")
        self.is_idle = False
        self.client = TransactionalProducer(
            world,
            self.process,
            application.host,
            random,
            application.transactional_id,
            application.version,
            **self.settings(),
        )
        self.process.spawn(self._run())

    def __repr__(self) -> str:
        state = "idle" if self.is_idle else "busy" if self.process.is_alive else "dead"
        return f"{self.process.name} {state} ({self.client.state.value})"

    def settings(self) -> dict[str, object]:
        """The settings of its producer, besides what is drawn."""
        return {}

    @property
    def is_newest(self) -> bool:
        """Whether no other instance has been started since."""
        return self.application.instances[-1] is self

    async def _run(self) -> None:
        world = self.world
        try:
            await self._begin()
            while self._goes_on():
                await world.loop.elapse(self.random.expovariate(1 / self.application.pause_ms))
                await self._one()
        except Fenced:
            world.counts["fenced_instances"] += 1
            if self.is_newest:
                self.application.restart_later()
        await self.client.close(None, self.random.choice((0.0, 500.0)))
        self.is_idle = True

    def _goes_on(self) -> bool:
        return self.world.producers_may_act

    async def _begin(self) -> None:
        await self.client.initialize()

    async def _one(self) -> None:
        """One transaction. Raises Fenced."""
        client, random = self.client, self.random
        transaction = client.begin()
        is_commit = random.random() < 0.75
        try:
            await self._write(transaction)
            await self._perhaps_something_else(transaction)
            if random.random() < 0.05:
                # Longer than the coordinator waits.
                longest_ms = client.producer.config.transaction_timeout_ms
                await self.world.loop.elapse(longest_ms * 1.5)
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
            sends = []
            for topic, index in places:
                values = []
                for _ in range(random.choice((1, 1, 3))):
                    number += 1
                    values.append(f"{transaction.name} {topic}-{index} {number}".encode())
                sends.append(client.send(transaction, topic, index, values))
            if random.random() < 0.2:
                # The end of the transaction is what waits for them.
                for send in sends:
                    self.process.spawn(_in_background(send))
                await self.world.loop.elapse(0.0)
            else:
                await gathered(*sends)

    async def _perhaps_something_else(self, transaction: ClientTransaction) -> None:
        """Die sooner or later, stand still, close, or get a successor and go on regardless."""
        chance = self.random.random()
        application, world = self.application, self.world
        if chance < 0.04:
            delay_ms = self.random.choice((0.0, self.random.uniform(0.0, 60.0)))
            world.loop.call_outside(delay_ms, self._die)
            await world.loop.elapse(1.0)
        elif chance < 0.08 and self.is_newest:
            world.note(f"{self.process.name} gets a successor")
            world.counts["zombies"] += 1
            application.restart()
        elif chance < 0.11:
            world.counts["pauses"] += 1
            longest_ms = self.client.producer.config.transaction_timeout_ms
            self.process.stop_for(self.random.uniform(100.0, min(longest_ms, 5_000) * 1.5))
            await world.loop.elapse(1.0)
        elif chance < 0.15:
            world.note(f"{self.process.name} closes in a transaction")
            await self.client.close(transaction, self.random.choice((0.0, 50.0, 5_000.0, 5_000.0)))
            raise Fenced("closed")

    def _die(self) -> None:
        if self.process.is_alive and not self.is_idle:
            self.world.note(f"{self.process.name} dies in a transaction")
            self.world.counts["application_crashes"] += 1
            self.application.restart_later()
            self.process.kill()


async def _in_background(send: object) -> None:
    """The transaction's end brings its failure to light."""
    try:
        await send  # type: ignore[misc]
    except (MustAbort, Fenced):
        return


class Witness:
    """A producer whose calls all succeed, and in time, since the cluster is whole: although its
    coordinator moves. One end may be refused, by a leader that has not heard of its successor.
    """

    def __init__(self, world: TransactionWorld, random: Random) -> None:
        self.world = world
        self.process = Process(world.loop, "witness#1")
        self.client = TransactionalProducer(
            *(world, self.process, "witness", random, "txn-witness", world.choose_version(random)),
            transaction_timeout_ms=60_000,
            request_timeout_ms=2_500,
            delivery_timeout_ms=20_000,
            max_block_ms=20_000,
        )
        self.client.is_calm = True

    async def testify(self, until: Callable[[], bool]) -> None:
        """Transactions, at least one, to all partitions. Raises Violation."""
        client, world = self.client, self.world
        await client.initialize()
        places = [place for place in world.places if place[0] not in world.data.recreated]
        while True:
            transaction = client.begin()
            sends = [
                client.send(transaction, *place, [f"{transaction.name} {place} last".encode()])
                for place in places
            ]
            await gathered(*sends)
            await client.end(transaction, is_commit=client.random.random() < 0.7)
            if until():
                break
            await world.loop.elapse(client.random.uniform(20.0, 200.0))
        await client.close(None, 5_000.0)
