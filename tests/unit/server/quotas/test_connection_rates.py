"""Rates of new connections: a node lets them wait, those of an address are refused."""

from __future__ import annotations

from itertools import pairwise

from moldau.metadata.quota_entities import QuotaEntity
from moldau.server.quotas.core.client_quota import SENSOR_LIFE_MS
from moldau.server.quotas.core.connection_rates import (
    AT_ONCE,
    MAX_ENDING,
    TOO_MANY_WAIT,
    Admission,
    ConnectionRates,
)

KEY = "connection_creation_rate"


def rates(**limits: float) -> ConnectionRates:
    """The rates of addresses; the keyword `default` stands for all others."""
    found = ConnectionRates(max_addresses=10)
    changes: dict[QuotaEntity, dict[str, float | None]] = {
        (("ip", None if name == "default" else name),): {KEY: limit}
        for name, limit in limits.items()
    }
    found.change(changes)
    return found


def test_without_limits_every_connection_comes_at_once() -> None:
    found = rates()
    assert not found.is_limited
    assert {found.admit("L", "10.0.0.1", 0.0) for _ in range(1000)} == {AT_ONCE}


def test_an_address_above_its_limit_is_refused_after_a_pause() -> None:
    found = rates(**{"10.0.0.1": 2})
    assert found.is_limited
    assert {found.admit("L", "10.0.0.1", 0.0) for _ in range(20)} == {AT_ONCE}
    for _ in range(3):
        assert found.admit("L", "10.0.0.1", 0.0) == Admission(500, False)
    assert {found.admit("L", "10.0.0.2", 0.0) for _ in range(100)} == {AT_ONCE}
    assert found.admit("L", "10.0.0.1", 500.0).is_taken, "what was refused does not count"


def test_a_pause_is_never_longer_than_a_window() -> None:
    found = rates(default=0.001)
    assert found.admit("L", "10.0.0.1", 0.0) == Admission(1000.0, False)


def test_the_default_holds_for_each_address_without_its_own_limit() -> None:
    found = rates(default=0.1, **{"10.0.0.1": 100})
    for host in ("10.0.0.2", "::1", "fe80::1"):
        assert found.admit("L", host, 0.0).is_taken
        assert not found.admit("L", host, 0.0).is_taken
    assert found.admit("L", "10.0.0.1", 0.0) == found.admit("L", "10.0.0.1", 0.0) == AT_ONCE
    found.change({(("ip", None),): {KEY: None}})
    assert found.admit("L", "::1", 0.0) is AT_ONCE


def test_an_address_is_the_same_however_it_is_written() -> None:
    found = rates(**{"0:0:0:0:0:0:0:1": 0.1, "::ffff:10.0.0.1": 0.1})
    for host in ("::1", "10.0.0.1"):
        found.admit("L", host, 0.0)
        assert not found.admit("L", host, 0.0).is_taken


def test_quotas_of_others_and_other_quotas_limit_no_connections() -> None:
    found = rates()
    found.change({(("user", "alice"),): {KEY: 1.0}, (("ip", "10.0.0.1"),): {"other": 1.0}})
    assert not found.is_limited


def test_addresses_are_bounded_and_forgotten() -> None:
    found = rates(default=1)
    for number in range(1000):
        found.admit("L", f"10.0.{number // 250}.{number % 250}", 0.0)
    assert found.address_count == 10
    last_ms = SENSOR_LIFE_MS
    found.admit("L", "10.9.9.8", last_ms)
    assert found.address_count == 10, "just used"
    found.admit("L", "10.9.9.9", last_ms + 1)
    assert found.address_count == 2


def test_connections_above_the_nodes_limit_wait_in_line() -> None:
    found = rates()
    found.node_limit = 10
    assert {found.admit("L", "h", 0.0) for _ in range(100)} == {AT_ONCE}
    waits = [found.admit("L", "h", 0.0) for _ in range(20)]
    assert all(each.is_taken for each in waits)
    assert [each.wait_ms for each in waits] == sorted(each.wait_ms for each in waits)
    for before, after in pairwise(waits):
        assert 0 < after.wait_ms - before.wait_ms <= 1000.0
    # Another listener has its own line, with the same rate.
    assert 0 < found.admit("M", "h", 0.0).wait_ms <= 1000.0
    later_ms = waits[-1].wait_ms
    assert found.admit("L", "h", later_ms).wait_ms <= 1000.0


def test_only_so_many_wait() -> None:
    found = rates()
    found.node_limit, found.max_waiting = 1, 5
    answers = [found.admit("L", "h", 0.0) for _ in range(100)]
    assert answers[:10] == [AT_ONCE] * 10
    assert all(each.is_taken and each.wait_ms for each in answers[10:15])
    assert answers[15:] == [TOO_MANY_WAIT] * 85
    assert found.admit("L", "h", answers[10].wait_ms).is_taken


def test_only_so_many_refused_connections_are_kept_until_their_end() -> None:
    found = rates(**{"10.0.0.1": 1})
    answers = [found.admit("L", "10.0.0.1", 0.0) for _ in range(10 + 2 * MAX_ENDING)]
    refused = answers[10:]
    assert not any(each.is_taken for each in refused)
    assert all(each.wait_ms for each in refused[:MAX_ENDING])
    assert set(refused[MAX_ENDING:]) == {TOO_MANY_WAIT}, "closed at once"
    assert found.admit("L", "10.0.0.1", 1_000.0).wait_ms


def test_the_listener_between_brokers_never_waits() -> None:
    found = rates()
    found.node_limit, found.unlimited_listener = 1, "INTERNAL"
    assert {found.admit("INTERNAL", "h", 0.0) for _ in range(100)} == {AT_ONCE}
    assert {found.admit("L", "h", 0.0) for _ in range(10)} == {AT_ONCE}
