"""The steps of each procedure, one by one, by what the cluster answers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from moldau.spark_connector.core.commit_protocol import (
    MAX_ROUNDS,
    AbortOpen,
    AbortOutcome,
    CheckOpen,
    CommitSlots,
    FindElsewhere,
    FindOpen,
    LedgerView,
    LookAtRows,
    Plan,
    RefusalKind,
    Refused,
    Role,
    Sight,
    Step,
    TakeLedger,
    TaskReport,
    WriteLedger,
    aborting,
    committing,
    planning,
)
from moldau.spark_connector.core.ledger import (
    MAX_SLOTS,
    Batch,
    SinkRecord,
    Slot,
    SlotState,
    decided,
)

Played: TypeAlias = tuple[list[Step], object]
NONE: frozenset[Any] = frozenset()
STRANGER = ("s.w.5.0", 99, 1)
"""An open transaction that no decision names."""


def slot_of(task: int, attempt: int = 0) -> Slot:
    return Slot(task, f"s.w.{task}.{attempt}", 10 + task, 1 + attempt, 5, task + 1)


SLOTS = (slot_of(0), slot_of(1))
FIRST, SECOND = SLOTS
DECIDED = decided("query", 7, SLOTS, 2, 3)
DONE = DECIDED.with_slots({slot.producer: SlotState.COMMITTED for slot in SLOTS})
HALF = DECIDED.with_slots({FIRST.producer: SlotState.LOST, SECOND.producer: SlotState.COMMITTED})
"""The first task's rows were lost after the decision."""


def record(batch: Batch | None = None, token: str = "token") -> SinkRecord:
    return SinkRecord("s", token, batch)


def view(batch: Batch | None = None, token: str = "token") -> LedgerView:
    return LedgerView(record(batch, token))


def report(slot: Slot, attempt: int = 0) -> TaskReport:
    return TaskReport(slot.task, attempt, Role.WRITE, slot.rows, slot.checksum, slot)


REPORTS = [report(FIRST, attempt=2), report(SECOND)]


def play(procedure: Generator[Step, Any, object], *answers: object) -> Played:
    """The steps of a procedure that is sent these answers, and its result or refusal."""
    steps: list[Step] = []
    left = [None, *answers]
    while True:
        try:
            step = procedure.send(left.pop(0))
        except StopIteration as end:
            assert not left, f"not asked for: {left}"
            return steps, end.value
        except Refused as refused:
            assert not left, f"not asked for: {left}"
            return steps, refused.kind
        steps.append(step)
        assert left, f"no answer to the last of {steps}"


# -- planning -----------------------------------------------------------------------------------


def test_planning_of_a_new_sink_writes_its_token_and_looks_for_what_is_open() -> None:
    assert play(planning("s", "token"), LedgerView(), True, (), None) == (
        [TakeLedger(), WriteLedger(record()), FindOpen(0, 0), AbortOpen(())],
        Plan(record()),
    )


def test_planning_with_the_token_that_is_in_the_ledger_writes_nothing() -> None:
    found = LedgerView(record(DONE), {"other": decided("other", 1, [], 0, 1).done()}, False)
    assert play(planning("s", "token", is_single=True), found, (), None) == (
        [TakeLedger(), FindOpen(2, 3), AbortOpen(())],
        Plan(record(DONE), found.finished, is_single=True, is_whole=False),
    )


def test_planning_ends_what_was_decided_and_aborts_the_rest_behind_a_second_write() -> None:
    """Rows that were lost stay named by the decision: only a task's rewriting ends that."""
    answers = [view(DECIDED, "old"), {FIRST.producer}, {FIRST.producer: Sight.ABORTED}, True]
    steps, plan = play(planning("s", "token"), *answers, (FIRST.producer, STRANGER), True, None)
    assert steps == [
        TakeLedger(),
        CommitSlots(SLOTS),
        LookAtRows((FIRST,)),
        WriteLedger(record(HALF)),
        FindOpen(2, 3),
        WriteLedger(record(HALF)),
        AbortOpen((STRANGER,)),
    ]
    assert plan == Plan(record(HALF))


def test_a_transaction_that_was_committed_before_counts_when_its_rows_are_seen() -> None:
    answers = [view(DECIDED), {FIRST.producer}, {FIRST.producer: Sight.VISIBLE}, True, (), None]
    steps, plan = play(planning("s", "token"), *answers)
    assert steps[3] == WriteLedger(record(DONE))
    assert plan == Plan(record(DONE))


def test_planning_stops_when_it_cannot_be_seen_how_a_transaction_ended() -> None:
    answers = [view(DECIDED), {FIRST.producer}, {FIRST.producer: Sight.UNKNOWN}]
    steps, kind = play(planning("s", "token"), *answers)
    assert (steps[-1], kind) == (LookAtRows((FIRST,)), RefusalKind.OUTCOME_UNKNOWN)


@pytest.mark.parametrize("query_id", [None, "query"])
def test_planning_goes_on_where_the_lost_rows_may_come_again(query_id: str | None) -> None:
    played = play(planning("s", "token", query_id=query_id), view(HALF, "old"), True, (), None)
    steps = [TakeLedger(), WriteLedger(record(HALF)), FindOpen(2, 3), AbortOpen(())]
    assert played == (steps, Plan(record(HALF)))


@pytest.mark.parametrize("batch", [None, DONE])
def test_a_named_write_is_planned_where_nothing_is_lost(batch: Batch | None) -> None:
    played = play(planning("s", "token", query_id="txn:a"), view(batch), (), None)
    assert played[1] == Plan(record(batch))


def test_a_named_write_is_refused_where_rows_of_another_query_are_lost() -> None:
    played = play(planning("s", "token", query_id="txn:a"), view(HALF))
    assert played == ([TakeLedger()], RefusalKind.LOST_FOR_GOOD)


def test_planning_gives_up_after_some_rounds() -> None:
    steps, kind = play(planning("s", "token"), *[LedgerView(), False] * MAX_ROUNDS)
    assert steps == [TakeLedger(), WriteLedger(record())] * MAX_ROUNDS
    assert kind is RefusalKind.CONTENDED


# -- the decision -------------------------------------------------------------------------------


FRESH = decided("query", 0, SLOTS, 2, 3)
FRESH_DONE = FRESH.with_slots({slot.producer: SlotState.COMMITTED for slot in SLOTS})
TO_THE_DECISION: list[Any] = [NONE, view(), (), True]
"""The answers to a query's first batch, which nothing disturbs."""


def test_the_steps_of_a_batch_that_nothing_disturbs() -> None:
    """What other attempts have left open is aborted at the end."""
    left = (FIRST.producer, STRANGER)
    played = play(
        committing(Plan(record()), "query", 0, REPORTS), *TO_THE_DECISION, NONE, left, True, None
    )
    assert played == (
        [
            CheckOpen(SLOTS),
            TakeLedger(),
            FindElsewhere("query"),
            WriteLedger(record(FRESH)),
            CommitSlots(SLOTS),
            FindOpen(2, 3),
            WriteLedger(record(FRESH_DONE)),
            AbortOpen((STRANGER,)),
        ],
        None,
    )


OTHER = decided("other", 4, [], 1, 1).done()
ONCE = decided("once:1", 0, [replace(FIRST, rows=1)], 1, 1)
NAMED = replace(DONE, query_id="txn:a")


@pytest.mark.parametrize(
    ("query_id", "newest", "finished", "asks", "leaving"),
    [
        ("query", None, {}, True, None),
        ("query", DONE, {}, False, None),
        ("query", OTHER, {}, True, OTHER),
        ("query", OTHER, {"query": DONE}, False, OTHER),
        ("query", NAMED, {"query": DONE}, False, NAMED),
        ("query", ONCE, {"query": DONE}, False, None),
        ("txn:b", None, {}, False, None),
        ("txn:b", NAMED, {}, False, NAMED),
    ],
)
def test_what_leaves_the_record_is_remembered_and_a_new_query_is_looked_for_elsewhere(
    query_id: str,
    newest: Batch | None,
    finished: dict[str, Batch],
    asks: bool,
    leaving: Batch | None,
) -> None:
    """A batch write without a name cannot come again: nothing is remembered of it."""
    plan = Plan(record(newest), finished)
    answers = [NONE, view(newest), *([()] if asks else []), True, NONE, (), True, None]
    steps, result = play(committing(plan, query_id, 8, REPORTS), *answers)
    assert result is None
    writes = [each for each in steps if isinstance(each, WriteLedger)]
    assert [each.finished for each in writes] == [leaving, None]
    assert [each for each in steps if isinstance(each, FindElsewhere)] == (
        [FindElsewhere(query_id)] if asks else []
    )


def test_a_query_that_has_written_elsewhere_is_refused() -> None:
    answers = [NONE, view(), (("first", OTHER), ("second", OTHER))]
    steps, kind = play(committing(Plan(record()), "query", 0, REPORTS), *answers)
    assert (steps[-1], kind) == (FindElsewhere("query"), RefusalKind.ELSEWHERE)


@pytest.mark.parametrize(
    ("newest", "is_refused"), [(None, False), (OTHER, True), (replace(OTHER, batch_id=0), False)]
)
def test_a_new_query_that_may_not_follow_needs_a_sink_without_a_history(
    newest: Batch | None, is_refused: bool
) -> None:
    procedure = committing(Plan(record(newest)), "query", 0, REPORTS, may_follow=False)
    if is_refused:
        steps, kind = play(procedure, NONE, view(newest))
        assert (steps[-1], kind) == (TakeLedger(), RefusalKind.NEW_QUERY)
    else:
        assert play(procedure, NONE, view(newest), (), True, NONE, (), True, None)[1] is None


@pytest.mark.parametrize(
    "found",
    [
        LedgerView(),
        view(token="other"),
        view(OTHER),
        view(replace(FRESH, slots=(FIRST,))),
    ],
    ids=["forgotten", "another token", "another batch", "another decision"],
)
def test_a_driver_that_is_not_in_charge_decides_nothing(found: LedgerView) -> None:
    played = play(committing(Plan(record()), "query", 0, REPORTS), NONE, found)
    assert played == ([CheckOpen(SLOTS), TakeLedger()], RefusalKind.FENCED)


def test_a_decision_of_which_it_was_not_known_whether_it_is_written_stands() -> None:
    """The ledger has it: it is not written a second time."""
    answers = [NONE, view(), (), False, view(FRESH), NONE, (), True, None]
    steps, result = play(committing(Plan(record()), "query", 0, REPORTS), *answers)
    assert (steps[4:6], result) == ([TakeLedger(), CommitSlots(SLOTS)], None)
    done = [NONE, view(), (), False, view(FRESH_DONE)]
    steps, result = play(committing(Plan(record()), "query", 0, REPORTS), *done)
    assert (steps[-1], result) == (TakeLedger(), None)


def test_a_decision_that_was_not_written_is_written_again_for_some_rounds() -> None:
    steps, kind = play(
        committing(Plan(record(DONE)), "query", 8, REPORTS), NONE, *[view(DONE), False] * MAX_ROUNDS
    )
    write = WriteLedger(record(decided("query", 8, SLOTS, 2, 3)))
    assert steps == [CheckOpen(SLOTS), *[TakeLedger(), write] * MAX_ROUNDS]
    assert kind is RefusalKind.CONTENDED


@pytest.mark.parametrize(
    ("token", "kind"),
    [("token", RefusalKind.LOST_BEFORE_DECISION), ("other", RefusalKind.FENCED)],
)
def test_transactions_that_are_not_open_any_more_are_not_decided_for(
    token: str, kind: RefusalKind
) -> None:
    """The ledger is only read to see why: no other driver is shut out for it."""
    answers = [frozenset({FIRST.producer}), view(token=token)]
    played = play(committing(Plan(record()), "query", 0, REPORTS), *answers)
    assert played == ([CheckOpen(SLOTS), TakeLedger(is_fencing=False)], kind)


def test_a_decision_has_room_for_so_many_transactions() -> None:
    many = [report(slot_of(task)) for task in range(MAX_SLOTS + 1)]
    played = play(committing(Plan(record()), "query", 0, many))
    assert played == ([], RefusalKind.TOO_MANY_TASKS)
    step = next(committing(Plan(record()), "query", 0, many[:-1]))
    assert isinstance(step, CheckOpen)
    assert len(step.slots) == MAX_SLOTS


# -- batches without rows, and replays ----------------------------------------------------------


@pytest.mark.parametrize("tasks", [0, 2])
def test_a_batch_without_rows_is_remembered_as_done(tasks: int) -> None:
    reports = [TaskReport(task, 0, Role.WRITE, 0, 0) for task in range(tasks)]
    played = play(committing(Plan(record()), "query", 0, reports), view(), (), True)
    empty = decided("query", 0, [], tasks, 1).done()
    assert played == ([TakeLedger(), FindElsewhere("query"), WriteLedger(record(empty))], None)


def test_a_single_write_without_rows_is_forgotten() -> None:
    plan = Plan(record(), is_single=True)
    played = play(committing(plan, "once:1", 0, []), view(), True)
    assert played == ([TakeLedger(), WriteLedger(record(), is_tombstone=True)], None)


@pytest.mark.parametrize(
    ("rows", "checksum", "may_differ", "is_same"),
    [(10, 3, False, True), (10, 4, False, False), (9, 3, False, False), (9, 4, True, True)],
)
def test_a_batch_that_is_done_is_compared_with_what_comes_again(
    rows: int, checksum: int, may_differ: bool, is_same: bool
) -> None:
    reports = [TaskReport(0, 0, Role.VERIFY, rows, checksum)]
    played = play(committing(Plan(record(DONE)), "query", 7, reports, may_differ=may_differ))
    assert played == ([], None if is_same else RefusalKind.REPLAY_DIFFERS)


VERIFIED = TaskReport(1, 0, Role.VERIFY, SECOND.rows, SECOND.checksum)


def test_lost_rows_that_come_again_are_decided_for_beside_what_was_committed() -> None:
    again = slot_of(0, attempt=1)
    committed = replace(SECOND, state=SlotState.COMMITTED)
    fresh = decided("query", 7, [committed, again], 2, 2)
    done = fresh.with_slots({again.producer: SlotState.COMMITTED})
    played = play(
        committing(Plan(record(HALF)), "query", 7, [report(again, attempt=1), VERIFIED]),
        *[NONE, view(HALF), True, NONE, (), True, None],
    )
    assert played == (
        [
            CheckOpen((again,)),
            TakeLedger(),
            WriteLedger(record(fresh)),
            CommitSlots((again,)),
            FindOpen(2, 2),
            WriteLedger(record(done)),
            AbortOpen(()),
        ],
        None,
    )


@pytest.mark.parametrize(
    "reports",
    [
        [VERIFIED],
        [report(slot_of(0, 1))],
        [replace(report(slot_of(0, 1)), rows=4), VERIFIED],
        [replace(report(slot_of(0, 1)), checksum=9), VERIFIED],
        [report(slot_of(0, 1)), VERIFIED, TaskReport(2, 0, Role.VERIFY, 1, 0)],
        [report(slot_of(0, 1)), VERIFIED, TaskReport(2, 0, Role.VERIFY, 0, 1)],
    ],
    ids=["no lost rows", "a task less", "other rows", "other sums", "a row more", "a sum more"],
)
def test_a_half_written_batch_has_to_come_again_in_the_same_parts(
    reports: list[TaskReport],
) -> None:
    played = play(committing(Plan(record(HALF)), "query", 7, reports))
    assert played == ([], RefusalKind.REPLAY_DIFFERS)


# -- behind the decision ------------------------------------------------------------------------


def behind(plan: Plan, *answers: object) -> Played:
    """The steps of a query's first batch behind its decision."""
    steps, result = play(committing(plan, "query", 0, REPORTS), *TO_THE_DECISION, *answers)
    return steps[4:], result


@pytest.mark.parametrize("is_single", [False, True])
def test_what_is_not_known_to_be_written_down_is_looked_up(is_single: bool) -> None:
    plan = Plan(record(), is_single=is_single)
    write = WriteLedger(record(FRESH_DONE), is_tombstone=is_single)
    found = LedgerView() if is_single else view(FRESH_DONE)
    started: list[Step] = [CommitSlots(SLOTS), FindOpen(2, 3), write]
    played = behind(plan, NONE, (STRANGER,), False, found, None)
    assert played == ([*started, TakeLedger(), AbortOpen((STRANGER,))], None)
    played = behind(plan, NONE, (STRANGER,), False, view(FRESH), True, None)
    assert played == ([*started, TakeLedger(), write, AbortOpen((STRANGER,))], None)


def test_a_query_that_another_driver_has_forgotten_is_not_done() -> None:
    steps, kind = behind(Plan(record()), NONE, (STRANGER,), False, LedgerView())
    assert (steps[-1], kind) == (TakeLedger(), RefusalKind.FENCED)


@pytest.mark.parametrize("is_single", [False, True])
def test_writing_down_that_it_is_done_is_given_up_after_some_rounds(is_single: bool) -> None:
    steps, kind = behind(
        Plan(record(), is_single=is_single), NONE, (), *[False, view(FRESH)] * MAX_ROUNDS
    )
    assert (len(steps), kind) == (2 + 2 * MAX_ROUNDS, RefusalKind.CONTENDED)


@pytest.mark.parametrize("is_single", [False, True])
def test_a_batch_of_which_a_part_was_lost_stays_decided(is_single: bool) -> None:
    """Its decision goes on to name what was lost, so that this can be written again."""
    refused, sights = {FIRST.producer}, {FIRST.producer: Sight.ABORTED}
    answers = [refused, sights, (FIRST.producer, STRANGER), True, None]
    half = replace(HALF, batch_id=0)
    assert behind(Plan(record(), is_single=is_single), *answers) == (
        [
            CommitSlots(SLOTS),
            LookAtRows((FIRST,)),
            FindOpen(2, 3),
            WriteLedger(record(half)),
            AbortOpen((STRANGER,)),
        ],
        RefusalKind.LOST_AFTER_DECISION,
    )


# -- giving up ----------------------------------------------------------------------------------


def test_a_batch_without_any_report_is_given_up_without_a_token() -> None:
    """No writer is shut out for it."""
    for batch in (None, replace(DECIDED, batch_id=6), DECIDED):
        left = (FIRST.producer, STRANGER)
        played = play(aborting(None, 7, [], 4), left, view(batch, "any"), None)
        aborted = AbortOpen((STRANGER,) if batch else left)
        steps = [FindOpen(4, 1), TakeLedger(is_fencing=False), aborted]
        assert played == (steps, AbortOutcome.ABORTED)
    assert play(aborting(None, 7, [], 4), (), LedgerView(), None)[1] is AbortOutcome.ABORTED


def test_a_batch_without_any_report_that_a_successor_has_passed_is_left_alone() -> None:
    played = play(aborting(None, 6, [], 4), (STRANGER,), view(DECIDED, "any"))
    assert played == ([FindOpen(4, 1), TakeLedger(is_fencing=False)], AbortOutcome.NOT_IN_CHARGE)


@pytest.mark.parametrize("found", [LedgerView(), view(token="other")])
def test_a_driver_that_is_not_in_charge_aborts_nothing(found: LedgerView) -> None:
    played = play(aborting(Plan(record()), 0, REPORTS, 4), (STRANGER,), found)
    assert played == ([FindOpen(4, 3), TakeLedger()], AbortOutcome.NOT_IN_CHARGE)


@pytest.mark.parametrize("batch", [None, DECIDED, replace(FRESH, slots=())])
@pytest.mark.parametrize("is_single", [False, True])
def test_a_batch_that_was_not_decided_is_aborted(batch: Batch | None, is_single: bool) -> None:
    plan = Plan(record(batch), is_single=is_single)
    again = report(slot_of(0, attempt=1))
    reports = [again, TaskReport(1, 0, Role.WRITE, 0, 0)]
    left = (FIRST.producer, STRANGER)
    is_named = batch is DECIDED
    steps: list[Step] = [
        FindOpen(4, 1),
        TakeLedger(),
        AbortOpen((STRANGER,) if is_named else left),
    ]
    answers: list[object] = [left, view(batch), None]
    if is_single:
        steps.append(WriteLedger(plan.record, is_tombstone=True))
        answers.append(True)
    assert play(aborting(plan, 8, reports, 4), *answers) == (steps, AbortOutcome.ABORTED)


@pytest.mark.parametrize("is_single", [False, True])
def test_a_decision_outlives_the_giving_up(is_single: bool) -> None:
    plan = Plan(record(), is_single=is_single)
    left = (FIRST.producer, STRANGER)
    played = play(aborting(plan, 0, REPORTS[:1], 2), left, view(FRESH), None)
    assert played == (
        [FindOpen(2, 3), TakeLedger(), AbortOpen((STRANGER,))],
        AbortOutcome.DECIDED,
    )
