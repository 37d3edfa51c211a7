"""What groups suffer: members that change their protocol, faulty clients, clocks off by an hour.

Owns: which group suffers what, and when its coordinator goes. Must not: look at what was promised.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any, TypeVar

from moldau.broker.coordinator.key_partitions import partition_for
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from tests.simulation.cluster.base_nemesis import Act
from tests.simulation.replication.data_broker import DataBroker
from tests.simulation.replication.nemesis import ReplicationNemesis
from tests.simulation.transactions.faulty_clients import (
    FaultyClient,
    FaultyMember,
    Hoarder,
    Impostor,
)
from tests.simulation.transactions.group_applications import OUTPUT, GroupApplication, GroupPlan
from tests.simulation.transactions.group_deletions import Deleter
from tests.simulation.transactions.members import CONSUMER
from tests.simulation.transactions.world import (
    INPUT,
    INTERNAL_PARTITIONS,
    TransactionWorld,
)
from tests.virtual.wall_clocks import HOUR_MS

ClientT = TypeVar("ClientT", bound=FaultyClient | Deleter)

LARGE_MESSAGE_BYTES = 100_000

STORY_MS = 4_000.0
MOST_HOARDS = 4
"""More of them in one run cost time and show nothing new."""


class GroupNemesis(ReplicationNemesis):
    """See the module."""

    world: TransactionWorld

    def __init__(
        self, world: TransactionWorld, random: Random, faults: Collection[str] = ()
    ) -> None:
        super().__init__(world, random, faults)
        self._stories: dict[str, float] = {}
        """The time until which what was begun with a group is not disturbed by more of its kind."""
        self._hoards = 0

    def group_acts(self) -> list[Act]:
        """What belongs into `acts`."""
        return [
            (4, self._change_over),
            (1, self._join_for_ever),
            (2, self._lose_an_hour),
            (1, self._hoard_ids),
            (1, self._hoard_offsets),
            (1, self._fill_to_the_brim),
            (1, self._claim_last_epoch),
            (0.5, self._grow_internal_topics),
        ]

    def _leader_of(self, topic: str, index: int) -> DataBroker | None:
        """Who leads a partition, when it is alive."""
        known = self.world.ledger.image.topics.topics_by_name.get(topic)
        leader = -1 if known is None else known.partitions[index].leader
        return next(
            (each for each in self.world.brokers if each.broker_id == leader and each.is_alive),
            None,
        )

    def _coordinator_of(self, group: str) -> DataBroker | None:
        index = partition_for(group, INTERNAL_PARTITIONS)
        return self._leader_of(CONSUMER_OFFSETS.topic, index)

    # -- protocols -------------------------------------------------------------------------------

    def _some_group(self, *, is_changing: bool) -> GroupPlan | None:
        plans = self.world.group_plans
        plans = [each for each in plans if each.is_changing or not is_changing]
        return self.random.choice(plans) if plans else None

    def _members_of(self, plan: GroupPlan) -> list[GroupApplication]:
        return [each for each in self.world.groups if each.plan is plan]

    def _change_over(self) -> None:
        """Members of a group change to one of its protocols, one after the other."""
        plan = self._some_group(is_changing=True)
        if plan is None:
            return
        protocol = self.random.choice(plan.protocols)
        self.world.fault_injected("members change over", f"{plan.name} to {protocol}")
        for member in self._members_of(plan):
            if self.random.random() < 0.7:
                self._later(self.random.uniform(0, 3_000), self._change, member, protocol)

    def _change(self, member: GroupApplication, protocol: str) -> None:
        if not self.is_over:
            member.change_to(protocol, leaves=self.random.random() < 0.6)

    def _in_turn(
        self, *, is_changing: bool
    ) -> tuple[GroupPlan, list[GroupApplication], list[GroupApplication]] | None:
        """A group that is not in the middle of a story, and its members that run: of the newest
        protocol, and of the others.
        """
        plan = self._some_group(is_changing=is_changing)
        now = self.world.loop.time()
        if plan is None or now < self._stories.get(plan.name, 0.0):
            return None
        members = [each for each in self._members_of(plan) if each.member is not None]
        newer = [each for each in members if each.member.protocol == CONSUMER]
        older = [each for each in members if each not in newer]
        if not members:
            return None
        self._stories[plan.name] = now + STORY_MS / 1000
        return plan, newer, older

    # -- faulty clients --------------------------------------------------------------------------

    def _join_for_ever(self) -> None:
        plan = self._some_group(is_changing=False)
        if plan is not None:
            self.world.fault_injected("session without end", plan.name)
            member = self._faulty(FaultyMember, plan)
            member.process.spawn(member.ask_for_ever())

    def _faulty(self, kind: type[ClientT], *arguments: Any) -> ClientT:
        world = self.world
        random = Random(self.random.getrandbits(64))
        return kind(world, random, world.new_faulty_client(), *arguments)

    def _new_hoarder(self, what: str) -> Hoarder | None:
        """Another hoarder, unless there were enough."""
        if self._hoards == MOST_HOARDS:
            return None
        self._hoards += 1
        self.world.fault_injected(what)
        return self._faulty(Hoarder)

    def _hoard_ids(self) -> None:
        """Hoard some ids that expire together: not all are forgotten in one batch."""
        hoarder = self._new_hoarder("ids with long names")
        if hoarder is None:
            return
        size_bytes = min(self.world.max_message_bytes // 3, 4_000)
        hoarder.process.spawn(hoarder.hoard_ids(20, size_bytes))

    def _hoard_offsets(self) -> None:
        """A batch has room for the offsets of one such group."""
        hoarder = self._new_hoarder("offsets of groups with long names")
        if hoarder is None:
            return
        places = [
            (topic, index)
            for topic in (INPUT, OUTPUT)
            for index in range(self.world.partition_count(topic))
        ]
        hoarder.process.spawn(hoarder.hoard_offsets(12, 750, places))

    def _fill_to_the_brim(self) -> None:
        if self.world.max_message_bytes < LARGE_MESSAGE_BYTES:
            self.world.fault_injected("transaction to the brim")
            hoarder = self._faulty(Hoarder)
            hoarder.process.spawn(hoarder.fill_to_the_brim(INPUT))

    def _claim_last_epoch(self) -> None:
        if self.world.first_epoch:
            self.world.fault_injected("impostor")
            impostor = self._faulty(Impostor)
            impostor.process.spawn(impostor.claim(INPUT, 10_000.0))

    def _grow_internal_topics(self) -> None:
        self.world.fault_injected("internal topics asked to grow")
        administrator = self.world.administrator
        administrator.process.spawn(administrator.grow_internal_topic())

    # -- clocks ----------------------------------------------------------------------------------

    def _lose_an_hour(self) -> None:
        """A group's coordinator has its wall clock an hour ahead, or behind, for a while; members
        come and go during that, and thereafter.
        """
        found = self._in_turn(is_changing=False)
        broker = None if found is None else self._coordinator_of(found[0].name)
        if found is None or broker is None:
            return
        plan = found[0]
        jump_ms = self.random.choice((HOUR_MS, -HOUR_MS))
        self.world.fault_injected("clock an hour off", f"{broker.host} {jump_ms}")
        self.world.wall_clocks.move(broker.host, jump_ms)
        back_ms = self.random.uniform(800, 4_000)
        self._later(self.random.uniform(0, 300), self._one_goes, plan, 100.0)
        self._later(back_ms, self._set_back, broker.host, -jump_ms)
        self._later(back_ms + self.random.uniform(0, 500), self._one_goes, plan, None)

    def _one_goes(self, plan: GroupPlan, back_ms: float | None) -> None:
        """For so long, or for good when others are left."""
        members = [each for each in self._members_of(plan) if each.member is not None]
        if members and not self.is_over:
            member = self.random.choice(members)
            member.is_away = back_ms is None and len(members) > 1
            member.go(leaves=True, back_ms=back_ms)

    def _set_back(self, host: str, jump_ms: int) -> None:
        if not self.is_over:  # else all clocks are right by now
            self.world.note(self.world.wall_clocks.move(host, jump_ms))
