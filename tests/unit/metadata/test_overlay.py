"""Mappings with changes over them behave as dicts, and share what did not change."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from moldau.metadata.image import overlay as module
from moldau.metadata.image.overlay import LayeredMapping, layered, overlay
from tests.kit.dice import drawn_seed

BIG = 10_000


def big() -> dict[str, int]:
    return {f"key-{index}": index for index in range(BIG)}


def check_equal(mapping: Mapping[str, int], expected: dict[str, int]) -> None:
    """Looked up first, before anything makes it flat."""
    assert len(mapping) == len(expected)
    assert all(mapping[key] == value and key in mapping for key, value in expected.items())
    assert mapping == expected
    assert sorted(mapping) == sorted(expected)
    assert sorted(mapping.values()) == sorted(expected.values())


@pytest.mark.parametrize("size", [0, 3, BIG])
def test_random_changes_give_what_a_dict_gives(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = drawn_seed()
    dice = random.Random(seed)
    monkeypatch.setattr(module, "ALWAYS_COPIED", 2)
    expected = {f"key-{index}": index for index in range(size)}
    mapping: Mapping[str, int] = dict(expected)
    for number in range(300):
        changes: dict[str, int | None] = {}
        for _ in range(dice.randrange(4)):
            key = f"key-{dice.randrange(size + 20)}"
            changes[key] = None if dice.random() < 0.4 else number
        before, seen = mapping, dict(expected)
        mapping = layered(mapping, changes)
        expected = dict(overlay(expected, changes))
        touched = [*changes, f"key-{dice.randrange(size + 20)}"]
        for key in touched:
            assert mapping.get(key) == expected.get(key)
            assert before.get(key, -1) == seen.get(key, -1), "the old one stays as it was"
            assert (key in mapping) == (key in expected)
        assert len(mapping) == len(expected)
        if number % 100 == 99:
            check_equal(before, seen)
            check_equal(mapping, expected)


def test_a_removed_key_is_gone() -> None:
    mapping = layered(big(), {"key-5": None, "absent": None, "new": 7})
    assert isinstance(mapping, LayeredMapping)
    assert "key-5" not in mapping
    assert mapping.get("key-5", -1) == -1
    with pytest.raises(KeyError):
        mapping["key-5"]
    with pytest.raises(KeyError):
        mapping["absent"]
    assert mapping["new"] == 7
    assert len(mapping) == BIG
    assert "key-5" not in list(mapping), "nor when it is iterated"


def test_a_small_change_of_something_big_copies_nothing_big() -> None:
    base = big()
    mapping: Mapping[str, int] = base
    for number in range(200):
        mapping = layered(mapping, {f"new-{number}": number})
        assert isinstance(mapping, LayeredMapping)
        assert mapping.layers[0] is base
    assert len(mapping) == BIG + 200


def test_changes_do_not_pile_up() -> None:
    bottoms = set()
    mapping: Mapping[str, int] = big()
    for number in range(2_000):
        mapping = layered(mapping, {f"new-{number}": number})
        changes = mapping.layers[1] if isinstance(mapping, LayeredMapping) else {}
        assert len(changes) <= module.CHANGES_PER_ROOT * (BIG + number) ** 0.5
        bottoms.add(id(mapping.layers[0] if isinstance(mapping, LayeredMapping) else mapping))
    assert len(mapping) == BIG + 2_000
    assert 2 <= len(bottoms) <= 10


def test_what_is_iterated_is_copied_once() -> None:
    mapping = layered(big(), {"new": 1})
    assert isinstance(mapping, LayeredMapping)
    assert "new" in mapping.keys()  # noqa: SIM118 - the view is what is looked at
    flat = mapping.layers[0]
    assert "new" in flat
    assert ("new", 1) in mapping.items()
    assert mapping.layers[0] is flat
    assert repr(mapping) == repr(flat)


def test_without_changes_nothing_is_made() -> None:
    base = big()
    assert layered(base, {}) is base
    assert overlay(base, {}) is base


def test_something_small_stays_a_dict() -> None:
    assert type(layered({"a": 1}, {"b": 2, "a": None})) is dict
