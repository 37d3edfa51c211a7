"""Random histories of three logs: appends, cuts of the network, kills, power losses, snapshots.

At every step all listeners agree on the order of what they heard, and nothing that a live
leader's listener heard is ever missing in the end.
"""

from __future__ import annotations

import random

from .fixtures import snapshot_of
from .quorums import Node, Quorum

STEP_COUNT = 60


class History:
    """One history; `committed` is the longest order that any listener has heard."""

    def __init__(self, quorum: Quorum, dice: random.Random) -> None:
        self.quorum = quorum
        self.dice = dice
        self.committed: list[str] = []
        self.appended_count = 0
        self.log: list[str] = []

    def check(self) -> None:
        for node in self.quorum.nodes.values():
            assert node.fatal == [], self.where
            told = node.listener.names
            shorter, longer = sorted((told, self.committed), key=len)
            assert longer[: len(shorter)] == shorter, self.where
            self.committed = list(longer)

    @property
    def where(self) -> str:
        return f"seed {self.quorum.seed}, after {self.log}"

    async def step(self) -> None:
        kinds = ["append"] * 6 + [
            "isolate",
            "kill",
            "power",
            "stop",
            "snapshot",
            "snapshot",
            "wait",
        ]
        is_broken = self.quorum.network.cut or len(self.running()) < len(self.quorum.nodes)
        kind = self.dice.choice(["repair", "wait", *kinds] if is_broken else kinds)
        node = self.quorum.nodes[self.dice.choice(list(self.quorum.nodes))]
        self.log.append(f"{kind} {node.node_id}")
        match kind:
            case "append":
                self._append()
            case "isolate":
                self.quorum.network.isolate(node.node_id)
            case "repair":
                await self._repair()
            case "kill" | "power":
                await self._crash(node, lose_power=kind == "power")
            case "stop":
                await self._stop(node)
            case "snapshot":
                if node.log is not None and node.listener.batches:
                    last = node.listener.batches[-1].last_offset + 1
                    held = node.listener.snapshots
                    if not held or held[-1].end_offset < last:
                        await snapshot_of(node.running, node.listener)
            case _:
                await self.quorum.pass_ms(self.dice.randrange(3_000))
        await self.quorum.pass_ms(self.dice.randrange(100))
        self.check()

    def running(self) -> list[Node]:
        return [node for node in self.quorum.nodes.values() if node.log is not None]

    async def _repair(self) -> None:
        self.quorum.network.heal()
        for node in self.quorum.nodes.values():
            if node.log is None:
                await node.start()
        await self.quorum.leader()

    def _append(self) -> None:
        for leader in self.quorum.leaders():
            for _ in range(self.dice.randrange(1, 6)):
                if leader.running.is_leader:
                    leader.append(f"t{self.appended_count}")
                    self.appended_count += 1

    async def _crash(self, node: Node, *, lose_power: bool) -> None:
        if node.log is not None:
            node.crash(lose_power=lose_power)
        else:
            await node.start()

    async def _stop(self, node: Node) -> None:
        if node.log is not None:
            await node.stop()
        else:
            await node.start()

    async def end(self) -> None:
        """All come back, and agree."""
        await self._repair()
        while not await self._append_last():
            pass
        expected = max((node.listener.names for node in self.running()), key=len)
        assert expected[: len(self.committed)] == self.committed, self.where
        await self.quorum.converged(*expected)
        self.check()

    async def _append_last(self) -> bool:
        """Append once more; whether it was committed."""
        leader = await self.quorum.leader()
        if not leader.running.is_leader:
            return False
        log, listener = leader.running, leader.listener
        epoch = log.state.leader_epoch
        leader.append("end")
        await self.quorum.until(
            lambda: "end" in listener.names or not log.is_leader or log.state.leader_epoch != epoch
        )
        return "end" in listener.names


async def play(seed: int) -> int:
    dice = random.Random(seed)
    quorum = Quorum(1, 2, 3, seed=seed, retention_bytes=dice.choice([1, 3_000, 100_000]))
    async with quorum:
        history = History(quorum, dice)
        for _ in range(STEP_COUNT):
            await history.step()
        await history.end()
        return len(history.committed)


async def test_random_histories() -> None:
    committed_counts = []
    for seed in range(100, 106):
        print(f"seed {seed}")  # pytest shows it with a failure
        committed_counts.append(await play(seed))
    assert sum(committed_counts) > 100, "something happened in them"
