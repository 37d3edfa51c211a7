"""Golden interaction scripts of the quorum (`scripts/`): what three replicas do and say.

`tests.kit.golden_scripts` says how scripts are read and written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.golden_scripts import check_script
from tests.unit.raft.core.harness import Cluster, Replica, described, voter_set

SCRIPTS = Path(__file__).parent / "scripts"


class QuorumScript:
    """Executes commands: each is a method, its words are the arguments, `name=value` are options.

    Nodes have the numbers of the script, `leader` is the one that was elected last. A command shows
    what all replicas did, with `shown=no` nothing. Fetches, and answers to them, that repeat a line
    of the same command are left out.
    """

    def __init__(self) -> None:
        self.cluster = Cluster(voter_set(1))
        self.elected = 0

    def execute(self, words: list[str]) -> Iterator[str]:
        options = dict(word.split("=") for word in words[1:] if "=" in word)
        plain = [word for word in words[1:] if "=" not in word]
        is_shown = options.pop("shown", "yes") == "yes"
        getattr(self, words[0].replace("-", "_"))(*plain, **options)
        lines, self.cluster.lines = self.cluster.lines, []
        seen: set[str] = set()
        for line in lines if is_shown else ():
            if not ("Fetch" in line and line in seen):
                yield line
            seen.add(line)

    def _node(self, word: str) -> Replica:
        return self.cluster[self.elected if word == "leader" else int(word)]

    def voters(self, *ids: str, observers: str = "", seed: str = "1", chunk: str = "200") -> None:
        self.cluster = Cluster(
            voter_set(*map(int, ids)),
            observers=tuple(map(int, observers.split(",") if observers else ())),
            seed=int(seed),
        )
        self.cluster.chunk_bytes = int(chunk)

    def start(self, *nodes: str) -> None:
        """These nodes, or all of them."""
        for node in nodes:
            self._node(node).start()
        if not nodes:
            self.cluster.start()

    def elect(self) -> None:
        self.elected = self.cluster.elect().node_id

    def elect_another(self) -> None:
        self.elected = self.cluster.elect_another(self.elected).node_id

    def propose(self, node: str, *values: str) -> None:
        for value in values:
            self._node(node).propose(value)

    def settle(self) -> None:
        self.cluster.settle()

    def run(self, duration_ms: str) -> None:
        self.cluster.run_for(int(duration_ms))

    def crash(self, node: str) -> None:
        self.cluster.crash(self._node(node).node_id)

    def isolate(self, node: str) -> None:
        self.cluster.isolate(self._node(node).node_id)

    def heal(self) -> None:
        self.cluster.heal()

    def snapshot(self, node: str) -> None:
        self._node(node).snapshot()

    def add_voter(self, node: str) -> None:
        leader, core = self._leader()
        new = described(int(node))
        leader.run(core.add_voter("add", new, self.cluster.now_ms, timeout_ms=5_000))

    def remove_leader(self) -> None:
        leader, core = self._leader()
        leader.run(
            core.remove_voter("remove", core.state.local, self.cluster.now_ms, timeout_ms=5_000)
        )

    def _leader(self) -> tuple[Replica, Any]:
        leader = self.cluster.leader()
        assert leader.core is not None
        return leader, leader.core

    def state(self) -> None:
        """Every node that runs: its role, its log, how much of it is committed, and the voters."""
        for each in self.cluster.live():
            assert each.core is not None
            values = " ".join(str(record.value) for record in each.log.records) or "nothing"
            voters = " ".join(str(voter.voter_id) for voter in each.core.state.voters.latest.voters)
            self.cluster.lines.append(
                f"{each.node_id} {each.role.value}, log from {each.log.start}: {values}, "
                f"committed {each.committed}, voters {voters}"
            )


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    check_script(path, QuorumScript().execute)


def test_there_are_scripts() -> None:
    assert len(list(SCRIPTS.glob("*.txt"))) >= 4
