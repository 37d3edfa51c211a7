"""Dynamic broker configuration and how DescribeConfigs shows it."""

from __future__ import annotations

import pytest

from moldau.config import (
    ConfigError,
    ConfigSource,
    describe_broker_config,
    describe_cluster_default_config,
    describe_topic_config,
    dynamic_config,
    dynamic_config_warnings,
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


def test_stored_values_that_cannot_be_used_are_left_out_and_logged():
    stored = {"log.segment.bytes": "1", "node.id": "9", "future.key": "x"}
    values = effective_broker_config(node_with({}), stored, {})
    assert values["log.segment.bytes"] == 1 << 30
    assert values["node.id"] == 1
    assert [line.split()[0] for line in dynamic_config_warnings(stored, {})] == [
        "log.segment.bytes=1:",
        "node.id=9:",
        "future.key",
    ]


@pytest.mark.parametrize(
    ("name", "text", "cluster_default", "message"),
    [
        ("node.id", "2", False, "cannot be changed while the broker runs"),
        ("num.partitions", "2", True, "cannot be changed while the broker runs"),
        ("log.segment.bytes", "1", True, "must be at least 1048576"),
        ("ssl.keystore.location", "x", False, "as listener.name.LISTENER.ssl.keystore.location"),
        ("listener.name.a.ssl.keystore.location", "/x\0y", False, r"=/x\x00y: must be a path"),
        ("listener.name.a.ssl.truststore.location", "\0", False, "has a NUL character"),
        ("listener.name.a.ssl.keystore.type", "PEM", True, "only be set per broker"),
        ("listener.name.a.ssl.client.auth", "none", False, "cannot be changed while the broker"),
        ("ssl.allow.dn.changes", "true", False, "cannot be changed while the broker runs"),
        ("sasl.kerberos.min.time.before.relogin", "1", True, "only be set per broker"),
        ("listener.name.a.gssapi.sasl.kerberos.ticket.renew.jitter", "0", False, "for all listen"),
        ("sasl.kerberos.service.name", "x", True, "cannot be changed while the broker runs"),
        ("log.cleanup.policy", "shred", True, "out of compact, delete"),
        ("log.roll.ms", "0", True, "must be at least 1"),
        ("log.roll.jitter.ms", "-1", False, "must be at least 0"),
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
    assert described["log.retention.ms"].synonyms == (), "as Apache Kafka: not those of others"
    assert [(s.name, s.source) for s in described["log.retention.hours"].synonyms] == [
        ("log.retention.hours", DEFAULT)
    ]
    assert [(s.value, s.source) for s in described["broker.id"].synonyms] == [
        ("1", STATIC),
        ("-1", DEFAULT),
    ]


@pytest.mark.parametrize("name", ["segment.ms", "segment.jitter.ms", "retention.ms", "flush.ms"])
def test_a_topics_value_that_only_a_second_synonym_gives_has_no_synonyms(name):
    """Apache Kafka begins with the first value of the first key, and there is none."""
    [described] = describe_topic_config(node_with({}), {}, {}, {}, [name])
    assert (described.source, described.synonyms) == (DEFAULT, ())


def test_a_topics_key_of_another_version_is_described_without_its_value():
    overrides = {"their.key": "secret", "retention.ms": "1"}
    described = {
        each.name: each for each in describe_topic_config(node_with({}), {}, {}, overrides)
    }
    unknown = described["their.key"]
    assert (unknown.value, unknown.sensitive, unknown.read_only) == (None, True, False)
    assert unknown.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    [chosen] = describe_topic_config(node_with({}), {}, {}, overrides, ["retention.ms"])
    assert chosen.value == "1"


def test_synonyms_are_listed_level_by_level():
    static = node_with({"log.retention.ms": "5", "log.retention.hours": "1"})
    own = {"log.retention.ms": "7"}
    [described] = describe_topic_config(static, {}, own, {}, ["retention.ms"])
    assert [tuple(each) for each in described.synonyms] == [
        ("log.retention.ms", "7", BROKER),
        ("log.retention.ms", "5", STATIC),
        ("log.retention.hours", "1", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]


def test_unknown_keys_are_kept_and_never_shown():
    warning = validate_dynamic_broker_config("log.segment.bites", "1", cluster_default=True)
    assert "has no effect" in warning
    near, gone = dynamic_config_warnings({"log.segment.bites": "1", "zookeeper.connect": "x"}, {})
    assert "did you mean log.segment.bytes?" in near
    assert "was removed" in gone
    [told] = describe_broker_config(node_with({}), {}, {"a.secret": "x"}, ["a.secret"])
    assert told.synonyms == (("a.secret", None, BROKER),)
    assert (told.value, told.sensitive, told.read_only, told.type) == (None, True, True, 0)
    [of_all] = describe_cluster_default_config({"a.secret": "x"})
    assert (of_all.value, of_all.sensitive, of_all.read_only) == (None, True, True)


def test_of_very_many_unknown_keys_only_some_are_looked_up(monkeypatch):
    looks = []
    monkeypatch.setattr(dynamic_config, "nearest_key", lambda *given: looks.append(given) or "")
    unknown = {f"unknown-{index}": "1" for index in range(10_000)}
    for name in unknown:
        validate_dynamic_broker_config(name, "1")
    assert looks == [], "a change is not refused for it, and nobody reads the hint"
    *told, last = dynamic_config_warnings(unknown, {})
    assert len(told) == dynamic_config.MAX_WARNINGS
    assert "only the first" in last
    assert len(looks) == len(told) + 1
    some = dict(list(unknown.items())[: len(told)])
    assert list(dynamic_config_warnings(some, {})) == told


def test_a_key_of_one_listener_is_described():
    name = "listener.name.plaintext.max.connections"
    [told] = describe_broker_config(node_with({}), {}, {name: "9"}, [name])
    assert (told.value, told.sensitive, told.source) == ("9", False, BROKER)
    assert [tuple(each) for each in told.synonyms] == [
        (name, "9", BROKER),
        ("max.connections", "2147483647", DEFAULT),
    ]


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
    ]
    segment = described["segment.bytes"]
    assert (segment.value, segment.source) == ("2000000", CLUSTER)
    assert "internal.segment.bytes" not in described
    assert not any(entry.read_only for entry in entries)


def test_cluster_default_description_lists_only_what_was_set():
    entries = describe_cluster_default_config({"log.retention.ms": "5", "future.key": "x"})
    assert [(entry.name, entry.value, entry.source) for entry in entries] == [
        ("future.key", None, CLUSTER),
        ("log.retention.ms", "5", CLUSTER),
    ]
