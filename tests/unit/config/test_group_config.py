"""What groups may override, as DescribeConfigs shows it."""

from __future__ import annotations

import pytest

from moldau.config import GROUP_KEYS, ConfigError, ConfigSource, describe_group_config
from moldau.config.table import BROKER_KEYS

from .samples import node_with

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_a_groups_own_value_comes_before_the_brokers() -> None:
    node = node_with({"group.consumer.session.timeout.ms": "46000"})
    (told,) = describe_group_config(node, {}, {}, {SESSION: "50000"}, [SESSION])
    assert (told.value, told.source, told.read_only) == ("50000", ConfigSource.GROUP_CONFIG, False)
    assert [(each.name, each.value) for each in told.synonyms] == [
        (SESSION, "50000"),
        (f"group.{SESSION}", "46000"),
        (f"group.{SESSION}", "45000"),
    ]


def test_without_one_it_has_the_brokers() -> None:
    key = "consumer.assignment.interval.ms"
    (told,) = describe_group_config(node_with({}), {f"group.{key}": "7"}, {}, {}, [key])
    assert (told.value, told.source) == ("7", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    (told,) = describe_group_config(node_with({}), {}, {}, {}, [HEARTBEAT])
    assert (told.value, told.source) == ("5000", ConfigSource.DEFAULT_CONFIG)


def test_all_keys_are_described_and_each_stands_on_a_broker_key_with_the_same_default() -> None:
    told = describe_group_config(node_with({}), {}, {}, {})
    assert [each.name for each in told] == list(GROUP_KEYS) == sorted(GROUP_KEYS)
    for key in GROUP_KEYS.values():
        assert all(BROKER_KEYS[name].default == key.default for name in key.synonyms)


def test_what_another_version_wrote_is_shown_as_it_is() -> None:
    (told,) = describe_group_config(node_with({}), {}, {}, {SESSION: "soon"}, [SESSION])
    assert told.value == "soon"


def test_assignors_that_are_not_there_are_refused_at_the_start() -> None:
    node_with({"group.consumer.assignors": "range"})
    node_with(
        {
            "group.consumer.assignors": "org.apache.kafka.coordinator.group.assignor.RangeAssignor",
        }
    )
    with pytest.raises(ConfigError, match=r"group\.consumer\.assignors"):
        node_with({"group.consumer.assignors": "range,com.example.Mine"})
