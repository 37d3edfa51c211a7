"""What administrators and rivals do to living clients, beside the faults that a seed has.

Owns: which upheaval comes when, from its own random. Must not: look at what was promised.
Invariant: everything begun ends before the run's last phase: topics exist, levels are those of
the beginning (and again when a broker forwards a change late), rivals are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from random import Random
from typing import Any

from moldau.broker.coordinator.key_partitions import partition_for
from moldau.metadata.features import GROUP_VERSION, TRANSACTION_VERSION
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from tests.simulation.cluster.base_nemesis import Act
from tests.simulation.transactions import draws
from tests.simulation.transactions.draws import PASSING
from tests.simulation.transactions.group_applications import OUTPUT, GroupPlan
from tests.simulation.transactions.group_deletions import Deleter
from tests.simulation.transactions.group_nemesis import HOUR_MS
from tests.simulation.transactions.nemesis import TransactionNemesis
from tests.simulation.transactions.world import INPUT, INTERNAL_PARTITIONS, TransactionWorld

LARGEST_TOPIC = 4
RIVALRY_MS = 2_500.0
PREPARED_MS = 3_000.0


class UpheavalNemesis(TransactionNemesis):
    """See the module."""

    def __init__(
        self, world: TransactionWorld, random: Random, faults: Collection[str] = ()
    ) -> None:
        self._upheaval_random = Random(f"upheavals {world.seed}")
        self._upheavals = self._drawn(world, faults)
        names = {self._name(act) for act in self._upheavals}
        others = tuple(each for each in faults if each not in names)
        super().__init__(world, random, others)
        if faults and not others:
            self._chosen = [(1.0, self._rest)]
            self.end_troubles()
            self._deposed.is_drawn = False
        self._upheaval_pause_ms = self._upheaval_random.choice((300.0, 700.0, 1_500.0))
        if self._upheavals:
            self._wait_for_upheaval()

    def _drawn(self, world: TransactionWorld, faults: Collection[str]) -> list[Act]:
        """What the seed has, or those of `faults`."""
        drawn = world.draws
        acts: list[tuple[bool, tuple[str, ...], tuple[Callable[[], None], ...]]] = [
            (
                bool(drawn.two_phase),
                draws.FAULTS_OF_TWO_PHASE,
                (self._kill_coordinator_of_prepared,),
            ),
            (
                drawn.levels,
                draws.FAULTS_OF_LEVELS,
                (self._change_transaction_level, self._change_group_level),
            ),
            (drawn.topics, draws.FAULTS_OF_TOPICS, (self._recreate_topic, self._grow_topic)),
            (
                drawn.groups,
                draws.FAULTS_OF_GROUPS,
                (
                    self._delete_group,
                    self._delete_offsets,
                    self._empty_group,
                    self._outlive_offsets,
                ),
            ),
            (drawn.rivals, draws.FAULTS_OF_RIVALS, (self._race_for_id,)),
        ]
        return [
            (1.0, act)
            for is_drawn, names, group in acts
            for name, act in zip(names, group, strict=True)
            if is_drawn and (not faults or name in faults)
        ]

    def _rest(self) -> None:
        """No other faults were asked for."""

    def _wait_for_upheaval(self) -> None:
        delay_ms = self._upheaval_random.expovariate(1 / self._upheaval_pause_ms)
        self._later(delay_ms + 1.0, self._next_upheaval)

    def _next_upheaval(self) -> None:
        if self.is_over:
            return
        if self.world.places:  # else clients are not there yet
            self._upheaval_random.choice(self._upheavals)[1]()
        self._wait_for_upheaval()

    def _ask(self, step: Coroutine[Any, Any, Any]) -> None:
        self.world.administrator.process.spawn(step)

    # -- prepared transactions -------------------------------------------------------------------

    def _kill_coordinator_of_prepared(self) -> None:
        """As soon as something is prepared; perhaps its application dies as well."""
        if self.world.prepared:
            until = self.world.loop.time() + PREPARED_MS / 1000
            self._kill_when_prepared(until, dies=self._upheaval_random.random() < 0.5)

    def _kill_when_prepared(self, until: float, *, dies: bool) -> None:
        application = self.world.prepared[0]
        current = application.current
        if self.is_over or self.world.loop.time() > until:
            return
        if current is None or current.decided is None:
            self._later(5.0, lambda: self._kill_when_prepared(until, dies=dies))
            return
        index = partition_for(application.transactional_id, INTERNAL_PARTITIONS)
        broker = self._leader_of(TRANSACTION_STATE.topic, index)
        if broker is not None:
            self.world.fault_injected("coordinator of a prepared transaction", broker.host)
            broker.kill()
        instance = application.instances[-1]
        if dies and instance.process.is_alive and not instance.is_idle:
            application.restart_later()
            instance.process.kill()

    # -- feature levels --------------------------------------------------------------------------

    def _change_transaction_level(self) -> None:
        self._change_level(TRANSACTION_VERSION, self._upheaval_random.choice((0, 1, 2)))

    def _change_group_level(self) -> None:
        self._change_level(GROUP_VERSION, self._upheaval_random.choice((0, 1)))

    def _change_level(self, feature: str, level: int) -> None:
        if level != self.world.level_of(feature):
            self.world.fault_injected("feature level", f"{feature} {level}")
            self._ask(self.world.administrator.change_level(feature, level))

    # -- topics ----------------------------------------------------------------------------------

    def _recreate_topic(self) -> None:
        self.world.fault_injected("topic recreated", PASSING)
        self._ask(self.world.administrator.recreate())

    def _grow_topic(self) -> None:
        topic = self._upheaval_random.choice((INPUT, OUTPUT, PASSING))
        if self.world.partition_count(topic) < LARGEST_TOPIC:
            self.world.fault_injected("topic grows", topic)
            self._ask(self.world.administrator.grow_topic(topic))

    # -- groups and offsets ----------------------------------------------------------------------

    def _some_plan(self) -> GroupPlan:
        """The group that comes and goes, mostly."""
        *others, visitors = self.world.group_plans
        if others and self._upheaval_random.random() < 0.2:
            return self._upheaval_random.choice(others)
        return visitors

    def _delete_group(self) -> None:
        plan = self._some_plan()
        self.world.fault_injected("group deleted", plan.name)
        deleter = self._faulty(Deleter)
        deleter.process.spawn(deleter.delete_group(plan.name))

    def _delete_offsets(self) -> None:
        plan = self._some_plan()
        topic = self._upheaval_random.choice(plan.topics or tuple(self.world.input_topics))
        self.world.fault_injected("offset deleted", f"{plan.name} {topic}")
        deleter = self._faulty(Deleter)
        deleter.process.spawn(deleter.delete_offset(plan.name, topic, 0))

    def _empty_group(self) -> None:
        """All members go, and come back after a while; the group is deleted in between."""
        plan = self._some_plan()
        self.world.fault_injected("group without members", plan.name)
        back_ms = self._upheaval_random.uniform(200.0, 2_500.0)
        for member in self._members_of(plan):
            member.go(leaves=True, back_ms=back_ms + self._upheaval_random.uniform(0.0, 300.0))
        deleter = self._faulty(Deleter)
        self._later(
            self._upheaval_random.uniform(50.0, 400.0),
            lambda: deleter.process.spawn(deleter.delete_group(plan.name)),
        )

    def _outlive_offsets(self) -> None:
        """A coordinator's clock is an hour ahead for a while: longer than offsets are kept."""
        plan = self._some_plan()
        broker = self._coordinator_of(plan.name)
        if broker is not None:
            self.world.fault_injected("offsets grow old", broker.host)
            self.world.wall_clocks.move(broker.host, HOUR_MS)
            back_ms = self._upheaval_random.uniform(800.0, 2_500.0)
            self._later(back_ms, self._set_back, broker.host, -HOUR_MS)

    # -- static members --------------------------------------------------------------------------

    def _race_for_id(self) -> None:
        """Another process takes a static member's instance id for its own."""
        world, random = self.world, self._upheaval_random
        members = [each for each in world.groups if each.instance_id == each.host]
        if not members or any(each.member is not None for each in world.rivals):
            return
        known = random.choice(members)
        self.world.fault_injected("rival", known.host)
        number = len(world.rivals) + 1
        host = f"{known.plan.name}-rival-{number}"
        rival = world.add_member(known.plan, host, random, starts_within_ms=50.0)
        rival.instance_id = known.instance_id
        world.rivals.append(rival)
        if random.random() < 0.5:
            known.go(leaves=True, back_ms=random.uniform(0.0, 800.0))
        self._later(random.uniform(800.0, RIVALRY_MS), self._end_rivalry, rival)

    def _end_rivalry(self, rival: Any) -> None:
        rival.is_away = True
        rival.go(leaves=self._upheaval_random.random() < 0.5)
