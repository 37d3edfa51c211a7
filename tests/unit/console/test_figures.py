"""Rates follow from two looks at what there was in all."""

from __future__ import annotations

import pytest

from moldau.console.figures import LEAST_S, LONGEST_S, Traffic, TrafficRates


class Looks:
    """Looks at traffic that grows with the time of a clock."""

    def __init__(self) -> None:
        self.now_s = 50.0
        self.rates = TrafficRates(lambda: self.now_s)

    def look(self, traffic: Traffic, later_s: float = 0.0) -> dict[str, float | None]:
        self.now_s += later_s
        return self.rates.of(traffic)


UNKNOWN = {"bytes_in_s": None, "bytes_out_s": None, "messages_in_s": None, "requests_s": None}


def test_a_rate_is_the_difference_over_the_time_between() -> None:
    looks = Looks()
    assert looks.look(Traffic(100, 1_000, 5, 10)) == UNKNOWN
    assert looks.look(Traffic(300, 1_000, 15, 11), 4.0) == {
        "bytes_in_s": 50.0,
        "bytes_out_s": 0.0,
        "messages_in_s": 2.5,
        "requests_s": 0.25,
    }


def test_two_looks_at_once_make_no_rate() -> None:
    looks = Looks()
    looks.look(Traffic(0, 0, 0, 0))
    assert looks.look(Traffic(10, 0, 0, 0), LEAST_S / 2) == UNKNOWN
    assert looks.look(Traffic(10, 0, 0, 0), LEAST_S / 2)["bytes_in_s"] == 10 / LEAST_S


def test_what_was_long_ago_does_not_count_while_there_are_newer_looks() -> None:
    looks = Looks()
    looks.look(Traffic(0, 0, 0, 0))
    looks.look(Traffic(1_000, 0, 0, 0), 5.0)
    assert looks.look(Traffic(1_000, 0, 0, 0), LONGEST_S)["bytes_in_s"] == 0.0


def test_looks_far_apart_still_make_a_rate() -> None:
    looks = Looks()
    looks.look(Traffic(0, 0, 0, 0))
    assert looks.look(Traffic(600, 0, 0, 0), 600.0)["bytes_in_s"] == 1.0


def test_no_rate_is_negative() -> None:
    looks = Looks()
    looks.look(Traffic(100, 0, 0, 0))
    assert looks.look(Traffic(0, 0, 0, 0), 5.0)["bytes_in_s"] == 0


def test_many_looks_at_once_push_no_older_one_out() -> None:
    looks = Looks()
    looks.look(Traffic(0, 0, 0, 0))
    for _ in range(100):
        looks.look(Traffic(0, 0, 0, 0), 0.01)
    assert looks.look(Traffic(200, 0, 0, 0), 1.0)["bytes_in_s"] == pytest.approx(100.0)
