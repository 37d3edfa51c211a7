"""Random schedules on the simplest driver: messages in any order, cuts, crashes, voter changes.

The simulator (tests/simulation) does the same with far more faults; this one takes seconds, and
flushes inside the append, which the simulator never does.
"""

from __future__ import annotations

from random import Random

import pytest

from moldau.raft.core import Role
from tests.unit.raft.core.harness import Cluster, Replica, described, voter_set

STEPS = 600
NODES = (1, 2, 3, 4)


def _leader(cluster: Cluster, dice: Random) -> Replica | None:
    leaders = [each for each in cluster.live() if each.role is Role.LEADER]
    return dice.choice(leaders) if leaders else None


def _deliver_any(cluster: Cluster, dice: Random) -> None:
    """One message, not the oldest; some are lost."""
    if cluster.responses and (not cluster.requests or dice.random() < 0.5):
        in_flight, response = cluster.responses.pop(dice.randrange(len(cluster.responses)))
        cluster.deliver_response(in_flight, None if dice.random() < 0.03 else response)
    elif cluster.requests:
        in_flight = cluster.requests.pop(dice.randrange(len(cluster.requests)))
        if dice.random() < 0.03:
            cluster.responses.append((in_flight, None))
        else:
            cluster.deliver_request(in_flight)


def _disturb(cluster: Cluster, dice: Random) -> None:
    leader, node_id = _leader(cluster, dice), dice.choice(NODES)
    what = dice.randrange(9)
    if what == 0 and cluster[node_id].core is not None:
        cluster.crash(node_id, power_loss=dice.random() < 0.5)
    elif what == 1:
        cluster.isolate(node_id)
    elif what == 2:
        cluster.heal()
    elif what == 3 and cluster[node_id].core is None:
        cluster[node_id].start()
    elif what == 4 and leader is not None and leader.committed > leader.log.start:
        leader.snapshot()
    elif what == 5 and leader is not None and leader.core is not None:
        change = leader.core.add_voter("add", described(node_id), cluster.now_ms, timeout_ms=2_000)
        leader.run(change)
    elif what == 6 and leader is not None and leader.core is not None:
        voters = leader.core.state.voters.latest.voters
        if len(voters) > 2:
            key = described(dice.choice(voters).voter_id)
            change = leader.core.remove_voter(
                "remove", cluster.key_of(key), cluster.now_ms, timeout_ms=2_000
            )
            leader.run(change)
    elif leader is not None:
        leader.propose(dice.random())


@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_committed_records_stay_the_same_everywhere(seed: int) -> None:
    print(f"seed {seed}")
    dice = Random(seed)
    cluster = Cluster(voter_set(1, 2, 3), observers=(4,), seed=seed)
    cluster.start()
    for _ in range(STEPS):
        for _ in range(dice.randrange(12)):
            _deliver_any(cluster, dice)
        cluster.now_ms += dice.random() * 60
        for replica in list(cluster.live()):
            assert replica.core is not None
            replica.run(replica.core.tick(cluster.now_ms))
        if dice.random() < 0.15:
            _disturb(cluster, dice)
    cluster.heal()
    for replica in cluster.replicas.values():
        assert replica.stopped is None
        if replica.core is None:
            replica.start()
    leader = cluster.elect()
    leader.propose("last")
    cluster.run_for(10_000)
    assert cluster.agreed[-1].value == "last" or cluster.leader() is not leader
    ends = {each.committed for each in cluster.live()}
    assert ends == {cluster.leader().log.log_end_offset}
