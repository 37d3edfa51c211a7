"""What coordinators keep in memory: whose it is, and who may have more."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from moldau.broker.coordinator.core.kept_memory import KeptMemory, MemoryLimit


def grown(
    memory: KeptMemory, name: str, principal: str, growth_bytes: int, before: int = 0
) -> bool:
    """As a coordinator: ask, then keep."""
    if not memory.may_grow(name, principal, growth_bytes):
        return False
    memory.keep(name, before + growth_bytes)
    return True


def test_a_principal_has_as_much_as_it_leaves_to_others() -> None:
    refused: list[str] = []
    limit = MemoryLimit(100, refused.append)
    memory = KeptMemory(limit)
    assert [grown(memory, f"a{n}", "a", 10) for n in range(7)] == [True] * 5 + [False] * 2
    assert refused == ["a", "a"]
    assert [grown(memory, f"b{n}", "b", 10) for n in range(4)] == [True, True, True, False]
    assert grown(memory, "c", "c", 10)
    assert limit.used_bytes == 90
    # What does not grow, and what goes, is always allowed.
    assert memory.may_grow("a0", "a", 0)
    memory.keep("a0", 0)
    memory.keep("a1", 4)
    assert (limit.used_bytes, limit.of("a")) == (74, 34)


@pytest.mark.parametrize(
    ("name", "growth_bytes", "is_allowed"),
    [
        ("new", 40, True),
        ("new", 41, False),
        ("own", 40, True),
        ("own", 41, False),
        ("logged", 25, True),
        ("logged", 26, False),
        ("others", 50, True),
        ("others", 51, False),
    ],
)
def test_growth_is_allowed_up_to_the_last_byte(
    name: str, growth_bytes: int, is_allowed: bool
) -> None:
    """There are 105 bytes: "a" has 20, "b" 10, what was read from the log 15; 60 are left."""
    refused: list[str] = []
    limit = MemoryLimit(105, refused.append)
    memory = KeptMemory(limit)
    memory.keep("logged", 15)
    assert grown(memory, "own", "a", 20)
    assert grown(memory, "others", "b", 10)
    assert limit.used_bytes == 45
    assert memory.may_grow(name, "a", growth_bytes) is is_allowed
    owner = "b" if name == "others" else "a"
    assert refused == ([] if is_allowed else [owner])


def test_what_does_not_grow_is_allowed_beyond_the_limit_too() -> None:
    limit = MemoryLimit(100)
    memory = KeptMemory(limit)
    memory.keep("logged", 120)
    found = [memory.may_grow("logged", "a", growth_bytes) for growth_bytes in (-1, 0, 1)]
    assert found == [True, True, False]


@pytest.mark.parametrize(("used_bytes", "is_tight"), [(0, False), (25, False), (26, True)])
def test_memory_is_tight_from_a_quarter_of_the_limit_on(used_bytes: int, is_tight: bool) -> None:
    limit = MemoryLimit(100)
    KeptMemory(limit).keep("x", used_bytes)
    assert (limit.used_bytes, limit.is_tight) == (used_bytes, is_tight)


def test_what_did_not_grow_gets_no_owner() -> None:
    limit = MemoryLimit(100)
    memory = KeptMemory(limit)
    memory.keep("x", 30)
    assert memory.may_grow("x", "a", 5)
    memory.keep("x", 30)
    assert (limit.of("a"), limit.of("")) == (0, 30)
    memory.keep("x", 31)
    assert (limit.of("a"), limit.of("")) == (31, 0)


def test_partitions_share_the_limit_and_give_back_what_they_lose() -> None:
    limit = MemoryLimit(100)
    first, second = KeptMemory(limit), KeptMemory(limit)
    assert grown(first, "x", "a", 40)
    assert not grown(second, "y", "a", 30)
    first.forget_all()
    assert (limit.used_bytes, limit.of("a"), first._kept) == (0, 0, {})
    assert grown(second, "y", "a", 20)


def test_what_was_read_from_the_log_belongs_to_the_first_that_lets_it_grow() -> None:
    limit = MemoryLimit(100)
    memory = KeptMemory(limit)
    memory.keep("old", 30)
    memory.keep("older", 30)
    assert (limit.of(""), limit.of("a")) == (60, 0)
    assert grown(memory, "old", "a", 5, before=30)
    assert (limit.of(""), limit.of("a")) == (30, 35)
    # With what is its own already it may not have this one grow too, nor may another take "old".
    assert not grown(memory, "older", "a", 5, before=30)
    assert grown(memory, "old", "b", 1, before=35) is False
    # Requests that name no principal let it grow as if it were alone.
    assert memory.may_grow("older", "", 5)


def test_only_what_was_asked_about_last_gets_an_owner() -> None:
    limit = MemoryLimit(100)
    memory = KeptMemory(limit)
    memory.may_grow("x", "a", 1)
    memory.keep("y", 1)
    assert (limit.of("a"), limit.of("")) == (0, 1)


@pytest.mark.parametrize("seed", range(10))
def test_the_sums_are_those_of_what_is_kept(seed: int) -> None:
    dice, limit = Random(seed), MemoryLimit(10_000)
    memories = [KeptMemory(limit) for _ in range(3)]
    kept: dict[tuple[int, str], int] = {}
    for _ in range(500):
        index, name = dice.randrange(3), dice.choice("pqrstu")
        if dice.random() < 0.02:
            memories[index].forget_all()
            kept = {each: size for each, size in kept.items() if each[0] != index}
            continue
        before, size = kept.get((index, name), 0), dice.choice((0, 10, 200, 900))
        if memories[index].may_grow(name, dice.choice("ab"), size - before):
            memories[index].keep(name, size)
            kept[index, name] = size
        assert limit.used_bytes == sum(kept.values()), seed
        of_owners = Counter(limit._by_owner)
        assert of_owners.total() == limit.used_bytes, seed
        assert min(of_owners.values(), default=1) > 0, seed
