"""Who makes things go wrong: kills, power losses, pauses, partitions, bad disks, slow networks.

Owns: the choice of faults and when they end. Must not: look at what the cluster promises.
Invariant: every fault it begins ends before the run's last phase, and is counted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.cluster.brokers import SimulatedBroker
from tests.simulation.cluster.disk import Death
from tests.simulation.cluster.node import ControllerNode

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

DEATHS = (Death.KILL, Death.KILL, Death.POWER_LOSS)


SCENARIOS = (
    ("storage_outage", "kill_controller", "crash_on_file"),
    ("storage_outage", "partition", "one_way", "kill_broker"),
    ("stop_controller", "partition", "resign", "stall_disk"),
    ("one_way", "partition", "reset", "slow_network", "stop_controller"),
    ("crash_on_file", "crash_in_operation", "fail_disk", "controller_leaves"),
    ("kill_broker", "broker_leaves", "stop_broker", "kill_controller"),
    ("replace_voter", "kill_controller", "partition", "resign"),
)
"""What belongs together: half of the seeds keep to one of these."""


class Nemesis:
    """Acts at random times until the chaos is over, then repairs everything."""

    def __init__(self, world: World, random: Random, faults: Collection[str] = ()) -> None:
        """`faults` names what it is to keep to, as in SCENARIOS; the seed chooses without."""
        self.world = world
        self.random = random
        self.pause_ms = random.choice((300.0, 1_000.0, 3_000.0))
        self.is_over = False
        self._acts: list[tuple[float, Callable[[], None]]] = [
            (3, self._kill_controller),
            (3, self._crash_in_operation),
            (3, self._crash_on_file),
            (0.5, self._kill_all_controllers),
            (1.5, self._controller_leaves),
            (1, self._resign),
            (1, self._replace_voter),
            (2, self._stop_controller),
            (3, self._partition),
            (2, self._one_way),
            (2, self._reset),
            (1.5, self._stall_disk),
            (2, self._storage_outage),
            (1, self._fail_disk),
            (1.5, self._slow_network),
            (2, self._kill_broker),
            (2, self._broker_leaves),
            (1, self._stop_broker),
        ]
        # Few kinds at a time meet each other more often than all of them would.
        kept = random.sample(self._acts, random.randint(2, 9))
        if random.random() < 0.5:
            names = random.choice(SCENARIOS)
            kept = [each for each in self._acts if self._name(each) in names]
        if faults:
            kept = [each for each in self._acts if self._name(each) in faults]
            assert len(kept) == len(faults), (
                f"there are {[self._name(each) for each in self._acts]}"
            )
        self._chosen = [each for each in self._acts if each in kept]

    @staticmethod
    def _name(act: tuple[float, Callable[[], None]]) -> str:
        return act[1].__name__.strip("_")

    async def __call__(self) -> None:
        world = self.world
        until = world.loop.time() + world.plan.chaos_ms / 1000
        weights = [weight for weight, _act in self._chosen]
        acts = [act for _weight, act in self._chosen]
        while True:
            await world.loop.elapse(self.random.expovariate(1 / self.pause_ms))
            if world.loop.time() >= until:
                break
            self.random.choices(acts, weights)[0]()
        self._repair()

    def _later(self, delay_ms: float, callback: Callable[..., None], *arguments: object) -> None:
        self.world.loop.call_outside(delay_ms, callback, *arguments)

    # -- controllers -----------------------------------------------------------------------------

    def _some_controller(self) -> ControllerNode | None:
        alive = [node for node in self.world.controllers if node.is_alive]
        active = [node for node in alive if node.is_active]
        if active and self.random.random() < 0.4:
            return self.random.choice(active)
        return self.random.choice(alive) if alive else None

    def _kill_controller(self) -> None:
        node = self._some_controller()
        if node is not None:
            death = self.random.choice(DEATHS)
            self.world.fault_injected(f"controller {death.value}", node.host)
            node.kill(death)

    def _kill_all_controllers(self) -> None:
        death = self.random.choice(DEATHS)
        self.world.fault_injected(f"all controllers {death.value}")
        for node in self.world.controllers:
            if node.is_alive:
                node.kill(death)

    def _crash_in_operation(self) -> None:
        node = self._some_controller()
        if node is not None and node.disk is not None:
            death = self.random.choice(DEATHS)
            self.world.fault_injected(f"{death.value} inside a disk operation", node.host)
            node.disk.crash_soon(self.random.randrange(1, 60), death)

    def _crash_on_file(self) -> None:
        """Die around the next change of a certain file: a vote, a snapshot, the log."""
        node = self._some_controller()
        if node is not None and node.disk is not None:
            node.disk.death = self.random.choice(DEATHS)
            node.disk.crash_on = self.random.choice(("quorum-state", ".checkpoint", ".log"))
            line = f"{node.host} {node.disk.crash_on}"
            self.world.fault_injected(f"{node.disk.death.value} at a file", line)

    def controller_died(self, node: ControllerNode) -> None:
        """Told of every death: it is started again after a while."""
        node.bury()
        wait_ms = self.random.choice((0.0, 50.0, 1_000.0, 6_000.0)) * self.random.random() + 1.0
        self._later(5.0 if self.is_over else wait_ms, self._start_controller, node)

    def _start_controller(self, node: ControllerNode) -> None:
        if not node.is_alive and not node.is_held:
            node.start()
            assert node.disk is not None
            if not self.is_over and self.random.random() < 0.15:
                death = self.random.choice(DEATHS)
                self.world.fault_injected(f"{death.value} while starting", node.host)
                node.disk.crash_soon(self.random.randrange(1, 40), death)

    def _controller_leaves(self) -> None:
        node = self._some_controller()
        if node is not None:
            self.world.fault_injected("controller leaves", node.host)
            node.leave()
            self._later(12_000.0, self._kill_if_hanging, node, node.starts)

    def _kill_if_hanging(self, node: ControllerNode, starts: int) -> None:
        if node.is_alive and node.starts == starts:
            self.world.note(f"{node.host} has not stopped in time")
            self.world.counts["stops_that_hung"] += 1
            node.kill(Death.KILL)

    def _resign(self) -> None:
        node = self._some_controller()
        if node is not None and node.process is not None:
            self.world.fault_injected("resignation", node.host)
            node.process.spawn(node.resign())

    def _replace_voter(self) -> None:
        operator = self.world.operator
        if not self.world.has_static_voters and not operator.is_busy:
            self.world.fault_injected("voter replaced")
            operator.replace_one()

    def _stop_controller(self) -> None:
        node = self._some_controller()
        if node is not None and node.process is not None:
            duration_ms = self.random.uniform(100, 6_000)
            self.world.fault_injected("controller stopped", f"{node.host} {duration_ms:.0f}")
            node.process.stop_for(duration_ms)

    def _stall_disk(self) -> None:
        node = self._some_controller()
        if node is not None and node.disk is not None:
            duration_ms = self.random.uniform(100, 5_000)
            self.world.fault_injected("disk stall", f"{node.host} {duration_ms:.0f}")
            node.disk.stall(duration_ms)

    def _storage_outage(self) -> None:
        """No disk answers for a while, and before they do most machines are gone."""
        duration_ms = self.random.uniform(300, 6_000)
        self.world.fault_injected("storage outage", f"{duration_ms:.0f}")
        for node in self.world.controllers:
            if node.is_alive and node.disk is not None:
                node.disk.stall(duration_ms)
        if self.random.random() < 0.5:
            for node in self.world.active():
                node.kill(self.random.choice(DEATHS))
        self._later(duration_ms * self.random.uniform(0.3, 0.98), self._lose_most)

    def _lose_most(self) -> None:
        controllers = self.world.controllers
        majority = len(controllers) // 2 + 1
        chosen = self.random.sample(controllers, self.random.randint(majority, len(controllers)))
        death = self.random.choice(
            (Death.POWER_LOSS, Death.POWER_LOSS, Death.POWER_LOSS, Death.KILL)
        )
        self.world.note(f"{death.value} of {[node.host for node in chosen]}")
        for node in chosen:
            if node.is_alive:
                node.kill(death)

    def _fail_disk(self) -> None:
        node = self._some_controller()
        if node is not None and node.disk is not None:
            self.world.expected_disk_faults = True
            operation = self.random.choice(("append", "fdatasync", "fsync", "pwrite", "rename"))
            number = self.random.choice((errno.EIO, errno.ENOSPC))
            self.world.fault_injected("disk error", f"{node.host} {operation} {number}")
            node.disk.fail(operation, number)

    # -- the network -----------------------------------------------------------------------------

    def _hosts(self) -> list[str]:
        world = self.world
        nodes: list[ControllerNode | SimulatedBroker] = [*world.controllers, *world.brokers]
        return [each.host for each in nodes] + [client.host for client in world.clients]

    def _partition(self) -> None:
        """Some hosts on either side, the others see both."""
        hosts = self._hosts()
        self.random.shuffle(hosts)
        cut = self.random.randrange(1, len(hosts))
        left, right = hosts[:cut], hosts[cut : self.random.randint(cut + 1, len(hosts))]
        self._cut([(a, b) for a in left for b in right] + [(b, a) for a in left for b in right])
        self.world.fault_injected("partition", f"{left} {right}")

    def _one_way(self) -> None:
        controller = self.random.choice(self.world.controllers).host
        others = [host for host in self._hosts() if host != controller]
        others = self.random.sample(others, self.random.randint(1, len(others)))
        outwards = self.random.random() < 0.5
        self._cut([(controller, each) if outwards else (each, controller) for each in others])
        self.world.fault_injected("one-way partition", f"{controller} {outwards} {others}")

    def _cut(self, directions: list[tuple[str, str]]) -> None:
        for direction in directions:
            self.world.fabric.block(*direction)
        self._later(self.random.uniform(200, 9_000), self._mend, directions)

    def _mend(self, directions: list[tuple[str, str]]) -> None:
        self.world.note(f"mended {len(directions)}")
        for direction in directions:
            if self.world.fabric.is_blocked(*direction):
                self.world.fabric.heal(*direction)

    def _reset(self) -> None:
        transport = self.world.fabric.reset_one()
        if transport is not None:
            self.world.fault_injected("reset", repr(transport))

    def _slow_network(self) -> None:
        self.world.fault_injected("slow network")
        self.world.fabric.settings.slow_segment = self.random.choice((0.02, 0.3))
        self._later(self.random.uniform(500, 8_000), self._fast_network)

    def _fast_network(self) -> None:
        self.world.fabric.settings.slow_segment = 0.0

    # -- brokers ---------------------------------------------------------------------------------

    def _some_broker(self) -> SimulatedBroker | None:
        alive = [broker for broker in self.world.brokers if broker.is_alive]
        return self.random.choice(alive) if alive else None

    def _kill_broker(self) -> None:
        broker = self._some_broker()
        if broker is not None:
            self.world.fault_injected("broker kill", broker.host)
            broker.kill()
            self._restart_later(broker)

    def _restart_later(self, broker: SimulatedBroker) -> None:
        wait_ms = self.random.choice((20.0, 2_000.0, 15_000.0)) * self.random.random()
        self._later(wait_ms, self._start_broker, broker)

    def _start_broker(self, broker: SimulatedBroker) -> None:
        if not broker.is_alive and not self.is_over:
            broker.start()

    def _broker_leaves(self) -> None:
        broker = self._some_broker()
        if broker is not None:
            self.world.fault_injected("broker leaves", broker.host)
            broker.leave()
            self._later(self.random.uniform(5_000, 20_000), self._start_broker, broker)

    def _stop_broker(self) -> None:
        broker = self._some_broker()
        if broker is not None and broker.process is not None:
            duration_ms = self.random.uniform(500, 12_000)
            self.world.fault_injected("broker stopped", f"{broker.host} {duration_ms:.0f}")
            broker.process.stop_for(duration_ms)

    # -- the end ---------------------------------------------------------------------------------

    def _repair(self) -> None:
        """Everything whole again, but for a broker that may stay away for good."""
        world = self.world
        self.is_over = True
        world.fabric.heal_all()
        world.fabric.settings.slow_segment = 0.0
        for node in world.controllers:
            if node.disk is not None:
                node.disk.faults.clear()
                node.disk.crash_at = node.disk.crash_on = None
                node.disk.stall_until = 0.0
            if node.process is not None:
                node.process.go_on()
                if node.is_alive and not node.is_ready and node.controller is not None:
                    node.kill(Death.KILL)  # it was stopping: no need to wait for it
        absent = self.random.choice(world.brokers) if self.random.random() < 0.7 else None
        for broker in world.brokers:
            if broker.process is not None:
                broker.process.go_on()
            if broker is absent:
                world.note(f"{broker.host} stays away")
                broker.kill()
            elif not broker.is_alive or broker.is_leaving:
                broker.kill()
                broker.start()


__all__ = ["Nemesis"]
