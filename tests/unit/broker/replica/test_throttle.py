"""Replication quotas: what is throttled, how fast it may go, and that no replica starves."""

from __future__ import annotations

import itertools
import logging
import random
from bisect import bisect_left, bisect_right

import pytest

from moldau.broker.replica.throttle import (
    MAX_RETRY_MS,
    UNLIMITED,
    ReplicationQuota,
    ReplicationThrottles,
    WindowedRate,
)
from moldau.config import BROKER_KEYS
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.protocol.metadata_records import ConfigRecord, RemoveTopicRecord, TopicRecord
from moldau.protocol.types import TopicPartition
from moldau.runtime.telemetry.metrics import Registry
from tests.kit.dice import drawn_seed
from tests.kit.manual_clock import ManualClock
from tests.unit.broker.harness import topic_id_of

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
BROKER_ID = 3
FIRST, SECOND = TopicPartition("a", 0), TopicPartition("a", 1)
SPAN_MS = 11_000.0


def make_quota(clock: ManualClock, side: str = "leader") -> ReplicationQuota:
    return ReplicationQuota(
        side,
        broker_id=BROKER_ID,
        clock=clock,
        registry=Registry(clock.monotonic_ms),
        sample_count=11,
        window_ms=1000.0,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def quota(clock: ManualClock) -> ReplicationQuota:
    quota = make_quota(clock)
    quota.set_topic("a", ["*"])
    return quota


# -- what is throttled -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "first", "second"),
    [
        ([], False, False),
        ([""], False, False),
        (["*"], True, True),
        (["", "*"], True, True),
        (["0:3"], True, False),
        (["0:3", "1:3", "1:1"], True, True),
        (["", "1:3"], False, True),
        (["0:1", "1:30"], False, False),
        (["00:03"], True, False),
    ],
)
def test_lists_name_the_replicas_of_this_broker(
    quota: ReplicationQuota, replicas: list[str], first: bool, second: bool
) -> None:
    quota.set_topic("a", replicas)
    assert quota.is_throttled(FIRST) is first
    assert quota.is_throttled(SECOND) is second
    assert not quota.is_throttled(TopicPartition("b", 0))


def test_only_what_is_throttled_counts_and_waits(clock: ManualClock) -> None:
    quota = make_quota(clock)
    quota.set_topic("a", ["0:3"])
    quota.set_limit(100)
    quota.record(SECOND, 10**6)
    assert not quota.is_exceeded
    quota.record(FIRST, 101)
    assert quota.is_exceeded
    assert not quota.allows(FIRST, False)
    assert quota.allows(SECOND, False)
    assert quota.allows(FIRST, True), "in sync: never held back"


def test_bytes_of_replicas_in_sync_count(quota: ReplicationQuota) -> None:
    quota.set_limit(100)
    assert quota.allows(FIRST, True)
    quota.record(FIRST, 101)
    assert not quota.allows(SECOND, False)


def test_without_a_limit_no_replica_waits(quota: ReplicationQuota) -> None:
    assert quota.limit == UNLIMITED
    quota.record(FIRST, 2**62)
    assert quota.allows(FIRST, False)
    assert quota.retry_ms() == 0.0


# -- the rate ----------------------------------------------------------------------------------


def test_a_rate_of_nothing_is_zero() -> None:
    assert WindowedRate(11, 1000.0).bytes_per_second(5.0) == 0.0


def test_the_first_burst_is_divided_by_one_window() -> None:
    rate = WindowedRate(11, 1000.0)
    rate.record(500, 0.0)
    assert rate.bytes_per_second(0.0) == 500.0
    assert rate.bytes_per_second(999.0) == 500.0
    assert rate.bytes_per_second(2000.0) == 250.0


def test_a_sample_is_forgotten_when_its_last_bytes_are_a_span_old() -> None:
    rate = WindowedRate(11, 1000.0)
    rate.record(600, 0.0)
    rate.record(600, 900.0)
    rate.record(100, 5000.0)
    assert rate.bytes_per_second(SPAN_MS + 899.0) == pytest.approx(1300 * 1000 / 11_899)
    assert rate.bytes_per_second(SPAN_MS + 900.0) == pytest.approx(100 * 1000 / 6900)
    assert rate.bytes_per_second(SPAN_MS + 5000.0) == 0.0


def test_a_steady_flow_is_measured_as_it_is() -> None:
    rate = WindowedRate(11, 1000.0)
    for step in range(600):
        rate.record(50, step * 100.0)
    assert rate.bytes_per_second(60_000.0) == pytest.approx(500.0, rel=0.1)


@pytest.mark.parametrize("seed", range(200))
def test_ms_until_is_exactly_when_the_rate_has_fallen(seed: int) -> None:
    dice = random.Random(seed)
    rate = WindowedRate(dice.choice([2, 3, 11]), 1000.0)
    now_ms = 0.0
    for _ in range(dice.randint(1, 30)):
        rate.record(dice.randint(1, 10_000), now_ms)
        now_ms += dice.choice([0.0, 10.0, 999.0, 1000.0, 2500.0])
    limit = dice.randint(1, 5000)
    wait_ms = rate.ms_until(limit, now_ms)
    if wait_ms == 0.0:
        assert rate.bytes_per_second(now_ms) <= limit
        return
    assert rate.bytes_per_second(now_ms + wait_ms * 0.99) > limit
    assert rate.bytes_per_second(now_ms + wait_ms + 0.001) <= limit


def test_the_metrics_are_those_of_kafka(clock: ManualClock) -> None:
    registry = Registry(clock.monotonic_ms)
    throttles = make_throttles(clock, registry)
    throttles.leader.set_topic("a", ["*"])
    throttles.leader.record(FIRST, 700)
    values = {metric.name: metric.instrument.value for metric in registry.collect()}  # type: ignore[union-attr]
    assert values == {
        "kafka.server:type=LeaderReplication,name=byte-rate": 700.0,
        "kafka.server:type=FollowerReplication,name=byte-rate": 0.0,
    }


# -- the limit over time -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("burst_bytes", "seconds"),
    [(1_000, 300), (50_000, 3_600), (1_048_576, 3_600), (40_000_000, 3_600)],
)
def test_any_long_span_stays_within_the_limit_and_one_burst(burst_bytes: int, seconds: int) -> None:
    """Whatever arrives whenever the quota allows it: bytes <= limit × span + window + burst."""
    seed = drawn_seed()
    dice = random.Random(seed)
    clock = ManualClock(monotonic_ms=0)
    quota = make_quota(clock)
    quota.set_topic("a", ["*"])
    limit = 100_000
    quota.set_limit(limit)
    moved: list[tuple[float, int]] = []
    while clock.monotonic_ms() < seconds * 1000:
        if quota.allows(FIRST, False):
            size_bytes = dice.randint(1, burst_bytes)
            quota.record(FIRST, size_bytes)
            moved.append((clock.monotonic_ms(), size_bytes))
            clock.advance(dice.choice([0.0, 0.0, 1.0, 5.0]))
        else:
            clock.advance(quota.retry_ms())
    times = [at_ms for at_ms, _ in moved]
    sums = [0, *itertools.accumulate(size for _, size in moved)]
    for _ in range(200):
        start_ms = dice.uniform(0, seconds * 1000)
        end_ms = dice.uniform(start_ms, seconds * 1000)
        total = sums[bisect_right(times, end_ms)] - sums[bisect_left(times, start_ms)]
        allowed = limit * (end_ms - start_ms + SPAN_MS) / 1000.0 + burst_bytes
        assert total <= allowed, (seed, start_ms, end_ms)
    assert sums[-1] >= limit * seconds * 0.9 - burst_bytes, "the limit is also used"


def test_no_replica_starves() -> None:
    """Each of many that wait gets its turn, in rounds; each waits as long as it is asked to."""
    seed = drawn_seed()
    dice = random.Random(seed)
    clock = ManualClock()
    quota = make_quota(clock)
    quota.set_topic("a", ["*"])
    quota.set_limit(10_000)
    line = [TopicPartition("a", index) for index in range(20)]
    turns = dict.fromkeys(line, 0)
    for _ in range(400):
        asked_count = 0
        while not quota.allows(line[0], False):
            clock.advance(quota.retry_ms())
            asked_count += 1
            assert asked_count < 3600, seed
        quota.record(line[0], dice.randint(1, 100_000))
        turns[line[0]] += 1
        line.append(line.pop(0))
    assert set(turns.values()) == {20}


def test_retry_ms_ends_the_wait_and_never_asks_without_a_pause(
    clock: ManualClock, quota: ReplicationQuota
) -> None:
    quota.set_limit(1000)
    assert quota.retry_ms() == 0.0
    quota.record(FIRST, 1500)
    assert quota.retry_ms() == 1000.0
    clock.advance(1000.0)
    assert quota.retry_ms() == 500.0
    clock.advance(499.999)
    assert quota.retry_ms() == 1.0
    clock.advance(0.001)
    assert quota.retry_ms() == 0.0
    assert quota.allows(FIRST, False)


def test_a_debt_outlives_the_samples(clock: ManualClock, quota: ReplicationQuota) -> None:
    """A batch of 40 s worth of the limit is not forgotten after the 11 s that are remembered."""
    quota.set_limit(1000)
    quota.record(FIRST, 40_000)
    clock.advance(SPAN_MS + 1.0)
    assert not quota.allows(FIRST, False)
    clock.advance(29_000.0 - SPAN_MS)
    assert quota.allows(FIRST, False)


def test_a_higher_limit_helps_at_once_and_a_lower_one_holds(
    clock: ManualClock, quota: ReplicationQuota
) -> None:
    quota.set_limit(1000)
    quota.record(FIRST, 5000)
    assert not quota.allows(FIRST, False)
    quota.set_limit(10_000)
    assert quota.allows(FIRST, False)
    quota.set_limit(100)
    assert not quota.allows(FIRST, False)
    quota.set_limit(UNLIMITED)
    assert quota.allows(FIRST, False)


def test_what_went_over_without_a_limit_is_no_debt(
    clock: ManualClock, quota: ReplicationQuota
) -> None:
    quota.record(FIRST, 10**9)
    quota.set_limit(1000)
    assert not quota.allows(FIRST, False), "the rate measured is still too high"
    clock.advance(SPAN_MS)
    assert quota.allows(FIRST, False)


def test_a_rate_of_zero_stands_still_and_is_said_once(
    clock: ManualClock, quota: ReplicationQuota, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "moldau.broker.replica")
    quota.set_limit(0)
    quota.say_standstill()
    quota.say_standstill()
    (said,) = caplog.messages
    assert "leader.replication.throttled.rate=0" in said
    assert "leader.replication.throttled.replicas" in said
    clock.advance(10 * SPAN_MS)
    assert not quota.allows(FIRST, False)
    assert quota.allows(FIRST, True)
    assert quota.retry_ms() == MAX_RETRY_MS
    quota.set_limit(1)
    assert quota.allows(FIRST, False)
    quota.say_standstill()
    quota.set_limit(0)
    quota.say_standstill()
    assert len(caplog.messages) == 2, "a new standstill is said again"


def test_a_rate_of_zero_without_throttled_replicas_is_nothing_to_say(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "moldau.broker.replica")
    quota = make_quota(clock)
    quota.set_limit(0)
    quota.say_standstill()
    assert not caplog.messages
    assert quota.allows(FIRST, False)


# -- configuration -----------------------------------------------------------------------------


def make_throttles(
    clock: ManualClock, registry: Registry | None = None, **values: object
) -> ReplicationThrottles:
    defaults = {name: key.default_value for name, key in BROKER_KEYS.items()}
    return ReplicationThrottles(
        broker_id=BROKER_ID,
        node_values={**defaults, **values},
        clock=clock,
        registry=registry or Registry(clock.monotonic_ms),
    )


class Publisher:
    """Publishes records to the throttles as the loader does."""

    def __init__(self, throttles: ReplicationThrottles) -> None:
        self.throttles = throttles
        self.image = MetadataImage.EMPTY

    def publish(self, *records: object) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)  # type: ignore[arg-type]
        self.image = delta.apply(Provenance(1, 1, 1))
        self.throttles.on_metadata_update(delta, self.image)

    def set_topic(self, topic: str, key: str, value: str | None) -> None:
        self._set(TOPIC_RESOURCE, topic, key, value)

    def set_broker(self, broker: str, key: str, value: str | None) -> None:
        self._set(BROKER_RESOURCE, broker, key, value)

    def _set(self, resource_type: int, name: str, key: str, value: str | None) -> None:
        self.publish(
            ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=value)
        )


def test_lists_come_and_go_with_the_topics_configuration(clock: ManualClock) -> None:
    throttles = make_throttles(clock)
    publisher = Publisher(throttles)
    publisher.publish(TopicRecord(name="a", topic_id=topic_id_of("a")))
    publisher.set_topic("a", "leader.replication.throttled.replicas", "0:1, 1:3")
    publisher.set_topic("a", "follower.replication.throttled.replicas", "*")
    assert throttles.leader.is_throttled(SECOND)
    assert not throttles.leader.is_throttled(FIRST)
    assert throttles.follower.is_throttled(FIRST)
    publisher.set_topic("a", "leader.replication.throttled.replicas", None)
    assert not throttles.leader.is_throttled(SECOND)
    publisher.publish(RemoveTopicRecord(topic_id=topic_id_of("a")))
    assert not throttles.follower.is_throttled(FIRST)


def test_rates_follow_kafkas_precedence(clock: ManualClock) -> None:
    key = "leader.replication.throttled.rate"
    throttles = make_throttles(clock, **{key: 7})
    publisher = Publisher(throttles)
    assert throttles.leader.limit == 7
    publisher.set_broker("", key, "1000")
    assert throttles.leader.limit == 1000
    publisher.set_broker(str(BROKER_ID), key, "50")
    publisher.set_broker(str(BROKER_ID + 1), key, "60")
    assert throttles.leader.limit == 50
    assert throttles.follower.limit == UNLIMITED
    publisher.set_broker(str(BROKER_ID), key, None)
    publisher.set_broker("", key, None)
    assert throttles.leader.limit == 7


def test_a_rate_of_zero_in_the_metadata_is_warned_of(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "moldau.broker.replica")
    publisher = Publisher(make_throttles(clock))
    publisher.set_broker(str(BROKER_ID), "follower.replication.throttled.rate", "0")
    assert not caplog.messages
    publisher.set_topic("a", "follower.replication.throttled.replicas", "0:3")
    publisher.set_topic("b", "follower.replication.throttled.replicas", "0:3")
    (said,) = caplog.messages
    assert "follower.replication.throttled.rate=0" in said
    assert "topics: a" in said


def test_a_list_that_is_none_is_named_and_has_no_effect(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    throttles = make_throttles(clock)
    publisher = Publisher(throttles)
    publisher.set_topic("a", "leader.replication.throttled.replicas", "*,0:3")
    assert not throttles.leader.is_throttled(FIRST)
    assert "*,0:3" in caplog.text


def test_the_window_is_that_of_the_configuration(clock: ManualClock) -> None:
    throttles = make_throttles(
        clock, **{"replication.quota.window.num": 2, "replication.quota.window.size.seconds": 5}
    )
    quota = throttles.follower
    quota.set_topic("a", ["*"])
    quota.set_limit(100)
    quota.record(FIRST, 500)
    assert quota.allows(FIRST, False), "500 bytes in a window of 5 s are 100 per second"
    quota.record(FIRST, 1)
    assert not quota.allows(FIRST, False)
