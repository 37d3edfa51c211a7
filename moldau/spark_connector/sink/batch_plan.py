"""Planning, commit and abort of one batch, as stream and batch writers call them.

Owns what travels from the driver to the tasks and back, and the token of a driver. Must not know
Spark's classes. Invariant: what travels can be pickled and holds no client.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from moldau.client import KafkaError
from moldau.spark_connector.core.commit_protocol import (
    AbortOutcome,
    Plan,
    TaskReport,
    aborting,
    committing,
    planning,
)
from moldau.spark_connector.core.ledger import Batch
from moldau.spark_connector.errors import InvalidOption, SparkConnectorError
from moldau.spark_connector.failures import explained
from moldau.spark_connector.sink.ledger_store import KnownLedger, LedgerReading
from moldau.spark_connector.sink.options import SinkOptions, Transactions
from moldau.spark_connector.sink.recovery import StepCarrier, serves_two_phase

_log: Final = logging.getLogger("moldau.spark_connector.sink")

MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""A ledger of more than so much is not kept in memory: it is read from its beginning each time."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """What planning has found.

    Attributes:
        query_id: of a batch write; None for streams, whose tasks know it.
        two_phase: whether the tasks' transactions are prepared ones.
        ledger: what was read of the ledger, with this planning's record.
    """

    plan: Plan
    query_id: str | None
    two_phase: bool
    ledger: KnownLedger

    def narrowed(self, query_id: str) -> PlannedBatch:
        """What the commit of one query's batch needs; travels with each task's message."""
        mine = self.plan.finished.get(query_id)
        finished = {} if mine is None else {query_id: mine}
        view = replace(self.ledger.view, finished=finished)
        return replace(
            self, plan=replace(self.plan, finished=finished), ledger=replace(self.ledger, view=view)
        )

    @property
    def sink_id(self) -> str:
        return self.plan.record.sink_id


class _Process:
    """What one process on the driver remembers between micro-batches; nothing depends on it."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.tokens: dict[tuple[str, str], str] = {}
        self.two_phase: dict[str, tuple[bool, Batch | None]] = {}
        self.checked_topics: set[str] = set()
        self.readings: dict[str, LedgerReading] = {}


_process = _Process()


def _memory() -> _Process:
    """This process's own; not the one of the process it was forked from."""
    global _process
    if _process.process_id != os.getpid():
        _process = _Process()
    return _process


def plan_batch(
    options: SinkOptions, sink_id: str, *, query_id: str | None = None, is_single: bool = False
) -> PlannedBatch:
    """Take charge of the sink, finish what was decided, abort what was not. Raises:
    SparkConnectorError: nothing may be written, or the cluster does not answer
    """
    memory = _memory()
    servers = options.kafka["bootstrap.servers"]
    place = f"{servers} {options.ledger_topic} {sink_id}"
    token = uuid.uuid4().hex
    if options.checkpoint_location and query_id is None:
        token = memory.tokens.setdefault((place, options.checkpoint_location), token)
    ledger_place = f"{servers} {options.ledger_topic}"
    # All sinks of a process read on where the last one has read to. A planning that fails leaves
    # no reading behind.
    reading = memory.readings.pop(ledger_place, None) or LedgerReading()
    with (
        explained(f"planning a write of sink {sink_id!r}"),
        StepCarrier(options, sink_id, query_id=query_id, reading=reading) as carrier,
    ):
        if ledger_place not in memory.checked_topics:
            carrier.ledger.prepare_topic()
            memory.checked_topics.add(ledger_place)
        plan = carrier.carry(planning(sink_id, token, query_id=query_id, is_single=is_single))
        newest = plan.record.batch
        two_phase, newest_then = memory.two_phase.get(place, (False, newest))
        if not _may_prepare(options, is_single=is_single):
            two_phase = False
        elif newest == newest_then:
            # Nothing has been written since: the first time, or the answer has changed.
            two_phase = serves_two_phase(options, sink_id)
        memory.two_phase[place] = (two_phase, newest)
        if options.transactions is Transactions.PREPARED and not two_phase:
            raise InvalidOption(
                "transactions=prepared: the brokers do not serve them, or not to this principal "
                "(KIP-939: transaction.two.phase.commit.enable on the brokers, and with ACLs "
                "TWO_PHASE_COMMIT on the transactional ids). Use transactions=auto or standard"
            )
        if reading.index.size_bytes <= MAX_KEPT_BYTES:
            memory.readings[ledger_place] = reading
        return PlannedBatch(plan, query_id, two_phase, carrier.ledger.known(plan.record))


def planned_for(options: SinkOptions, planned: PlannedBatch, query_id: str) -> PlannedBatch:
    """The plan for one streaming query, with nothing of the others; for a task, which knows it.

    Where a sink has had very many queries the plan has only the newest: then the ledger is asked.

    Raises:
        SparkConnectorError: it cannot be asked.
    """
    plan = planned.plan
    if plan.is_whole or plan.newest(query_id) is not None:
        return planned.narrowed(query_id)
    with (
        explained(f"looking for query {query_id} in sink {planned.sink_id!r}"),
        StepCarrier(options, planned.sink_id, query_id=query_id) as carrier,
    ):
        view = carrier.ledger.take(is_fencing=False)
    return replace(planned, plan=replace(plan, finished=view.finished)).narrowed(query_id)


def _may_prepare(options: SinkOptions, *, is_single: bool) -> bool:
    """No later start ends what a single write leaves open: that has to end by a time limit. And a
    limit that the user has set is wanted.
    """
    if options.transactions is Transactions.AUTO:
        return not is_single and "transaction.timeout.ms" not in options.kafka
    return options.transactions is Transactions.PREPARED


def commit_batch(
    options: SinkOptions,
    planned: PlannedBatch,
    query_id: str,
    batch_id: int,
    reports: Sequence[TaskReport],
) -> None:
    """Make the batch visible, once and for all. Raises: SparkConnectorError: it is not, or not
    whole; the text says which
    """
    what = f"committing batch {batch_id} of sink {planned.sink_id!r}"
    with explained(what), _carrier(options, planned) as carrier:
        carrier.carry(
            committing(
                planned.plan,
                query_id,
                batch_id,
                reports,
                may_differ=options.may_differ,
                may_follow=options.may_follow,
            )
        )


def abort_batch(
    options: SinkOptions,
    sink_id: str,
    planned: PlannedBatch | None,
    batch_id: int,
    reports: Sequence[TaskReport],
    tasks: int,
) -> None:
    """Give up what was written, unless it was decided. Never raises: Spark has its error already,
    and what is left open ends by its time limit or with the next start.
    """
    plan = planned.plan if planned is not None else None
    try:
        carrier = (
            _carrier(options, planned) if planned is not None else StepCarrier(options, sink_id)
        )
        with carrier:
            outcome = carrier.carry(aborting(plan, batch_id, reports, tasks))
    except (KafkaError, SparkConnectorError) as error:
        _log.warning("batch %s of sink %r was not aborted: %s", batch_id, sink_id, error)
        return
    if outcome is AbortOutcome.ABORTED:
        _log.info("batch %s of sink %r was aborted", batch_id, sink_id)
    else:
        _log.warning("batch %s of sink %r was not aborted: %s", batch_id, sink_id, outcome.value)


def _carrier(options: SinkOptions, planned: PlannedBatch) -> StepCarrier:
    return StepCarrier(options, planned.sink_id, query_id=planned.query_id, known=planned.ledger)
