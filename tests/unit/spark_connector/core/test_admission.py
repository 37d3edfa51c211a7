"""How far batches go: shares, limits, waiting, and the end of AvailableNow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.ranges import Admission, AdmissionLimits, admit

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))

STARTS_AND_ENDS = st.lists(
    st.tuples(st.integers(0, 2**62), st.integers(-50, 10**6)), min_size=1, max_size=12
).map(
    lambda rows: (
        {TopicPartition("t", number): start for number, (start, _) in enumerate(rows)},
        {
            TopicPartition("t", number): max(0, start + size)
            for number, (start, size) in enumerate(rows)
        },
    )
)


def taken(start, ends):
    return {name: ends[name] - start[name] for name in ends if ends[name] > start[name]}


@given(STARTS_AND_ENDS, st.integers(1, 10**7))
def test_a_batch_takes_its_limit_exactly_or_one_of_each(bounds, limit):
    start, latest = bounds
    there = taken(start, latest)
    admitted = taken(start, admit(start, latest, limit))
    assert sum(admitted.values()) == min(sum(there.values()), max(limit, len(there)))
    assert admitted.keys() == there.keys()
    assert all(admitted[name] <= there[name] for name in there)


@given(STARTS_AND_ENDS, st.integers(1, 10**7))
def test_larger_backlogs_get_no_less(bounds, limit):
    start, latest = bounds
    there = taken(start, latest)
    admitted = taken(start, admit(start, latest, limit))
    for one in there:
        for other in there:
            if there[one] > there[other]:
                assert admitted[one] >= admitted[other] - 1


@given(STARTS_AND_ENDS, st.integers(1, 10**4))
def test_whatever_the_limit_everything_is_read_in_the_end(bounds, limit):
    start, latest = bounds
    start = {name: max(start[name], latest[name] - 500) for name in start}
    for _ in range(20_000):
        ends = admit(start, latest, limit)
        if not taken(start, ends):
            break
        start = ends
    assert {name: max(start[name], latest[name]) for name in start} == start


def test_shares_are_in_proportion():
    ends = admit({P0: 0, P1: 100, P2: 7}, {P0: 900, P1: 200, P2: 7}, 100)
    assert ends == {P0: 90, P1: 110, P2: 7}


def test_the_largest_shares_pay_for_those_that_get_one_at_least():
    start = dict.fromkeys([P0, P1, *(TopicPartition("small", n) for n in range(20))], 0)
    ends = dict.fromkeys(start, 1) | {P0: 2_000, P1: 1_400}
    shares = admit(start, ends, 40)
    assert (shares[P0], shares[P1]) == (10, 10), "23 and 16 by proportion, 19 to pay, 7 by P0 alone"
    assert sum(shares.values()) == 40


def test_a_partition_of_one_record_gets_no_more_than_that():
    assert admit({P0: 0, P1: 0}, {P0: 1, P1: 1_000}, 10) == {P0: 1, P1: 9}


def test_a_log_that_was_cut_does_not_move_the_others():
    assert admit({P0: 50, P1: 0}, {P0: 20, P1: 10}, 4) == {P0: 20, P1: 4}


def test_without_limits_a_batch_takes_all():
    admission = Admission(AdmissionLimits())
    assert admission.next_end({P0: 1}, {P0: 9}, everything=False, now_ms=0) == {P0: 9}


def test_everything_is_more_than_the_limit():
    admission = Admission(AdmissionLimits(max_offsets=2, min_offsets=1))
    assert admission.next_end({P0: 1}, {P0: 9}, everything=True, now_ms=0) == {P0: 9}


def test_a_batch_waits_for_its_least_but_not_for_ever():
    admission = Admission(AdmissionLimits(min_offsets=10, max_trigger_delay_ms=1_000))

    def next_end(end, now_ms):
        return admission.next_end({P0: 0}, {P0: end}, everything=False, now_ms=now_ms)

    assert next_end(1, now_ms=50) == {P0: 1}  # the first one waits for nothing, as in Spark
    assert next_end(9, now_ms=100) is None
    assert next_end(10, now_ms=150) == {P0: 10}
    assert next_end(9, now_ms=1_149) is None
    assert next_end(9, now_ms=1_150) == {P0: 9}
    assert next_end(9, now_ms=1_200) is None


def test_least_and_most_hold_together():
    admission = Admission(AdmissionLimits(max_offsets=4, min_offsets=3))
    start = {P0: 0, P1: 0}
    assert sum(admission.next_end(start, {P0: 9, P1: 9}, everything=False, now_ms=0).values()) == 4
    assert admission.next_end(start, {P0: 1, P1: 1}, everything=False, now_ms=1) is None


@pytest.mark.parametrize("everything", [True, False])
def test_a_target_hides_what_comes_later(everything):
    admission = Admission(AdmissionLimits(min_offsets=1_000))
    admission.set_target({P0: 5, P1: 3})
    ends = admission.next_end(
        {P0: 0, P1: 0, P2: 0}, {P0: 9, P1: 2, P2: 7}, everything=everything, now_ms=0
    )
    assert ends == {P0: 5, P1: 2}


def test_a_target_never_goes_back():
    admission = Admission(AdmissionLimits())
    admission.set_target({P0: 5})
    assert admission.next_end({P0: 8}, {P0: 9}, everything=False, now_ms=0) == {P0: 8}
    # What was cut off is another matter: the log ends there.
    assert admission.next_end({P0: 8}, {P0: 2}, everything=False, now_ms=0) == {P0: 2}
