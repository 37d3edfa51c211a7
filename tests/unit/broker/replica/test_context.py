"""What partitions share: who may join an in-sync set by the newest image."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from moldau.broker.replica.context import ReplicationContext
from moldau.metadata.image import BrokerRegistration, ClusterImage, MetadataImage
from moldau.runtime.telemetry.metrics import Registry
from tests.kit.manual_clock import ManualClock


def image(**changed: Any) -> MetadataImage:
    registration = BrokerRegistration(
        **{
            "broker_id": 2,
            "broker_epoch": 20,
            "incarnation_id": uuid.UUID(int=1),
            "listeners": {},
            "fenced": False,
            **changed,
        }
    )
    return MetadataImage(cluster=ClusterImage(brokers={2: registration}))


class Rig:
    def __init__(self) -> None:
        self.image = image()
        self.clock = ManualClock(monotonic_ms=0)
        self.registry = Registry(self.clock.monotonic_ms)
        self.context = ReplicationContext(
            max_lag_ms=30_000,
            clock=self.clock,
            broker_epoch=lambda: 7,
            image=lambda: self.image,
            registry=self.registry,
        )


@pytest.mark.parametrize(
    ("changed", "broker_epoch", "is_eligible"),
    [
        ({}, 20, True),
        ({}, -1, True),
        ({}, 19, False),
        ({}, 21, False),
        ({"fenced": True}, 20, False),
        ({"in_controlled_shutdown": True}, 20, False),
        ({"fenced": True}, -1, False),
    ],
)
def test_who_is_eligible(changed: dict[str, Any], broker_epoch: int, is_eligible: bool) -> None:
    rig = Rig()
    rig.image = image(**changed)
    assert rig.context.is_isr_eligible(2, broker_epoch) is is_eligible


def test_a_broker_that_is_not_registered_is_not_eligible() -> None:
    rig = Rig()
    assert not rig.context.is_isr_eligible(3, -1)
    rig.image = MetadataImage.EMPTY
    assert not rig.context.is_isr_eligible(2, 20)


def test_the_rest_is_passed_on() -> None:
    rig = Rig()
    rig.clock.advance(125)
    assert (rig.context.now_ms(), rig.context.broker_epoch()) == (125.0, 7)


def test_brokers_that_were_unregistered_are_forgotten() -> None:
    rig = Rig()
    rig.context.last_fetch_ms.update({2: 1.0, 3: 2.0})
    rig.context.brokers_left(rig.image)
    assert rig.context.last_fetch_ms == {2: 1.0}


def test_changes_of_isrs_are_counted_under_kafkas_names() -> None:
    rig = Rig()
    rig.context.isr_expands.count += 1
    rig.context.isr_shrinks.count += 2
    rig.context.failed_isr_updates.count += 3
    values = {each.name: each.instrument.value for each in rig.registry.collect()}
    prefix = "kafka.server:type=ReplicaManager,name="
    assert values == {
        prefix + "IsrExpandsPerSec": 1,
        prefix + "IsrShrinksPerSec": 2,
        prefix + "FailedIsrUpdatesPerSec": 3,
    }
