"""Guessing passwords is slowed down, by address and in all."""

from __future__ import annotations

import pytest

from moldau.console import tries as module
from moldau.console.problems import Problem
from moldau.console.tries import Tries


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


BURST = int(module.HOSTS_TRIES_PER_S * module.BURST_S)


def refused(tries: Tries, address: str) -> bool:
    try:
        tries.take(address)
    except Problem as problem:
        found = problem
    else:
        return False
    assert found.status == 429
    assert ("Retry-After", "1") in found.headers
    return True


def test_one_address_guesses_so_often() -> None:
    clock = Clock()
    tries = Tries(clock)
    assert [refused(tries, "10.0.0.1") for _ in range(BURST + 1)] == [False] * BURST + [True]
    assert not refused(tries, "10.0.0.2")
    clock.now_s += 1 / module.HOSTS_TRIES_PER_S
    assert not refused(tries, "10.0.0.1")
    assert refused(tries, "10.0.0.1")


def test_addresses_of_one_network_count_as_one() -> None:
    tries = Tries(Clock())
    for number in range(BURST):
        tries.take(f"2001:db8::{number}")
    assert refused(tries, "2001:db8::ffff")
    assert not refused(tries, "2001:db8:1::1")
    for _ in range(BURST):
        tries.take("10.0.0.1")
    assert refused(tries, "::ffff:10.0.0.1")


def test_right_ones_cost_nothing() -> None:
    tries = Tries(Clock())
    for _ in range(10 * BURST):
        assert not refused(tries, "10.0.0.1")
        tries.give_back("10.0.0.1")
    tries.give_back("10.0.0.9")


def test_all_addresses_together_are_limited() -> None:
    tries = Tries(Clock())
    most = int(module.TRIES_PER_S * module.BURST_S)
    outcomes = [
        refused(tries, f"10.0.{number // 200}.{number % 200}") for number in range(most + 1)
    ]
    assert outcomes == [False] * most + [True]


def test_the_addresses_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HOSTS", 3)
    clock = Clock()
    tries = Tries(clock)
    for number in range(4):
        for _ in range(BURST):
            tries.take(f"10.0.0.{number}")
        clock.now_s += 1
        # What the others have tried is remembered, up to the limit.
        assert refused(tries, f"10.0.0.{number}") is False
    assert not refused(tries, "10.0.0.0"), "forgotten: its tries begin again"


@pytest.mark.parametrize("count", [BURST, BURST * 3])
def test_a_rest_gives_no_more_than_a_burst(count: int) -> None:
    clock = Clock()
    tries = Tries(clock)
    clock.now_s += 1_000
    outcomes = [refused(tries, "10.0.0.1") for _ in range(count)]
    assert outcomes.count(False) == BURST
