"""What makes leaders, controllers and followers differ about who is in sync.

Owns: late and repeated requests to controllers, metadata that lags, silent brokers, and what an
administrator does to `min.insync.replicas` just then. Must not: look at what was promised.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.cluster.base_nemesis import Act, BaseNemesis
from tests.simulation.replication.administrator import TopicPlan
from tests.simulation.replication.data_broker import DataBroker
from tests.simulation.replication.late_requests import LANES
from tests.simulation.replication.world import ReplicationWorld


class IsrNemesis(BaseNemesis):
    """See the module."""

    world: ReplicationWorld

    _unsettled_until = 0.0

    def isr_acts(self) -> list[Act]:
        """What belongs into `acts`."""
        return [
            (2, self._late_copies),
            (2, self._lag_metadata),
            (1, self._silence),
            (1, self._unsettle),
            (1, self._raise_minimum),
        ]

    def _some_broker(self) -> DataBroker | None:
        alive = [broker for broker in self.world.brokers if broker.is_alive]
        return self.random.choice(alive) if alive else None

    def _some_leader(self) -> tuple[TopicPlan, DataBroker, DataBroker] | None:
        """The leader of a partition, with a follower that is in sync, both of them alive."""
        topics, found = self.world.ledger.image.topics.topics_by_name, []
        for plan in self.world.topics:
            topic = topics.get(plan.name)
            for partition in topic.partitions.values() if topic is not None else ():
                for follower in partition.isr:
                    if partition.leader not in (-1, follower):
                        found.append((plan, partition.leader, follower))
        found = [
            (plan, leader, follower)
            for plan, leader, follower in found
            if self._broker(leader).is_alive and self._broker(follower).is_alive
        ]
        if not found:
            return None
        plan, leader, follower = self.random.choice(found)
        return plan, self._broker(leader), self._broker(follower)

    def _broker(self, broker_id: int) -> DataBroker:
        return self.world.brokers[broker_id - 1]

    # -- requests and metadata -------------------------------------------------------------------

    def _spoil(self, broker: DataBroker, lane: str, duration_ms: float) -> None:
        if not self.is_over:
            broker.bad_lanes[lane] = self.world.loop.time() + duration_ms / 1000

    def _lag(self, broker: DataBroker, duration_ms: float) -> None:
        if not self.is_over:
            broker.lag_metadata(duration_ms)

    def _late_copies(self) -> None:
        """What a broker asks controllers for comes late, and its sender has asked again by then."""
        broker = self.random.choice(self.world.brokers)
        duration_ms = self.random.uniform(200, 6_000)
        lanes = self.random.sample(LANES, self.random.randint(1, len(LANES)))
        self.world.fault_injected("late copies", f"{broker.host} {lanes} {duration_ms:.0f}")
        for lane in lanes:
            self._spoil(broker, lane, duration_ms)

    def _lag_metadata(self) -> None:
        broker = self._some_broker()
        if broker is not None:
            duration_ms = self.random.uniform(100, 5_000)
            self.world.fault_injected("metadata lag", f"{broker.host} {duration_ms:.0f}")
            self._lag(broker, duration_ms)

    # -- who is in sync --------------------------------------------------------------------------

    @property
    def _session_ms(self) -> float:
        return float(self.world.controller_overrides["broker.session.timeout.ms"])

    def _mute(self, broker: DataBroker, duration_ms: float) -> None:
        if not self.is_over:
            broker.is_mute_until = self.world.loop.time() + duration_ms / 1000

    def _silence(self) -> None:
        """No heartbeat of a broker arrives for about a session; all else does."""
        broker = self._some_broker()
        if broker is not None:
            duration_ms = self._session_ms * self.random.uniform(0.8, 1.6)
            self.world.fault_injected("heartbeats lost", f"{broker.host} {duration_ms:.0f}")
            self._mute(broker, duration_ms)

    def _unsettle(self) -> None:
        """A follower is fenced, comes back, and is fenced again while the proposal that it joins
        the ISR is on its way, perhaps more than once; its leader hears of it late.
        """
        now, session_ms = self.world.loop.time(), self._session_ms
        found = self._some_leader() if now >= self._unsettled_until else None
        if found is None:
            return
        _plan, leader, follower = found
        draw = self.random.uniform
        self.world.fault_injected("unsettled", f"{leader.host} {follower.host}")
        self._mute(follower, session_ms * 1.2)
        back_ms = session_ms * 1.2 + draw(50, 500)
        fenced_ms = back_ms + session_ms * draw(1.0, 1.2)
        again_ms = fenced_ms + session_ms * draw(0.1, 0.7)
        self._later(
            back_ms - 100, self._spoil, leader, LANES[0], fenced_ms - back_ms + draw(0, 300)
        )
        self._later(back_ms, self._mute, follower, again_ms - back_ms)
        self._later(fenced_ms + draw(0, 200), self._lag, leader, draw(2_000, 5_000))
        self._unsettled_until = now + (again_ms + 1_000) / 1000

    def _raise_minimum(self) -> None:
        """`min.insync.replicas` grows while a leader that hears of it late loses its followers."""
        found = self._some_leader()
        if found is None or not self.world.administrator.may_alter:
            return
        plan, leader, _follower = found
        draw, world = self.random.uniform, self.world
        lag_ms = float(world.broker_overrides["replica.lag.time.max.ms"])
        world.fault_injected("minimum raised", f"{plan.name} {leader.host}")
        begin_ms = draw(100, 600)
        self._ask(world.administrator.set_minimum(plan, "1"))
        self._later(begin_ms, self._lag, leader, lag_ms * draw(1.2, 2.0) + 1_000)
        self._later(begin_ms, self._cut_off, leader, lag_ms * draw(1.0, 2.0) + 500)
        self._later(begin_ms + draw(10, lag_ms), self._set_minimum_late, plan)

    def _set_minimum_late(self, plan: TopicPlan) -> None:
        if not self.is_over:
            self._ask(self.world.administrator.set_minimum(plan, "2"))

    def _ask(self, request: Any) -> None:
        self.world.administrator.process.spawn(request)

    def _cut_off(self, broker: DataBroker, duration_ms: float) -> None:
        """From the other brokers, not from controllers and clients."""
        if self.is_over:
            return
        others = [each.host for each in self.world.brokers if each is not broker]
        directions = [(broker.host, each) for each in others]
        directions += [(each, broker.host) for each in others]
        for direction in directions:
            self.world.fabric.block(*direction)
        self._later(duration_ms, self._mend, directions)
