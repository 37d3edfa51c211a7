"""What befalls processes and disks, and what an operator does to a quorum at the same time.

Owns: kills, power losses, pauses, slow and failing disks; transfers, shut-downs, voter changes,
wiped disks. Must not: do what a careful operator would not: a second disk is wiped only when the
first one's voter has been removed. Invariant: nothing after `heal`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.raft.core import effects as ef
from moldau.raft.core.messages import EndQuorumEpochRequest
from moldau.raft.core.values import ReplicaKey
from moldau.raft.core.voters import VoterSet
from tests.simulation.checks import key_of
from tests.simulation.nemesis import Action
from tests.simulation.replica import OPERATOR, Pending, Replica

if TYPE_CHECKING:
    from tests.simulation.quorum import Node, QuorumSimulation

RESTART_DELAYS_MS = (20.0, 500.0, 3_000.0)
PAUSES_MS = (300.0, 2_500.0, 8_000.0)
SLOW_FACTORS = (20.0, 200.0, 1_000.0)
UPGRADING_RATE = 0.5
SHUT_DOWN_MS = 5_000.0
CHANGE_TIMEOUT_MS = 5_000


class ProcessFaults:
    """Faults of processes and disks."""

    def __init__(self, world: QuorumSimulation) -> None:
        self._world = world
        self._random = world.random
        self._fault = world.scheduler.fault

    def actions(self) -> dict[str, Action]:
        """The actions by name."""
        return {
            "kill": partial(self._crash, power_loss=False),
            "power-loss": partial(self._crash, power_loss=True),
            "blackout": self._blackout,
            "crash-inside": self._arm_crash,
            "pause": self._pause,
            "slow-disk": self._slow_disk,
            "disk-failure": self._fail_disk,
        }

    def draw_rates(self) -> None:
        """What happens to messages by the way, in this seed."""
        network, random = self._world.network, self._random
        network.reset_rate = random.choice((0.0, 0.0, 0.002, 0.02))
        network.duplicate_rate = random.choice((0.0, 0.0, 0.01, 0.1))
        network.late_rate = random.choice((0.0, 0.3, 1.0))
        self._world.damage_rate = random.choice((0.0, 0.0, 0.02))

    def heal(self) -> None:
        """Disks are well, every process runs."""
        self._world.damage_rate = 0.0
        for node in self._world.nodes.values():
            node.disk.fails_after = None
            node.disk.slow_until_ms = 0.0
            if node.replica is not None:
                node.replica.crash_in = None

    def restart_delay_ms(self) -> float:
        """How long a process stays down."""
        return self._random.choice(RESTART_DELAYS_MS) * (0.5 + self._random.random())

    def pick(self) -> Replica | None:
        """A process, often the leader."""
        leader = self._world.leader()
        if leader is not None and self._random.random() < 0.5:
            return leader
        replicas = list(self._world.replicas())
        return self._random.choice(replicas) if replicas else None

    def _crash(self, *, power_loss: bool) -> bool:
        replica = self.pick()
        if replica is None:
            return False
        self._fault("power-loss" if power_loss else "kill", f"{replica.node_id}")
        self._world.crash(
            replica.node_id, power_loss=power_loss, restart_after_ms=self.restart_delay_ms()
        )
        return True

    def _blackout(self) -> bool:
        """A majority, or every node, loses power at once."""
        replicas = list(self._world.replicas())
        if not replicas:
            return False
        count = self._random.randint(len(replicas) // 2 + 1, len(replicas))
        self._fault("blackout", f"{count}")
        for replica in self._random.sample(replicas, count):
            self._world.crash(
                replica.node_id, power_loss=True, restart_after_ms=self.restart_delay_ms()
            )
        return True

    def _arm_crash(self) -> bool:
        """The crash itself is counted when it comes."""
        replica = self.pick()
        if replica is None or replica.crash_in is not None:
            return False
        replica.crash_in = self._random.randrange(40)
        return True

    def half_done(self, replica: Replica) -> None:
        """What of the effect that was being carried out has reached the page cache."""
        effect, disk = replica.in_progress, replica.disk
        if isinstance(effect, ef.Persist) and self._random.random() < 0.5:
            disk.election = effect.state
            if self._random.random() < 0.5:
                disk.durable_election = effect.state
        elif isinstance(effect, ef.Truncate) and self._random.random() < 0.5:
            disk.change_log("truncate", effect.end_offset)

    def _pause(self) -> bool:
        replica = self.pick()
        if replica is None or replica.paused:
            return False
        duration_ms = self._random.choice(PAUSES_MS) * (0.5 + self._random.random())
        self._fault("pause", f"{replica.node_id} {duration_ms:.0f} ms")
        replica.paused = True
        self._world.scheduler.after(duration_ms, self._resume, replica, duration_ms)
        return True

    def _resume(self, replica: Replica, duration_ms: float) -> None:
        replica.paused = False
        self._world.checks.stood_still(replica, duration_ms)
        if replica.alive:
            replica.pump()

    def _slow_disk(self) -> bool:
        replica = self.pick()
        if replica is None:
            return False
        duration_ms = self._random.choice(PAUSES_MS)
        self._fault("slow-disk", f"{replica.node_id} {duration_ms:.0f} ms")
        replica.disk.slow_factor = self._random.choice(SLOW_FACTORS)
        replica.disk.slow_until_ms = self._world.scheduler.now_ms + duration_ms
        return True

    def _fail_disk(self) -> bool:
        replica = self.pick()
        if replica is None:
            return False
        self._fault("disk-failure", f"{replica.node_id}")
        replica.disk.fails_after = self._random.randrange(10)
        return True


class Operator:
    """Transfers, shut-downs, voter changes, wiped disks."""

    def __init__(self, world: QuorumSimulation) -> None:
        self._world = world
        self._random = world.random
        self._fault = world.scheduler.fault
        self._number = 0

    def actions(self) -> dict[str, Action]:
        """The actions by name; what changes voters only where that can ever be."""
        actions: dict[str, Action] = {"transfer": self._transfer, "shut-down": self._shut_down}
        if not self._world.shape.is_dynamic:
            if self._random.random() < UPGRADING_RATE:
                return actions
            actions["upgrade"] = self._upgrade
        return actions | {
            "add-voter": self._add_voter,
            "remove-voter": self._remove_voter,
            "wipe": self._wipe,
            "move": self._move,
        }

    def _token(self, kind: str) -> tuple[str, int]:
        self._number += 1
        return kind, self._number

    def _any_leader(self) -> Replica | None:
        leaders = self._world.leaders()
        return self._random.choice(leaders) if leaders else None

    def _transfer(self) -> bool:
        leader = self._any_leader()
        if leader is None:
            return False
        voters = [key_of(voter) for voter in leader.core.state.voters.latest.voters]
        others: list[ReplicaKey | None] = [key for key in voters if key.node_id != leader.node_id]
        preferred = self._random.choice([*others, None])
        token = self._token("transfer")
        self._fault("transfer", f"{leader.node_id} to {preferred}")
        if preferred is not None and self._random.random() < 0.5:
            leader.receive(self._request_to_resign(leader, preferred))
        else:
            leader.offer("resign", partial(leader.core.resign, token, preferred))
        return True

    @staticmethod
    def _request_to_resign(leader: Replica, preferred: ReplicaKey) -> Pending:
        """EndQuorumEpoch about the leader itself, as `moldau quorum transfer-leader` sends it."""
        request = EndQuorumEpochRequest(
            leader.node_id, leader.core.state.leader_epoch, (preferred,), leader.settings.endpoints
        )
        return Pending(OPERATOR, request, lambda _: None)

    def _shut_down(self) -> bool:
        replica = self._world.faults.pick()
        if replica is None:
            return False
        self._fault("shut-down", f"{replica.node_id}")
        token = self._token("shut-down")
        replica.offer("shut down", partial(replica.core.shut_down, token))
        self._world.scheduler.after(SHUT_DOWN_MS, self._gone, replica)
        return True

    def _gone(self, replica: Replica) -> None:
        if replica.alive:
            self._world.crash(
                replica.node_id,
                power_loss=False,
                restart_after_ms=self._world.faults.restart_delay_ms(),
            )

    def completed(self, replica: Replica, effect: ef.Complete) -> None:
        """A process that has shut down ends."""
        if effect.token[0] == "shut-down":
            self._world.scheduler.after(0.0, self._gone, replica)

    # Voters

    def _unreplaced(self, voters: VoterSet) -> list[ReplicaKey]:
        """Voters whose disk is gone."""
        keys = [key_of(voter) for voter in voters.voters]
        return [key for key in keys if self._world.disk_of(key) is None]

    def _add_voter(self) -> bool:
        leader = self._any_leader()
        if leader is None or leader.core.state.voters.latest.kraft_version < 1:
            return False
        known = [voter.voter_id for voter in leader.core.state.voters.latest.voters]
        candidates = [node for node in self._world.controllers() if node.node_id not in known]
        if not candidates:
            return False
        node = self._random.choice(candidates)
        self._fault("add-voter", f"{node.key} at {leader.node_id}")
        description = self._world.description(node)
        token, acknowledge = self._token("add-voter"), self._random.random() < 0.7

        def event(now_ms: float) -> list[ef.Effect]:
            return leader.core.add_voter(
                token,
                description,
                now_ms,
                ack_when_committed=acknowledge,
                timeout_ms=CHANGE_TIMEOUT_MS,
            )

        leader.offer("add voter", event)
        return True

    def _remove_voter(self) -> bool:
        leader = self._any_leader()
        voters = leader.core.state.voters.latest if leader is not None else VoterSet()
        if leader is None or len(voters.voters) < 2 or voters.kraft_version < 1:
            return False
        gone = self._unreplaced(leader.core.state.voters.latest)
        if not gone and self._unreachable(leader.core.state.voters.latest):
            return False
        keys = gone or [key_of(voter) for voter in leader.core.state.voters.latest.voters]
        key = self._random.choice(keys)
        self._fault("remove-voter", f"{key} at {leader.node_id}")
        token = self._token("remove-voter")

        def event(now_ms: float) -> list[ef.Effect]:
            return leader.core.remove_voter(token, key, now_ms, timeout_ms=CHANGE_TIMEOUT_MS)

        leader.offer("remove voter", event)
        return True

    def _upgrade(self) -> bool:
        leader = self._any_leader()
        if leader is None or leader.core.state.voters.latest.kraft_version > 0:
            return False
        self._fault("upgrade", f"at {leader.node_id}")
        token = self._token("upgrade")

        def event(now_ms: float) -> list[ef.Effect]:
            return leader.core.upgrade_kraft_version(token, 1, now_ms, timeout_ms=CHANGE_TIMEOUT_MS)

        leader.offer("upgrade", event)
        return True

    def _voter_sets(self) -> list[VoterSet]:
        """Every set of voters that is or may come into force: those in any log."""
        found = []
        for node in self._world.nodes.values():
            found.append(node.bootstrap_voters)
            found += [each.voters for each in node.disk.snapshots.values()]
            found += [each.voters for each in node.disk.log.batches if each.voters is not None]
        return found

    def _in_force(self) -> list[VoterSet]:
        """The last voters of every node's log."""
        found = []
        for node in self._world.nodes.values():
            found.append(self._latest_of(node))
        return [each for each in found if each.voters]

    def _latest_of(self, node: Node) -> VoterSet:
        for batch in reversed(node.disk.log.batches):
            if batch.voters is not None:
                return batch.voters
        latest = max(node.disk.snapshots, default=None)
        return node.disk.snapshots[latest].voters if latest else node.bootstrap_voters

    def _wipe(self) -> bool:
        """A controller gets a new disk: it is another replica from then on."""
        sets = self._in_force()
        if not self._all_dynamic(sets) or any(self._unreachable(voters) for voters in sets):
            return False
        node = self._random.choice(self._world.controllers())
        concerned = [
            voters for voters in sets if any(key_of(each) == node.key for each in voters.voters)
        ]
        if any(len(voters.voters) < 3 for voters in concerned):
            return False
        self._fault("wipe", f"{node.key}")
        self._world.crash(
            node.node_id,
            power_loss=True,
            restart_after_ms=self._world.faults.restart_delay_ms(),
        )
        node.wiped[node.key] = node.disk
        node.disk = self._world.new_disk()
        node.directory_id = self._world.new_directory_id()
        if self._world.shape.is_dynamic:
            node.bootstrap_voters = VoterSet()
        return True

    @staticmethod
    def _all_dynamic(sets: list[VoterSet]) -> bool:
        """Whether every replica has heard of kraft.version 1: before, a directory has no vote of
        its own, and an operator must not wipe any.
        """
        return bool(sets) and all(voters.kraft_version >= 1 for voters in sets)

    def _unreachable(self, voters: VoterSet) -> list[ReplicaKey]:
        """Voters whose disk is gone, or whose recorded endpoints are not where they are."""
        return [
            key_of(voter)
            for voter in voters.voters
            if self._world.disk_of(key_of(voter)) is None
            or voter.endpoints != self._world.nodes[voter.voter_id].endpoints
        ]

    def _move(self) -> bool:
        """A controller is started at another port: a node that knows only the voters record does
        not find it, until it has sent the leader its endpoint. The next one moves when that is
        done. A majority of the voters that could win must find each other, so no node moves out of
        a pair.
        """
        sets = self._in_force()
        if not self._all_dynamic(sets):
            return False
        if any(each != sets[0] or self._unreachable(each) for each in sets):
            return False
        node = self._random.choice(self._world.controllers())
        if len(sets[0].voters) < 3:
            return False
        self._fault("move", f"{node.node_id}")
        self._world.crash(
            node.node_id,
            power_loss=False,
            restart_after_ms=self._world.faults.restart_delay_ms(),
        )
        node.moves += 1
        return True

    def can_recover(self) -> bool:
        """Whether in every set of voters that may be in force a majority finds each other."""
        return all(
            2 * (len(voters.voters) - len(self._unreachable(voters))) > len(voters.voters)
            for voters in self._in_force()
        )
