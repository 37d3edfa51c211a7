"""Quotas are changed of an entity, and the command that is shown changes the same ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.console.own.quotas import entity_of, quota_command
from moldau.console.problems import Problem
from tests.unit.console.command_lines import parsed

NAMES = st.none() | st.text(min_size=1, max_size=4).filter(lambda text: "\0" not in text)
ENTITIES = st.one_of(
    st.fixed_dictionaries({"ip": NAMES}),
    st.fixed_dictionaries({"user": NAMES}, optional={"client-id": NAMES}),
    st.fixed_dictionaries({"client-id": NAMES}),
)
KEYS = st.sampled_from(["producer_byte_rate", "consumer_byte_rate", "request_percentage"])
VALUES = st.none() | st.floats(0, 1e12) | st.integers(0, 2**40).map(float)


@given(ENTITIES, st.dictionaries(KEYS, VALUES, min_size=1))
def test_the_command_changes_the_same(
    names: dict[str, str | None], changes: dict[str, float | None]
) -> None:
    entity = entity_of(names)
    assert dict(entity) == names
    words, given_ = parsed(quota_command(entity, changes))
    assert words == "quotas alter"
    kinds = {"user": "user", "client-id": "client_id", "ip": "ip"}
    assert {kind: given_.get(name) for kind, name in kinds.items() if kind in names} == {
        kind: name or "" for kind, name in names.items()
    }
    pairs = [each.partition("=") for each in _several(given_, "set_pairs")]
    assert {key: float(value) for key, _, value in pairs} == {
        key: value for key, value in changes.items() if value is not None
    }
    assert set(_several(given_, "delete_keys")) == {
        key for key, value in changes.items() if value is None
    }


def _several(given_: dict[str, Any], name: str) -> list[str]:
    return [*(given_.get(name) or ())]


def test_an_empty_name_is_the_default() -> None:
    assert entity_of({"user": "", "client-id": None}) == (("user", None), ("client-id", None))


@pytest.mark.parametrize("names", [{}, {"group": "a"}, {"user": "a", "group": "b"}])
def test_entities_of_other_kinds_are_refused(names: dict[str, str | None]) -> None:
    with pytest.raises(Problem, match="user, client-id, ip"):
        entity_of(names)
