"""The transaction coordinator's state machine on the real runtime, over a log in memory.

    bench = Bench()                         # transaction.version 2, one replica: commits at once
    producer = bench.init("t").answer.producer
    bench.add("t", producer, [P0])
    bench.end("t", producer, is_commit=True)
    bench.answer_markers()                  # every partition has its marker

Requests return a `Caller`; `bench.commands` are the markers to be sent, in order.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from moldau.broker.coordinator.core.result import NO_PRODUCER, Producer
from moldau.broker.coordinator.runtime import CoordinatorRuntime
from moldau.broker.coordinator.transaction.core.rules import TransactionSettings
from moldau.broker.coordinator.transaction.core.state import SendMarkers, TransactionState
from moldau.broker.coordinator.transaction.core.transaction import NO_PRODUCER_ID, TransactionStatus
from moldau.protocol.coordinator_records import TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.types import TopicPartition
from tests.unit.broker.coordinator.harness import SETTINGS, Caller, MemoryBroker

P0, P1, P2 = (TopicPartition("outputs", index) for index in range(3))
FIRST_PRODUCER_ID = 1000
TIMEOUT_MS = 60_000


def init_request(
    transactional_id: str,
    timeout_ms: int = TIMEOUT_MS,
    expected: Producer | None = None,
    *,
    enable_two_phase: bool = False,
    keep_prepared: bool = False,
) -> InitProducerIdRequest:
    """`expected` is the pair of a producer that comes back."""
    producer = expected or NO_PRODUCER
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        enable2_pc=enable_two_phase,
        keep_prepared_txn=keep_prepared,
    )


class CountingIds:
    """Producer ids from FIRST_PRODUCER_ID on; `is_available` False plays a controller that is not
    there, `is_scarce` one that is asked for each id.
    """

    def __init__(self) -> None:
        self.next_id = FIRST_PRODUCER_ID
        self.is_available = True
        self.is_scarce = False

    @property
    def spare(self) -> int:
        return self.next_id if self.is_available else NO_PRODUCER_ID

    def use(self) -> None:
        assert self.is_available
        self.next_id += 1
        self.is_available = not self.is_scarce


class Bench:
    """One partition of `__transaction_state`, led by this broker.

    Args:
        version: the finalized `transaction.version`.
        is_committing_at_once: otherwise `commit` does it.
    """

    def __init__(
        self, version: int = 2, *, is_committing_at_once: bool = True, **settings: Any
    ) -> None:
        self.version = version
        self.ids = CountingIds()
        self.settings = TransactionSettings(**settings)
        self.commands: list[SendMarkers] = []
        self.ended_by: Producer | None = None
        """For tests that want to know later who ended the transaction."""
        self.broker = MemoryBroker(TRANSACTION_STATE, is_committing_at_once=is_committing_at_once)
        self.log = self.broker.partition()
        self.runtime = CoordinatorRuntime(
            TRANSACTION_STATE,
            self._make_state,
            lambda _, command: self.commands.append(command),
            SETTINGS,
            self.broker.ports,
        )
        self.broker.attach(self.runtime)
        self.broker.elect()

    def _make_state(self, partition_index: int) -> TransactionState:
        return TransactionState(self.settings, self.ids, lambda: self.version)

    @property
    def state(self) -> TransactionState:
        ((_, state),) = self.runtime.states()
        return state

    def transaction(self, transactional_id: str = "t") -> Any:
        return self.state.transactions[transactional_id]

    def status(self, transactional_id: str = "t") -> TransactionStatus:
        return self.transaction(transactional_id).status

    # -- requests --------------------------------------------------------------------------------

    def _call(self, operation: Any) -> Caller:
        caller = Caller()
        error = self.runtime.call(0, lambda state, now_ms: operation(state, caller, now_ms))
        assert error is ErrorCode.NONE
        self.broker.settle()
        return caller

    def init(
        self,
        transactional_id: str = "t",
        timeout_ms: int = TIMEOUT_MS,
        *,
        expected: Producer | None = None,
        enable_two_phase: bool = False,
        keep_prepared: bool = False,
        principal: str = "",
    ) -> Caller:
        request = init_request(
            transactional_id,
            timeout_ms,
            expected,
            enable_two_phase=enable_two_phase,
            keep_prepared=keep_prepared,
        )
        return self._call(
            lambda state, caller, now: state.init_producer_id(request, principal, caller, now)
        )

    def add(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        client_version: int = 2,
    ) -> Caller:
        return self._call(
            lambda state, caller, now: state.add_partitions(
                transactional_id, producer, partitions, caller, now, client_version=client_version
            )
        )

    def verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
    ) -> Caller:
        return self._call(
            lambda state, caller, now: state.add_partitions(
                transactional_id,
                producer,
                partitions,
                caller,
                now,
                client_version=2,
                verify_only=True,
            )
        )

    def end(
        self,
        transactional_id: str,
        producer: Producer,
        *,
        is_commit: bool,
        client_version: int = 2,
    ) -> Caller:
        return self._call(
            lambda state, caller, now: state.end_transaction(
                transactional_id,
                producer,
                caller,
                now,
                is_commit=is_commit,
                client_version=client_version,
            )
        )

    def describe(self, transactional_id: str = "t") -> Caller:
        return self._call(lambda state, caller, now: state.describe(transactional_id, caller))

    # -- what happens elsewhere ------------------------------------------------------------------

    def answer_markers(self) -> list[SendMarkers]:
        """All partitions of all commands have said done; the commands."""
        answered = []
        while self.commands:
            command = self.commands.pop(0)
            self.marker_written(command, set(command.remaining))
            answered.append(command)
        return answered

    def marker_written(self, command: SendMarkers, partitions: Collection[TopicPartition]) -> None:
        error = self.runtime.call(
            0, lambda state, now_ms: state.markers_written(command, list(partitions), now_ms)
        )
        assert error is ErrorCode.NONE
        self.broker.settle()

    def commit(self) -> None:
        """What the log holds is committed."""
        self.log.commit()

    def fail_over(self, *, keep: int | None = None) -> None:
        """The next leader loads what the log holds (before `keep`)."""
        self.broker.depose(keep=keep)
        self.broker.elect()

    def advance(self, elapsed_ms: float) -> None:
        self.broker.advance(elapsed_ms)

    # -- short ways ------------------------------------------------------------------------------

    def begin(self, transactional_id: str = "t", *partitions: TopicPartition) -> Producer:
        """A producer with an open transaction."""
        producer = self.init(transactional_id).answer.producer
        added = self.add(transactional_id, producer, partitions or [P0]).answer
        assert set(added.values()) == {ErrorCode.NONE}
        return producer
