"""Breaks brokers, controllers, links and disks by turns, and mends them again.

Owns the plan (which fault when, from a seed alone) and its execution in two lanes: one breaks at
most one broker at a time, the other at most one controller, which is what three of each promise to
survive; one node of all at a time has a full disk. Must not: judge. Invariant: a lane mends what it
broke before it breaks anything else, and when `finish` returns everything runs and nothing is cut,
full, slow, paused or taken away.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from tests.system.quorum.hosts import HUB
from tests.system.quorum.spread_cluster import host_name
from tests.system.replication.chaos_cluster import SESSION_TIMEOUT_MS, ChaosCluster
from tests.system.replication.directory_faults import SETTLE_DEADLINE_S, DirectoryFaults
from tests.system.replication.disk_damage import lose_everything, lose_unflushed
from tests.system.replication.disk_mood import DiskMood

#: Each fault with how often it is drawn and how long it lasts (seconds, from and to).
BROKER_FAULTS: Final[dict[str, tuple[int, float, float]]] = {
    "kill": (4, 0.2, 4.0),
    "power-loss": (3, 0.0, 3.0),
    "lost-replicas": (2, 0.0, 3.0),
    "stop": (1, 0.0, 1.0),
    "pause-short": (2, 0.3, 0.6 * SESSION_TIMEOUT_MS / 1000),
    "pause-long": (2, 1.3 * SESSION_TIMEOUT_MS / 1000, 2.5 * SESSION_TIMEOUT_MS / 1000),
    "cut-brokers": (1, 1.0, 10.0),
    "cut-link": (1, 1.0, 12.0),
    "one-way-link": (3, 1.0, 12.0),
    "cut-controllers": (1, 1.0, 12.0),
    "one-way-controllers": (2, 1.0, 12.0),
    "disk-full": (2, 1.0, 40.0),
    "disk-slow": (1, 3.0, 10.0),
    "disk-stalls-flushes": (1, 2.0, 8.0),
    "disk-stalls": (1, 1.0, 10.0),
    "directory-pulled": (2, 0.0, 6.0),
    "directory-missing": (1, 0.0, 6.0),
    "directory-removed": (3, 0.0, 6.0),
    "directory-replaced": (2, 0.0, 3.0),
}
CONTROLLER_FAULTS: Final[dict[str, tuple[int, float, float]]] = {
    "controller-kill": (3, 0.2, 4.0),
    "controller-pause": (2, 1.0, 8.0),
    "controller-isolate": (2, 1.0, 8.0),
    "controller-one-way": (2, 1.0, 8.0),
    "controller-disk-full": (2, 1.0, 40.0),
    "controller-disk-slow": (1, 3.0, 8.0),
    "controller-disk-stalls": (1, 1.0, 6.0),
}
BROKER_PAUSE_S: Final = (0.2, 3.0)
CONTROLLER_PAUSE_S: Final = (4.0, 14.0)
#: How often the next broker is broken only when all replicas are in sync again; else the same one
#: may suffer once more before it has caught up.
SETTLE_SHARE: Final = 0.75
SLOW: Final = DiskMood(write_ms=4.0, flush_ms=250.0)
STALLED_FLUSHES: Final = DiskMood(stalls_flushes=True)
STALLED: Final = DiskMood(stalls_writes=True, stalls_flushes=True)
LOOK_INTERVAL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Step:
    """One fault. `active`: the active controller at that time, in place of `victim`."""

    number: int
    fault: str
    victim: int
    peer: int
    active: bool
    is_first_way: bool
    pause_s: float
    hold_s: float
    settles: bool

    def __str__(self) -> str:
        whom = "the active controller" if self.active else str(self.victim)
        return f"{self.fault} {whom} for {self.hold_s:.1f} s"


def broker_plan(seed: int, broker_ids: list[int]) -> Iterator[Step]:
    """The faults of the broker lane, without an end."""
    dice = random.Random(f"{seed}-brokers")
    same: int | None = None
    number = 0
    while True:
        step = _draw(dice, number, BROKER_FAULTS, broker_ids, BROKER_PAUSE_S, same)
        same = None if step.settles else step.victim
        yield step
        number += 1


def controller_plan(seed: int, controller_ids: list[int]) -> Iterator[Step]:
    """The faults of the controller lane, without an end."""
    dice = random.Random(f"{seed}-controllers")
    number = 0
    while True:
        yield _draw(dice, number, CONTROLLER_FAULTS, controller_ids, CONTROLLER_PAUSE_S, None)
        number += 1


def _draw(
    dice: random.Random,
    number: int,
    faults: dict[str, tuple[int, float, float]],
    node_ids: list[int],
    pauses_s: tuple[float, float],
    same: int | None,
) -> Step:
    [fault] = dice.choices(list(faults), [weight for weight, _, _ in faults.values()])
    victim, peer = dice.sample(node_ids, 2)
    if same is not None and victim != same:
        victim, peer = same, victim
    _, shortest_s, longest_s = faults[fault]
    return Step(
        number=number,
        fault=fault,
        victim=victim,
        peer=peer,
        active=dice.random() < 0.7 and fault in CONTROLLER_FAULTS,
        is_first_way=dice.random() < 0.5,
        pause_s=dice.uniform(*pauses_s),
        hold_s=dice.uniform(shortest_s, longest_s),
        settles=dice.random() < SETTLE_SHARE,
    )


class Nemesis:
    """Use as a context around the load; `finish` before the verdict.

    Args:
        cluster: for faults of directories, its brokers need more than one.
        topic: whose files are damaged, when files are; may be a pattern of names.
        missing: what is missing until all replicas are in sync, a line each; but for those of the
            partitions that it is given.
        say: gets a line per event.
        only: faults to use; all when empty. Leaves the others' places in the plan empty, so that
            what remains of a schedule is what it was.
    """

    def __init__(
        self,
        cluster: ChaosCluster,
        seed: int,
        topic: str,
        *,
        missing: Callable[[Collection[str]], list[str]],
        say: Callable[[str], None],
        only: frozenset[str] = frozenset(),
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.ended: Counter[int] = Counter()
        self._one_is_full = threading.Lock()
        self._cluster = cluster
        self._seed = seed
        self._topic = topic
        self._missing = missing
        self._say = say
        self._only = only
        self._stop = threading.Event()
        self._directories = DirectoryFaults(
            cluster,
            missing=self._missing_without,
            end=self._end,
            say=say,
            complain=self.complaints.append,
        )
        brokers = broker_plan(seed, cluster.broker_ids)
        controllers = controller_plan(seed, cluster.controller_ids)
        self._lanes = [
            threading.Thread(target=self._guarded, args=(name, lane, settles), name=name)
            for name, lane, settles, faults in (
                ("broker-lane", brokers, True, BROKER_FAULTS),
                ("controller-lane", controllers, False, CONTROLLER_FAULTS),
            )
            if not only or only & faults.keys()
        ]

    def start(self) -> None:
        """Begin to break things."""
        for lane in self._lanes:
            lane.start()

    def finish(self) -> None:
        """Break nothing more; returns when everything is mended."""
        self._stop.set()
        for lane in self._lanes:
            lane.join()

    # -- lanes -----------------------------------------------------------------------------------

    def _guarded(self, name: str, lane: Iterator[Step], settles: bool) -> None:
        """A lane that ends before its time breaks nothing more, and proves nothing."""
        try:
            self._run(lane, settles)
        except Exception as error:  # noqa: BLE001
            self.complaints.append(f"{name}: {type(error).__name__}: {error}")

    def _run(self, lane: Iterator[Step], settles: bool) -> None:
        last: tuple[Step, int] | None = None
        for step in lane:
            if self._only and step.fault not in self._only:
                continue
            if self._stop.wait(step.pause_s):
                break
            victim = self._victim_of(step)
            is_other = step.active or victim != step.victim
            self._say(f"{step} ({victim})" if is_other else str(step))
            undo = self._break(step, victim)
            self.faults[step.fault] += 1
            self._stop.wait(step.hold_s)
            undo()
            self._revive(victim)
            last = (step, victim)
            if not settles or step.settles:
                self._settle(step, victim)
            if self.complaints:
                break
        if last is not None:
            self._settle(*last)

    def _victim_of(self, step: Step) -> int:
        """Whom a step is to hit, now that it is its turn."""
        return self._active_controller() if step.active else step.victim

    def _break(self, step: Step, victim: int) -> Callable[[], None]:
        cluster = self._cluster
        fault = step.fault.removeprefix("controller-")
        dice = random.Random(f"{self._seed}-{step.number}")
        if fault == "kill":
            cluster.kill(victim)
            return lambda: cluster.launch(victim)
        if fault in ("power-loss", "lost-replicas"):
            cluster.kill(victim)
            directories = cluster.data_directories(victim)
            if fault == "power-loss":
                lost_bytes = sum(lose_unflushed(each, self._topic, dice) for each in directories)
                self._say(f"{lost_bytes:,} bytes of broker {victim} were not flushed")
            else:
                for directory in directories:
                    lose_everything(directory, self._topic)
            return lambda: cluster.launch(victim)
        if fault == "stop":
            self._end(victim, True)
            return lambda: cluster.launch(victim)
        if fault.startswith("directory-"):
            return self._directories.make(fault, victim, dice)
        if fault.startswith("pause"):
            cluster.pause(victim)
            return lambda: cluster.resume(victim)
        if fault == "disk-full":
            return self._fill(victim)
        if fault.startswith("disk-"):
            moods = {"disk-slow": SLOW, "disk-stalls-flushes": STALLED_FLUSHES}
            cluster.set_mood(victim, moods.get(fault, STALLED))
            return lambda: cluster.set_mood(victim, DiskMood())
        return self._cut(step, victim)

    def _fill(self, victim: int) -> Callable[[], None]:
        """Fill its disk, when that of the other lane's victim has room again."""
        self._one_is_full.acquire()
        disk = self._cluster.disks[victim]
        disk.fill()

        def free() -> None:
            disk.free()
            self._one_is_full.release()

        return free

    def _end(self, broker_id: int, is_clean: bool) -> None:
        """SIGTERM, or else `kill -9`."""
        if not is_clean:
            self._cluster.kill(broker_id)
            return
        status = self._cluster.stop(broker_id)
        # One that has only just been started may not have got to its handler of SIGTERM.
        if status not in (0, -signal.SIGTERM):
            self.complaints.append(f"broker {broker_id} stopped with status {status}")

    def _cut(self, step: Step, victim: int) -> Callable[[], None]:
        """Blocks some directions between the victim and others; never those to the hub."""
        cluster = self._cluster
        brokers = [each for each in cluster.broker_ids if each != victim]
        controllers = [each for each in cluster.controller_ids if each != victim]
        peer = step.peer if step.peer != victim else brokers[0]
        is_controller = victim in cluster.controller_ids
        peers = {
            "cut-brokers": brokers,
            "cut-link": [peer],
            "one-way-link": [peer],
            "cut-controllers": controllers,
            "one-way-controllers": controllers,
            "controller-isolate": [*brokers, *controllers],
            "controller-one-way": controllers if is_controller else [],
        }[step.fault]
        ways = []
        for other in peers:
            ways += [(victim, other), (other, victim)]
        if "one-way" in step.fault:
            ways = ways[0 if step.is_first_way else 1 :: 2]
        links = [(host_name(sender), host_name(receiver)) for sender, receiver in ways]
        assert HUB not in {name for link in links for name in link}
        for sender, receiver in links:
            cluster.hosts.cut_one_way(sender, receiver)

        def mend() -> None:
            for sender, receiver in links:
                cluster.hosts.mend_one_way(sender, receiver)

        return mend

    # -- afterwards ------------------------------------------------------------------------------

    def _settle(self, step: Step, victim: int) -> None:
        """Wait until the victim serves again; for a broker, until all replicas are in sync."""
        begin = time.monotonic()
        while missing := self._missing_of(victim):
            self._revive(victim)
            if time.monotonic() >= begin + SETTLE_DEADLINE_S:
                self.complaints.append(f"not mended after {step}: {'; '.join(missing)}")
                self._say(self.complaints[-1])
                return
            threading.Event().wait(LOOK_INTERVAL_S)
        self._say(f"mended after {time.monotonic() - begin:.1f} s")

    def _missing_of(self, victim: int) -> list[str]:
        if not self._cluster.is_running(victim):
            return [f"node {victim} does not run"]
        if victim in self._cluster.broker_ids:
            return self._missing(())
        leader_id, _ = self._cluster.active_controller(victim)
        return [] if leader_id >= 0 else [f"controller {victim} knows no leader"]

    def _missing_without(self, partitions: Collection[str]) -> list[str]:
        """What is missing but for those partitions; a broker that has ended is started again."""
        self._revive(self._cluster.broker_ids[0])
        return self._missing(partitions)

    def _revive(self, victim: int) -> None:
        """Nodes of the victim's lane that ended by themselves are started again; it is a finding,
        also if the disk is full.
        """
        cluster = self._cluster
        is_broker = victim in cluster.broker_ids
        for node_id in cluster.broker_ids if is_broker else cluster.controller_ids:
            status = cluster.exit_status(node_id)
            if status is None:
                continue
            self.ended[node_id] += 1
            self._say(f"node {node_id} has ended with status {status}; it is started again")
            tail = cluster.log_tail(node_id)
            self.complaints.append(f"node {node_id} ended by itself: {tail}")
            cluster.launch(node_id)

    def _active_controller(self) -> int:
        """Who leads the quorum, by any controller that answers."""
        while True:
            for asked in self._cluster.controller_ids:
                leader_id, _ = self._cluster.active_controller(asked)
                if leader_id >= 0:
                    return leader_id
            if self._stop.wait(LOOK_INTERVAL_S):
                return self._cluster.controller_ids[0]
