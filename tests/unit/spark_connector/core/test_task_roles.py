"""What a task does with its rows, by what the ledger says of its batch."""

from __future__ import annotations

import pytest

from moldau.spark_connector.core.commit_protocol import (
    Plan,
    RefusalKind,
    Refused,
    Role,
    names_of,
    role_of,
)
from moldau.spark_connector.core.ledger import Batch, Range, SinkRecord, Slot, SlotState, decided

SLOTS = [Slot(task, f"s.w.{task}.0", task, 1, 5, task, (Range("t", 0, 0, 5),)) for task in (0, 1)]
DECIDED = decided("query", 7, SLOTS, 3, 1)
DONE = DECIDED.with_slots({slot.producer: SlotState.COMMITTED for slot in SLOTS})
HALF = DECIDED.with_slots(
    {SLOTS[0].producer: SlotState.COMMITTED, SLOTS[1].producer: SlotState.LOST}
)


def plan(newest: Batch | None, *finished: Batch) -> Plan:
    return Plan(SinkRecord("s", "token", newest), {each.query_id: each for each in finished})


def role(found: Plan, batch_id: int, task: int = 0, query_id: str = "query") -> Role:
    return role_of(found, query_id, batch_id, task)[0]


def test_a_new_batch_is_written() -> None:
    assert role(plan(None), 0) is Role.WRITE
    assert role(plan(DONE), 8) is Role.WRITE
    assert role(plan(DONE), 20) is Role.WRITE
    assert role(plan(DONE), 0, query_id="another") is Role.WRITE


def test_a_batch_that_is_done_is_counted() -> None:
    assert role(plan(DONE), 7) is Role.VERIFY
    other = decided("another", 3, SLOTS, 2, 1)
    assert role(plan(other, DONE), 7) is Role.VERIFY


def test_only_what_was_lost_is_written_again() -> None:
    assert role(plan(HALF), 7, task=0) is Role.VERIFY
    assert role_of(plan(HALF), "query", 7, 1) == (Role.REWRITE, HALF.lost_slots[0])
    assert role(plan(HALF), 7, task=2) is Role.VERIFY


@pytest.mark.parametrize(
    ("found", "query_id", "batch_id", "kind"),
    [
        (plan(DONE), "query", 6, RefusalKind.REWOUND),
        (plan(None, DONE), "query", 6, RefusalKind.REWOUND),
        (plan(HALF), "query", 8, RefusalKind.LOST_FOR_GOOD),
        (plan(HALF), "another", 0, RefusalKind.LOST_FOR_GOOD),
    ],
)
@pytest.mark.promise("refusal-rows-of-others")
def test_refusals(found: Plan, query_id: str, batch_id: int, kind: RefusalKind) -> None:
    with pytest.raises(Refused) as caught:
        role_of(found, query_id, batch_id, 0)
    assert caught.value.kind is kind


def test_names_in_texts_are_few() -> None:
    assert names_of((f"s.w.{task}.0", 1, 1) for task in (1, 0)) == "s.w.0.0, s.w.1.0"
    ten = ", ".join(f"s.w.{task:02}.0" for task in range(10))
    for count, text in ((10, ten), (11, f"{ten} and 1 more"), (12, f"{ten} and 2 more")):
        assert names_of((f"s.w.{task:02}.0", 1, 1) for task in range(count)) == text
