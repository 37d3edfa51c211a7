"""Unclean elections are counted as they are read from the metadata log."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from moldau.broker.lifecycle.metadata_loader import (
    UNCLEAN_ELECTIONS,
    ElectionMeters,
    MetadataLoader,
)
from moldau.metadata.image import Provenance
from moldau.protocol.metadata_records import PartitionChangeRecord, PartitionRecord, TopicRecord
from moldau.protocol.schema import Message
from moldau.runtime.telemetry.metrics import Registry
from tests.kit.manual_clock import ManualClock

TOPIC_ID = uuid.UUID(int=10)


class Rig:
    def __init__(self, **partition: Any) -> None:
        self.registry = Registry(ManualClock().monotonic_ms)
        self.loader = MetadataLoader(1)
        self.offset = 0
        fields = {"replicas": [1, 2, 3], "isr": [1], "leader": 1, **partition}
        self.commit(
            TopicRecord(name="t", topic_id=TOPIC_ID),
            PartitionRecord(partition_id=0, topic_id=TOPIC_ID, **fields),
        )
        self.loader.add_publisher(ElectionMeters(self.registry))

    def commit(self, *records: Message) -> None:
        self.offset += len(records)
        self.loader.handle_commit(list(records), Provenance(self.offset, 1, 0))

    def change(self, **fields: Any) -> None:
        self.commit(PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, **fields))

    @property
    def count(self) -> int:
        [value] = [
            each.instrument.value
            for each in self.registry.collect()
            if each.name == UNCLEAN_ELECTIONS
        ]
        return int(value)


def test_a_leader_from_outside_the_isr_is_counted_once() -> None:
    rig = Rig()
    rig.change(leader=-1)
    assert rig.count == 0
    rig.change(leader=2, isr=[2], leader_recovery_state=1)
    assert rig.count == 1
    rig.change(isr=[2, 1], leader_recovery_state=0)
    rig.change(leader=1)
    assert rig.count == 1, "that one was in sync"


def test_an_election_before_the_first_image_is_not_counted() -> None:
    assert Rig(leader=3, isr=[3], leader_recovery_state=1).count == 0


@pytest.mark.parametrize(
    ("partition", "leader", "count"),
    [
        ({"isr": [1, 2]}, 2, 0),
        ({"isr": [], "eligible_leader_replicas": [2], "leader": -1}, 2, 0),
        ({"isr": [], "eligible_leader_replicas": [2], "leader": -1}, 3, 1),
        ({"isr": [], "last_known_elr": [1], "leader": -1}, 1, 1),
        ({"isr": [1]}, 1, 0),
    ],
)
def test_who_may_be_elected(partition: dict[str, Any], leader: int, count: int) -> None:
    rig = Rig(**partition)
    rig.change(leader=leader)
    assert rig.count == count
