"""Whole quorums on the simplest driver: they elect, replicate, survive, and agree."""

from __future__ import annotations

from moldau.raft.core import Role
from tests.unit.raft.core.harness import Cluster, voter_set


def test_three_voters_elect_one_leader_and_replicate() -> None:
    cluster = Cluster(voter_set(1, 2, 3), observers=(9,))
    cluster.start()
    leader = cluster.elect()
    for value in range(10):
        leader.propose(value)
    cluster.run_for(600)
    values = [record.value for record in cluster.agreed]
    assert values == ["start", *range(10)]
    assert {each.committed for each in cluster.live()} == {11}
    assert cluster[9].role is Role.FOLLOWER


def test_a_sole_voter_leads_at_once() -> None:
    cluster = Cluster(voter_set(1))
    cluster.start()
    assert cluster[1].role is Role.LEADER
    assert cluster[1].committed == 1


def test_leader_crash_and_return() -> None:
    cluster = Cluster(voter_set(1, 2, 3))
    cluster.start()
    leader = cluster.elect()
    leader.propose("a")
    cluster.run_for(100)
    cluster.crash(leader.node_id)
    began_ms = cluster.now_ms
    second = cluster.elect()
    assert cluster.now_ms - began_ms < 4_500
    second.propose("b")
    leader.start()
    cluster.run_for(3_000)
    assert {each.committed for each in cluster.live()} == {second.log.log_end_offset}


def test_snapshot_is_fetched_by_who_is_too_far_behind() -> None:
    cluster = Cluster(voter_set(1, 2, 3))
    cluster.start()
    leader = cluster.elect()
    behind = next(each for each in cluster.live() if each is not leader)
    cluster.crash(behind.node_id)
    for value in range(20):
        leader.propose(value)
    cluster.run_for(600)
    leader.snapshot()
    leader.propose("after")
    behind.start()
    cluster.run_for(3_000)
    assert behind.committed == leader.committed == 22
    assert behind.log.start == 21
