"""Applications that consume in a group: plainly, or transforming and producing in transactions.

Owns: what a member does between heartbeats; joining, leaving, dying. Must not: check anything (the
ledger does). Invariant: an output names its input, so that "exactly once" can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.transactions.group_watch import Place
from tests.simulation.transactions.members import CONSUMER, GroupMember, MustEnd
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
SIDE = "side"
POLL_MS = 300.0
DAWDLES = 0.05
LOOKS_UP = 0.05
PAUSES = 0.4
"""The share of dawdling processes that do nothing at all, as stopped ones."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group of the run. `version`: of its transactions; 0 for plain commits of offsets.

    `protocols`: those that its members may have; of several each process chooses one.
    `is_automatic`: whether offsets are committed automatically.
    """

    name: str
    members: int
    version: int
    static: bool
    protocols: tuple[str, ...]
    is_automatic: bool = False
    topics: tuple[str, ...] = ()
    """That it reads; without any, those that all read."""

    @property
    def is_changing(self) -> bool:
        """Whether its members change between the protocols."""
        return len(self.protocols) > 1


def plan_group(random: Random, name: str, version: int) -> GroupPlan:
    """One by chance."""
    protocols = random.choice(PROTOCOLS)
    version = random.choice((0, version, version))
    return GroupPlan(
        name,
        members=random.choice((1, 2, 3)) + (len(protocols) > 1),
        version=version,
        static=random.random() < 0.3,
        protocols=protocols,
        is_automatic=not version and random.random() < 0.5,
    )


PROTOCOLS: tuple[tuple[str, ...], ...] = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    (CONSUMER,),
    *(("range", CONSUMER),) * 2,
    *(("cooperative-sticky", CONSUMER),) * 3,
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
        self.next_protocol: str | None = None
        self.back_ms: float | None = None
        self.is_away = False
        """Whether it stays away when it has gone."""
        self.is_steady = False
        """Whether its member stays, and does not dawdle, unless it is asked to go."""
        self.world.loop.call_outside(random.uniform(0.0, starts_within_ms), self.start)

    def __repr__(self) -> str:
        return f"{self.host}({self.worker})"

    @property
    def is_drained(self) -> bool:
        """Whether nothing is under way."""
        worker = self.worker
        return worker is None or worker.is_over

    def start(self) -> None:
        """Start a process, unless everything is over, or one runs."""
        is_running = self.worker is not None and not self.worker.is_over
        if self.world.members_may_act and not is_running:
            self.starts += 1
            protocol = self.next_protocol or self.random.choice(self.plan.protocols)
            self.next_protocol = None
            self.worker = Worker(self, self.starts, protocol)

    def restart_later(self) -> None:
        """After a while, or as long as it was asked to be away."""
        if not self.is_away:
            back_ms, self.back_ms = self.back_ms, None
            if back_ms is None:
                back_ms = self.random.uniform(1.0, 3_000.0)
            self.world.loop.call_outside(back_ms, self.start)

    def change_to(self, protocol: str, *, leaves: bool, back_ms: float | None = None) -> None:
        """Its process ends, in good order or not, and the next one has this protocol."""
        if self.member is not None and self.member.protocol != protocol:
            self.next_protocol = protocol
            self.world.counts["changes_of_protocol"] += 1
            self.go(leaves=leaves, back_ms=back_ms)

    def go(self, *, leaves: bool, back_ms: float | None = None) -> None:
        """Its process ends; the next one begins so much later, or whenever it likes."""
        worker = self.worker
        if worker is None or worker.is_over:
            return
        self.back_ms = back_ms
        if leaves:
            worker.must_leave = True
        else:
            worker.die()

    @property
    def member(self) -> GroupMember | None:
        """That of the process that runs."""
        return None if self.worker is None or self.worker.is_over else self.worker.member


class Worker:
    """One process."""

    def __init__(self, application: GroupApplication, number: int, protocol: str) -> None:
        self.application = application
        self.plan = plan = application.plan
        self.world = world = application.world
        self.random = random = Random(application.random.getrandbits(64))
        self.process = Process(world.loop, f"{application.host}#{number}")
        self.is_idle = False
        self.must_leave = False
        self.member = GroupMember(
            *(world, self.process, application.host, random, plan.name, protocol),
            instance_id=application.instance_id,
            topics=list(plan.topics) or world.input_topics,
            commits_automatically=plan.is_automatic,
        )
        self.client: TransactionalProducer | None = None
        if plan.version:
            self.client = TransactionalProducer(
                *(world, self.process, application.host, random, f"txn-{application.host}"),
                plan.version,
                transaction_timeout_ms=4_000,
            )
        self._has_side = False
        self._must_go_back = False
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
        self.application.restart_later()
        self._end()

    def _end(self) -> None:
        self.is_idle = True
        self.member.watch.ended()
        self.process.kill()

    async def _run(self) -> None:
        world = self.world
        try:
            if self.client is not None:
                await self.client.initialize()
            self.member.subscribe()
            while world.members_may_act and not self.must_leave:
                await self._turn()
        except (Fenced, MustEnd) as error:
            world.counts[f"ended by {type(error).__name__}"] += 1
            world.note(f"{self.process.name} ends: {error}")
        await self._leave()

    async def _leave(self) -> None:
        """Leave in good order; the next process may follow."""
        self.world.note(f"{self.process.name} leaves")
        await self.member.close()
        self.world.counts["leaves"] += 1
        if self.world.members_may_act:
            self.application.restart_later()
        self._end()

    async def _turn(self) -> None:
        """One poll, and what becomes of it. Raises Fenced, MustEnd."""
        member = self.member
        if self._must_go_back:
            self._must_go_back = not await member.go_back()
        found = {} if self._must_go_back else await member.getmany(POLL_MS)
        if self._must_go_back:
            await member.poll_nothing(POLL_MS)
        self._process(found)
        if found and self.client is not None:
            self._must_go_back = not await self._transform(self.client, found)
        elif found and not self.plan.is_automatic:
            await self._dawdle()
            await member.commit()
        if self.random.random() < LOOKS_UP:
            await member.look_up()
        await self._perhaps_goes()
        await self.world.loop.elapse(self.random.uniform(1.0, 200.0))

    def _process(self, found: dict[Place, dict[int, Any]]) -> None:
        for place, records in found.items():
            key = (self.plan.name, *place)
            self.world.data.processed.setdefault(key, set()).update(records)

    async def _transform(
        self, client: TransactionalProducer, found: dict[Place, dict[int, Any]]
    ) -> bool:
        """One transaction; whether it was committed. Raises Fenced."""
        consumer = self.member.consumer
        standing, identity = consumer.positions(), consumer.group_metadata()
        transaction = client.begin()
        group = self.plan.name
        count = self.world.partition_count(OUTPUT)
        outputs: dict[int, list[bytes]] = {}
        for (topic, index), read_offsets in found.items():
            for offset in read_offsets:
                place = offset % count
                value = f"{transaction.name} {OUTPUT}-{place} {group}|{topic}|{index}|{offset}"
                outputs.setdefault(place, []).append(value.encode())
        try:
            await gathered(
                *(
                    client.send(transaction, OUTPUT, place, values)
                    for place, values in sorted(outputs.items())
                )
            )
            await self._dawdle()
            self.member.signs(transaction.name, identity)
            after = {tuple(place): each.offset for place, each in standing.items()}
            await client.send_offsets(transaction, identity, after)
            await self._dawdle()
            if self.random.random() < 0.9:
                await client.end(transaction, is_commit=True)
                return True
        except MustAbort:
            self.world.counts["must_abort"] += 1
        await client.end(transaction, is_commit=False)
        return False

    @property
    def _may_go(self) -> bool:
        return self.world.members_may_go and not self.application.is_steady

    async def _dawdle(self) -> None:
        """Now and then long enough for its group to go on without it."""
        if self.random.random() < DAWDLES and self._may_go:
            self.world.counts["dawdles"] += 1
            duration_ms = self.random.uniform(3_500.0, 6_000.0)
            if self.random.random() < PAUSES:
                self.process.stop_for(duration_ms)
            await self.world.loop.elapse(duration_ms)

    async def _perhaps_goes(self) -> None:
        """Die, leave in good order, or read other topics as well."""
        chance = self.random.random()
        if self._is_to_rebalance():
            self._change_subscription()
        if not self._may_go:
            return
        if chance < 0.02:
            self.die()
            await self.world.loop.elapse(1.0)  # which never comes to its end
        if chance < 0.04:
            self.must_leave = not self.plan.static
        elif chance < 0.06 and not self.plan.topics:
            self._change_subscription()

    def _change_subscription(self) -> None:
        self.world.counts["changed_subscriptions"] += 1
        self._has_side = not self._has_side
        self.member.subscribe(*((SIDE,) if self._has_side else ()))

    def _is_to_rebalance(self) -> bool:
        """Whether a partition has no owner because the member that gave it up was replaced before
        it joined again. In the run's last phase an application changes its subscription then:
        nothing else begins a rebalance.
        """
        world, log = self.world, self.world.data.group_log
        return not world.members_may_go and any(
            log.is_left_over(self.plan.name, (topic, index))
            for topic in self.member.topics
            for index in range(world.partition_count(topic))
        )
