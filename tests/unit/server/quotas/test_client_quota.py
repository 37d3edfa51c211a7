"""The quota of one key: who pauses for how long, what is forgotten, and that memory is bounded."""

from __future__ import annotations

import pytest

from moldau.server.quotas.core.client_quota import SENSOR_LIFE_MS, ClientQuota

KEY = "producer_byte_rate"
SECOND = 1000.0


def make(max_throttle_ms: float | None = None, max_sensors: int = 1000) -> ClientQuota:
    return ClientQuota(
        KEY,
        sample_count=11,
        window_ms=SECOND,
        max_throttle_ms=max_throttle_ms,
        max_sensors=max_sensors,
    )


@pytest.fixture
def quota() -> ClientQuota:
    """Alice may use 100 a second, every client id of others 10."""
    quota = make()
    quota.limits.change({(("user", "alice"),): {KEY: 100.0}, (("client-id", None),): {KEY: 10.0}})
    return quota


def test_without_a_limit_nothing_is_kept() -> None:
    quota = make()
    assert quota.record("bob", "app", 1e12, 0.0) == 0
    assert quota.most_at_once("bob", "app") is None
    assert not len(quota.sensors)


def test_clients_of_a_user_use_one_limit_up_together(quota: ClientQuota) -> None:
    assert quota.record("alice", "one", 600, 0.0) == 0
    assert quota.record("alice", "two", 600, 0.0) == 2000
    assert quota.record("bob", "one", 50, 0.0) == 0, "he has another one"
    assert len(quota.sensors) == 2


def test_the_default_is_used_up_by_each_for_itself(quota: ClientQuota) -> None:
    for client_id in ("one", "two", "three"):
        assert quota.record("bob", client_id, 100, 0.0) == 0
    assert quota.record("carol", "two", 1, 0.0) == 100, "users do not matter to it"
    assert quota.record("bob", "four", 1, 0.0) == 0


def test_what_is_not_used_does_not_count(quota: ClientQuota) -> None:
    assert quota.record("alice", "app", 900, 0.0, is_used=False) == 0
    for _ in range(3):
        assert quota.record("alice", "app", 200, 0.0, is_used=False) == 1000
    assert quota.record("alice", "app", 100, 0.0) == 0
    quota.take_back("alice", "app", 100, 0.0)
    assert quota.record("alice", "app", 100, 0.0) == 0


def test_the_most_at_once_is_just_not_throttled(quota: ClientQuota) -> None:
    most = quota.most_at_once("alice", "app")
    assert most == 1000.0
    assert quota.record("alice", "app", most, 0.0) == 0
    assert quota.record("alice", "app", 1, 0.0) > 0


@pytest.mark.parametrize("sample_count", [1, 2, 3])
def test_the_most_at_once_is_that_of_all_windows_but_one(sample_count: int) -> None:
    quota = ClientQuota(KEY, sample_count=sample_count, window_ms=SECOND)
    quota.limits.change({(("user", "alice"),): {KEY: 100.0}})
    most = quota.most_at_once("alice", "app")
    assert most == 100.0 * max(sample_count - 1, 1)
    assert quota.record("alice", "app", most, 0.0) == 0
    assert quota.record("alice", "app", 1, 0.0) > 0


def test_pauses_have_a_limit_where_one_is_set() -> None:
    quota = make(max_throttle_ms=SECOND)
    quota.limits.change({(("user", None),): {KEY: 1.0}})
    assert quota.record("alice", "app", 1e6, 0.0) == SECOND


def test_a_new_limit_holds_at_once_for_what_was_used_before(quota: ClientQuota) -> None:
    assert quota.record("alice", "app", 1000, 0.0) == 0
    quota.limits.change({(("user", "alice"),): {KEY: 50.0}})
    assert quota.record("alice", "app", 0, 0.0) == 10_000
    quota.limits.change({(("user", "alice"),): {KEY: None}})
    assert quota.record("alice", "app", 100, 0.0) == 0, "now the limit of her client id holds"
    assert quota.record("alice", "app", 1, 0.0) == 100
    quota.limits.change({(("user", "alice"),): {KEY: 1000.0}})
    assert quota.record("alice", "app", 0, 0.0) == 0


def test_sensors_are_forgotten_after_an_hour(quota: ClientQuota) -> None:
    quota.record("alice", "app", 1, 0.0)
    quota.record("bob", "app", 1, 1.0)
    quota.record("bob", "other", 1, SENSOR_LIFE_MS)
    assert len(quota.sensors) == 3
    quota.record("bob", "other", 1, SENSOR_LIFE_MS + 2)
    assert [who for who, _ in quota.sensors] == [("", "other")]


def test_ever_new_client_ids_do_not_make_it_grow() -> None:
    quota = make(max_sensors=100)
    quota.limits.change({(("client-id", None),): {KEY: 1.0}})
    for number in range(10_000):
        quota.record("eve", f"client-{number}", 1, float(number))
        quota.record("alice", "busy", 0.001, float(number))
        quota.sensors.take_news()
        assert len(quota.sensors) <= 100
    assert quota.sensors.get(("", "busy")) is not None, "who uses a sensor keeps it"


def test_long_client_ids_share_the_sensor_of_their_beginning() -> None:
    """Ten thousand of 32 KB each would take 320 MB."""
    quota = make()
    quota.limits.change({(("client-id", None),): {KEY: 1.0}})
    for number in range(50):
        quota.record("eve", "x" * 30_000 + str(number), 1, float(number))
    ((who, _),) = quota.sensors
    assert who == ("", "x" * 1_000)


def test_changes_are_reported_once() -> None:
    quota = make(max_sensors=2)
    quota.limits.change({(("client-id", None),): {KEY: 1.0}})
    for name in ("a", "b", "c"):
        quota.record("u", name, 1, 0.0)
    assert quota.sensors.take_news() == {("", "a"): False, ("", "b"): True, ("", "c"): True}
    assert not quota.sensors.has_news


def test_the_average_pause_is_that_of_the_last_minute(quota: ClientQuota) -> None:
    quota.record("alice", "app", 1, 0.0)
    sensor = quota.sensors.get(("alice", ""))
    assert sensor is not None
    assert sensor.average_throttle_ms(0.0) == 0.0
    quota.throttled("alice", "app", 100, 0.0)
    quota.throttled("alice", "app", 300, 0.0)
    assert sensor.average_throttle_ms(59_000.0) == 200.0
    assert sensor.average_throttle_ms(60_000.0) == 0.0


def test_a_client_that_never_paused_has_no_average_pause(quota: ClientQuota) -> None:
    quota.record("alice", "one", 1, 0.0)
    sensor = quota.sensors.get(next(iter(quota.sensors.take_news())))
    assert sensor is not None
    assert sensor.average_throttle_ms(0.0) == 0
    sensor.throttled(500, 0.0)
    sensor.throttled(100, 0.0)
    assert sensor.average_throttle_ms(0.0) == 300
