"""The ledger's values: what is written is what is read, and what is no value is an error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.spark_connector.core.ledger import (
    MAX_RANGES_PER_SLOT,
    MAX_SLOTS,
    BatchState,
    LedgerUnreadable,
    Range,
    SinkRecord,
    Slot,
    SlotState,
    decided,
    decode,
    encode,
    finished_key,
    total_checksum,
)

texts = st.text(min_size=1, max_size=8)
counts = st.integers(0, 2**40)
ranges = st.builds(Range, texts, st.integers(0, 9), counts, counts)
slots = st.builds(
    Slot,
    st.integers(0, 99),
    texts,
    counts,
    st.integers(0, 32_767),
    counts,
    st.integers(0, 2**64 - 1),
    st.lists(ranges, max_size=3).map(tuple),
    st.sampled_from(SlotState),
)
batches = st.builds(
    decided, texts, counts, st.lists(slots, min_size=1, max_size=4), st.integers(0, 9), counts
)
records = st.builds(SinkRecord, texts, texts, st.none() | batches)

ONE = Slot(0, "s.w.0.0", 7, 1, 3, 5, (Range("t", 0, 10, 3),))
OTHER = Slot(1, "s.w.1.0", 8, 1, 2, 2**64 - 1)


@given(records)
def test_what_is_written_is_what_is_read(record: SinkRecord) -> None:
    assert decode(encode(record)) == record


def test_totals() -> None:
    batch = decided("q", 3, [ONE, OTHER], 2, 1)
    assert (batch.rows, batch.checksum) == (5, 4)
    assert total_checksum([]) == 0
    assert ONE.is_located
    assert not OTHER.is_located
    assert finished_key("s", "q") == "s\x1fq"


def test_a_batch_is_done_when_all_its_slots_are() -> None:
    batch = decided("q", 3, [ONE, OTHER], 2, 1)
    half = batch.with_slots({ONE.producer: SlotState.COMMITTED, OTHER.producer: SlotState.LOST})
    assert half.state is BatchState.DECIDED
    assert half.open_slots == ()
    assert [slot.producer for slot in half.lost_slots] == [OTHER.producer]
    done = batch.with_slots(dict.fromkeys((ONE.producer, OTHER.producer), SlotState.COMMITTED))
    assert done.state is BatchState.DONE
    assert done.slots == ()
    assert (done.rows, done.checksum) == (batch.rows, batch.checksum)


def test_a_slot_does_not_go_back() -> None:
    with pytest.raises(AssertionError):
        ONE.became(SlotState.COMMITTED).became(SlotState.LOST)


def _changed(**changes: Any) -> bytes:
    shown = json.loads(encode(SinkRecord("s", "d", decided("q", 3, [ONE], 1, 1))))
    for path, value in changes.items():
        at = shown
        *parents, last = path.split("__")
        for name in parents:
            at = at[name] if name != "first" else at[0]
        at[last] = value
    return json.dumps(shown).encode()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"\xff", "no JSON"),
        (b"[]", "no version"),
        (b"{}", "no version"),
        (_changed(version=2), "version 2"),
        (_changed(sink=None), "sink"),
        (_changed(batch__state="MAYBE"), "MAYBE"),
        (_changed(batch__state="DONE"), "no slots"),
        (_changed(batch__rows="3"), "rows"),
        (_changed(batch__rows=True), "rows"),
        (_changed(batch__slots__first__producer=[1]), "unpack"),
        (_changed(batch__slots__first__producer=[1, "2"]), "producer"),
        (_changed(batch__slots__first__producer=["1", 2]), "producer"),
        (_changed(batch__slots__first__producer=[1, True]), "producer"),
        (_changed(batch__slots__first__ranges=[["t", 0, "1", 2]]), "ranges"),
        (_changed(batch__slots__first__ranges=[[0, 0, 1, 2]]), "ranges"),
        (_changed(batch__slots__first__ranges=[["t", True, 1, 2]]), "ranges"),
        (_changed(version="1"), "no version"),
        (_changed(version=0), "version 0"),
        (_changed(batch__slots__first__state="GONE"), "GONE"),
        (_changed(batch={"query": "q"}), "slots"),
    ],
)
def test_what_is_no_value_is_an_error(value: bytes, problem: str) -> None:
    with pytest.raises(LedgerUnreadable, match=problem):
        decode(value)


def test_a_decision_of_very_many_tasks_stays_small() -> None:
    places = tuple(Range("t" * 249, each, 2**62, 1) for each in range(MAX_RANGES_PER_SLOT))
    one = Slot(0, "s" * 200, 2**62, 32_767, 16, 2**64 - 1, places)
    many = [replace(one, task=task) for task in range(MAX_SLOTS)]
    assert all(slot.ranges for slot in decided("q", 1, many, MAX_SLOTS, 1).slots)
    value = encode(SinkRecord("s", "d", decided("q", 1, many, MAX_SLOTS, 1)))
    assert len(value) < 8 * 1024 * 1024
    assert decided("q", 1, [one], 1, 1).slots == (one,)
    for count, kept in ((624, MAX_RANGES_PER_SLOT), (1_000, 10), (MAX_SLOTS, 1)):
        batch = decided("q", 1, many[:count], count, 1)
        assert {len(slot.ranges) for slot in batch.slots} == {kept}
        assert batch.slots[-1].ranges == places[:kept]


@pytest.mark.parametrize(
    ("batch_id", "rows", "has_history"), [(0, 0, False), (0, 1, True), (1, 0, True), (7, 2, True)]
)
def test_a_query_has_a_history_from_its_first_row_or_second_batch_on(
    batch_id: int, rows: int, has_history: bool
) -> None:
    written = [replace(ONE, rows=rows)] if rows else []
    assert decided("q", batch_id, written, 1, 1).has_history is has_history
