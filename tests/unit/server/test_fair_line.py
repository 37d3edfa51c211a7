"""A line with a limit, and the shares of those that wait in it."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import pytest

from moldau.server.fair_line import FairLine


def filled(line: FairLine[str], items: str) -> FairLine[str]:
    """Each item belongs to the principal named by its first letter."""
    for item in items.split():
        assert line.put(item, item[0]) is None
    return line


def drained(line: FairLine[str]) -> list[str]:
    return list(iter(line.take, None))


def test_principals_take_turns() -> None:
    line = filled(FairLine(9), "a1 a2 a3 b1 c1 c2")
    assert drained(line) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert line.take() is None


def test_a_full_line_refuses_the_principal_that_fills_it() -> None:
    line = filled(FairLine(3), "a1 a2 a3")
    assert line.put("a4", "a") == ("a4", "a")
    assert line.items() == ["a1", "a2", "a3"]


def test_the_greediest_principal_gives_a_place_to_others() -> None:
    line = filled(FairLine(4), "a1 a2 a3 b1")
    assert line.put("c1", "c") == ("a3", "a")
    assert line.put("c2", "c") == ("c2", "c"), "an equal share is one place"
    assert line.put("b2", "b") == ("b2", "b")
    assert drained(line) == ["a1", "b1", "c1", "a2"]


def test_removing_leaves_nothing_behind() -> None:
    line = filled(FairLine(4), "a1 a2 b1")
    assert line.remove("a2", "a")
    assert not line.remove("a2", "a")
    assert not line.remove("z1", "z")
    assert line.remove("b1", "b")
    assert (len(line), line._by_principal.keys()) == (1, {"a"})


@pytest.mark.parametrize("seed", range(20))
def test_as_a_plain_model(seed: int) -> None:
    """Against lists: order, turns, the limit and the shares, over random steps."""
    dice = Random(seed)
    line: FairLine[int] = FairLine(6)
    model: deque[tuple[str, deque[int]]] = deque()
    for item in range(300):
        step = dice.random()
        if step < 0.6:
            principal = dice.choice("aaaabbcd")
            counts = Counter({name: len(items) for name, items in model})
            left_out = line.put(item, principal)
            mine = next((items for name, items in model if name == principal), None)
            if counts.total() >= 6:
                share = 6 // (len(model) + (mine is None))
                assert left_out is not None, seed
                if counts[principal] >= share:
                    assert left_out == (item, principal), seed
                    continue
                other, greediest = left_out
                assert counts[greediest] == max(counts.values()), seed
                theirs = next(items for name, items in model if name == greediest)
                assert theirs.pop() == other, seed
                if not theirs:
                    model.remove((greediest, theirs))
            else:
                assert left_out is None, seed
            if mine is None:
                mine = deque()
                model.append((principal, mine))
            mine.append(item)
        elif step < 0.8 and model:
            name, items = model.popleft()
            assert line.take() == items.popleft(), seed
            if items:
                model.append((name, items))
        elif model:
            name, items = dice.choice(model)
            gone = dice.choice(items)
            assert line.remove(gone, name), seed
            items.remove(gone)
            if not items:
                model.remove((name, items))
        assert len(line) == sum(len(items) for _, items in model) <= 6, seed
