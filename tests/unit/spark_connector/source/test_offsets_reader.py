"""What the driver asks of an admin client, and how often while topics come and go."""

from __future__ import annotations

import uuid

import pytest

from moldau.client import PartitionDescription, PartitionOffset, TopicDescription
from moldau.client.errors import UnknownTopicOrPartition
from moldau.protocol.types import TopicPartition
from moldau.spark_connector.errors import ClusterError
from moldau.spark_connector.source import planners
from moldau.spark_connector.source.options import SourceOptions
from moldau.spark_connector.source.planners import OffsetsReader

IDS = {name: uuid.uuid4() for name in ("t", "u", "tt")}


class FakeAdmin:
    """Topics with two partitions each; some unknown to the calls that describe, for some time."""

    def __init__(self, *topics):
        self.topics = list(topics)
        self.unknown_for = {}
        self.calls = []
        self.closed = False

    def list_topics(self, *, include_internal=False):
        self.calls.append("list")
        return sorted(self.topics)

    def describe_topics(self, names):
        self.calls.append("describe")
        for name in names:
            self._check(name)
        return {
            name: TopicDescription(
                name,
                IDS[name],
                False,
                tuple(PartitionDescription(each, 1, 0, (1,), (1,), (), (), ()) for each in (0, 1)),
            )
            for name in names
        }

    def list_offsets(self, specs, *, read_committed):
        self.calls.append("offsets")
        for partition in specs:
            self._check(partition.topic)
        return {
            partition: PartitionOffset(-1 if spec == 99 else 10 * spec + read_committed, -1, 0)
            for partition, spec in specs.items()
        }

    def close(self):
        self.closed = True

    def _check(self, name):
        left = self.unknown_for.get(name, 0)
        self.unknown_for[name] = left - 1
        if left > 0 or name not in self.topics:
            raise UnknownTopicOrPartition(name)


@pytest.fixture
def pauses(monkeypatch):
    slept = []
    monkeypatch.setattr(planners.time, "sleep", slept.append)
    return slept


def reader(admin, **given):
    options = {"kafka.bootstrap.servers": "h:9092"}
    if not given.keys() & {"assign", "subscribePattern"}:
        options["subscribe"] = "t"
    options |= {name.replace("__", "."): value for name, value in given.items()}
    made = OffsetsReader(SourceOptions.parse(options))
    made._admin = admin
    return made


def test_topics_by_name():
    topology = reader(FakeAdmin("t", "u"), subscribe="u,t").topology()
    assert topology.partitions == {TopicPartition(name, n) for name in "tu" for n in (0, 1)}
    assert topology.topic_ids == {"t": IDS["t"], "u": IDS["u"]}
    assert topology.missing == ()


def test_missing_topics_are_reported_beside_existing_ones():
    topology = reader(FakeAdmin("t"), subscribe="t,u").topology()
    assert {partition.topic for partition in topology.partitions} == {"t"}
    assert topology.missing == ("u",)


def test_assigned_partitions():
    topology = reader(FakeAdmin("t"), assign='{"t":[1,7],"u":[0]}').topology()
    assert topology.partitions == {TopicPartition("t", 1)}
    assert topology.missing == ("t-7", "u-0")


def test_a_pattern_matches_whole_names_and_all_topics_are_listed_once(monkeypatch):
    admin = FakeAdmin("t", "tt", "u")
    made = reader(admin, subscribePattern="t")
    assert {partition.topic for partition in made.topology().partitions} == {"t"}
    made.topology()
    assert admin.calls.count("list") == 1
    now_s = planners.time.monotonic()
    monkeypatch.setattr(planners.time, "monotonic", lambda: now_s + 1)
    made.topology()
    assert admin.calls.count("list") == 2
    # Deleted since the list was made: it matches nothing any more.
    admin.topics.remove("t")
    assert made.topology().missing == ()


def test_a_topic_made_just_now_is_looked_for_again(pauses):
    admin = FakeAdmin("t")
    made = reader(admin)
    admin.topics.clear()
    assert made.topology().missing == ("t",)
    assert pauses == []
    assert made.topology(patient=True).missing == ("t",)
    assert pauses == [0.25] * 4
    admin.topics.append("t")
    assert made.topology(patient=True).missing == ()
    assert len(pauses) == 4


def test_brokers_that_do_not_agree_are_asked_again(pauses):
    admin = FakeAdmin("t")
    admin.unknown_for["t"] = 2
    assert reader(admin).topology().missing == ()
    assert len(pauses) == 2
    admin.unknown_for["t"] = 100
    with pytest.raises(ClusterError, match="come and go"):
        reader(admin).topology()


def test_offsets_of_what_exists():
    made = reader(FakeAdmin("t"), kafka__isolation__level="read_committed")
    t0, u0 = TopicPartition("t", 0), TopicPartition("u", 0)
    assert made.ends([t0, u0]) == {t0: -10 + 1}
    assert made.beginnings([t0]) == {t0: -20 + 1}
    assert made.first_by_time({t0: 99, u0: 7}) == {t0: None, u0: None}
    assert made.first_by_time({t0: 7}) == {t0: 71}
    assert made.ends([]) == {}


def test_closing_twice_is_fine():
    admin = FakeAdmin("t")
    made = reader(admin)
    made.close()
    made.close()
    assert admin.closed
