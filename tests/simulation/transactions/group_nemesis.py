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
from tests.simulation.transactions.consumer_members import ConsumerMembership
from tests.simulation.transactions.faulty_clients import (
    FaultyClient,
    FaultyMember,
    Flooder,
    Hoarder,
    Impostor,
)
from tests.simulation.transactions.group_applications import OUTPUT, GroupApplication, GroupPlan
from tests.simulation.transactions.members import Membership
from tests.simulation.transactions.world import (
    INPUT,
    INTERNAL_PARTITIONS,
    SLOW_ASSIGNMENTS,
    TransactionWorld,
)

ClientT = TypeVar("ClientT", bound=FaultyClient)

FLOODED_LINE = 100
"""A line that holds more is not flooded: it would take too long."""

FLOODERS = 3
LARGE_MESSAGE_BYTES = 100_000

DOWNGRADE_MS = 9_000.0
"""For so long a coordinator's death waits for its group to be classic."""

STORY_MS = 4_000.0
HOUR_MS = 3_600_000


class GroupNemesis(ReplicationNemesis):
    """See the module."""

    world: TransactionWorld

    _flooded_until = 0.0

    def __init__(
        self, world: TransactionWorld, random: Random, faults: Collection[str] = ()
    ) -> None:
        super().__init__(world, random, faults)
        self._stories: dict[str, float] = {}
        """Until when what was begun with a group is not disturbed by more of its kind."""

    def group_acts(self) -> list[Act]:
        """What belongs into `acts`."""
        return [
            (4, self._change_over),
            (2, self._downgrade),
            (2, self._upgrade_within),
            (2, self._join_unreadable),
            (1, self._join_for_ever),
            (2, self._lose_an_hour),
            (1, self._flood),
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
        self.world.fault_injected("members change over", f"{plan.name} to {protocol.__name__}")
        for member in self._members_of(plan):
            if self.random.random() < 0.7:
                self._later(self.random.uniform(0, 3_000), self._change, member, protocol)

    def _change(self, member: GroupApplication, protocol: type[Membership]) -> None:
        if not self.is_over:
            member.change_to(protocol, leaves=self.random.random() < 0.6)

    def _in_turn(
        self, *, is_changing: bool
    ) -> tuple[GroupPlan, list[GroupApplication], list[GroupApplication]] | None:
        """A group that is not in the middle of such a story, and its members that run: of the
        newest protocol, and of the others.
        """
        plan = self._some_group(is_changing=is_changing)
        now = self.world.loop.time()
        if plan is None or now < self._stories.get(plan.name, 0.0):
            return None
        members = [each for each in self._members_of(plan) if each.member is not None]
        newer = [each for each in members if isinstance(each.member, ConsumerMembership)]
        older = [each for each in members if each not in newer]
        if not members:
            return None
        self._stories[plan.name] = now + STORY_MS / 1000
        return plan, newer, older

    def _downgrade(self) -> None:
        """The last members of the new protocol go for good, and soon after the coordinator."""
        found = self._in_turn(is_changing=True)
        if found is None:
            return
        plan, newer, older = found
        self.world.fault_injected("downgrade", plan.name)
        if not older or not newer:
            protocol = plan.protocols[0] if not older else ConsumerMembership
            self._change(self.random.choice(newer or older), protocol)
        self._later(self.random.uniform(800, 2_000), self._leave_to_classic, plan)

    def _leave_to_classic(self, plan: GroupPlan) -> None:
        members = self._members_of(plan)
        newer = [each for each in members if isinstance(each.member, ConsumerMembership)]
        if self.is_over or not newer or len(newer) == len(members):
            return
        for member in newer:
            member.is_away = True
            member.go(leaves=True)
        until = self.world.loop.time() + DOWNGRADE_MS / 1000
        delay_ms = self.random.choice((0.0, 20.0, 200.0)) * self.random.random()
        self._kill_downgraded(plan.name, until, delay_ms)

    def _upgrade_within(self) -> None:
        """A member comes back with the new protocol while the others of its classic group wait for
        their assignment.
        """
        found = self._in_turn(is_changing=True)
        if found is None:
            return
        plan, newer, _older = found
        self.world.fault_injected("upgrade within a rebalance", plan.name)
        for member in newer:
            self._change(member, plan.protocols[0])
        wait_ms = self.random.uniform(600, 1_500) if newer else 0.0
        self._later(wait_ms, self._leave_to_upgrade, plan)

    def _leave_to_upgrade(self, plan: GroupPlan) -> None:
        members = [each for each in self._members_of(plan) if each.member is not None]
        if self.is_over or not members:
            return
        self.world.slow_assignments = 1.0
        member = self.random.choice(members)
        member.next_protocol = ConsumerMembership
        member.go(leaves=True, back_ms=self.random.uniform(100, 900))
        self._later(3_000.0, self._hasten)

    def _hasten(self) -> None:
        if not self.is_over:
            self.world.slow_assignments = SLOW_ASSIGNMENTS

    def _kill_downgraded(self, group: str, until: float, delay_ms: float) -> None:
        if self.is_over or self.world.loop.time() > until:
            return
        if not self.world.data.group_log.is_classic(group):
            self._later(5.0, self._kill_downgraded, group, until, delay_ms)
        else:
            self._later(delay_ms, self._kill_coordinator_of, group)

    def _kill_coordinator_of(self, group: str) -> None:
        broker = self._coordinator_of(group)
        if broker is not None and not self.is_over:
            broker.kill()

    # -- faulty clients --------------------------------------------------------------------------

    def _join_unreadable(self) -> None:
        plan = self._some_group(is_changing=False)
        if plan is not None:
            self.world.fault_injected("unreadable member", plan.name)
            member = self._faulty(FaultyMember, plan)
            member.process.spawn(member.stay(self.random.uniform(2_000, 9_000)))

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

    def _flood(self) -> None:
        """A client fills the line of a group's partition, while replication is slow."""
        plan, now = self._some_group(is_changing=False), self.world.loop.time()
        leader = None if plan is None else self._coordinator_of(plan.name)
        is_short = self.world.max_waiting_count < FLOODED_LINE
        if plan is None or leader is None or not is_short or now < self._flooded_until:
            return
        self.world.fault_injected("flood", plan.name)
        duration_ms = self.random.uniform(3_500, 6_000)
        self._flooded_until = now + duration_ms / 1000
        others = [each.host for each in self.world.brokers if each is not leader]
        late_ms = self.random.uniform(100, 300)
        for other in others:
            self.world.fabric.slow(leader.host, other, late_ms)
            self._later(duration_ms, self.world.fabric.slow, leader.host, other, 0.0)
        group = next(
            name
            for name in (f"flood-{number}" for number in range(99))
            if partition_for(name, INTERNAL_PARTITIONS)
            == partition_for(plan.name, INTERNAL_PARTITIONS)
        )
        for _ in range(FLOODERS):
            flooder = self._faulty(Flooder)
            flooder.process.spawn(flooder.flood(group, INPUT, duration_ms))

    def _hoard_ids(self) -> None:
        self.world.fault_injected("ids with long names")
        hoarder = self._faulty(Hoarder)
        hoarder.process.spawn(hoarder.hoard_ids(20, self.world.max_message_bytes // 20 % 1_500))

    def _hoard_offsets(self) -> None:
        self.world.fault_injected("offsets of groups with long names")
        hoarder = self._faulty(Hoarder)
        places = [
            (topic, index)
            for topic in (INPUT, OUTPUT)
            for index in range(self.world.partition_count(topic))
        ]
        hoarder.process.spawn(hoarder.hoard_offsets(12, 150, places))

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
        come and go meanwhile, and thereafter.
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
