"""Applications that consume in a group: plainly, or transforming and producing in transactions.

Owns: what a member does between heartbeats; joining, leaving, dying. Must not: check anything (the
ledger does). Invariant: an output names its input, so that "exactly once" can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from moldau.client.records import ConsumerGroupMetadata
from tests.simulation.transactions.consumer_members import ConsumerMembership
from tests.simulation.transactions.cooperative_members import CooperativeMembership
from tests.simulation.transactions.coordinator_link import CoordinatorLink
from tests.simulation.transactions.group_reads import read_committed
from tests.simulation.transactions.members import ClassicMembership, Membership, Place
from tests.simulation.transactions.transactional_producer import (
    Fenced,
    MustAbort,
    TransactionalProducer,
    gathered,
)
from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

OUTPUT = "output"
HEARTBEAT_MS = 300.0
DAWDLES = 0.05


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group of the run. `version`: of its transactions; 0 for plain commits of offsets.

    `protocols`: those that its members may have; of several each process chooses one.
    """

    name: str
    members: int
    version: int
    static: bool
    protocols: tuple[type[Membership], ...]
    topics: tuple[str, ...] = ()
    """That it reads, naming them by their ids; without any, those that all read."""

    @property
    def is_changing(self) -> bool:
        """Whether its members change between the protocols."""
        return len(self.protocols) > 1


def plan_group(random: Random, name: str, version: int) -> GroupPlan:
    """One by chance."""
    protocols = random.choice(PROTOCOLS)
    return GroupPlan(
        name,
        members=random.choice((1, 2, 3)) + (len(protocols) > 1),
        version=random.choice((0, version, version)),
        static=random.random() < 0.3,
        protocols=protocols,
    )


PROTOCOLS: tuple[tuple[type[Membership], ...], ...] = (
    (ClassicMembership,),
    (CooperativeMembership,),
    (ConsumerMembership,),
    *((ClassicMembership, ConsumerMembership),) * 2,
    *((CooperativeMembership, ConsumerMembership),) * 3,
)


class GroupApplication:
    """One member after the other on one host."""

    def __init__(
        self,
        world: TransactionWorld,
        plan: GroupPlan,
        host: str,
        random: Random,
        *,
        starts_within_ms: float = 1_500.0,
    ) -> None:
        self.world = world
        self.plan = plan
        self.random = random
        self.host = host
        self.instance_id = host if plan.static else None
        self.starts = 0
        self.worker: Worker | None = None
        self.next_protocol: type[Membership] | None = None
        self.back_ms: float | None = None
        self.is_away = False
        """Whether it stays away when it has gone."""
        self.is_steady = False
        """Whether its member stays, and does not dawdle, unless it is told to go."""
        self.world.loop.call_outside(random.uniform(0.0, starts_within_ms), self.start)

    def __repr__(self) -> str:
        return f"{self.host}({self.worker})"

    @property
    def is_drained(self) -> bool:
        """Whether nothing is under way."""
        worker = self.worker
        return worker is None or worker.is_over

    def start(self) -> None:
        """Unless everything is over, or it runs."""
        is_running = self.worker is not None and not self.worker.is_over
        if self.world.members_may_act and not is_running:
            self.starts += 1
            protocol = self.next_protocol or self.random.choice(self.plan.protocols)
            self.next_protocol = None
            self.worker = Worker(self, self.starts, protocol)

    def restart_later(self) -> None:
        """After a while, or as long as it was told to be away."""
        if not self.is_away:
            back_ms, self.back_ms = self.back_ms, None
            if back_ms is None:
                back_ms = self.random.uniform(1.0, 3_000.0)
            self.world.loop.call_outside(back_ms, self.start)

    def change_to(
        self, protocol: type[Membership], *, leaves: bool, back_ms: float | None = None
    ) -> None:
        """Its process ends, in good order or not, and the next one has this protocol."""
        if self.member is not None and not isinstance(self.member, protocol):
            self.next_protocol = protocol
            self.world.counts["changes_of_protocol"] += 1
            self.go(leaves=leaves, back_ms=back_ms)

    def go(self, *, leaves: bool, back_ms: float | None = None) -> None:
        """Its process ends; the next one begins so much later, or whenever it likes."""
        worker = self.worker
        if worker is None or worker.is_over:
            return
        self.back_ms = back_ms
        if leaves and worker.member.is_member:
            worker.process.spawn(worker.leave())
        else:
            worker.die()

    @property
    def member(self) -> Membership | None:
        """The membership of the process that runs."""
        return None if self.worker is None or self.worker.is_over else self.worker.member


class Worker:
    """One process."""

    def __init__(
        self, application: GroupApplication, number: int, protocol: type[Membership]
    ) -> None:
        self.application = application
        self.plan = plan = application.plan
        self.world = world = application.world
        self.random = random = Random(application.random.getrandbits(64))
        self.process = Process(world.loop, f"{application.host}#{number}")
        self.is_idle = False
        network = world.fabric.port_of(self.process, application.host)
        self.link = CoordinatorLink(
            world.loop, self.process, network, random, world.broker_addresses
        )
        self.member = protocol(
            world,
            self.link,
            plan.name,
            application.instance_id,
            list(plan.topics) or world.input_topics,
            has_topic_ids=bool(plan.topics),
        )
        self.client: TransactionalProducer | None = None
        if plan.version:
            self.client = TransactionalProducer(
                *(world, self.process, application.host, random, f"txn-{application.host}"),
                plan.version,
                transaction_timeout_ms=4_000,
            )
        self.positions: dict[Place, int] = {}
        self._read_ids: dict[Place, Any] = {}
        """Of which topic a position is, where others of its name may follow."""
        self._commits = 0
        self.process.spawn(self._run())

    def __repr__(self) -> str:
        return f"{self.process.name} {'idle' if self.is_idle else 'busy'} {self.member}"

    @property
    def is_over(self) -> bool:
        """Whether it does nothing any more."""
        return self.is_idle or not self.process.is_alive

    def die(self) -> None:
        """Its process is killed."""
        self.world.note(f"{self.process.name} dies")
        self.world.counts["member_crashes"] += 1
        self.member.drop()
        self.application.restart_later()
        self.process.kill()

    async def leave(self) -> None:
        """It leaves its group at once, whatever it has begun, and ends."""
        await self.member.leave()
        self.die()
        await self.world.loop.elapse(1.0)  # which never comes to its end

    async def _run(self) -> None:
        world = self.world
        try:
            if self.client is not None:
                await self.client.initialize()
            while world.members_may_act:
                await self._turn()
        except Fenced:
            world.counts["fenced_workers"] += 1
            self.member.drop()
            self.application.restart_later()
        else:
            self.member.drop()
        self.is_idle = True

    async def _turn(self) -> None:
        """Between two heartbeats. Raises Fenced."""
        member, loop = self.member, self.world.loop
        if not member.is_member or member.must_join:
            await member.join()
            member.has_changed = True
        member_until = loop.time() + HEARTBEAT_MS / 1000
        if member.has_changed:
            member.has_changed = False
            self.positions = {}
        missing = [place for place in member.mine if place not in self.positions]
        if missing:
            found = await member.positions(missing)
            if found is not None:
                self.positions.update(found)
                self._read_ids.update({place: self._topic_id(place) for place in found})
        if self.positions and member.is_member and not member.has_changed:
            await self._work()
        await self._perhaps_goes()
        await loop.elapse(max((member_until - loop.time()) * 1000, 5.0))
        if member.is_member:
            await member.heartbeat()

    async def _work(self) -> None:
        """Read a little of what it owns, and commit. Raises Fenced."""
        places = self.random.sample(sorted(self.positions), min(2, len(self.positions)))
        read: dict[Place, list[int]] = {}
        after: dict[Place, int] = {}
        for place in places:
            found, position = await read_committed(
                self.world, self.link, self.random, place, self.positions[place]
            )
            if position > self.positions[place]:
                read[place] = [offset for offset, _value in found]
                after[place] = position
        for place in [each for each in self.positions if self._is_replaced(each)]:
            del self.positions[place]
            after.pop(place, None)
        if not after:
            return
        if self.client is None:
            self._commits += 1
            metadata = f"{self.process.name}:{self._commits}"
            await self._dawdle()
            if await self.member.commit(after, metadata):
                self.positions.update(after)
            else:
                self.positions = {}
            return
        if await self._transform(self.client, read, after):
            self.positions.update(after)
        else:
            self.positions = {}

    def _topic_id(self, place: Place) -> Any:
        return self.link.topic_ids.get(place[0]) if self.plan.topics else None

    def _is_replaced(self, place: Place) -> bool:
        return bool(self._read_ids.get(place) != self._topic_id(place))

    async def _transform(
        self, client: TransactionalProducer, read: dict[Place, list[int]], after: dict[Place, int]
    ) -> bool:
        """One transaction; whether it was committed. Raises Fenced."""
        transaction = client.begin()
        group = self.plan.name
        count = self.world.partition_count(OUTPUT)
        outputs: dict[int, list[bytes]] = {}
        for (topic, index), read_offsets in read.items():
            for offset in read_offsets:
                place = offset % count
                value = f"{transaction.name} {OUTPUT}-{place} {group}|{topic}|{index}|{offset}"
                outputs.setdefault(place, []).append(value.encode())
        try:
            if outputs:
                await gathered(
                    *(
                        client.send(transaction, OUTPUT, place, values)
                        for place, values in sorted(outputs.items())
                    )
                )
            await self._dawdle()
            self.member.signs(transaction.name)
            member_id, instance_id, generation_id = self.member.identity
            identity = ConsumerGroupMetadata(group, generation_id, member_id, instance_id)
            await client.send_offsets(transaction, identity, after)
            await self._dawdle()
            if self.random.random() < 0.9:
                await client.end(transaction, is_commit=True)
                return True
        except MustAbort:
            self.world.counts["must_abort"] += 1
        await client.end(transaction, is_commit=False)
        if self.member.is_member:
            await self.member.heartbeat()
        return False

    @property
    def _may_go(self) -> bool:
        return self.world.members_may_go and not self.application.is_steady

    async def _dawdle(self) -> None:
        """Now and then long enough for its group to go on without it."""
        if self.random.random() < DAWDLES and self._may_go:
            self.world.counts["dawdles"] += 1
            await self.world.loop.elapse(self.random.uniform(3_500.0, 6_000.0))

    async def _perhaps_goes(self) -> None:
        """Die, or leave in good order and come back."""
        chance = self.random.random()
        if not self._may_go:
            return
        if chance < 0.02:
            self.die()
            await self.world.loop.elapse(1.0)  # which never comes to its end
        if chance < 0.04 and self.member.is_member and not self.plan.static:
            await self.member.leave()
            await self.world.loop.elapse(self.random.uniform(1.0, 1_000.0))
