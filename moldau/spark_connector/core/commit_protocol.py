"""The exactly-once protocol of one sink, without I/O: plan, commit and abort of a batch.

Owns the order of the steps, and the role of each task. Each procedure is a generator: it yields a
step, is sent the answer, and ends with its result or with `Refused`. A crash is a procedure that
stops anywhere for ever; the next `planning` goes on from what the ledger says. Must not know how a
step is carried out (`sink.driver` does it, in tests a simulated cluster). Invariants:

- Every step can be carried out again after a crash in the middle of it, with the same or no further
  effect.
- A task writes only rows of which the ledger does not say that they are, or may become, visible.
- A batch is decided by one record of the ledger, once; from then on no driver aborts what it names.
- The ledger changes by compare and set: taking it shuts out every other writer, so no other driver
  writes between the taking and the write; a driver whose token is no longer in the record writes
  nothing.
- What is aborted was listed before a successful write under the driver's own token, and is aborted
  under the producer epoch it was listed with. So it does not belong to a later driver.

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

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

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

Producer: TypeAlias = tuple[str, int, int]
"""Transactional id, producer id, producer epoch: one opening of one id."""
MAX_ROUNDS: Final = 8
"""How often the ledger is taken again after a write that came to nothing."""
Result = TypeVar("Result")


# -- steps --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeLedger:
    """Shut out every other writer of this sink's ledger id, then read what the ledger says.

    Answer: `LedgerView`. What another writer had under way has by then happened or never will.
    Without `is_fencing` it only reads, and shuts out no writer.
    """

    is_fencing: bool = True


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """Write under the fence of the last `TakeLedger`, in one transaction of the ledger id.

    Answer: True when it is committed; False when another writer came between, or that is not known.

    Attributes:
        record: the sink's new record.
        finished: the batch that leaves the record, to be remembered under its query.
        is_tombstone: forget the sink instead; nothing will ever ask for it again.
    """

    record: SinkRecord
    finished: Batch | None = None
    is_tombstone: bool = False


@dataclass(frozen=True, slots=True)
class FindElsewhere:
    """Look for a streaming query under other sinks, in what the ledger had at the last taking.

    Answer: tuple of sink id and `Batch`, the last one of the query there.
    """

    query_id: str


@dataclass(frozen=True, slots=True)
class CheckOpen:
    """Ask which of the slots' transactions are no longer open under their producers.

    Answer: frozenset of `Producer`; empty too where the brokers cannot be asked.
    """

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class CommitSlots:
    """Commit the slots' transactions. Done before is done.

    Answer: frozenset of the `Producer`s that the coordinator refused: not open under this epoch.
    """

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class LookAtRows:
    """Read where the slots' rows are said to lie. Answer: dict of `Sight` by `Producer`."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class FindOpen:
    """List the open transactions of the sink's slots; `tasks` and `attempts` are numbers to try
    where brokers cannot list transactions. Answer: tuple of `Producer`.
    """

    tasks: int
    attempts: int


@dataclass(frozen=True, slots=True)
class AbortOpen:
    """Abort exactly these openings, not those of a producer that has gone on. Answer: None."""

    producers: tuple[Producer, ...]


Step: TypeAlias = (
    TakeLedger
    | WriteLedger
    | FindElsewhere
    | CheckOpen
    | CommitSlots
    | LookAtRows
    | FindOpen
    | AbortOpen
)


# -- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What the ledger says: the sink's record, and the last batch of other queries by query id.

    `is_whole`: whether these are all; of very many streaming queries only the newest are listed.
    """

    record: SinkRecord | None = None
    finished: Mapping[str, Batch] = field(default_factory=dict)
    is_whole: bool = True


class Sight(Enum):
    """What is to be seen of a transaction that can no longer be committed."""

    VISIBLE = "visible"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


# -- refusals -----------------------------------------------------------------------------------


class RefusalKind(Enum):
    """Why a batch does not go on. None of them leaves anything wrong behind."""

    FENCED = "another driver is in charge of the sink"
    REPLAY_DIFFERS = "the same batch came with other rows"
    REWOUND = "the checkpoint is older than the ledger"
    ELSEWHERE = "the query has written under another sink id"
    NEW_QUERY = "another query has written under the sink id"
    LOST_BEFORE_DECISION = "a transaction ended before the decision"
    LOST_AFTER_DECISION = "a transaction was aborted after the decision"
    LOST_FOR_GOOD = "rows of another batch are lost"
    OUTCOME_UNKNOWN = "nobody can tell how a transaction ended"
    CONTENDED = "the ledger could not be written"
    TOO_MANY_TASKS = "the batch has too many tasks"


class Refused(Exception):
    """The protocol stops here. The text says what was found; advice is the caller's."""

    def __init__(self, kind: RefusalKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


# -- plans and roles of tasks --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What a planning has found; goes to the tasks, and with their reports to the commit.

    Attributes:
        record: what the ledger says under this planning's token.
        finished: the last batch of each query that has used the sink before the newest one.
        is_single: a batch write that cannot come again: forgotten when it is done.
        is_whole: whether `finished` has every other streaming query of the sink.
    """

    record: SinkRecord
    finished: Mapping[str, Batch] = field(default_factory=dict)
    is_single: bool = False
    is_whole: bool = True

    @property
    def token(self) -> str:
        return self.record.driver

    def newest(self, query_id: str) -> Batch | None:
        """The last batch of the query that was decided; None when it never had one."""
        batch = self.record.batch
        if batch is not None and batch.query_id == query_id:
            return batch
        return self.finished.get(query_id)

    def batch(self, query_id: str, batch_id: int) -> Batch | None:
        """The batch as the ledger knows it; None when it was never decided."""
        newest = self.newest(query_id)
        return newest if newest is not None and newest.batch_id == batch_id else None


class Role(Enum):
    """What a task does with its rows."""

    WRITE = "write"
    """Write them in a transaction."""
    VERIFY = "verify"
    """Only count them: they were committed before."""
    REWRITE = "rewrite"
    """Write them, and only if they are what a lost transaction held."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What one task has done. `slot` is None when no transaction was needed."""

    task: int
    attempt: int
    role: Role
    rows: int
    checksum: int
    slot: Slot | None = None


def role_of(plan: Plan, query_id: str, batch_id: int, task: int) -> tuple[Role, Slot | None]:
    """What a task has to do, and for a REWRITE the slot that was lost. Raises: Refused: nothing may
    be written
    """
    batch = plan.batch(query_id, batch_id)
    if batch is not None:
        if batch.state is BatchState.DONE:
            return Role.VERIFY, None
        mine = [slot for slot in batch.slots if slot.task == task]
        if mine and mine[0].state is SlotState.LOST:
            return Role.REWRITE, mine[0]
        return Role.VERIFY, None
    if plan.record.batch is not None:
        check_nothing_is_lost(plan.record.batch)
    newest = plan.newest(query_id)
    if newest is not None and batch_id < newest.batch_id:
        raise Refused(
            RefusalKind.REWOUND,
            f"batch {batch_id} of query {query_id} is to be written, but the ledger of sink "
            f"{plan.record.sink_id!r} has its batch {newest.batch_id}",
        )
    return Role.WRITE, None


def check_nothing_is_lost(batch: Batch) -> None:
    """Raises Refused when rows of a batch that will not come again are lost."""
    lost = batch.lost_slots
    if lost:
        raise Refused(
            RefusalKind.LOST_FOR_GOOD,
            f"{sum(slot.rows for slot in lost)} of {batch.rows} rows of batch {batch.batch_id} of "
            f"query {batch.query_id} were decided to be committed, and their transactions "
            f"{names_of(slot.producer for slot in lost)} were aborted. Only that batch can write "
            "them again, and it does not come again",
        )


def names_of(producers: Iterable[Producer]) -> str:
    """Transactional ids for a text: the first ones, and how many more there are."""
    names = sorted(name for name, _, _ in producers)
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


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
    known: Batch | None, query_id: str, batch_id: int, reports: Sequence[TaskReport], sink_id: str
) -> Batch:
    """The decision that the reports ask for: with what was committed before, and what is new."""
    written = [report.slot for report in reports if report.slot is not None]
    kept: tuple[Slot, ...] = ()
    if known is not None:
        _check_same_slots(known, reports, sink_id)
        kept = tuple(slot for slot in known.slots if slot.state is not SlotState.LOST)
    if len(written) > MAX_SLOTS:  # of a batch that is known, there are as many slots as before
        raise Refused(
            RefusalKind.TOO_MANY_TASKS,
            f"batch {batch_id} was written by {len(written)} tasks; a decision holds {MAX_SLOTS}",
        )
    attempts = max((report.attempt for report in reports), default=0) + 1
    return decided(query_id, batch_id, (*kept, *written), len(reports), attempts)


def _decide(plan: Plan, known: Batch | None, fresh: Batch, *, may_follow: bool) -> Procedure[Batch]:
    """Write the decision, whatever becomes of single writes. Returns the batch as it stands."""
    sink_id = plan.record.sink_id
    would_be_first = (
        f"batch {fresh.batch_id} of query {fresh.query_id} would be its first one in sink "
        f"{sink_id!r}"
    )
    wanted, producers = (fresh.query_id, fresh.batch_id), [slot.producer for slot in fresh.slots]
    for _ in range(MAX_ROUNDS):
        view: LedgerView = yield TakeLedger()
        current = _in_charge(plan, view, fresh)
        newest = current.batch
        if newest is not None and (newest.query_id, newest.batch_id) == wanted:
            is_same = [slot.producer for slot in newest.slots] == producers
            if newest.state is BatchState.DONE or is_same:
                return newest
            if newest != known:
                raise _fenced(plan, view)
        elif newest != plan.record.batch:
            raise _fenced(plan, view)
        elif is_streaming(fresh.query_id) and plan.newest(fresh.query_id) is None:
            if not may_follow and newest is not None and newest.has_history:
                raise Refused(
                    RefusalKind.NEW_QUERY,
                    f"{would_be_first}, which has batch {newest.batch_id} of query "
                    f"{newest.query_id}",
                )
            elsewhere = yield FindElsewhere(fresh.query_id)
            if elsewhere:
                other, last = elsewhere[0]
                raise Refused(
                    RefusalKind.ELSEWHERE,
                    f"{would_be_first}, but the query has written to batch {last.batch_id} in sink "
                    f"{other!r}",
                )
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
            no writer is shut out for it.
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
    """Commit the open transactions of a decided batch; look at the rows of refused ones."""
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


def _not_named(left: Sequence[Producer], batch: Batch | None) -> tuple[Producer, ...]:
    """The open transactions that the batch's decision does not name."""
    named = {slot.producer for slot in batch.slots} if batch is not None else set()
    return tuple(each for each in left if each not in named)
