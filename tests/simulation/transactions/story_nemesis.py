"""Faults of several steps, each of which waits for the moment at which it does harm.

Owns: the steps of each story, what they wait for, and for how long. Must not: look at what was
promised. Invariant: a story has an end, and the faults stop only when all that began have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from math import inf
from random import Random
from typing import Any

from moldau.broker.coordinator.key_partitions import partition_for
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from tests.simulation.cluster.base_nemesis import Act
from tests.simulation.transactions.faulty_clients import (
    HOARD,
    FaultyMember,
    Flooder,
    Hoarder,
)
from tests.simulation.transactions.group_applications import GroupApplication, GroupPlan
from tests.simulation.transactions.group_nemesis import GroupNemesis
from tests.simulation.transactions.members import CONSUMER, GroupMember
from tests.simulation.transactions.world import INPUT, INTERNAL_PARTITIONS, TransactionWorld
from tests.virtual.loop import Process
from tests.virtual.wall_clocks import HOUR_MS

FLOODED_LINE = 100
"""A line that holds more is not flooded: it would take too long."""

FLOODERS = 3

SETTLED_MS = 9_000.0
"""For so long a story waits until its group has settled in the protocols that it needs."""

STEP_MS = 3_000.0
"""For so long it waits for what members or coordinators do then."""

Wanted = dict[GroupApplication, str]


class StoryNemesis(GroupNemesis):
    """See the module."""

    world: TransactionWorld

    def __init__(
        self, world: TransactionWorld, random: Random, faults: Collection[str] = ()
    ) -> None:
        super().__init__(world, random, faults)
        self._process = Process(world.loop, "nemesis")
        self._under_way: list[asyncio.Task[None]] = []

    def story_acts(self) -> list[Act]:
        """What belongs into `acts`."""
        return [
            (2, self._downgrade),
            (2, self._upgrade_within),
            (2, self._join_unreadable),
            (1, self._flood),
            (1, self._abandon_in_the_future),
        ]

    async def end_what_is_under_way(self) -> None:
        await super().end_what_is_under_way()
        for task in self._under_way:
            await task

    # -- the story -------------------------------------------------------------------------------

    def _tell(self, name: str, story: Coroutine[Any, Any, None]) -> None:
        self._stories[name] = inf
        self._under_way.append(self._process.spawn(self._to_its_end(name, story)))

    async def _to_its_end(self, name: str, story: Coroutine[Any, Any, None]) -> None:
        await story
        self._stories[name] = self.world.loop.time()

    async def _wait_for(
        self, condition: Callable[[], bool], limit_ms: float, *, step_ms: float = 20.0
    ) -> bool:
        """Whether it came true in time."""
        loop = self.world.loop
        until = loop.time() + limit_ms / 1000
        while not condition():
            if loop.time() >= until:
                return False
            await loop.elapse(step_ms)
        return True

    def _cast_of(self, *, is_changing: bool) -> tuple[GroupPlan, list[GroupApplication]] | None:
        """A group that is in no story, and its members that are to come back when they go."""
        found = self._in_turn(is_changing=is_changing)
        if found is None:
            return None
        plan = found[0]
        return plan, [each for each in self._members_of(plan) if not each.is_away]

    async def _settle_as(self, plan: GroupPlan, wanted: Wanted) -> bool:
        """Give each member its protocol, and wait until the group has settled."""
        for member, protocol in wanted.items():
            member.is_steady = True
            if member.member is None:
                member.next_protocol = protocol
            else:
                back_ms = self.random.uniform(1, 300)
                member.change_to(protocol, leaves=True, back_ms=back_ms)
        return await self._wait_for(lambda: self._is_settled_as(plan, wanted), SETTLED_MS)

    def _is_settled_as(self, plan: GroupPlan, wanted: Wanted) -> bool:
        for application, protocol in wanted.items():
            if not _is_in(application) or not _has(application, protocol):
                return False
        return not self.world.unsettled(plan)

    # -- protocols -------------------------------------------------------------------------------

    def _upgrade_within(self) -> None:
        """A member comes back with the new protocol while the others of its classic group, who keep
        what they have, wait for their assignment.
        """
        found = self._cast_of(is_changing=True)
        if found is not None and len(found[1]) > 1:
            self.world.fault_injected("upgrade within a rebalance", found[0].name)
            self._tell(found[0].name, self._upgrade_while_leader_thinks(*found))

    async def _upgrade_while_leader_thinks(
        self, plan: GroupPlan, members: list[GroupApplication]
    ) -> None:
        world, name = self.world, plan.name
        if await self._settle_as(plan, dict.fromkeys(members, plan.protocols[0])):
            newcomer = min(members, key=lambda each: len(_member(each).mine))
            world.held_groups.add(name)
            newcomer.is_away = True
            newcomer.go(leaves=True)
            await self._wait_for(
                lambda: world.is_thinking(name) and newcomer.member is None, STEP_MS
            )
            newcomer.is_away = False
            newcomer.next_protocol = CONSUMER
            newcomer.start()
            await self._wait_for(lambda: not world.is_thinking(name) or _is_in(newcomer), STEP_MS)
            world.held_groups.discard(name)
            if world.is_thinking(name):
                world.thinking[name].go_on()
        _let_go(members)

    def _downgrade(self) -> None:
        """The last member of the new protocol goes for good, and with its group's change to the
        classic one its coordinator.
        """
        found = self._cast_of(is_changing=True)
        if found is not None and len(found[1]) > 1:
            self.world.fault_injected("downgrade", found[0].name)
            self._tell(found[0].name, self._downgrade_and_fail_over(*found))

    async def _downgrade_and_fail_over(
        self, plan: GroupPlan, members: list[GroupApplication]
    ) -> None:
        """The others stay steady: any of them that went would begin the rebalance that is due."""
        wanted: Wanted = dict.fromkeys(members, plan.protocols[0])
        newest = self.random.choice(members)
        wanted[newest] = CONSUMER
        log, name = self.world.data.group_log, plan.name
        if not await self._settle_as(plan, wanted) or not await self._wait_for(
            lambda: set(log.member_epochs.get(name, {}).values()) == {log.generations.get(name)},
            STEP_MS,
        ):
            _let_go(members)
            return
        newest.is_away = True
        newest.go(leaves=True)
        if await self._wait_for(lambda: log.is_classic(name), STEP_MS, step_ms=1.0):
            late_ms = self.random.choice((0.0, 0.0, 20.0, 200.0)) * self.random.random()
            await self.world.loop.elapse(late_ms)
            broker = self._coordinator_of(name)
            if broker is not None:
                broker.kill()

    def _join_unreadable(self) -> None:
        """A member joins of which only the first protocol can be read; when it is in, those of the
        new protocol go for good.
        """
        found = self._cast_of(is_changing=False)
        if found is not None:
            self.world.fault_injected("unreadable member", found[0].name)
            self._tell(found[0].name, self._leave_with_unreadable(*found))

    async def _leave_with_unreadable(
        self, plan: GroupPlan, members: list[GroupApplication]
    ) -> None:
        if plan.is_changing and len(members) > 1 and self.random.random() < 0.7:
            wanted: Wanted = dict.fromkeys(members, plan.protocols[0])
            wanted[self.random.choice(members)] = CONSUMER
            await self._settle_as(plan, wanted)
        faulty = self._faulty(FaultyMember, plan)
        faulty.process.spawn(faulty.stay(self.random.uniform(2_000, 9_000)))
        await self._wait_for(lambda: faulty.generation >= 0, STEP_MS)
        newer = [each for each in members if _has(each, CONSUMER)]
        if len(newer) < len(members):
            for member in newer:
                member.is_away = True
                member.go(leaves=self.random.random() < 0.6)
        _let_go(members)

    # -- lines -----------------------------------------------------------------------------------

    def _flood(self) -> None:
        """A client fills the line of a group's partition, while replication is slow."""
        is_short = self.world.max_waiting_count < FLOODED_LINE
        found = self._cast_of(is_changing=False) if is_short else None
        leader = None if found is None else self._coordinator_of(found[0].name)
        if found is not None and leader is not None:
            self.world.fault_injected("flood", found[0].name)
            self._tell(found[0].name, self._flood_line(*found, leader.host))

    async def _flood_line(
        self, plan: GroupPlan, members: list[GroupApplication], leader: str
    ) -> None:
        world = self.world
        duration_ms = self.random.uniform(3_500, 6_000)
        late_ms = self.random.uniform(100, 300)
        others = [each.host for each in world.brokers if each.host != leader]
        for other in others:
            world.fabric.slow(leader, other, late_ms)
        for member in members:
            member.is_steady = True
        name = _name_in(partition_for(plan.name, INTERNAL_PARTITIONS), "flood")
        for _ in range(FLOODERS):
            flooder = self._faulty(Flooder)
            flooder.process.spawn(flooder.flood(name, INPUT, duration_ms))
        await world.loop.elapse(duration_ms)
        for other in others:
            world.fabric.slow(leader, other, 0.0)
        _let_go(members)

    # -- clocks ----------------------------------------------------------------------------------

    def _abandon_in_the_future(self) -> None:
        """A transaction begins while the clock of its coordinator is an hour ahead, and is left."""
        index = self.random.randrange(INTERNAL_PARTITIONS)
        leader = self._leader_of(TRANSACTION_STATE.topic, index)
        if leader is not None and not self.world.wall_clocks.is_wrong(leader.host):
            self.world.fault_injected("abandoned in the future", leader.host)
            self._tell(f"transactions {index}", self._abandon(leader.host, index))

    async def _abandon(self, host: str, index: int) -> None:
        world = self.world
        client = self._faulty(Hoarder)
        world.note(world.wall_clocks.move(host, HOUR_MS))
        name = _name_in(index, f"{HOARD}-{client}")
        begun = client.process.spawn(client.begin_and_go(name, INPUT))
        await self._wait_for(begun.done, STEP_MS)
        await world.loop.elapse(self.random.uniform(0, 500))
        world.note(world.wall_clocks.move(host, -HOUR_MS))


def _member(application: GroupApplication) -> GroupMember:
    member = application.member
    assert member is not None
    return member


def _is_in(application: GroupApplication) -> bool:
    """Whether its process is a member, and has not to join again."""
    member = application.member
    return member is not None and member.is_settled


def _has(application: GroupApplication, protocol: str) -> bool:
    """Whether its process runs, and has that protocol."""
    return application.member is not None and application.member.protocol == protocol


def _let_go(members: Iterable[GroupApplication]) -> None:
    """They come and go as they like."""
    for member in members:
        member.is_steady = False


def _name_in(index: int, prefix: str) -> str:
    """A key that lies in that partition of a coordinator's topic."""
    names = (f"{prefix}-{number}" for number in range(99))
    return next(name for name in names if partition_for(name, INTERNAL_PARTITIONS) == index)
