"""The task that brings a transaction forward, and the waiting for it.

Owns the one driver task of a producer: it sends the manager's requests, one at a time, with pauses
in between, and empties the accumulator of a transaction that failed. Must not decide what is sent.
Invariants: the task is told to stop and not cancelled while a request is under way; cancelling a
caller that waits has no effect on the task; a request that may have been served is sent again until
it is answered, for as long as the producer lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from moldau.client.cluster.signal import Signal
from moldau.client.errors import (
    ClientClosed,
    InvalidTransactionState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    TransactionAborted,
    error_for,
)
from moldau.client.producer.coordinator_link import (
    AnswerLost,
    CannotSay,
    CoordinatorLink,
    NotSent,
)
from moldau.client.producer.core.transaction_manager import (
    CoordinatorFeatures,
    Pause,
    TransactionManager,
)
from moldau.client.producer.core.transaction_requests import (
    Ask,
    RequestKind,
    Verdict,
    verdict_of,
)
from moldau.client.producer.core.transaction_states import Problem, TransactionState
from moldau.client.producer.sender import Sender
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode
from moldau.runtime.clock import Clock

logger: Final[logging.Logger] = logging.getLogger("moldau.client.producer")

SHORT_PAUSE_MS: Final = 20.0
"""While the previous transaction is being completed, which takes a few milliseconds."""

_S = TransactionState
_GIVEN_UP: Final = frozenset({_S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR})


class TransactionDriver:
    """Brings `manager` forward.

    Attributes:
        refusal: why no record may be added now.

    Args:
        backoff: between tries.
    """

    def __init__(
        self,
        manager: TransactionManager,
        link: CoordinatorLink,
        batches: Sender,
        backoff: Backoff,
        clock: Clock,
    ) -> None:
        self.manager = manager
        self.refusal: Problem | None = None
        self._link = link
        self._batches = batches
        self._backoff = backoff
        self._work = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._changes = Signal(clock)
        self._cause: BaseException | None = None
        self._refused_in: tuple[TransactionState, Problem | None] | None = None
        self.changed()

    # -- life ------------------------------------------------------------------------------------

    def kick(self) -> None:
        if self._task is None and not self._stopping.is_set():
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="moldau-producer-transactions"
            )
            self._task.add_done_callback(self._ended)
        self._work.set()

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    async def stop(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the request under way, then cancel it."""
        self._stopping.set()
        self._work.set()
        self.changed()
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait({task}, timeout=max(0.0, timeout_s))
            task.cancel()
            await asyncio.wait({task})

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Break off after a bug, so that no caller waits forever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("the producer's transactions have ended", exc_info=error)
            self.caused_by(error)
            self.manager.break_off(Problem(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
            self.changed()

    def changed(self) -> None:
        """Apply the manager's state, and wake all callers that wait for it."""
        manager = self.manager
        if self._refused_in != (manager.state, manager.problem):
            self._refused_in = (manager.state, manager.problem)
            self.refusal = manager.refusal
            if manager.state in _GIVEN_UP or self._is_not_permitted:
                self._batches.fail_waiting(self._reason())
        self._changes.set()

    # -- errors ----------------------------------------------------------------------------------

    def caused_by(self, error: BaseException) -> None:
        if self.manager.problem is None:
            self._cause = error

    @property
    def _is_not_permitted(self) -> bool:
        """Whether an idempotent producer was refused an id; it asks again for the next record."""
        manager = self.manager
        return manager.state is _S.UNINITIALIZED and manager.problem is not None

    def forget_cause(self) -> None:
        self._cause = None

    def error_of(self, problem: Problem) -> KafkaError:
        manager = self.manager
        error: KafkaError
        if problem is not manager.problem:
            if problem.code is ErrorCode.INVALID_TXN_STATE:
                return InvalidTransactionState(problem.message, code=problem.code)
            return error_for(problem.code, problem.message, "transaction", final=True)
        if manager.state is _S.ABORTABLE_ERROR:
            error = TransactionAbortable(
                f"the transaction can only be aborted: {problem.message}", code=problem.code
            )
        elif verdict_of(RequestKind.END, problem.code) is Verdict.FENCED:
            error = ProducerFenced(
                f"{problem.message}. Another producer uses the transactional id "
                f"{manager.transactional_id!r} now, or the transaction took longer than "
                "transaction.timeout.ms; close this producer",
                code=problem.code,
            )
        else:
            error = error_for(problem.code, problem.message, "producer", final=True)
        error.__cause__ = self._cause
        return error

    def _reason(self) -> KafkaError:
        """Why batches that have not been sent never will be sent."""
        problem = self.manager.problem
        if problem is None or self.manager.state is _S.ABORTING:
            return TransactionAborted(
                "the transaction was aborted before this record was sent",
                code=ErrorCode.TRANSACTION_ABORTABLE,
            )
        return self.error_of(problem)

    # -- waiting ---------------------------------------------------------------------------------

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait for a state. Raises ClientClosed when the producer is closed before."""
        while not is_reached():
            if self._stopping.is_set():
                raise ClientClosed("the producer is closed")
            await self._changes.wait(None)

    async def flushed(self, is_overtaken: Callable[[], bool]) -> None:
        """Wait for the batches of the transaction, or until they do not matter any more."""
        flush = asyncio.ensure_future(self._batches.flush())
        overtaken = asyncio.ensure_future(self.until(is_overtaken))
        try:
            await asyncio.wait({flush, overtaken}, return_when=asyncio.FIRST_COMPLETED)
            if flush.done():
                flush.result()
            else:
                overtaken.result()
        finally:
            for each in (flush, overtaken):
                each.cancel()
            await asyncio.wait({flush, overtaken})
            for each in (flush, overtaken):
                if not each.cancelled():
                    each.exception()

    # -- the task --------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopping.is_set():
            if self.manager.state in _GIVEN_UP and await self._emptied():
                continue
            ask = self.manager.next_ask()
            if ask is None:
                self._backoff.reset()
                self._work.clear()
                await self._work.wait()
                continue
            pause = await self._carry_out(ask)
            self.changed()
            self._batches.wake()
            if pause is Pause.BACK_OFF:
                await self._pause(self._backoff.next_ms())
            elif pause is Pause.SHORT:
                await self._pause(SHORT_PAUSE_MS)
            else:
                self._backoff.reset()

    async def _emptied(self) -> bool:
        """Fail unsent batches; True if batches were on the wire, whose answers have come now."""
        manager = self.manager
        self._batches.fail_waiting(self._reason())
        if self._batches.has_in_flight:
            await self._batches.in_flight_done()
            return True
        if manager.awaits_batches and manager.state is _S.ABORTING:
            manager.batches_settled(needs_new_epoch=self._batches.needs_new_epoch)
            self.changed()
        return False

    async def _carry_out(self, ask: Ask) -> Pause:
        manager = self.manager

        def sending(features: CoordinatorFeatures | None) -> None:
            if features is not None:
                manager.met_coordinator(features)
            manager.sending(ask)

        try:
            response = await self._link.ask(ask, sending)
        except NotSent as fault:
            logger.debug("%s: %s", ask.kind.value, fault)
            return Pause.BACK_OFF
        except AnswerLost as fault:
            logger.info("%s: %s; asking again", ask.kind.value, fault)
            step = manager.unanswered(ask)
        except CannotSay as error:
            manager.cannot_be_asked(ask, str(error))
            return Pause.NONE
        except ClientClosed:
            self._stopping.set()
            return Pause.NONE
        except KafkaError as error:
            self.caused_by(error)
            return manager.not_let_through(ask, Problem(error.code, str(error)))
        else:
            step = manager.answered(ask, response)
        if step.look_up:
            self._link.forget(ask)
        return step.pause

    async def _pause(self, pause_ms: float) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._stopping.wait()
        except TimeoutError:
            return
