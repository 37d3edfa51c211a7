"""Dynamic broker configuration and how DescribeConfigs tells it."""

from __future__ import annotations

import logging

import pytest

from moldau.config import (
    ConfigError,
    ConfigSource,
    describe_broker_config,
    describe_cluster_default_config,
    describe_topic_config,
    effective_broker_config,
    validate_dynamic_broker_config,
)
from tests.unit.config.samples import node_with

DEFAULT = ConfigSource.DEFAULT_CONFIG
STATIC = ConfigSource.STATIC_BROKER_CONFIG
CLUSTER = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
BROKER = ConfigSource.DYNAMIC_BROKER_CONFIG
TOPIC = ConfigSource.DYNAMIC_TOPIC_CONFIG


def test_precedence():
    static = node_with({"log.segment.bytes": "2000000", "message.max.bytes": "5"})
    values = effective_broker_config(
        static,
        {"log.segment.bytes": "3000000", "log.retention.ms": "7"},
        {"log.segment.bytes": "4000000"},
    )
    assert values["log.segment.bytes"] == 4_000_000
    assert values["log.retention.ms"] == 7
    assert values["message.max.bytes"] == 5
    assert values["num.partitions"] == 1


def test_stored_values_that_cannot_be_used_are_logged_and_left_out(caplog):
    caplog.set_level(logging.WARNING, "moldau.config")
    stored = {"log.segment.bytes": "1", "node.id": "9", "future.key": "x"}
    values = effective_broker_config(node_with({}), stored, {})
    assert values["log.segment.bytes"] == 1 << 30
    assert values["node.id"] == 1
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    ("name", "text", "cluster_default", "message"),
    [
        ("node.id", "2", False, "cannot be changed while the broker runs"),
        ("num.partitions", "2", True, "cannot be changed while the broker runs"),
        ("log.segment.bytes", "1", True, "must be at least 1048576"),
        ("log.segment.bites", "1", True, "did you mean log.segment.bytes?"),
        ("zookeeper.connect", "x", False, "was removed from Kafka"),
        ("ssl.keystore.location", "x", True, "only be set per broker"),
        ("log.cleanup.policy", "shred", True, "out of compact, delete"),
        ("log.retention.ms", "0", True, "must be at least 1, or -1"),
    ],
)
def test_refused_changes(name, text, cluster_default, message):
    with pytest.raises(ConfigError) as caught:
        validate_dynamic_broker_config(name, text, cluster_default=cluster_default)
    assert message in str(caught.value)


def test_accepted_changes_warn_when_they_have_no_effect():
    assert validate_dynamic_broker_config("log.retention.ms", "5", cluster_default=True) is None
    warning = validate_dynamic_broker_config("num.io.threads", "16")
    assert warning is not None
    assert warning.startswith("num.io.threads has no effect: ")


def test_broker_description_lists_every_level():
    static = node_with({"log.segment.bytes": "2000000", "ssl.keystore.password": "hunter2"})
    described = {
        entry.name: entry
        for entry in describe_broker_config(
            static, {"log.segment.bytes": "3000000"}, {"log.segment.bytes": "4000000"}
        )
    }
    segment = described["log.segment.bytes"]
    assert (segment.value, segment.source, segment.read_only) == ("4000000", BROKER, False)
    assert [(synonym.value, synonym.source) for synonym in segment.synonyms] == [
        ("4000000", BROKER),
        ("3000000", CLUSTER),
        ("2000000", STATIC),
        ("1073741824", DEFAULT),
    ]
    assert (described["node.id"].source, described["node.id"].read_only) == (STATIC, True)
    assert described["num.partitions"].source is DEFAULT
    password = described["ssl.keystore.password"]
    assert (password.value, password.sensitive, password.source) == (None, True, STATIC)
    assert "hunter2" not in repr(described)
    assert "unstable.api.versions.enable" not in described
    assert described["log.retention.ms"].value is None
    assert [s.name for s in described["log.retention.ms"].synonyms] == ["log.retention.hours"]


def test_broker_description_can_be_narrowed():
    entries = describe_broker_config(node_with({}), {}, {}, ["num.partitions", "no.such.key"])
    assert [entry.name for entry in entries] == ["num.partitions"]


def test_topic_description_shows_overrides_before_the_nodes_values():
    static = node_with({"log.retention.minutes": "5"})
    entries = describe_topic_config(
        static, {"log.segment.bytes": "2000000"}, {}, {"retention.ms": "9"}
    )
    described = {entry.name: entry for entry in entries}
    retention = described["retention.ms"]
    assert (retention.value, retention.source) == ("9", TOPIC)
    assert [tuple(synonym) for synonym in retention.synonyms] == [
        ("retention.ms", "9", TOPIC),
        ("log.retention.minutes", "5", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]
    segment = described["segment.bytes"]
    assert (segment.value, segment.source) == ("2000000", CLUSTER)
    assert "internal.segment.bytes" not in described
    assert not any(entry.read_only for entry in entries)


def test_cluster_default_description_lists_only_what_was_set():
    entries = describe_cluster_default_config({"log.retention.ms": "5", "future.key": "x"})
    assert [(entry.name, entry.value, entry.source) for entry in entries] == [
        ("log.retention.ms", "5", CLUSTER)
    ]
