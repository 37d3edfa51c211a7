"""The blocking producer's transactions, interrupted anywhere."""

from __future__ import annotations

import pytest

from moldau.client.sync import Producer
from tests.fake_broker import FakeCluster, ThreadedCluster
from tests.unit.client.faults.harness import PRODUCER
from tests.unit.client.sync.interruptions import interrupted_at

FUNCTIONS = ("__init__", "__enter__", "__exit__", "_call", "call", "run", "post", "transaction")


@pytest.mark.timeout(120)
def test_an_interruption_at_any_place_of_a_transactions_block_ends_the_transaction():
    """It is committed or aborted as a whole; the next one is begun as if nothing had been."""
    expected = []
    undecided = 0
    with (
        ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded,
        Producer(threaded.cluster.bootstrap_servers, transactional_id="id", **PRODUCER) as producer,
    ):
        place = 0
        while True:
            place += 1
            mine = b"interrupted %d" % place
            was_interrupted = False
            with interrupted_at(place, FUNCTIONS) as passed:
                try:
                    with producer.transaction():
                        producer.send_nowait("t", mine)
                except KeyboardInterrupt:
                    was_interrupted = True
            with producer.transaction():
                producer.send_nowait("t", b"after %d" % place)
            committed = threaded.call(lambda cluster: cluster.values("t", committed_only=True))
            if mine in committed:
                expected.append(mine)
                undecided += was_interrupted
            else:
                assert was_interrupted
            expected.append(b"after %d" % place)
            assert committed == expected, passed[-1]
            if not was_interrupted:
                break
    assert place > 40
    assert undecided > 0, "an interruption behind the commit comes too late"


def test_a_block_that_was_left_does_not_end_a_later_transaction():
    with (
        ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as threaded,
        Producer(threaded.cluster.bootstrap_servers, transactional_id="id", **PRODUCER) as producer,
    ):
        left = producer.transaction()
        left.__enter__()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_nowait("t", b"kept")
        del left
        producer.commit_transaction()
        assert threaded.call(lambda cluster: cluster.values("t", committed_only=True)) == [b"kept"]
