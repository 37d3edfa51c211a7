"""What several resources are made of, where parts of it are not known."""

from __future__ import annotations

from moldau.client import (
    AuthorizationFailed,
    CommittedOffset,
    ConfigEntry,
    ConfigSource,
    LogDirectory,
    NoBrokerAvailable,
    PartitionOffset,
    TopicPartition,
    UnsupportedByBroker,
)
from moldau.console.own.gathering import (
    config_documents,
    has_answered,
    lag_of,
    offset_in,
    topic_sizes,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_lag_is_the_sum_of_what_is_known() -> None:
    committed = {A0: CommittedOffset(3), A1: CommittedOffset(9), B0: CommittedOffset(1)}
    ends = {
        A0: PartitionOffset(10, -1, 0),
        A1: PartitionOffset(5, -1, 0),
        B0: NoBrokerAvailable("down"),
    }
    assert lag_of(committed, ends) == 7
    assert lag_of(committed, ends, "a") == 7
    assert lag_of(committed, ends, "b") is None
    assert lag_of({}, ends) is None


def test_an_offset_that_is_not_known() -> None:
    assert offset_in({A0: PartitionOffset(-1, -1, -1)}, A0) is None
    assert offset_in({A0: NoBrokerAvailable("down")}, A0) is None
    assert offset_in({}, A0) is None
    assert offset_in({A0: PartitionOffset(0, -1, -1)}, A0) == 0


def test_sizes_are_summed_over_the_disks_that_answer() -> None:
    directories = {
        1: [
            LogDirectory("/x", None, 9, 9, {A0: 5}),
            LogDirectory("/y", None, 9, 9, {A1: 6, B0: 1}),
        ],
        2: [LogDirectory("/x", None, 9, 9, {A0: 5})],
        3: NoBrokerAvailable("down"),
    }
    assert topic_sizes(directories) == {"a": 16, "b": 1}


def test_a_broker_that_refuses_has_answered() -> None:
    assert has_answered([])
    assert has_answered(AuthorizationFailed("no"))
    assert has_answered(UnsupportedByBroker("old"))
    assert not has_answered(NoBrokerAvailable("down"))


def test_configurations_come_by_name_and_secrets_never() -> None:
    source = ConfigSource.DEFAULT_CONFIG
    entries = {
        "b": ConfigEntry("b", "2", source, False, False, (("b", "2", source),), "Of b."),
        "a": ConfigEntry("a", "hidden", source, True, True, (("a", "hidden", source),)),
    }
    first, second = config_documents(entries)
    assert (first["name"], first["value"], first["is_sensitive"]) == ("a", None, True)
    assert first["synonyms"] == [{"name": "a", "value": None, "source": "DEFAULT_CONFIG"}]
    assert second == {
        "name": "b",
        "value": "2",
        "is_default": True,
        "is_sensitive": False,
        "is_read_only": False,
        "source": "DEFAULT_CONFIG",
        "type": None,
        "documentation": "Of b.",
        "synonyms": [{"name": "b", "value": "2", "source": "DEFAULT_CONFIG"}],
    }


def test_documentation_is_plain_text() -> None:
    text = 'See <a href="#x">log</a>: <code>a &lt; b</code>, 1 < 2 and 3 > 2.<br/>'
    entry = ConfigEntry("a", "1", ConfigSource.DEFAULT_CONFIG, False, False, (), text)
    [shown] = config_documents({"a": entry})
    assert shown["documentation"] == "See log: a < b, 1 < 2 and 3 > 2."
