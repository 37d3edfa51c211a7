"""What is limited is shared fairly: the rules hold whatever the parties do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.server.fair_shares import FairShares, Waiting


def test_one_party_alone_gets_half_and_the_next_one_finds_places() -> None:
    shares = FairShares(16)
    assert [shares.take("a") for _ in range(9)] == [True] * 8 + [False]
    assert [shares.take("b") for _ in range(5)] == [True] * 4 + [False]
    assert shares.take("c")
    assert (shares.held, shares.held_by("a"), shares.held_by("b")) == (13, 8, 4)


def test_a_single_place_goes_round() -> None:
    shares = FairShares(1)
    order: list[str] = []
    assert shares.take("x")
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        shares.wait(name[0], 1, lambda name=name: order.append(name))  # type: ignore[misc]
    shares.give_back("x")
    while shares.held:
        shares.give_back(order[-1][0])
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_what_is_much_is_not_passed_by_what_is_little() -> None:
    """Many small amounts would keep a large one waiting for ever."""
    shares = FairShares(100)
    granted: list[str] = []
    assert shares.take("small", 50)
    shares.wait("large", 80, lambda: granted.append("large"))
    assert not shares.take("other", 10)
    shares.wait("other", 10, lambda: granted.append("other"))
    shares.give_back("small", 20)
    assert granted == [], "it is not enough for the one that comes first"
    shares.give_back("small", 30)
    assert granted == ["large", "other"]


def test_more_than_there_is_counts_as_all() -> None:
    shares = FairShares(10)
    assert shares.take("a", 1_000)
    assert shares.held == 10
    shares.give_back("a", 1_000)
    assert shares.held == 0


def test_what_waited_behind_a_request_that_is_given_up_has_its_turn() -> None:
    shares = FairShares(100)
    granted: list[str] = []
    assert shares.take("small", 50)
    large = shares.wait("large", 80, lambda: granted.append("large"))
    shares.wait("other", 10, lambda: granted.append("other"))
    assert granted == [], "what is free is kept for the one that holds nothing"
    shares.give_up(large)
    assert granted == ["other"]
    shares.give_up(large)
    assert (shares.held, shares.waiting_count("large")) == (60, 0)
    assert shares._parties.keys() == {"small", "other"}


def test_a_party_that_has_been_served_comes_after_the_others() -> None:
    shares = FairShares(10)
    granted: list[str] = []
    assert shares.take("x", 5)
    assert shares.take("y", 5)
    for name in ("a1", "a2", "b1"):
        shares.wait(name[0], 1, lambda name=name: granted.append(name))  # type: ignore[misc]
    shares.give_back("x", 5)
    assert granted == ["a1", "b1", "a2"]


def test_those_whose_amount_does_not_fit_yet_are_passed_by_one_whose_does() -> None:
    shares = FairShares(100)
    granted: list[str] = []
    for name, amount in (("a", 30), ("b", 25), ("c", 10), ("d", 20)):
        assert shares.take(name, amount)
    for name, amount in (("a", 40), ("b", 40), ("c", 15)):
        assert not shares.take(name, amount)
        shares.wait(name, amount, lambda name=name: granted.append(name))  # type: ignore[misc]
    shares.give_back("d", 20)
    assert granted == ["c"]
    assert [shares.waiting_count(name) for name in "abc"] == [1, 1, 0]


def test_callbacks_that_give_back_at_once_do_not_run_inside_each_other() -> None:
    shares = FairShares(1)
    depth, depths = 0, []

    def granted() -> None:
        nonlocal depth
        depth += 1
        depths.append(depth)
        shares.give_back("a")
        depth -= 1

    assert shares.take("a")
    for _ in range(5):
        shares.wait("a", 1, granted)
    shares.give_back("a")
    assert (depths, shares.held) == ([1] * 5, 0)


async def test_a_turn_that_is_not_awaited_any_more_goes_to_the_next() -> None:
    shares = FairShares(1)
    await shares.taken("a")
    gone, next_one = (asyncio.ensure_future(shares.taken(name)) for name in "bc")
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    shares.give_back("a")
    await next_one
    # In the same turn of the loop in which it is granted.
    late = asyncio.ensure_future(shares.taken("d"))
    await asyncio.sleep(0)
    shares.give_back("c")
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert shares.held == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "wait", "give up", "give back", "gives at once"]),
        st.sampled_from("abcd"),
        st.integers(1, 9),
    ),
    max_size=60,
)


class Model:
    """Parties that do anything, and what must be true of their shares at any time."""

    def __init__(self, capacity: int) -> None:
        self.shares = FairShares(capacity)
        self.capacity = capacity
        self.held: dict[str, list[int]] = {name: [] for name in "abcd"}
        self.waiting: dict[str, deque[tuple[int, Waiting | None]]] = {
            name: deque() for name in "abcd"
        }

    def granted(self, name: str, amount: int, *, gives_at_once: bool) -> Callable[[], None]:
        def call() -> None:
            first_amount, _ = self.waiting[name].popleft()
            assert first_amount == amount, "a party's requests keep their order"
            self.held[name].append(amount)
            self.check()
            if gives_at_once:
                self.give_back(name, -1)

        return call

    def wait(self, name: str, amount: int, *, gives_at_once: bool) -> None:
        self.waiting[name].append((amount, None))
        granted = self.granted(name, amount, gives_at_once=gives_at_once)
        waiting = self.shares.wait(name, amount, granted)
        self.waiting[name][-1] = amount, waiting

    def give_back(self, name: str, index: int) -> None:
        self.shares.give_back(name, self.held[name].pop(index))

    def check(self) -> None:
        shares = self.shares
        assert shares.held == sum(map(self.held_by, self.held)) <= self.capacity
        for name in self.held:
            assert shares.held_by(name) == self.held_by(name)
            assert shares.waiting_count(name) == len(self.waiting[name])

    def held_by(self, name: str) -> int:
        return sum(min(amount, self.capacity) for amount in self.held[name])


@given(st.integers(1, 20), STEPS)
def test_shares_are_bounded_fair_and_served_at_last(
    capacity: int, steps: list[tuple[str, str, int]]
) -> None:
    model = Model(capacity)
    for step, name, amount in steps:
        free = capacity - model.shares.held
        if step == "take":
            held = model.held_by(name)
            if model.shares.take(name, amount):
                model.held[name].append(amount)
                assert held + min(amount, capacity) <= free
                assert not model.waiting[name]
        elif step in ("wait", "gives at once"):
            # As callers do: what could be had at once does not wait.
            if model.shares.take(name, amount):
                model.held[name].append(amount)
            else:
                model.wait(name, amount, gives_at_once=step == "gives at once")
        elif step == "give up" and model.waiting[name]:
            _, waiting = model.waiting[name].pop()
            assert waiting is not None
            model.shares.give_up(waiting)
        elif step == "give back" and model.held[name]:
            model.give_back(name, 0)
        model.check()
        if not model.shares.held:
            assert not any(model.waiting.values()), "nothing waits for what is free"
    while any(model.held.values()):
        for name in model.held:
            if model.held[name]:
                model.give_back(name, 0)
    model.check()
    assert not any(model.waiting.values())
    assert not model.shares._parties
    assert not model.shares._line
