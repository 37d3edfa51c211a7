"""Broker configuration that changes while the node runs reaches the parts that honour it."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.lifecycle.metadata_loader import MetadataLoader
from moldau.config import NodeConfig
from moldau.metadata.image import Provenance
from moldau.node.settings import DynamicSettings
from moldau.protocol.metadata_records import ConfigRecord

BROKER = 4
STATIC = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "num.replica.fetchers": "2",
}


class ToldCleaner:
    """Stands for log compaction."""

    def __init__(self) -> None:
        self.settings: Any = None

    def update_settings(self, settings: Any) -> None:
        self.settings = settings


class ToldFetchers:
    """Stands for the replica fetchers; remembers every number of them."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def resize(self, count: int) -> None:
        self.counts.append(count)


class Told:
    """Stands for every part; remembers the newest value of each."""

    def __init__(self) -> None:
        self.max_connections = -1
        self.expiration_ms = -1
        self.fetchers = ToldFetchers()
        self.is_enabled = True
        self.cleaner = ToldCleaner()

    def update_limits(self, limits: Any) -> None:
        self.max_connections = limits.max_connections

    def update_producer_expiration(self, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms


class Rig:
    def __init__(self) -> None:
        self.told = Told()
        self.loader = MetadataLoader(1)
        part: Any = self.told
        self.loader.add_publisher(DynamicSettings(NodeConfig(STATIC), *[part] * 4))
        self.offset = 0

    def configure(self, name: str, value: str | None, *, resource: str = "") -> None:
        self.offset += 1
        record = ConfigRecord(resource_type=BROKER, resource_name=resource, name=name, value=value)
        self.loader.handle_commit([record], Provenance(self.offset, 1, 0))


@pytest.mark.parametrize("resource", ["", "1"])
def test_a_value_comes_and_goes(resource: str) -> None:
    rig = Rig()
    rig.configure("num.replica.fetchers", "8", resource=resource)
    rig.configure("max.connections", "17", resource=resource)
    rig.configure("producer.id.expiration.ms", "12345", resource=resource)
    assert (rig.told.max_connections, rig.told.expiration_ms) == (17, 12345)
    rig.configure("transaction.partition.verification.enable", "false", resource=resource)
    assert not rig.told.is_enabled
    rig.configure("transaction.partition.verification.enable", None, resource=resource)
    assert rig.told.is_enabled
    rig.configure("log.cleaner.threads", "3", resource=resource)
    rig.configure("log.cleaner.backoff.ms", "77", resource=resource)
    settings = rig.told.cleaner.settings
    assert (settings.thread_count, settings.backoff_ms) == (3, 77)
    rig.configure("num.replica.fetchers", None, resource=resource)
    assert rig.told.fetchers.counts == [8, 8, 8, 8, 8, 8, 8, 2]


def test_the_brokers_own_value_wins_over_the_clusters() -> None:
    rig = Rig()
    rig.configure("num.replica.fetchers", "3")
    rig.configure("num.replica.fetchers", "5", resource="1")
    rig.configure("num.replica.fetchers", "4")
    assert rig.told.fetchers.counts == [3, 5, 5]


def test_other_brokers_settings_are_nothing_to_this_one() -> None:
    rig = Rig()
    rig.configure("num.replica.fetchers", "9", resource="2")
    assert rig.told.fetchers.counts == []
