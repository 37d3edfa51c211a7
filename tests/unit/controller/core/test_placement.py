"""Where replicas go: what Apache Kafka 4.3.0 does, the classic example, and what is refused."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from moldau.controller.core.placement import UsableBroker, place_replicas
from moldau.controller.core.result import Refusal
from moldau.controller.core.state import T
from moldau.metadata.steps import at_once
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import CreatableTopic, CreateTopicsRequest
from moldau.protocol.messages.p37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tests.unit.metadata.builders import CoreDriver, golden


class Zero:
    """Every draw is 0, as in the golden cases; the shuffle is the usual one, downwards."""

    def randrange(self, stop: int, /) -> int:
        return 0

    def shuffle(self, x: list[T], /) -> None:
        for last in range(len(x) - 1, 0, -1):
            x[last], x[0] = x[0], x[last]

    def randbytes(self, n: int, /) -> bytes:
        return bytes(n)


def cluster_of(letters: str) -> list[UsableBroker]:
    """One broker per letter, its rack; capitals are fenced, "-" has no rack."""
    return [
        UsableBroker(broker_id, None if letter == "-" else letter.lower(), letter.isupper())
        for broker_id, letter in enumerate(letters)
    ]


def test_kafka_places_the_same() -> None:
    cases = [json.loads(line) for line in golden("placements.json").splitlines()]
    assert len(cases) >= 39
    for case in cases:
        placed = at_once(
            place_replicas(
                Zero(),
                cluster_of(case["cluster"]),
                partition_count=len(case["placed"]),
                replication_factor=case["factor"],
            )
        )
        assert placed == case["placed"], case["cluster"]


def test_six_brokers_ten_partitions_factor_three_without_racks() -> None:
    """Leaders first: partition i's leader, then the brokers after it as followers."""
    placed = at_once(
        place_replicas(Zero(), cluster_of("------"), partition_count=10, replication_factor=3)
    )
    assert placed[:6] == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 0], [5, 0, 1]]
    assert placed[6:] == [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 0]]


def test_six_brokers_ten_partitions_factor_three_on_three_racks() -> None:
    """Each partition on all three racks, the leaders' racks taking turns."""
    racks = "accbba"
    placed = at_once(
        place_replicas(Zero(), cluster_of(racks), partition_count=10, replication_factor=3)
    )
    assert placed[:6] == [[0, 3, 1], [4, 2, 5], [1, 0, 3], [5, 4, 2], [3, 1, 0], [2, 5, 4]]
    for replicas in placed:
        assert {racks[each] for each in replicas} == {"a", "b", "c"}
    leaders = Counter(replicas[0] for replicas in placed)
    assert sorted(leaders.values()) == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("racks", ["------", "accbba"])
@pytest.mark.parametrize("seed", range(10))
def test_any_draw_spreads_leaders_first(racks: str, seed: int) -> None:
    placed = at_once(
        place_replicas(
            random.Random(seed), cluster_of(racks), partition_count=12, replication_factor=3
        )
    )
    for first in (0, 6):
        leaders = [replicas[0] for replicas in placed[first : first + 6]]
        assert sorted(leaders) == list(range(6)), f"seed {seed}: {placed}"


def test_fenced_brokers_come_last_and_never_first() -> None:
    placed = at_once(
        place_replicas(
            random.Random(1), cluster_of("aaAaaa"), partition_count=10, replication_factor=5
        )
    )
    for replicas in placed:
        assert 2 not in replicas
    placed = at_once(
        place_replicas(
            random.Random(1), cluster_of("aaAaaa"), partition_count=10, replication_factor=6
        )
    )
    for replicas in placed:
        assert replicas[0] != 2 in replicas


@pytest.mark.parametrize(
    ("cluster", "factor"), [("---", 4), ("--", 0), ("--", -1), ("AA", 1), ("", 1)]
)
def test_placements_that_are_refused(cluster: str, factor: int) -> None:
    with pytest.raises(Refusal) as refused:
        at_once(
            place_replicas(
                Zero(), cluster_of(cluster), partition_count=1, replication_factor=factor
            )
        )
    assert refused.value.error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_brokers_that_shut_down_get_no_replicas_and_fenced_ones_the_last() -> None:
    driver = CoreDriver()
    for broker_id in (1, 2, 3):
        driver.join(broker_id)
    driver.topic("t", [3, 1], [1, 2])
    driver.beat(3, want_shut_down=True)
    driver.beat(2, want_fence=True)
    topic = CreatableTopic(name="u", num_partitions=4, replication_factor=2)
    assert driver.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code == 0
    for index in range(4):
        partition = driver.partition("u", index)
        assert (partition.replicas, partition.isr) == ((1, 2), (1,))
    topic = CreatableTopic(name="v", num_partitions=1, replication_factor=3)
    (refused,) = driver.ask(CreateTopicsRequest(topics=[topic])).topics
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_added_partitions_are_spread_as_the_first_ones_are() -> None:
    driver = CoreDriver()
    for broker_id in range(6):
        driver.join(broker_id, rack="ab"[broker_id % 2])
    topic = CreatableTopic(name="t", num_partitions=6, replication_factor=2)
    driver.ask(CreateTopicsRequest(topics=[topic]))
    wanted = CreatePartitionsTopic(name="t", count=12, assignments=None)
    (grown,) = driver.ask(CreatePartitionsRequest(topics=[wanted])).results
    assert grown.error_code == 0
    for first in (0, 6):
        partitions = [driver.partition("t", index) for index in range(first, first + 6)]
        assert {partition.leader for partition in partitions} == set(range(6))
        assert all(sum(each.replicas) % 2 == 1 for each in partitions), "one on each rack"
