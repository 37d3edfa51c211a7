"""Which limit holds for a client: the order of KIP-55, and what clients share."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.metadata.quota_entities import QuotaEntity, quota_entity
from moldau.server.quotas.core.limits import ClientLimit, ClientLimits

KEY = "producer_byte_rate"

ORDER: tuple[tuple[dict[str, str | None], tuple[str, str]], ...] = (
    ({"user": "alice", "client-id": "app"}, ("alice", "app")),
    ({"user": "alice", "client-id": None}, ("alice", "app")),
    ({"user": "alice"}, ("alice", "")),
    ({"user": None, "client-id": "app"}, ("alice", "app")),
    ({"user": None, "client-id": None}, ("alice", "app")),
    ({"user": None}, ("alice", "")),
    ({"client-id": "app"}, ("", "app")),
    ({"client-id": None}, ("", "app")),
)
"""The entities that hold for user alice with client id app, the first one before all others, and
what the clients that use its limit up together have in common."""


def limits_of(*entities: QuotaEntity) -> ClientLimits:
    """Limits whose values say which entity they are of: 1, 2, …"""
    limits = ClientLimits(KEY)
    limits.change({each: {KEY: float(place)} for place, each in enumerate(entities, start=1)})
    return limits


@pytest.mark.parametrize("count", range(1, len(ORDER) + 1))
def test_the_most_specific_limit_holds(count: int) -> None:
    others = [{"user": "bob"}, {"user": "alice", "client-id": "x"}, {"client-id": "x"}]
    for chosen in combinations(ORDER, count):
        entities = [quota_entity(parts.items()) for parts in (*(e for e, _ in chosen), *others)]
        shared = chosen[0][1]
        assert limits_of(*entities).find("alice", "app") == ClientLimit(*shared, 1.0)


def test_without_a_limit() -> None:
    assert limits_of().find("alice", "app") is None
    assert not limits_of()
    assert limits_of((("user", "bob"),), (("client-id", "x"),)).find("alice", "app") is None


def test_a_client_without_an_id_has_the_limits_of_its_user() -> None:
    default_client: QuotaEntity = (("client-id", None),)
    assert limits_of(default_client, (("client-id", None), ("user", "a"))).find("a", "") is None
    assert limits_of((("user", None),)).find("a", "") == ClientLimit("a", "", 1.0)
    assert limits_of((("user", None),), (("user", "a"),)).find("a", "") == ClientLimit("a", "", 2.0)


def test_other_keys_and_addresses_are_not_of_interest() -> None:
    limits = ClientLimits(KEY)
    limits.change({(("user", "a"),): {"consumer_byte_rate": 5.0}, (("ip", "1.1.1.1"),): {KEY: 1.0}})
    assert not limits


PARTS = st.sampled_from([None, "a", "b"])
ENTITIES = st.dictionaries(st.sampled_from(["user", "client-id"]), PARTS, min_size=1).map(
    lambda parts: quota_entity(parts.items())
)


@given(st.lists(st.tuples(ENTITIES, st.none() | st.floats(1, 9)), max_size=40))
def test_changes_add_up(changes: list[tuple[QuotaEntity, float | None]]) -> None:
    limits = ClientLimits(KEY)
    model: dict[QuotaEntity, float] = {}
    for entity, value in changes:
        limits.change({entity: {KEY: value}})
        if value is None:
            model.pop(entity, None)
        else:
            model[entity] = value
    assert len(limits) == len(model)
    again = ClientLimits(KEY)
    again.change({entity: {KEY: value} for entity, value in model.items()})
    for user in ("a", "b", "c"):
        for client_id in ("a", "b", "c", ""):
            assert limits.find(user, client_id) == again.find(user, client_id)
