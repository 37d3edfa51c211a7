"""Who makes things go wrong with controllers and network: kills, power losses, pauses, partitions.

Owns: the choice of faults and when they end. Must not: look at what the cluster promises.
Invariant: every fault it begins ends before the run's last phase, and is counted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from random import Random

from tests.simulation.cluster.base_world import BaseWorld
from tests.simulation.cluster.certificates import Certificates
from tests.simulation.cluster.disk import Death
from tests.simulation.cluster.files_beside import FilesBesideLogs
from tests.simulation.cluster.logs import METADATA_DIRECTORY
from tests.simulation.cluster.node import ControllerNode
from tests.simulation.cluster.troubles import Troubles
from tests.simulation.lost_answers import LostAnswers

DEATHS = (Death.KILL, Death.KILL, Death.POWER_LOSS)

Act = tuple[float, Callable[[], None]]
"""How often, and what."""


class BaseNemesis:
    """Acts at random times until the chaos is over, then repairs everything.

    A subclass says which acts there are, which of them belong together, and who else is repaired.
    """

    scenarios: tuple[tuple[str, ...], ...]

    def __init__(self, world: BaseWorld, random: Random, faults: Collection[str] = ()) -> None:
        """`faults` names what it is to keep to, as in `scenarios`; the seed chooses without."""
        self.world = world
        world.on_controller_death = self.controller_died
        self.random = random
        self.pause_ms = random.choice((300.0, 1_000.0, 3_000.0))
        self.is_over = False
        self._metadata_files_beside = FilesBesideLogs(world, of_metadata=True)
        self.troubles = self.make_troubles()
        for each in self.troubles:
            each.keep_to(faults)
        self._acts = self.acts()
        # Few kinds at a time meet each other more often than all of them would.
        kept = random.sample(self._acts, random.randint(2, 9))
        if random.random() < 0.5:
            names = random.choice(self.scenarios)
            kept = [each for each in self._acts if self._name(each) in names]
        troubles = [(1.0, act) for each in self.troubles for act in each.acts()]
        known = [*self._acts, *self.named_acts(), *troubles]
        if faults:
            kept = [each for each in known if self._name(each) in faults]
            assert len(kept) == len(faults), f"there are {[self._name(each) for each in known]}"
        self._chosen = [each for each in known if each in kept]

    def acts(self) -> list[Act]:
        """Everything that it can do."""
        raise NotImplementedError

    def named_acts(self) -> list[Act]:
        """What no seed chooses by itself, only `faults`."""
        return []

    def make_troubles(self) -> list[Troubles]:
        """What strikes beside it. No seed chooses one of their acts by itself, only `faults`."""
        brokers = [each for each in self.hosts() if each.startswith("broker-")]
        return [LostAnswers(self.world), Certificates(self.world, brokers)]

    def end_troubles(self) -> None:
        """No more of them."""
        for each in self.troubles:
            each.end()

    def hosts(self) -> list[str]:
        """The hosts between which links can be cut."""
        raise NotImplementedError

    def repair_others(self) -> None:
        """Make everything whole again that is neither controller nor network."""
        raise NotImplementedError

    @staticmethod
    def _name(act: Act) -> str:
        return act[1].__name__.strip("_")

    async def __call__(self) -> None:
        for each in self.troubles:
            each.start()
        world = self.world
        until = world.loop.time() + world.chaos_ms / 1000
        weights = [weight for weight, _act in self._chosen]
        acts = [act for _weight, act in self._chosen]
        while True:
            await world.loop.elapse(self.random.expovariate(1 / self.pause_ms))
            if world.loop.time() >= until:
                break
            self.random.choices(acts, weights)[0]()
        await self.end_what_is_under_way()
        self._repair()

    async def end_what_is_under_way(self) -> None:
        """Wait for acts of several steps that have begun."""

    def _repair(self) -> None:
        """Everything whole again."""
        world = self.world
        self.is_over = True
        self.end_troubles()
        world.fabric.heal_all()
        world.fabric.settings.slow_segment = 0.0
        for jump in world.wall_clocks.set_right():
            world.fault_injected("clock jump", jump)
        for node in world.controllers:
            if node.disk is not None:
                node.disk.faults.clear()
                node.disk.crash_at = node.disk.crash_on = None
                node.disk.stall_until = 0.0
            if node.process is not None:
                node.process.go_on()
                if node.is_alive and not node.is_ready and node.controller is not None:
                    node.kill(Death.KILL)  # it was stopping: no need to wait for it
        self.repair_others()

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
        """Called for every death: the process is started again after a while."""
        node.bury()
        self._metadata_files_beside.disturb(node.host, node.root, [METADATA_DIRECTORY])
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

    # -- clocks ----------------------------------------------------------------------------------

    def _jump_clock(self) -> None:
        """An operator or a time server sets a machine's wall clock."""
        self.world.fault_injected("clock jump", self.world.wall_clocks.jump())

    # -- the network -----------------------------------------------------------------------------

    def _partition(self) -> None:
        """Some hosts on either side, the others see both."""
        hosts = self.hosts()
        self.random.shuffle(hosts)
        cut = self.random.randrange(1, len(hosts))
        left, right = hosts[:cut], hosts[cut : self.random.randint(cut + 1, len(hosts))]
        self._cut([(a, b) for a in left for b in right] + [(b, a) for a in left for b in right])
        self.world.fault_injected("partition", f"{left} {right}")

    def _one_way(self) -> None:
        controller = self.random.choice(self.world.controllers).host
        others = [host for host in self.hosts() if host != controller]
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
