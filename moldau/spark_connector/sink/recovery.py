"""Carries out what the commit protocol asks for, on a cluster.

Owns the driver's clients for the time of one planning, commit or abort, the translation of each
step, and the reading of the places where a transaction's rows are said to lie. Must not decide
anything: `core.commit_protocol` does. Invariants: no client outlives its `with` block; a step that
raises has left the cluster so that the procedure can be begun again; VISIBLE and ABORTED are
proofs, everything else is UNKNOWN.

How a transaction that can no longer be committed has ended: its rows are read once as a reader of
committed records and once as a reader of all. A transaction is committed or aborted as a whole, so
one place is enough. Rows that lie there and are hidden from readers of committed records, though
nothing open is in front of them, are aborted.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from moldau.client import (
    BrokerError,
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
    CheckOpen,
    CommitSlots,
    FindElsewhere,
    FindOpen,
    LookAtRows,
    Procedure,
    Producer,
    Sight,
    Step,
    TakeLedger,
    WriteLedger,
)
from moldau.spark_connector.core.ledger import CHECKSUM_MODULUS, Range, Slot
from moldau.spark_connector.sink.ledger_store import (
    KnownLedger,
    LedgerReading,
    LedgerStore,
    admin_limit_ms,
)
from moldau.spark_connector.sink.options import SinkOptions
from moldau.spark_connector.sink.rows import checksum_of

LOOK_AGAIN_MS: Final = 500
_log: Final = logging.getLogger("moldau.spark_connector.sink")
Result = TypeVar("Result")
ONGOING: Final = "Ongoing"
MAX_CALLS: Final = 8
"""Transactions that are ended at the same time."""
TRIED_ATTEMPTS: Final = 4
"""Attempts of a task whose ids are tried where brokers cannot list transactions; Spark's default
for spark.task.maxFailures."""
_GONE: Final = frozenset(
    {"INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING", "TRANSACTIONAL_ID_NOT_FOUND"}
)


def look_at(
    options: SinkOptions, slots: tuple[Slot, ...], admin: sync.Admin, limit_ms: float
) -> dict[Producer, Sight]:
    """How each slot's transaction has ended, as far as its rows tell."""
    return {slot.producer: _sight(options, slot, admin, limit_ms) for slot in slots}


def _sight(options: SinkOptions, slot: Slot, admin: sync.Admin, limit_ms: float) -> Sight:
    places = [each for each in slot.ranges if each.first_offset >= 0]
    if not places:
        return Sight.UNKNOWN
    wanted = sum(each.row_count for each in places)
    try:
        if not _is_behind_everything_open(places, admin, limit_ms):
            return Sight.UNKNOWN
        rows, checksum = _read(options, places, "read_committed", limit_ms)
        if rows == wanted:
            is_whole = slot.is_located and len(places) == len(slot.ranges)
            if is_whole and checksum != slot.checksum:
                return Sight.UNKNOWN
            return Sight.VISIBLE
        if rows == 0:
            hidden, _ = _read(options, places, "read_uncommitted", limit_ms)
            if hidden == wanted:
                return Sight.ABORTED
    except (OffsetOutOfRange, UnknownTopicOrPartition):
        return Sight.UNKNOWN
    return Sight.UNKNOWN


def _is_behind_everything_open(places: list[Range], admin: sync.Admin, limit_ms: float) -> bool:
    """Wait until the last stable offsets are beyond the rows; False when they are not in time."""
    ends: dict[TopicPartition, int] = {}
    for each in places:
        name = TopicPartition(each.topic, each.partition)
        ends[name] = max(ends.get(name, 0), each.first_offset + each.row_count)
    deadline_s = time.monotonic() + limit_ms / 1000
    while True:
        found = admin.list_offsets(dict.fromkeys(ends, -1), read_committed=True)
        if all(found[name].offset >= end for name, end in ends.items()):
            return True
        if time.monotonic() >= deadline_s:
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
    deadline_s = time.monotonic() + limit_ms / 1000
    while consumer.position(name) < end:
        if time.monotonic() >= deadline_s:
            raise KafkaError(
                f"{name} could not be read from {place.first_offset} to {end} in {limit_ms:.0f} ms"
            )
        batch = consumer.poll_arrow(timeout_ms=LOOK_AGAIN_MS)
        inside = pc.less(batch.column("offset"), end)
        yield batch.filter(inside)


def slot_id(sink_id: str, task: int, attempt: int) -> str:
    """The transactional id of one attempt of one task; the same ones batch after batch."""
    return f"{sink_id}.w.{task}.{attempt}"


class StepCarrier:
    """Carries out steps for one sink; use as `with StepCarrier(…) as carrier`.

    Args:
        query_id, known, reading: as of `LedgerStore`.
    """

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
                return look_at(self.options, slots, self._admin, admin_limit_ms(self.options))
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
            except (UnsupportedByBroker, InvalidRequest):  # before KIP-1152
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
