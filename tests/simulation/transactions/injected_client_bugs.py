"""Bugs put into the drivers of the product's transactional producer and of its consumer.

Owns: what each replaces, and which faults bring it to light. Must not: be active unless asked for.
"""

from __future__ import annotations

from typing import Any

from moldau.client.consumer.core.partition_records import PartitionRecords
from moldau.client.producer.coordinator_link import AnswerLost, CoordinatorLink, NotSent
from moldau.client.producer.core.transaction_manager import Pause, TransactionManager
from moldau.client.producer.core.transaction_requests import RequestKind
from moldau.client.producer.transactions import TransactionDriver, Transactions
from moldau.protocol.errors import ErrorCode
from tests.kit.injected_bugs import InjectedBug, Patch


def answer_of_an_old_connection(patch: Patch) -> None:
    """While a coordinator moves, the answer of the former one to another end ends the open one."""
    original = CoordinatorLink.ask

    async def ask(self: Any, ask: Any, sending: Any) -> Any:
        is_end = ask.kind is RequestKind.END
        old = getattr(self, "old_answer", None) if is_end else None
        try:
            response = await original(self, ask, sending)
        except (AnswerLost, NotSent) as fault:
            if old is None:
                raise
            if isinstance(fault, NotSent):
                sending(None)
            return old
        if is_end and response.error_code == ErrorCode.NONE:
            self.old_answer = response
        is_passing = is_end and ErrorCode.of(response.error_code).retriable
        return old if is_passing and old is not None else response

    patch.setattr(CoordinatorLink, "ask", ask)


def close_forgets_its_transaction(patch: Patch) -> None:
    """A producer that is closed leaves its transaction to the coordinator's patience."""

    async def close(self: Any, timeout_ms: float) -> None:
        await self._driver.stop(timeout_ms / 1000)

    patch.setattr(Transactions, "close", close)


def lost_wake_up(patch: Patch) -> None:
    """After a pause the driver waits for the application before it asks again."""
    original = TransactionDriver._carry_out

    async def carry_out(self: Any, ask: Any) -> Pause:
        pause = await original(self, ask)
        if pause is Pause.BACK_OFF:
            self._work.clear()
            await self._work.wait()
        return pause

    patch.setattr(TransactionDriver, "_carry_out", carry_out)


def commit_overtakes_its_batches(patch: Patch) -> None:
    """A transaction is committed without waiting for the batches that are on their way."""
    original = TransactionManager.commit

    def commit(self: Any) -> Any:
        problem = original(self)
        self._is_settled = self._is_settled or bool(self._added)
        return problem

    patch.setattr(TransactionManager, "commit", commit)


def aborted_producers_forgotten(patch: Patch) -> None:
    """What was aborted is forgotten with the piece of the log in which it began."""
    original = PartitionRecords._is_invisible

    def is_invisible(self: Any, chunk: Any, header: Any) -> bool:
        if not chunk.aborted:
            self._aborted_producers.clear()
        return original(self, chunk, header)

    patch.setattr(PartitionRecords, "_is_invisible", is_invisible)


CLIENT_BUGS = (
    InjectedBug(answer_of_an_old_connection, 4, ("kill_coordinator", "coordinator_leaves")),
    InjectedBug(close_forgets_its_transaction, 1),
    InjectedBug(lost_wake_up, 2),
    InjectedBug(commit_overtakes_its_batches, 3),
    InjectedBug(aborted_producers_forgotten, 1),
)
