"""The exactly-once protocol of one sink: plan, commit and abort of a batch, without I/O.

Owns the order of things. Each procedure is a generator: it yields a step (`commit_steps`), is sent
the answer, and ends with its result or with `Refused`. Stopping anywhere, for ever, is a crash, and
the next `planning` goes on from what the ledger says. Must not know how a step is carried out.

Invariants:
- A batch is decided by one record of the ledger, once; from then on nobody aborts what it names.
- The ledger changes by compare and set: taking it shuts out every other writer, so between the
  taking and the write nobody else has written; a driver whose token is no longer in the record
  writes nothing.
- What is aborted was listed before a successful write under one's own token, and is aborted under
  the producer epoch it was listed with. So it belongs to nobody who came later.

    (1) old driver lists open transactions          (2) new driver plans: its token is in the record
    (3) the old one's write fails: it aborts nothing, whatever it has listed
    or: (2') the old one's write succeeds, then the new driver plans and its tasks open the same ids
    (3') the old one aborts what it had listed: the epochs are older than the new tasks', refused

  One abort has no token: that of a batch of which no task has reported. What killed executors have
  left open would hold back readers, so it is aborted; if a successor is at work already, its batch
  is lost, before the decision or after, and that is found like any other loss.

- An open prepared transaction of a task whose driver was overtaken is aborted: by the new driver,
  which lists what is open after its token is written, or by the task, which looks at the ledger
  after the opening.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

from moldau.spark_connector.core.commit_steps import (
    AbortOpen,
    CheckOpen,
    CommitSlots,
    FindElsewhere,
    FindOpen,
    LedgerView,
    LookAtRows,
    Producer,
    RefusalKind,
    Refused,
    Sight,
    Step,
    TakeLedger,
    WriteLedger,
)
from moldau.spark_connector.core.ledger import (
    MAX_SLOTS,
    ONCE_PREFIX,
    Batch,
    BatchState,
    SinkRecord,
    Slot,
    SlotState,
    decided,
    is_streaming,
    total_checksum,
)
from moldau.spark_connector.core.task_roles import (
    Plan,
    TaskReport,
    check_nothing_is_lost,
    names_of,
)

MAX_ROUNDS: Final = 8
"""How often the ledger is taken again after a write that came to nothing."""

Result = TypeVar("Result")
Procedure: TypeAlias = Generator[Step, Any, Result]


class AbortOutcome(Enum):
    """What became of an abort."""

    ABORTED = "aborted"
    DECIDED = "decided before: the decision stands"
    NOT_IN_CHARGE = "another driver is in charge"


# -- before the tasks ---------------------------------------------------------------------------


def planning(
    sink_id: str, token: str, *, query_id: str | None = None, is_single: bool = False
) -> Procedure[Plan]:
    """Take charge of the sink, and finish what was decided and is not done.

    Args:
        token: of this planning, or of one process's plannings for one checkpoint.
        query_id: of a batch write, which knows it now; a stream's tasks know theirs later.
    """
    for _ in range(MAX_ROUNDS):
        view: LedgerView = yield TakeLedger()
        batch = None if view.record is None else view.record.batch
        if batch is not None and batch.state is BatchState.DECIDED:
            batch = yield from _ended(batch)
        if query_id is not None and batch is not None and batch.query_id != query_id:
            check_nothing_is_lost(batch)
        made = SinkRecord(sink_id, token, batch)
        # Before the listing: a task of an older driver that opens its transaction after it finds
        # the token, and aborts by itself.
        if made != view.record and not (yield WriteLedger(made)):
            continue
        left = yield FindOpen(
            batch.tasks if batch is not None else 0, batch.attempts if batch is not None else 0
        )
        # Once more: this write proves that no other driver came before the listing.
        if left and not (yield WriteLedger(made)):
            continue
        yield AbortOpen(_not_named(left, batch))
        return Plan(made, view.finished, is_single, view.is_whole)
    raise _contended(sink_id)


# -- after the tasks ----------------------------------------------------------------------------


def committing(
    plan: Plan,
    query_id: str,
    batch_id: int,
    reports: Sequence[TaskReport],
    *,
    may_differ: bool = False,
    may_follow: bool = True,
) -> Procedure[None]:
    """Decide for the batch, commit all its transactions, and write down that it is done.

    Args:
        may_differ: accept that a batch that was done before comes with other rows now.
        may_follow: accept a streaming query that is new to a sink which another one has written.
    """
    known = plan.batch(query_id, batch_id)
    if known is not None and known.state is BatchState.DONE:
        if not may_differ:
            _check_same_rows(known, reports, plan.record.sink_id)
        return
    fresh = _decision(known, query_id, batch_id, reports, plan.record.sink_id)
    if not fresh.slots:
        if plan.is_single:
            yield TakeLedger()
            yield WriteLedger(plan.record, is_tombstone=True)
            return
        # Remembered all the same: a copy of the checkpoint may bring this batch with rows, and the
        # next batch of this one would hold them a second time.
        fresh = fresh.done()
    gone = (yield CheckOpen(fresh.open_slots)) if fresh.slots else ()
    if gone:
        # A successor is the likeliest reason, and says more.
        _in_charge(plan, (yield TakeLedger(is_fencing=False)), fresh)
        raise Refused(
            RefusalKind.LOST_BEFORE_DECISION,
            f"batch {batch_id} was not decided, since these transactions are not open any more: "
            f"{names_of(gone)}",
        )
    batch = yield from _decide(plan, known, fresh, may_follow=may_follow)
    if batch.state is BatchState.DECIDED:
        yield from _finish(plan, batch)


def _decision(
    known: Batch | None,
    query_id: str,
    batch_id: int,
    reports: Sequence[TaskReport],
    sink_id: str,
) -> Batch:
    """The decision that the reports ask for: with what was committed before, and what is new."""
    written = [report.slot for report in reports if report.slot is not None]
    kept: tuple[Slot, ...] = ()
    if known is not None:
        _check_same_slots(known, reports, sink_id)
        kept = tuple(slot for slot in known.slots if slot.state is not SlotState.LOST)
    if len(written) + len(kept) > MAX_SLOTS:
        raise Refused(
            RefusalKind.TOO_MANY_TASKS,
            f"batch {batch_id} was written by {len(written)} tasks; a decision holds {MAX_SLOTS}",
        )
    attempts = max((report.attempt for report in reports), default=0) + 1
    return decided(query_id, batch_id, (*kept, *written), len(reports), attempts)


def _decide(plan: Plan, known: Batch | None, fresh: Batch, *, may_follow: bool) -> Procedure[Batch]:
    """Write the decision, whatever becomes of single writes. Returns the batch as it stands."""
    sink_id = plan.record.sink_id
    for _ in range(MAX_ROUNDS):
        view: LedgerView = yield TakeLedger()
        current = _in_charge(plan, view, fresh)
        newest = current.batch
        if newest is not None and newest.is_of(fresh.query_id, fresh.batch_id):
            if newest.state is BatchState.DONE or _is_same_decision(newest, fresh):
                return newest
            if newest != known:
                raise _fenced(plan, view)
        elif newest != plan.record.batch:
            raise _fenced(plan, view)
        elif is_streaming(fresh.query_id) and plan.newest(fresh.query_id) is None:
            if not may_follow and newest is not None and newest.has_history:
                raise _new_query(sink_id, fresh, newest)
            elsewhere = yield FindElsewhere(fresh.query_id)
            if elsewhere:
                raise _moved(sink_id, fresh, *elsewhere[0])
        leaving = newest if newest is not None and newest.query_id != fresh.query_id else None
        if leaving is not None and leaving.query_id.startswith(ONCE_PREFIX):
            leaving = None
        if (yield WriteLedger(SinkRecord(sink_id, plan.token, fresh), leaving)):
            return fresh
    raise _contended(sink_id)


def _finish(plan: Plan, batch: Batch) -> Procedure[None]:
    """End every transaction of the decision, then write that it is done, or what was lost."""
    done = yield from _ended(batch)
    left = yield FindOpen(batch.tasks, batch.attempts)
    record = SinkRecord(plan.record.sink_id, plan.token, done)
    is_done = done.state is BatchState.DONE
    step = WriteLedger(record, is_tombstone=is_done and plan.is_single)
    for _ in range(MAX_ROUNDS):
        if (yield step):
            break
        view: LedgerView = yield TakeLedger()
        if view.record is None and step.is_tombstone:
            break
        if _in_charge(plan, view, batch).batch == done:
            break
    else:
        raise _contended(plan.record.sink_id)
    yield AbortOpen(_not_named(left, batch))
    if not is_done:
        lost = done.lost_slots
        raise Refused(
            RefusalKind.LOST_AFTER_DECISION,
            f"batch {batch.batch_id} was decided, and {len(lost)} of its {len(batch.slots)} "
            f"transactions ({sum(slot.rows for slot in lost)} of {batch.rows} rows) were aborted "
            f"before they could be committed: {names_of(slot.producer for slot in lost)}",
        )


def aborting(
    plan: Plan | None, batch_id: int, reports: Sequence[TaskReport], tasks: int
) -> Procedure[AbortOutcome]:
    """Abort what a failed batch has left open, unless it was decided.

    Args:
        plan: None when no task has got as far as a report: then nothing was decided either, and
            nobody is shut out for it.
        tasks: how many there were, with those that have not reported.
    """
    attempts = max((report.attempt for report in reports), default=0) + 1
    left = yield FindOpen(tasks, attempts)
    view: LedgerView = yield TakeLedger(is_fencing=plan is not None)
    record = view.record
    batch = None if record is None else record.batch
    if plan is not None and (record is None or record.driver != plan.token):
        return AbortOutcome.NOT_IN_CHARGE
    if plan is None and batch is not None and batch.batch_id > batch_id:
        return AbortOutcome.NOT_IN_CHARGE
    yield AbortOpen(_not_named(left, batch))
    if batch is not None and {
        report.slot.producer for report in reports if report.slot is not None
    } & {slot.producer for slot in batch.slots}:
        return AbortOutcome.DECIDED
    if plan is not None and plan.is_single:
        yield WriteLedger(plan.record, is_tombstone=True)
    return AbortOutcome.ABORTED


# -- parts --------------------------------------------------------------------------------------


def _ended(batch: Batch) -> Procedure[Batch]:
    """Commit what is still open of a decided batch; what is refused is looked at."""
    changed: dict[Producer, SlotState] = {}
    if batch.open_slots:
        refused = yield CommitSlots(batch.open_slots)
        changed = {
            slot.producer: SlotState.COMMITTED
            for slot in batch.open_slots
            if slot.producer not in refused
        }
        if refused:
            doubtful = tuple(slot for slot in batch.open_slots if slot.producer in refused)
            seen = yield LookAtRows(doubtful)
            unknown = [each for each, sight in seen.items() if sight is Sight.UNKNOWN]
            if unknown:
                raise Refused(
                    RefusalKind.OUTCOME_UNKNOWN,
                    f"batch {batch.batch_id} of query {batch.query_id} was decided; its "
                    f"transactions {names_of(unknown)} are not open any more, and their rows can "
                    "neither be seen nor be seen to be aborted where they were written",
                )
            changed |= {
                each: SlotState.COMMITTED if sight is Sight.VISIBLE else SlotState.LOST
                for each, sight in seen.items()
            }
    return batch.with_slots(changed)


def _in_charge(plan: Plan, view: LedgerView, batch: Batch) -> SinkRecord:
    if view.record is None or view.record.driver != plan.token:
        raise _fenced(plan, view, batch)
    return view.record


def _fenced(plan: Plan, view: LedgerView, batch: Batch | None = None) -> Refused:
    found = "the ledger knows nothing of it any more"
    if view.record is not None:
        newest = view.record.batch
        state = "nothing"
        if newest is not None:
            state = f"batch {newest.batch_id} of query {newest.query_id}, {newest.state.value}"
        found = f"the ledger has {state} and the token {view.record.driver}"
    return Refused(
        RefusalKind.FENCED,
        f"another driver has taken over sink {plan.record.sink_id!r}: {found}, not {plan.token}",
    )


def _moved(sink_id: str, fresh: Batch, other: str, known: Batch) -> Refused:
    return Refused(
        RefusalKind.ELSEWHERE,
        f"batch {fresh.batch_id} of query {fresh.query_id} would be its first one in sink "
        f"{sink_id!r}, but the query has written to batch {known.batch_id} in sink {other!r}",
    )


def _new_query(sink_id: str, fresh: Batch, newest: Batch) -> Refused:
    return Refused(
        RefusalKind.NEW_QUERY,
        f"batch {fresh.batch_id} of query {fresh.query_id} would be its first one in sink "
        f"{sink_id!r}, which has batch {newest.batch_id} of query {newest.query_id}",
    )


def _contended(sink_id: str) -> Refused:
    return Refused(
        RefusalKind.CONTENDED,
        f"the ledger of sink {sink_id!r} could not be written in {MAX_ROUNDS} attempts: other "
        "drivers write it, or the brokers do not answer in time",
    )


def _check_same_rows(known: Batch, reports: Sequence[TaskReport], sink_id: str) -> None:
    rows = sum(report.rows for report in reports)
    checksum = total_checksum(report.checksum for report in reports)
    if (rows, checksum) != (known.rows, known.checksum):
        raise Refused(
            RefusalKind.REPLAY_DIFFERS,
            f"batch {known.batch_id} of query {known.query_id} is committed in sink {sink_id!r} "
            f"with {known.rows} rows (checksum {known.checksum:016x}), and comes again with {rows} "
            f"rows ({checksum:016x})",
        )


def _check_same_slots(known: Batch, reports: Sequence[TaskReport], sink_id: str) -> None:
    """A batch of which a part is to be written again must come in the same parts."""
    slots = {slot.task: slot for slot in known.slots}
    came = {report.task: report for report in reports}
    for task in sorted(slots.keys() | came.keys()):
        slot, report = slots.get(task), came.get(task)
        wanted = (0, 0) if slot is None else (slot.rows, slot.checksum)
        found = (0, 0) if report is None else (report.rows, report.checksum)
        if wanted != found:
            raise Refused(
                RefusalKind.REPLAY_DIFFERS,
                f"batch {known.batch_id} of query {known.query_id} was decided in sink "
                f"{sink_id!r} with {wanted[0]} rows in task {task} and comes again with {found[0]} "
                "rows there, or other ones",
            )
        if slot is not None and slot.state is SlotState.LOST:
            assert report is not None, "a lost slot has rows"
            assert report.slot is not None, "lost rows are written again"


def _is_same_decision(one: Batch, other: Batch) -> bool:
    return [slot.producer for slot in one.slots] == [slot.producer for slot in other.slots]


def _not_named(left: Sequence[Producer], batch: Batch | None) -> tuple[Producer, ...]:
    """Of the open transactions those that no decision names."""
    named = {slot.producer for slot in batch.slots} if batch is not None else set()
    return tuple(each for each in left if each not in named)
