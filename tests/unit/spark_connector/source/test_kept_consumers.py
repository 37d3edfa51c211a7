"""Consumers kept between tasks: one per configuration, few, not for ever."""

from __future__ import annotations

import threading

import pytest

from moldau.protocol.types import ZERO_UUID, TopicPartition
from moldau.spark_connector.source.partition_reader import MAX_KEPT, KeptConsumers, point_to

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeConsumer:
    """Knows what it was given, and when it was closed."""

    def __init__(self, settings):
        self.settings = dict(settings)
        self.closed = threading.Event()
        self.calls = []
        self.assigned = {}

    def assignment(self):
        return set(self.assigned)

    def assign(self, partitions):
        self.calls.append("assign")
        self.assigned = dict.fromkeys(partitions, -1)

    def seek(self, partition, offset):
        self.calls.append("seek")
        self.assigned[partition] = offset.offset

    def resume(self, *partitions):
        self.calls.append("resume")

    def close(self, timeout_ms=None):
        self.closed.set()


@pytest.fixture
def made():
    return []


@pytest.fixture
def consumers(made):
    def connect(settings):
        made.append(FakeConsumer(settings))
        return made[-1]

    kept = KeptConsumers(connect)
    yield kept
    kept.close_all()


def use(consumers, **settings):
    with consumers.lend(settings) as consumer:
        return consumer


@pytest.mark.promise("stream-connections")
def test_the_same_settings_get_the_same_consumer(consumers, made):
    first = use(consumers, a="1", b="2")
    assert use(consumers, b="2", a="1") is first
    assert use(consumers, a="1", b="3") is not first
    assert len(made) == 2


def test_two_tasks_at_once_have_one_each_and_one_is_kept(consumers, made):
    with consumers.lend({"a": "1"}) as first, consumers.lend({"a": "1"}) as second:
        assert first is not second
    assert consumers.kept_count == 1
    assert [each.closed.is_set() for each in made].count(True) == 1


@pytest.mark.promise("stream-connections")
def test_the_one_unused_for_longest_gives_way(consumers, made):
    for number in range(MAX_KEPT):
        use(consumers, a=str(number))
    use(consumers, a="0")
    use(consumers, a="another")
    assert consumers.kept_count == MAX_KEPT
    assert [each.settings["a"] for each in made if each.closed.is_set()] == ["1"]


def test_after_an_error_it_is_not_used_again(consumers, made):
    with pytest.raises(ValueError, match="task"), consumers.lend({"a": "1"}):
        raise ValueError("task")
    assert made[0].closed.is_set()
    assert use(consumers, a="1") is made[1]


def test_rows_that_are_not_wanted_any_more_are_no_error(consumers, made):
    def rows():
        with consumers.lend({"a": "1"}):
            yield 1

    reading = rows()
    next(reading)
    reading.close()
    assert use(consumers, a="1") is made[0]


@pytest.mark.promise("stream-connections")
def test_an_unused_consumer_is_closed():
    made = []

    def connect(settings):
        made.append(FakeConsumer(settings))
        return made[-1]

    kept = KeptConsumers(connect, idle_s=0.01)
    use(kept, a="1")
    assert made[0].closed.wait(30)
    assert kept.kept_count == 0


def test_one_in_use_is_not_closed_however_long_it_takes():
    kept = KeptConsumers(FakeConsumer, idle_s=0.01)
    use(kept, a="1")
    with kept.lend({"a": "1"}) as first, kept.lend({"a": "2"}) as second:
        other = use(kept, a="3")
        assert other.closed.wait(30)  # the timer has run
        assert not first.closed.is_set()
        assert not second.closed.is_set()
    kept.close_all()


def test_in_a_forked_child_nothing_of_the_parent_is_touched(consumers, made, monkeypatch):
    use(consumers, a="1")
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert use(consumers, a="1") is made[1]
    assert not made[0].closed.is_set()


def test_what_was_fetched_ahead_is_never_handed_out():
    """A seek drops it, also where the consumer stands already."""
    consumer = FakeConsumer({})
    point_to(consumer, P0, 5, ZERO_UUID)
    assert consumer.calls == ["assign", "seek", "resume"]
    point_to(consumer, P0, 5, ZERO_UUID)
    assert consumer.calls[3:] == ["seek", "resume"]
    point_to(consumer, P1, 9, ZERO_UUID)
    assert consumer.calls[5:] == ["assign", "seek", "resume"]
