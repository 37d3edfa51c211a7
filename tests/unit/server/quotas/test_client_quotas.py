"""The quotas of one loop: whose they are, by which names they are shown, and when they are gone."""

from __future__ import annotations

import pytest

from moldau.runtime.telemetry.metrics import Registry
from moldau.server.quotas.client_quotas import Quotas, labels_of, user_of
from moldau.server.quotas.core.client_quota import SENSOR_LIFE_MS
from tests.kit.manual_clock import ManualClock

ALICE = (("user", "alice"),)
OF_APP = (("client-id", "app"),)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def shown(registry: Registry) -> dict[str, set[str]]:
    """The users of each metric."""
    found: dict[str, set[str]] = {}
    for each in registry.collect():
        found.setdefault(each.name, set()).add(dict(each.labels)["user"])
    return found


def test_without_quotas_nothing_is_asked_or_measured(clock: ManualClock) -> None:
    quotas = Quotas(clock)
    assert (quotas.limits_requests, quotas.limits_fetches) == (False, False)
    assert quotas.record_produce("User:alice", None, 10**9) == 0
    assert quotas.most_fetched("User:alice", None) is None


@pytest.mark.parametrize(
    ("key", "requests", "fetches"),
    [
        ("producer_byte_rate", False, False),
        ("consumer_byte_rate", False, True),
        ("request_percentage", True, True),
    ],
)
def test_what_has_to_be_asked_depends_on_the_quotas_that_there_are(
    clock: ManualClock, key: str, requests: bool, fetches: bool
) -> None:
    quotas = Quotas(clock)
    quotas.change({ALICE: {key: 1.0}})
    assert (quotas.limits_requests, quotas.limits_fetches) == (requests, fetches)
    quotas.change({ALICE: {key: None}})  # type: ignore[dict-item]
    assert (quotas.limits_requests, quotas.limits_fetches) == (False, False)


def test_connections_have_their_rates_from_the_same_changes(clock: ManualClock) -> None:
    quotas = Quotas(clock)
    quotas.change({(("ip", "10.0.0.1"),): {"connection_creation_rate": 1.0}})
    assert quotas.connection_rates.is_limited


def test_a_client_id_is_a_client_s_own(clock: ManualClock) -> None:
    quotas = Quotas(clock, sample_count=11, window_ms=1_000.0)
    quotas.change({OF_APP: {"consumer_byte_rate": 10.0}})
    most = quotas.most_fetched("User:alice", "app")
    assert most is not None
    assert quotas.most_fetched("User:alice", None) is None
    assert quotas.most_fetched("User:alice", "other") is None
    assert quotas.record_fetch("User:alice", "app", int(most)) == 0
    assert quotas.record_fetch("User:alice", "app", int(most)) > 0
    quotas.take_back_fetch("User:alice", "app", int(most))
    assert quotas.most_fetched("User:alice", "app") == pytest.approx(most)
    assert quotas.record_fetch("User:alice", "app", int(most)) == 0, "it was not used"
    assert quotas.record_fetch("User:alice", None, 10**9) == 0


def test_a_quota_in_use_is_shown_until_it_is_gone(clock: ManualClock) -> None:
    registry = Registry(clock.monotonic_ms)
    quotas = Quotas(clock, registry, sample_count=11, window_ms=1_000.0)
    quotas.change({ALICE: {"producer_byte_rate": 10.0, "request_percentage": 1.0}})
    assert quotas.record_produce("User:alice", None, 200) > 0
    rate = "kafka.server:type=Produce,name=byte-rate"
    pause = "kafka.server:type=Produce,name=throttle-time"
    assert shown(registry) == {rate: {"alice"}, pause: {"alice"}}
    values = {each.name: each.instrument.function() for each in registry.collect()}  # type: ignore[union-attr]
    assert values[rate] == pytest.approx(200 / 10, rel=0.2)
    assert values[pause] > 0
    assert quotas.record_request("User:alice", None, 500.0) > 0
    assert "kafka.server:type=Request,name=request-time" in shown(registry)
    quotas.change({ALICE: {"producer_byte_rate": None}})  # type: ignore[dict-item]
    quotas.change({OF_APP: {"producer_byte_rate": 10.0}})
    clock.advance(2 * SENSOR_LIFE_MS)
    quotas.record_produce("User:bob", "app", 1)
    assert "alice" not in shown(registry)[rate]


def test_names_of_users_and_their_labels() -> None:
    assert (user_of("User:a:b"), user_of("nothing")) == ("a:b", "")
    assert labels_of(("a b/c", "x y")) == {"user": "a%20b%2Fc", "client_id": "x y"}
