"""Settings of a node's parts come from the keys that their fields name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from moldau.broker.coordinator.group.core.context import (
    ConsumerGroupSettings,
    GroupSettings,
    LimitedTime,
)
from moldau.broker.coordinator.transaction.core.rules import TransactionSettings
from moldau.broker.replica.replica_fetcher import FetcherSettings
from moldau.config.settings import KeyedSettings, of_key
from moldau.node.http.connections import HttpLimits
from moldau.server.connection_limits import ServerLimits
from moldau.storage.log_config import CleanerSettings, LogManagerSettings
from tests.unit.config.samples import node, node_with

WITHOUT_REQUIRED_FIELDS = (
    CleanerSettings,
    ConsumerGroupSettings,
    FetcherSettings,
    GroupSettings,
    HttpLimits,
    LogManagerSettings,
    ServerLimits,
    TransactionSettings,
)


@dataclass(frozen=True, slots=True)
class Parts(KeyedSettings):
    """A field of one key, of two, of one in another unit, and of none."""

    size: int = of_key("socket.request.max.bytes")
    times: tuple[int, int] = of_key(
        "group.min.session.timeout.ms", "group.max.session.timeout.ms", made=lambda *both: both
    )
    idle_s: float = of_key("connections.max.idle.ms", made=lambda ms: ms / 1000)
    own: str = "none"


def test_fields_have_the_values_of_their_keys() -> None:
    config = node_with({"socket.request.max.bytes": "7", "connections.max.idle.ms": "1500"})
    assert Parts.from_config(config) == Parts(7, (6_000, 1_800_000), 1.5, "none")


def test_a_field_without_a_key_is_given_and_one_with_a_key_may_be() -> None:
    assert Parts.from_config(node(), own="mine", size=3) == Parts(size=3, own="mine")


def test_a_default_is_that_of_the_key() -> None:
    assert Parts() == Parts(104_857_600, (6_000, 1_800_000), 600.0, "none")


@pytest.mark.parametrize("kind", WITHOUT_REQUIRED_FIELDS)
def test_every_field_names_a_key_and_a_plain_node_has_the_defaults(
    kind: type[KeyedSettings],
) -> None:
    assert kind.from_config(node()) == kind()


def test_a_time_of_groups_and_its_limits_are_three_keys() -> None:
    config = node_with(
        {
            "group.consumer.min.heartbeat.interval.ms": "4000",
            "group.consumer.max.heartbeat.interval.ms": "9000",
            "group.consumer.migration.policy": "Upgrade",
        }
    )
    settings = ConsumerGroupSettings.from_config(config, broker_id=3)
    assert settings.heartbeat_interval == LimitedTime(5000, 4000, 9000)
    assert (settings.broker_id, settings.upgrade_enabled, settings.downgrade_enabled) == (
        3,
        True,
        False,
    )
