"""What Spark's driver does for a write: a batch's planning, commit and abort, on a cluster.

Owns the driver's clients for the time of each of these, the translation of the commit protocol's
steps, the reading of the places where a transaction's rows are said to lie, a driver's token, and
what travels from the driver to the tasks and back. Must not decide anything
(`core.commit_protocol` does), nor know Spark's classes. Invariants: no client outlives its `with`
block; a step that raises has left the cluster so that the procedure can be begun again; VISIBLE and
ABORTED are proofs, everything else is UNKNOWN; what travels can be pickled and holds no client.

How a transaction that can no longer be committed has ended: its rows are read once as a reader of
committed records and once as a reader of all. A transaction is committed or aborted as a whole, so
one place is enough. Rows that lie there and are hidden from readers of committed records, though
nothing open is in front of them, are aborted.
"""

from __future__ import annotations

import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from moldau.client import (
    BrokerError,
    InvalidRegularExpression,
    InvalidRequest,
    KafkaError,
    OffsetOutOfRange,
    ProducerFenced,
    TopicPartition,
    TransactionalIdAuthorizationFailed,
    TransactionDescription,
    UnknownTopicOrPartition,
    UnsupportedByBroker,
    sync,
)
from moldau.spark_connector.core.commit_protocol import (
    AbortOpen,
    AbortOutcome,
    CheckOpen,
    CommitSlots,
    FindElsewhere,
    FindOpen,
    LookAtRows,
    Plan,
    Procedure,
    Producer,
    Sight,
    Step,
    TakeLedger,
    TaskReport,
    WriteLedger,
    aborting,
    committing,
    planning,
)
from moldau.spark_connector.core.ledger import CHECKSUM_MODULUS, Batch, Range, Slot
from moldau.spark_connector.errors import InvalidOption, SparkConnectorError
from moldau.spark_connector.failures import explained
from moldau.spark_connector.sink.ledger_store import (
    KnownLedger,
    LedgerReading,
    LedgerStore,
    TimeLimit,
    admin_limit_ms,
)
from moldau.spark_connector.sink.options import SinkOptions, Transactions
from moldau.spark_connector.sink.rows import checksum_of

LOOK_AGAIN_MS: Final = 500
_log: Final = logging.getLogger(__name__)
Result = TypeVar("Result")
ONGOING: Final = "Ongoing"
MAX_CALLS: Final = 8
"""Transactions that are ended at the same time."""
TRIED_ATTEMPTS: Final = 4
"""Attempts of a task whose ids are tried where brokers cannot list transactions; Spark's default
for spark.task.maxFailures."""
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""A ledger of more than so much is not kept in memory: it is read from its beginning each time."""
_GONE: Final = frozenset(
    {"INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING", "TRANSACTIONAL_ID_NOT_FOUND"}
)


def sight_of(options: SinkOptions, slot: Slot, admin: sync.Admin, limit_ms: float) -> Sight:
    """How a slot's transaction has ended, as far as its rows tell."""
    places = [each for each in slot.ranges if each.first_offset >= 0]
    wanted = sum(each.row_count for each in places)
    with suppress(OffsetOutOfRange, UnknownTopicOrPartition):
        if not places or not _is_behind_everything_open(places, admin, limit_ms):
            return Sight.UNKNOWN
        rows, checksum = _read(options, places, "read_committed", limit_ms)
        if rows == wanted:
            is_whole = slot.is_located and len(places) == len(slot.ranges)
            return Sight.UNKNOWN if is_whole and checksum != slot.checksum else Sight.VISIBLE
        if rows == 0 and _read(options, places, "read_uncommitted", limit_ms)[0] == wanted:
            return Sight.ABORTED
    return Sight.UNKNOWN


def _is_behind_everything_open(places: list[Range], admin: sync.Admin, limit_ms: float) -> bool:
    """Wait until the last stable offsets are beyond the rows; False when they are not in time."""
    ends: dict[TopicPartition, int] = {}
    for each in places:
        name = TopicPartition(each.topic, each.partition)
        ends[name] = max(ends.get(name, 0), each.first_offset + each.row_count)
    limit = TimeLimit(limit_ms)
    while True:
        found = admin.list_offsets(dict.fromkeys(ends, -1), read_committed=True)
        if all(found[name].offset >= end for name, end in ends.items()):
            return True
        if limit.is_over:
            return False
        time.sleep(LOOK_AGAIN_MS / 1000)


def _read(
    options: SinkOptions, places: list[Range], isolation_level: str, limit_ms: float
) -> tuple[int, int]:
    """Rows and checksum of what a reader gets to see at the places."""
    rows = checksum = 0
    with sync.Consumer(
        config=options.consumer_config(isolation_level=isolation_level, auto_offset_reset="none")
    ) as consumer:
        for place in places:
            for batch in _batches(consumer, place, limit_ms):
                rows += batch.num_rows
                checksum += checksum_of(batch)
    return rows, checksum % CHECKSUM_MODULUS


def _batches(consumer: sync.Consumer, place: Range, limit_ms: float) -> Iterator[pa.RecordBatch]:
    name = TopicPartition(place.topic, place.partition)
    end = place.first_offset + place.row_count
    consumer.assign([name])
    consumer.seek(name, place.first_offset)
    limit = TimeLimit(limit_ms)
    while consumer.position(name) < end:
        if limit.is_over:
            raise KafkaError(
                f"{name} could not be read from {place.first_offset} to {end} in {limit_ms:.0f} ms"
            )
        batch = consumer.poll_arrow(timeout_ms=LOOK_AGAIN_MS)
        yield batch.filter(pc.less(batch.column("offset"), end))


def slot_id(sink_id: str, task: int, attempt: int) -> str:
    """The transactional id of one attempt of one task; the same ones batch after batch."""
    return f"{sink_id}.w.{task}.{attempt}"


class StepCarrier:
    """Carries out steps for one sink, in a `with` block; keyword arguments as of `LedgerStore`."""

    def __init__(
        self,
        options: SinkOptions,
        sink_id: str,
        *,
        query_id: str | None = None,
        known: KnownLedger | None = None,
        reading: LedgerReading | None = None,
    ) -> None:
        self.options = options
        self.sink_id = sink_id
        self._admin = sync.Admin(config=options.admin_config())
        self.ledger = LedgerStore(
            options, sink_id, self._admin, query_id=query_id, known=known, reading=reading
        )
        self._slot_pattern = re.compile(re.escape(sink_id) + r"\.w\.\d+\.\d+")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.ledger.close()
        finally:
            self._admin.close()

    def carry(self, procedure: Procedure[Result]) -> Result:
        """Carry out a procedure to its end. Raises: Refused, KafkaError, SparkConnectorError"""
        answer: object = None
        while True:
            try:
                step = procedure.send(answer)
            except StopIteration as end:
                result: Result = end.value
                return result
            answer = self.carry_out(step)

    def carry_out(self, step: Step) -> object:
        """Carry out one step and return its answer, as its class says."""
        match step:
            case TakeLedger(is_fencing=is_fencing):
                return self.ledger.take(is_fencing=is_fencing)
            case WriteLedger():
                return self.ledger.write(step)
            case FindElsewhere(query_id=query_id):
                return self.ledger.elsewhere(query_id)
            case CheckOpen(slots=slots):
                return self._no_longer_open(slots)
            case CommitSlots(slots=slots):
                done = self._each(self._is_committed, [slot.producer for slot in slots])
                return frozenset(each for each, is_done in done if not is_done)
            case LookAtRows(slots=slots):
                limit_ms = admin_limit_ms(self.options)
                return {
                    slot.producer: sight_of(self.options, slot, self._admin, limit_ms)
                    for slot in slots
                }
            case FindOpen(tasks=tasks, attempts=attempts):
                return self._open(tasks, attempts)
            case AbortOpen(producers=producers):
                self._each(self._abort, producers)
                return None

    # -- transactions ----------------------------------------------------------------------------

    def _each(
        self, call: Callable[[Producer], Result], producers: Collection[Producer]
    ) -> list[tuple[Producer, Result]]:
        """Call for each, some at a time. The first error is raised when all have ended."""
        listed = list(producers)
        if len(listed) <= 1:
            return [(each, call(each)) for each in listed]
        with ThreadPoolExecutor(min(MAX_CALLS, len(listed))) as pool:
            return list(zip(listed, pool.map(call, listed), strict=True))

    def _is_committed(self, producer: Producer) -> bool:
        try:
            self._admin.end_transaction(*producer, commit=True)
        except ProducerFenced:
            return False
        except BrokerError as error:
            if error.code.name in _GONE:
                return False
            raise
        return True

    def _abort(self, producer: Producer) -> None:
        try:
            self._admin.end_transaction(*producer, commit=False)
        except KafkaError as error:
            # It has ended since; or it ends by its time limit, or by the next batch's sweep.
            _log.info("not aborted: %s", error)

    def _no_longer_open(self, slots: Iterable[Slot]) -> frozenset[Producer]:
        wanted = [slot.producer for slot in slots]
        states = self._described([name for name, _, _ in wanted])
        return frozenset(each for each in wanted if states.get(each[0], each) != each)

    def _open(self, tasks: int, attempts: int) -> tuple[Producer, ...]:
        names = self._listed()
        if names is None:
            names = [
                slot_id(self.sink_id, task, attempt)
                for task in range(tasks)
                for attempt in range(max(attempts, TRIED_ATTEMPTS))
            ]
        states = self._described(names)
        return tuple(each for each in states.values() if each is not None)

    def _listed(self) -> list[str] | None:
        """Ids of the sink's open transactions; None where brokers do not tell."""
        pattern = re.escape(self.sink_id) + r"\.w\..*"
        try:
            try:
                found = self._admin.list_transactions(
                    states=[ONGOING], transactional_id_pattern=pattern
                )
            # Before KIP-1152, and where nodes have no library for expressions (`moldau dev`).
            except (UnsupportedByBroker, InvalidRequest, InvalidRegularExpression):
                found = self._admin.list_transactions(states=[ONGOING])
        except UnsupportedByBroker:
            return None
        return [
            each.transactional_id
            for each in found
            if self._slot_pattern.fullmatch(each.transactional_id)
        ]

    def _described(self, names: Collection[str]) -> dict[str, Producer | None]:
        """The producer that has each id's transaction open, None for none; ids that cannot be
        described are left out.
        """
        if not names:
            return {}
        try:
            found = self._admin.describe_transactions(names)
        except UnsupportedByBroker:  # Apache Kafka before 3.0
            return {}
        states: dict[str, Producer | None] = {}
        for name, each in found.items():
            if isinstance(each, TransactionDescription):
                is_open = each.state == ONGOING
                states[name] = (name, each.producer_id, each.producer_epoch) if is_open else None
            elif each.code.name in _GONE:
                states[name] = None
            elif not isinstance(each, UnsupportedByBroker | TransactionalIdAuthorizationFailed):
                raise each
        return states


def serves_two_phase(options: SinkOptions, sink_id: str) -> bool:
    """Whether the brokers serve prepared transactions (KIP-939) to this principal. Raises:
    KafkaError: they cannot be asked
    """
    config = options.producer_config(
        transactional_id=f"{sink_id}.probe", transaction_two_phase_commit_enable=True
    )
    with sync.Producer(config=config) as producer:
        producer.flush()  # starts it: without, closing it leaves a task behind
        try:
            producer.init_transactions()
        except (UnsupportedByBroker, TransactionalIdAuthorizationFailed) as error:
            _log.debug("no two-phase commit: %s", error)
            return False
    return True


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
    Raises: SparkConnectorError: it cannot be
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
