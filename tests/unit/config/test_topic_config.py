"""Topic configuration: inheritance through synonyms, validation, refusal."""

from __future__ import annotations

import logging

import pytest

from moldau.config import (
    TOPIC_KEYS,
    ConfigError,
    effective_topic_config,
    validate_topic_config,
)
from moldau.config.topic_config import topic_config_defaults
from tests.unit.config.samples import node_with

HOUR_MS = 3_600_000


def test_defaults_equal_kafkas_topic_defaults():
    values = topic_config_defaults(node_with({}))
    assert values == {name: key.default for name, key in TOPIC_KEYS.items()}


@pytest.mark.parametrize(
    ("node_values", "key", "expected"),
    [
        ({"log.retention.hours": "2"}, "retention.ms", 2 * HOUR_MS),
        ({"log.retention.hours": "2", "log.retention.minutes": "5"}, "retention.ms", 300_000),
        ({"log.retention.minutes": "5", "log.retention.ms": "7"}, "retention.ms", 7),
        ({"log.retention.hours": "-1"}, "retention.ms", -1),
        ({"log.retention.ms": "-1"}, "retention.ms", -1),
        ({"log.roll.hours": "3"}, "segment.ms", 3 * HOUR_MS),
        ({"log.roll.hours": "3", "log.roll.ms": "9"}, "segment.ms", 9),
        ({"log.roll.jitter.hours": "1"}, "segment.jitter.ms", HOUR_MS),
        ({"log.flush.scheduler.interval.ms": "8"}, "flush.ms", 8),
        (
            {"log.flush.scheduler.interval.ms": "8", "log.flush.interval.ms": "4"},
            "flush.ms",
            4,
        ),
        ({"message.max.bytes": "1000"}, "max.message.bytes", 1000),
        ({"log.index.size.max.bytes": "96"}, "segment.index.bytes", 96),
        ({"log.cleanup.policy": ""}, "cleanup.policy", ()),
        ({"min.insync.replicas": "2"}, "min.insync.replicas", 2),
    ],
)
def test_node_values_are_inherited(node_values, key, expected):
    assert topic_config_defaults(node_with(node_values))[key] == expected


def test_overrides_win_and_are_typed():
    values = effective_topic_config(
        node_with({"log.segment.bytes": "2000000"}),
        {"segment.bytes": "3000000", "preallocate": "true", "compression.type": "zstd"},
    )
    assert values["segment.bytes"] == 3_000_000
    assert values["preallocate"] is True
    assert values["compression.type"] == "zstd"


def test_stored_override_that_cannot_be_used_is_logged_and_left_out(caplog):
    caplog.set_level(logging.WARNING, "moldau.config")
    values = effective_topic_config(
        node_with({}), {"segment.bytes": "x", "future.key": "1", "cleanup.policy": "shred"}
    )
    assert values["segment.bytes"] == 1 << 30
    assert values["cleanup.policy"] == ("delete",)
    assert "future.key" not in values
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"retention.ms": "-1", "retention.bytes": "-1"},
        {"cleanup.policy": "delete", "segment.bytes": "1048576"},
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"},
        {"cleanup.policy": "compact,delete", "delete.retention.ms": "0"},
        {"local.retention.ms": "1000", "retention.ms": "1000"},
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
        {"leader.replication.throttled.replicas": "0:1,1:2"},
        {"leader.replication.throttled.replicas": "0:1,,1:2,"},
        {"follower.replication.throttled.replicas": "*,"},
    ],
)
def test_valid_overrides_pass(overrides):
    validate_topic_config(overrides)
    assert set(overrides) <= set(effective_topic_config(node_with({}), overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cleanup.policy": "shred"}, "out of compact, delete"),
        ({"remote.storage.enable": "true"}, "is refused: tiered storage is not served"),
        ({"segment.bytes": "1024"}, "must be at least 1048576"),
        ({"retenton.ms": "1"}, "did you mean retention.ms?"),
        ({"num.partitions": "1"}, "num.partitions: is not a topic configuration"),
        ({"message.format.version": "3.0"}, "was removed from Kafka"),
        ({"retention.ms": "-2"}, "must be at least -1"),
        ({"local.retention.ms": "2000", "retention.ms": "1000"}, "must not exceed retention.ms"),
        ({"local.retention.bytes": "-1", "retention.bytes": "1"}, "must not exceed retention.b"),
        (
            {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"},
            "min.compaction.lag.ms=6: must not exceed max.compaction.lag.ms",
        ),
        ({"min.insync.replicas": "0"}, "must be at least 1"),
    ],
)
def test_invalid_overrides_are_refused_with_a_reason(overrides, message):
    with pytest.raises(ConfigError) as caught:
        validate_topic_config(overrides)
    assert message in str(caught.value)


def test_rules_between_keys_take_the_nodes_defaults_into_account():
    with pytest.raises(ConfigError, match=r"local\.retention\.ms=2000: must not exceed"):
        validate_topic_config(
            {"local.retention.ms": "2000"}, node_with({"log.retention.ms": "1000"})
        )
