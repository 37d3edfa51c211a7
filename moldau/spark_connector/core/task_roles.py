"""What a planning hands to the tasks, what a task does with its rows, and what it reports.

Owns the decision of each task's role. Must not do I/O. Invariant: a task writes only rows of which
the ledger does not say that they are, or may yet become, visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from moldau.spark_connector.core.commit_steps import Producer, RefusalKind, Refused
from moldau.spark_connector.core.ledger import Batch, BatchState, SinkRecord, Slot, SlotState


@dataclass(frozen=True, slots=True)
class Plan:
    """What a planning has found; goes to the tasks, and with their reports to the commit.

    Attributes:
        record: what the ledger says under this planning's token.
        finished: the last batch of each query that has used the sink before the newest one.
        is_single: a batch write that nobody can ask for again: forgotten when it is done.
        is_whole: whether `finished` has every other streaming query of the sink.
    """

    record: SinkRecord
    finished: Mapping[str, Batch] = field(default_factory=dict)
    is_single: bool = False
    is_whole: bool = True

    @property
    def token(self) -> str:
        """Who is in charge."""
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
    """What a task has to do, and for a REWRITE the slot that was lost.

    Raises:
        Refused: nothing may be written.
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
