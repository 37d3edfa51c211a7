"""Who makes things go wrong in the replication's simulation: what `base_nemesis` does, and brokers.

Owns: what belongs together, and what brokers and their links suffer. Must not: look at what was
promised. Invariant: every fault it begins ends before the run's last phase, and is counted.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from tests.simulation.clients import ClientHost
from tests.simulation.cluster.base_nemesis import DEATHS, Act
from tests.simulation.cluster.disk import Death
from tests.simulation.cluster.disk_troubles import DiskTroubles
from tests.simulation.cluster.troubles import Troubles
from tests.simulation.replication.data_broker import DataBroker
from tests.simulation.replication.deposed_leaders import DeposedLeaders
from tests.simulation.replication.directory_nemesis import DirectoryNemesis
from tests.simulation.replication.disk_troubles import DirectoryTroubles
from tests.simulation.replication.isr_nemesis import IsrNemesis
from tests.simulation.replication.world import ReplicationWorld

SCENARIOS = (
    ("kill_broker", "broker_leaves", "cut_replication"),
    ("kill_broker", "lose_power", "crash_broker_in_operation"),
    ("cut_replication", "one_way_broker", "stop_broker", "stall_broker_disk"),
    ("isolate_broker", "stop_broker", "kill_controller"),
    ("lose_power", "lose_power_of_most", "broker_leaves"),
    ("fill_disk", "stall_broker_disk", "kill_broker"),
    ("wipe_disk", "kill_broker", "cut_replication"),
    ("fail_broker_disk", "kill_broker", "broker_leaves"),
    ("cut_replication", "kill_broker", "slow_network", "reset"),
    ("stop_broker", "isolate_broker", "reset"),
    ("fail_directory", "broker_leaves", "isolate_broker"),
    ("remove_directory", "kill_broker", "cut_replication"),
    ("exchange_directory", "fail_scan", "broker_leaves"),
    ("remove_directory_in_the_dark", "broker_leaves"),
    ("late_copies", "lag_metadata", "silence"),
    ("late_copies", "kill_broker", "unsettle"),
    ("raise_minimum", "unsettle", "broker_leaves"),
    ("lag_metadata", "cut_replication", "kill_broker"),
    ("jump_clock", "kill_broker", "broker_leaves", "lose_power"),
    ("kill_client", "pause_client", "slow_client"),
    ("pause_client", "kill_broker", "reset"),
    ("slow_client", "broker_leaves", "slow_network", "partition"),
)
"""What belongs together: half of the seeds keep to one of these."""


CONTROLLERS_DISKS = 0.25
"""So many seeds have troubles with them."""


class ReplicationNemesis(DirectoryNemesis, IsrNemesis):
    """See the module."""

    scenarios = SCENARIOS
    world: ReplicationWorld
    cuts_off_clients = 0.0
    """How often the clients of a leader that comes back alone reach no other broker."""

    def __init__(
        self, world: ReplicationWorld, random: Random, faults: Collection[str] = ()
    ) -> None:
        self._deposed = DeposedLeaders(world, faults, self.hosts, self.cuts_off_clients)
        super().__init__(world, random, faults)

    async def __call__(self) -> None:
        self._deposed.start()
        await super().__call__()

    async def end_what_is_under_way(self) -> None:
        await super().end_what_is_under_way()
        await self._deposed.ended()

    def named_acts(self) -> list[Act]:
        return [*super().named_acts(), (1, self._deposed.come_back_alone)]

    def acts(self) -> list[Act]:
        return [
            (4, self._kill_broker),
            (2, self._lose_power),
            (0.7, self._lose_power_of_most),
            (3, self._crash_broker_in_operation),
            (2, self._broker_leaves),
            (2, self._stop_broker),
            (4, self._cut_replication),
            (2, self._one_way_broker),
            (2, self._isolate_broker),
            (2, self._stall_broker_disk),
            (1, self._fill_disk),
            (0.6, self._wipe_disk),
            (0.6, self._fail_broker_disk),
            *self.directory_acts(),
            *self.isr_acts(),
            (2, self._kill_client),
            (2, self._pause_client),
            (1, self._slow_client),
            (1, self._kill_controller),
            (1, self._stop_controller),
            (1, self._resign),
            (2, self._partition),
            (2, self._reset),
            (1.5, self._slow_network),
            (1, self._jump_clock),
        ]

    def make_troubles(self) -> list[Troubles]:
        return [
            *super().make_troubles(),
            DiskTroubles(self.world, CONTROLLERS_DISKS),
            DirectoryTroubles(self.world, self.break_spare),
        ]

    def hosts(self) -> list[str]:
        world = self.world
        nodes = [node.host for node in world.controllers]
        nodes += [broker.host for broker in world.brokers]
        nodes += [producer.host for producer in world.producers]
        nodes += [consumer.host for consumer in world.consumers]
        return list(dict.fromkeys(nodes + [client.host for client in world.clients]))

    # -- clients ---------------------------------------------------------------------------------

    def _some_client(self) -> ClientHost | None:
        clients = [each for each in self.world.clients if each is not self.world.administrator]
        alive = [client for client in clients if client.process.is_alive]
        return self.random.choice(alive) if alive else None

    def _kill_client(self) -> None:
        client = self._some_client()
        if client is not None:
            self.world.fault_injected("client kill", client.host)
            client.kill()
            self._later(self.random.uniform(1.0, 1_500.0), client.recover)

    def _pause_client(self) -> None:
        client = self._some_client()
        if client is not None:
            duration_ms = self.random.choice((80.0, 1_000.0, 9_000.0)) * self.random.random()
            self.world.fault_injected("client paused", f"{client.host} {duration_ms:.0f}")
            client.pause(duration_ms)

    def _slow_client(self) -> None:
        client = self._some_client()
        if client is not None:
            duration_ms = self.random.uniform(500, 8_000)
            self.world.fault_injected("client slow", f"{client.host} {duration_ms:.0f}")
            client.slow_down(duration_ms)

    # -- brokers ---------------------------------------------------------------------------------

    def broker_died(self, broker: DataBroker) -> None:
        """Called for every death: the process is started again after a while."""
        broker.bury()
        self.change_directories(broker)
        wait_ms = self.random.choice((10.0, 300.0, 2_000.0, 6_000.0)) * self.random.random() + 1.0
        self._later(20.0 if self.is_over else wait_ms, self._start_broker, broker)

    def _start_broker(self, broker: DataBroker) -> None:
        if not broker.is_alive and not broker.is_held:
            broker.start()
            assert broker.disk is not None
            if not self.is_over and self.random.random() < 0.1:
                self._crash(broker, 120)

    def _kill_broker(self) -> None:
        broker = self._some_broker()
        if broker is not None:
            self.world.fault_injected("broker kill", broker.host)
            broker.kill()

    def _lose_power(self) -> None:
        broker = self._some_broker()
        if broker is not None:
            self.world.fault_injected("broker power loss", broker.host)
            broker.kill(Death.POWER_LOSS)

    def _lose_power_of_most(self) -> None:
        count = self.random.randint(2, len(self.world.brokers))
        chosen = self.random.sample(self.world.brokers, count)
        self.world.fault_injected("power loss of several", f"{[each.host for each in chosen]}")
        for broker in chosen:
            if broker.is_alive:
                broker.kill(Death.POWER_LOSS)

    def _crash_broker_in_operation(self) -> None:
        broker = self._some_broker()
        if broker is not None and broker.disk is not None:
            self._crash(broker, 60)

    def _crash(self, broker: DataBroker, longest: int) -> None:
        assert broker.disk is not None
        death = self.random.choice(DEATHS)
        self.world.fault_injected(f"broker {death.value} inside a disk operation", broker.host)
        broker.disk.crash_soon(self.random.randrange(1, longest), death)

    def _broker_leaves(self) -> None:
        broker = self._some_broker()
        if broker is not None and not broker.is_leaving and broker.is_ready:
            self.world.fault_injected("broker leaves", broker.host)
            broker.leave()
            self._later(12_000.0, self._kill_if_hanging, broker, broker.starts)

    def _kill_if_hanging(self, broker: DataBroker, starts: int) -> None:  # type: ignore[override]
        if broker.is_alive and broker.starts == starts:
            self.world.note(f"{broker.host} has not stopped in time")
            self.world.counts["stops_that_hung"] += 1
            broker.kill()

    def _stop_broker(self) -> None:
        broker = self._some_broker()
        if broker is not None and broker.process is not None:
            duration_ms = self.random.uniform(200, 9_000)
            self.world.fault_injected("broker stopped", f"{broker.host} {duration_ms:.0f}")
            broker.process.stop_for(duration_ms)

    # -- links -----------------------------------------------------------------------------------

    def _cut_replication(self) -> None:
        """The ways between some brokers; to controllers and clients they stay up."""
        hosts = [broker.host for broker in self.world.brokers]
        one = self.random.choice(hosts)
        others = [host for host in hosts if host != one]
        others = self.random.sample(others, self.random.randint(1, len(others)))
        self._cut([(one, each) for each in others] + [(each, one) for each in others])
        self.world.fault_injected("replication cut", f"{one} {others}")

    def _one_way_broker(self) -> None:
        """One direction between a broker and other brokers or controllers."""
        one = self.random.choice(self.world.brokers).host
        others = [broker.host for broker in self.world.brokers if broker.host != one]
        others += [node.host for node in self.world.controllers]
        others = self.random.sample(others, self.random.randint(1, len(others)))
        outwards = self.random.random() < 0.5
        self._cut([(one, each) if outwards else (each, one) for each in others])
        self.world.fault_injected("one-way cut", f"{one} {outwards} {others}")

    def _isolate_broker(self) -> None:
        """A broker without controllers, and perhaps without any other broker."""
        one = self.random.choice(self.world.brokers).host
        others = [node.host for node in self.world.controllers]
        if self.random.random() < 0.4:
            others += [broker.host for broker in self.world.brokers if broker.host != one]
        self._cut([(one, each) for each in others] + [(each, one) for each in others])
        self.world.fault_injected("broker isolated", f"{one} {others}")

    # -- disks -----------------------------------------------------------------------------------

    def _stall_broker_disk(self) -> None:
        broker = self._some_broker()
        if broker is not None and broker.disk is not None:
            duration_ms = self.random.uniform(100, 4_000)
            self.world.fault_injected("broker's disk stalls", f"{broker.host} {duration_ms:.0f}")
            broker.disk.stall(duration_ms)

    def _fill_disk(self) -> None:
        broker = self._some_broker()
        if broker is not None:
            free_bytes = self.random.choice((0, 300, 3_000))
            self.world.fault_injected("disk full", f"{broker.host} {free_bytes}")
            broker.fill_disk(free_bytes)
            self._later(self.random.uniform(300, 5_000), broker.free_disk)

    def _fail_broker_disk(self) -> None:
        """From some operation on its directory is offline; it is back after a restart."""
        broker = self._some_broker()
        if broker is not None:
            self.world.expected_disk_faults = True
            self.world.fault_injected("disk error", broker.host)
            broker.fail_disk()

    def _wipe_disk(self) -> None:
        broker = self._some_broker()
        if broker is None or not self.world.may_wipe:
            return
        self.world.fault_injected("disk wiped", broker.host)
        broker.is_held = True
        broker.kill()
        self._later(self.random.uniform(20.0, 2_000.0), self._give_disk, broker)

    def _give_disk(self, broker: DataBroker) -> None:
        broker.wipe()
        broker.is_held = False
        broker.start()

    # -- the end ---------------------------------------------------------------------------------

    def repair_others(self) -> None:
        """Every process is started, with room and a disk that answers."""
        self.repair_directories()
        for client in self.world.clients:
            client.recover()
        for broker in self.world.brokers:
            broker.free_disk()
            broker.is_mute_until = 0.0
            broker.bad_lanes.clear()
            if broker.disk is not None:
                broker.disk.faults.clear()
                broker.disk.crash_at = None
                broker.disk.stall_until = 0.0
            if broker.process is not None:
                broker.process.go_on()
            if broker.is_alive and broker.has_failed_disk:
                broker.kill()
            if not broker.is_alive:
                self._later(20.0, self._start_broker, broker)
