"""Carries out what the commit protocol asks for, on a cluster.

Owns the driver's clients for the time of one planning, commit or abort, and the translation of each
step. Must not decide anything: `core.commit_protocol` does. Invariants: no client outlives its
`with` block; a step that raises has left the cluster so that the procedure can be begun again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from moldau.client import (
    BrokerError,
    InvalidRequest,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    TransactionDescription,
    UnsupportedByBroker,
    sync,
)
from moldau.spark_connector.core import commit_steps as steps
from moldau.spark_connector.core.commit_protocol import Procedure
from moldau.spark_connector.core.commit_steps import Producer, Step
from moldau.spark_connector.core.ledger import Slot
from moldau.spark_connector.options.sink_options import SinkOptions
from moldau.spark_connector.sink.ledger_store import LedgerStore, admin_limit_ms
from moldau.spark_connector.sink.lost_rows import look_at

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


def slot_id(sink_id: str, task: int, attempt: int) -> str:
    """The transactional id of one attempt of one task; the same ones batch after batch."""
    return f"{sink_id}.w.{task}.{attempt}"


class StepCarrier:
    """Carries out steps for one sink; use as `with StepCarrier(…) as carrier`.

    Args:
        ledger: arguments of `LedgerStore`.
    """

    def __init__(self, options: SinkOptions, sink_id: str, **ledger: Any) -> None:
        self.options = options
        self.sink_id = sink_id
        self._admin = sync.Admin(config=options.admin_config())
        self.ledger: LedgerStore = LedgerStore(options, sink_id, self._admin, **ledger)
        self._slot_pattern = re.compile(re.escape(sink_id) + r"\.w\.\d+\.\d+")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.ledger.close()
        finally:
            self._admin.close()

    def carry(self, procedure: Procedure[Result]) -> Result:
        """Carry out a procedure to its end.

        Raises:
            Refused, KafkaError, SparkConnectorError
        """
        answer: Any = None
        while True:
            try:
                step = procedure.send(answer)
            except StopIteration as end:
                result: Result = end.value
                return result
            answer = self.carry_out(step)

    def carry_out(self, step: Step) -> Any:
        """Carry out one step and return what `commit_steps` says of it."""
        match step:
            case steps.TakeLedger(is_fencing=is_fencing):
                return self.ledger.take(is_fencing=is_fencing)
            case steps.WriteLedger():
                return self.ledger.write(step)
            case steps.FindElsewhere(query_id=query_id):
                return self.ledger.elsewhere(query_id)
            case steps.CheckOpen(slots=slots):
                return self._no_longer_open(slots)
            case steps.CommitSlots(slots=slots):
                done = self._each(self._is_committed, [slot.producer for slot in slots])
                return frozenset(each for each, is_done in done if not is_done)
            case steps.LookAtRows(slots=slots):
                return look_at(self.options, slots, self._admin, admin_limit_ms(self.options))
            case steps.FindOpen(tasks=tasks, attempts=attempts):
                return self._open(tasks, attempts)
            case steps.AbortOpen(producers=producers):
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
            # Ended meanwhile; or it ends by its time limit, or by the next batch's sweep.
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
        """Who has each id's transaction open, None if nobody; without those that cannot be told."""
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
    """Whether the brokers serve prepared transactions (KIP-939) to this principal.

    Raises:
        KafkaError: they cannot be asked.
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
