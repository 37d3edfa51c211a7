"""The replica that a consumer is sent to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from moldau.broker.replica.core.partition_core import ReplicaFigures
from moldau.broker.replica.partition import Partition
from moldau.broker.replica.replica_selector import NO_PREFERRED_READ_REPLICA, ReadReplicas
from moldau.config.node_config import RACK_AWARE_REPLICA_SELECTOR
from moldau.metadata.image import MetadataImage

LEADER_ID = 9


def view(
    broker_id: int, rack: str | None, *, start: int = 0, end: int = 100, lag_ms: float = 0.0
) -> tuple[str | None, ReplicaFigures]:
    return rack, ReplicaFigures(broker_id, start, end, 0, True, lag_ms)


def choose(
    *followers: tuple[str | None, ReplicaFigures],
    rack: str = "east",
    leader_rack: str | None = "west",
    offset: int = 50,
) -> int:
    brokers = {
        broker_id: SimpleNamespace(rack=its_rack, fenced=False, listeners={"CLIENTS": None})
        for its_rack, broker_id in [
            (leader_rack, LEADER_ID),
            *((each, figures.replica_id) for each, figures in followers),
        ]
    }
    image = SimpleNamespace(cluster=SimpleNamespace(brokers=brokers))
    leader = ReplicaFigures(LEADER_ID, 0, 100, 0, True, 0.0)
    partition = SimpleNamespace(
        core=SimpleNamespace(local_broker_id=LEADER_ID),
        replica_figures=lambda: [leader, *(figures for _, figures in followers)],
    )
    replicas = ReadReplicas(RACK_AWARE_REPLICA_SELECTOR, lambda: cast("MetadataImage", image))
    return replicas.preferred(cast("Partition", partition), rack, offset, "CLIENTS")


def test_the_follower_in_the_clients_rack() -> None:
    assert choose(view(1, "north"), view(2, "east"), view(3, None)) == 2


@pytest.mark.parametrize(
    ("rack", "leader_rack"), [("", "west"), ("east", "east"), ("south", "west"), ("None", None)]
)
def test_the_leader_is_read_when_no_replica_is_nearer(rack: str, leader_rack: str | None) -> None:
    found = choose(view(2, "east"), view(3, None), rack=rack, leader_rack=leader_rack)
    assert found == NO_PREFERRED_READ_REPLICA


def test_a_client_without_a_rack_is_in_no_rack() -> None:
    assert choose(view(2, ""), rack="", leader_rack="west") == NO_PREFERRED_READ_REPLICA


@pytest.mark.parametrize(
    ("offset", "expected"), [(9, -1), (10, 2), (19, 2), (20, 2), (21, NO_PREFERRED_READ_REPLICA)]
)
def test_it_must_have_the_offset(offset: int, expected: int) -> None:
    assert choose(view(2, "east", start=10, end=20), offset=offset) == expected


def test_unknown_ends_are_not_chosen() -> None:
    assert choose(view(2, "east", start=-1, end=-1), offset=0) == NO_PREFERRED_READ_REPLICA


def test_the_most_caught_up_one() -> None:
    behind = view(4, "east", end=90)
    assert choose(behind, view(2, "east", end=99), view(3, "east", end=91)) == 2


def test_equal_ends_are_decided_by_who_was_level_last_then_by_id() -> None:
    assert choose(view(4, "east", lag_ms=9.0), view(2, "east", lag_ms=1.0)) == 2
    assert choose(view(2, "east"), view(4, "east"), view(3, "east")) == 4


def test_one_that_has_not_the_offset_is_passed_over_for_one_that_has() -> None:
    assert choose(view(2, "east", start=60, end=100), view(3, "east", end=70)) == 3


def test_the_classes_that_are_served() -> None:
    def replicas(selector_class: str | None) -> ReadReplicas:
        return ReadReplicas(selector_class, lambda: MetadataImage.EMPTY)

    assert not replicas(None).is_enabled
    assert not replicas("").is_enabled
    assert replicas(RACK_AWARE_REPLICA_SELECTOR).is_enabled
    with pytest.raises(ValueError, match=r"com\.example\.Mine.*RackAwareReplicaSelector"):
        replicas("com.example.Mine")
