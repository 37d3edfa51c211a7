"""A cluster, Spark and its processes, as far as the commit protocol can tell them apart.

Everything is one generator per driver that yields wherever a process may stop for a while or for
ever: before a step has any effect, after it, and between the transactions that one step commits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from moldau.spark_connector.core import commit_protocol as steps
from moldau.spark_connector.core.commit_protocol import (
    LedgerView,
    Plan,
    Producer,
    Refused,
    Role,
    Sight,
    TaskReport,
    aborting,
    committing,
    planning,
    role_of,
)
from moldau.spark_connector.core.ledger import (
    LedgerIndex,
    Range,
    SinkRecord,
    Slot,
    encode,
    finished_key,
)

SINK = "sink"
TASKS = 2
MAX_FAILURES = 3

Row = tuple[str, int]
"""Query and offset in its source."""


@dataclass
class TransactionalId:
    producer_id: int
    epoch: int = 0
    is_open: bool = False
    rows: list[Row] = field(default_factory=list)
    outcomes: dict[int, bool] = field(default_factory=dict)
    """Whether an epoch's transaction was committed, by epoch."""


class SimulatedCluster:
    """Coordinator, ledger and output topic."""

    def __init__(self) -> None:
        self.visible: Counter[Row] = Counter()
        self.ids: dict[str, TransactionalId] = {}
        self.ledger: dict[str, bytes] = {}
        self.ledger_epochs: defaultdict[str, int] = defaultdict(int)
        self.next_writes: list[str] = []
        """What becomes of the next ledger writes: "applied" or "dropped", the driver cannot know
        which.
        """
        self.can_look = True

    # -- transactions

    def init(self, name: str) -> Producer:
        found = self.ids.setdefault(name, TransactionalId(len(self.ids)))
        self._end(found, commit=False)
        found.epoch += 1
        return name, found.producer_id, found.epoch

    def _current(self, producer: Producer) -> TransactionalId | None:
        found = self.ids.get(producer[0])
        if found is None or (found.producer_id, found.epoch) != producer[1:]:
            return None
        return found

    def write(self, producer: Producer, rows: list[Row]) -> bool:
        found = self._current(producer)
        if found is None or found.epoch in found.outcomes:
            return False
        found.is_open = True
        found.rows += rows
        return True

    def _end(self, found: TransactionalId, *, commit: bool) -> None:
        if not found.is_open:
            return
        if commit:
            self.visible.update(found.rows)
        found.outcomes[found.epoch] = commit
        found.is_open, found.rows = False, []

    def commit(self, producer: Producer) -> bool:
        found = self._current(producer)
        if found is None or not (found.is_open or found.outcomes.get(found.epoch)):
            return False
        self._end(found, commit=True)
        return True

    def abort(self, producer: Producer) -> None:
        found = self._current(producer)
        if found is not None:
            self._end(found, commit=False)

    def time_out(self, name: str) -> None:
        found = self.ids[name]
        self._end(found, commit=False)
        found.epoch += 1

    def open_ids(self, sink_id: str = "") -> list[str]:
        return sorted(
            name
            for name, found in self.ids.items()
            if found.is_open and name.startswith(f"{sink_id}." if sink_id else "")
        )

    # -- steps

    def index(self) -> LedgerIndex:
        index = LedgerIndex()
        for key, value in self.ledger.items():
            index.take(key.encode(), value)
        return index

    def view(self, sink_id: str) -> LedgerView:
        index = self.index()
        return LedgerView(index.record(sink_id), *index.streams(sink_id, 1_000))

    def write_ledger(self, step: steps.WriteLedger, epoch: int) -> bool:
        sink_id = step.record.sink_id
        outcome = self.next_writes.pop(0) if self.next_writes else "known"
        if outcome == "dropped" or epoch != self.ledger_epochs[sink_id]:
            return False
        if step.is_tombstone:
            self.ledger.pop(sink_id, None)
        else:
            self.ledger[sink_id] = encode(step.record)
        if step.finished is not None:
            key = finished_key(sink_id, step.finished.query_id)
            record = SinkRecord(sink_id, step.record.driver, step.finished)
            self.ledger[key] = encode(record)
        return outcome == "known"

    def sight(self, slot: Slot) -> Sight:
        if not self.can_look:
            return Sight.UNKNOWN
        found = self.ids[slot.transactional_id]
        outcome = found.outcomes.get(slot.producer_epoch, False)
        return Sight.VISIBLE if outcome else Sight.ABORTED


class Query:
    """A streaming query: its source is 0, 1, 2, …; its checkpoint outlives its drivers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset_log: dict[int, tuple[int, int]] = {}
        self.commit_log = -1
        self.step = 3
        self.filtered: frozenset[int] = frozenset()
        """Offsets of which the query makes no row."""

    def plan(self, batch_id: int) -> tuple[int, int]:
        """The batch's range, fixed once it is planned."""
        if batch_id not in self.offset_log:
            start = self.offset_log[batch_id - 1][1] if batch_id else 0
            self.offset_log[batch_id] = (start, start + self.step)
        return self.offset_log[batch_id]

    def rewind(self, batch_id: int, step: int) -> None:
        """An old copy of the checkpoint is put back: it knows nothing from the batch on."""
        self.offset_log = {each: ends for each, ends in self.offset_log.items() if each < batch_id}
        self.commit_log = min(self.commit_log, batch_id - 1)
        self.step = step


class TaskFailed(Exception):
    pass


class Driver:
    """One run of a query, from its start to its end, by `run`."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        query: Query,
        token: str,
        last: int,
        *,
        sink_id: str = SINK,
        is_prepared: bool = False,
        may_follow: bool = True,
    ) -> None:
        self.sink_id = sink_id
        self.is_prepared = is_prepared
        self.may_follow = may_follow
        self.cluster = cluster
        self.query = query
        self.token = token
        self.last = last
        self.refusal: Refused | None = None
        self.kill_executor = False
        self.fail_commit = False
        self._ledger_epoch = -1
        self._way = self.run()

    def advance(self, count: int) -> bool:
        """Go on for some steps; False at the end."""
        return all(next(self._way, "end") != "end" for _ in range(count))

    def run(self) -> Iterator[None]:
        batch_id = self.query.commit_log + 1
        while batch_id <= self.last:
            first, end = self.query.plan(batch_id)
            wanted = (each for each in range(first, end) if each not in self.query.filtered)
            rows = [(self.query.name, each) for each in wanted]
            yield
            if not (yield from self.batch(batch_id, rows)):
                return
            if self.query.commit_log != batch_id - 1:
                return  # the file exists: Spark stops a query that has a second self
            self.query.commit_log = batch_id
            batch_id += 1

    def batch(self, batch_id: int, rows: list[Row]) -> Generator[None, None, bool]:
        try:
            plan = yield from self.carried(planning(self.sink_id, self.token))
        except Refused as refused:
            self.refusal = refused
            return False
        reports: list[TaskReport] = []
        try:
            for task in range(TASKS):
                reports.append((yield from self.attempts(plan, batch_id, task, rows[task::TASKS])))
            if self.fail_commit:
                raise TaskFailed
            decision = committing(
                plan, self.query.name, batch_id, reports, may_follow=self.may_follow
            )
            yield from self.carried(decision)
            return True
        except Refused as refused:
            self.refusal = refused
        except TaskFailed:
            pass
        known = plan if reports else None
        yield from self.carried(aborting(known, batch_id, reports, TASKS))
        return False

    def attempts(
        self, plan: Plan, batch_id: int, task: int, rows: list[Row]
    ) -> Generator[None, None, TaskReport]:
        for attempt in range(MAX_FAILURES):
            try:
                return (yield from self.task(plan, batch_id, task, attempt, rows))
            except TaskFailed:
                continue
        raise TaskFailed

    def task(
        self, plan: Plan, batch_id: int, task: int, attempt: int, rows: list[Row]
    ) -> Generator[None, None, TaskReport]:
        role, lost = role_of(plan, self.query.name, batch_id, task)
        checksum = sum(hash(row) for row in rows) % 2**64
        slot = None
        if role is not Role.VERIFY and rows:
            producer = self.cluster.init(f"{self.sink_id}.w.{task}.{attempt}")
            yield
            if not self.cluster.write(producer, rows):
                raise TaskFailed
            yield
            if self.kill_executor:
                self.kill_executor = False
                raise TaskFailed
            if self.is_prepared:
                is_in_charge = self.cluster.view(self.sink_id).record == plan.record
                yield
                if not is_in_charge:
                    self.cluster.abort(producer)
                    raise TaskFailed
            place = Range("out", 0, 0, len(rows))
            slot = Slot(task, *producer, len(rows), checksum, (place,))
            if lost is not None and (lost.rows, lost.checksum) != (len(rows), checksum):
                self.cluster.abort(producer)
                slot = None
        return TaskReport(task, attempt, role, len(rows), checksum, slot)

    # -- steps

    def carried(self, procedure: Any) -> Generator[None, None, Any]:
        answer: Any = None
        while True:
            try:
                step = procedure.send(answer)
            except StopIteration as end:
                return end.value
            yield
            answer = yield from self.carry_out(step)
            yield

    def carry_out(self, step: steps.Step) -> Generator[None, None, Any]:
        cluster = self.cluster
        match step:
            case steps.TakeLedger(is_fencing=is_fencing):
                if is_fencing:
                    cluster.ledger_epochs[self.sink_id] += 1
                    self._ledger_epoch = cluster.ledger_epochs[self.sink_id]
                yield
                return cluster.view(self.sink_id)
            case steps.WriteLedger():
                return cluster.write_ledger(step, self._ledger_epoch)
            case steps.FindElsewhere(query_id=query_id):
                return tuple(cluster.index().elsewhere(self.sink_id, query_id))
            case steps.CheckOpen(slots=slots):
                names = cluster.open_ids(self.sink_id)
                return frozenset(
                    slot.producer
                    for slot in slots
                    if slot.transactional_id not in names or not self._is_current(slot.producer)
                )
            case steps.CommitSlots(slots=slots):
                refused = set()
                for slot in slots:
                    if not cluster.commit(slot.producer):
                        refused.add(slot.producer)
                    yield
                return frozenset(refused)
            case steps.LookAtRows(slots=slots):
                return {slot.producer: cluster.sight(slot) for slot in slots}
            case steps.FindOpen():
                return tuple(
                    (name, cluster.ids[name].producer_id, cluster.ids[name].epoch)
                    for name in cluster.open_ids(self.sink_id)
                )
            case steps.AbortOpen(producers=producers):
                for producer in producers:
                    cluster.abort(producer)
                    yield
                return None

    def _is_current(self, producer: Producer) -> bool:
        found = self.cluster.ids[producer[0]]
        return (found.producer_id, found.epoch) == producer[1:]
