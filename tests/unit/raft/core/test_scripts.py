"""Golden scripts: what three replicas do and say, line by line, read and found right once.

A change of the core that changes one is to be read again by a person. `MOLDAU_WRITE_SCRIPTS=1`
writes them anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.raft.core.harness import Cluster, described, voter_set

SCRIPTS = Path(__file__).parent / "scripts"


def _note(cluster: Cluster, line: str) -> None:
    cluster.lines += ["", f"# {line}"]


def _told_once(lines: list[str]) -> list[str]:
    """Without fetches, and answers to them, that repeat a line of their section."""
    kept: list[str] = []
    section: set[str] = set()
    for line in lines:
        if line.startswith("#"):
            section.clear()
        if "Fetch" in line and line in section:
            continue
        section.add(line)
        kept.append(line)
    return kept


def _election() -> Cluster:
    cluster = Cluster(voter_set(1, 2, 3), seed=5)
    _note(cluster, "three replicas start with empty logs")
    cluster.start()
    leader = cluster.elect()
    _note(cluster, f"a record at the leader, node {leader.node_id}")
    leader.propose("a")
    cluster.settle()
    _note(cluster, f"the leader, node {leader.node_id}, is gone")
    cluster.crash(leader.node_id)
    cluster.elect()
    _note(cluster, f"node {leader.node_id} is back")
    leader.start()
    cluster.settle()
    return cluster


def _divergence() -> Cluster:
    cluster = Cluster(voter_set(1, 2, 3), seed=4)
    cluster.start()
    old = cluster.elect()
    cluster.lines.clear()
    _note(cluster, f"the leader, node {old.node_id}, is cut off, and appends two records")
    cluster.isolate(old.node_id)
    old.propose("lost 1")
    old.propose("lost 2")
    new = cluster.elect_another(old.node_id)
    new.propose("kept")
    cluster.settle()
    _note(cluster, "the network is whole again")
    cluster.heal()
    cluster.run_for(2_500)
    assert [each.value for each in old.log.records] == ["start", "start", "kept"]
    return cluster


def _snapshot() -> Cluster:
    cluster = Cluster(voter_set(1, 2, 3), seed=3)
    cluster.chunk_bytes = 600
    cluster.start()
    leader = cluster.elect()
    behind = next(each for each in cluster.live() if each is not leader)
    cluster.crash(behind.node_id)
    for value in range(5):
        leader.propose(value)
    cluster.settle()
    leader.snapshot()
    leader.propose("after the snapshot")
    cluster.settle()
    cluster.lines.clear()
    _note(cluster, f"node {behind.node_id} is back, its log ends below the leader's snapshot")
    behind.start()
    cluster.run_for(1_000)
    assert behind.committed == leader.committed
    return cluster


def _voter_change() -> Cluster:
    cluster = Cluster(voter_set(1, 2, 3), observers=(4,), seed=2)
    cluster.start()
    leader = cluster.elect()
    cluster.settle()
    cluster.lines.clear()
    _note(cluster, "node 4 shall be a voter")
    assert leader.core is not None
    leader.run(leader.core.add_voter("add", described(4), cluster.now_ms, timeout_ms=5_000))
    cluster.settle()
    _note(cluster, f"the leader, node {leader.node_id}, shall be none")
    voter = described(leader.node_id)
    leader.run(
        leader.core.remove_voter("remove", leader.core.local, cluster.now_ms, timeout_ms=5_000)
    )
    cluster.run_for(300)
    assert voter not in cluster.leader().core.voters.voters  # type: ignore[union-attr]
    return cluster


@pytest.mark.parametrize("script", [_election, _divergence, _snapshot, _voter_change])
def test_script(script: Callable[[], Cluster]) -> None:
    lines = _told_once(script().lines)
    text = "\n".join(lines).strip() + "\n"
    path = SCRIPTS / f"{script.__name__.strip('_')}.txt"
    if os.environ.get("MOLDAU_WRITE_SCRIPTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
