"""The coordinator of `transaction_world` behind the driver's `Link`, and batches that go to it.

Owns what becomes of each request (`fates`, then everything is served) and when (`held`). Must not
decide anything about transactions. Invariant: a batch is settled exactly once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from moldau.client.errors import KafkaError, TransactionAborted, error_for
from moldau.client.producer.coordinator_link import (
    AnswerLost,
    NotSent,
    OnSending,
)
from moldau.client.producer.core.transaction_manager import CoordinatorFeatures
from moldau.client.producer.core.transaction_requests import Ask, RequestKind
from moldau.client.producer.core.transaction_states import ProducerIdAndEpoch
from moldau.client.producer.transactions import Transactions
from moldau.protocol.errors import ErrorCode
from tests.unit.client.producer.core.transaction_world import (
    REFUSALS,
    Batch,
    Coordinator,
    Fate,
    refused,
)


class ScriptedLink:
    """Attributes:
    asked: the kinds of all requests that left.
    fates: what becomes of the next requests; an ErrorCode is the answer.
    hold: kinds of requests that wait for `release` after they have been served.
    is_unreachable: nothing leaves.
    """

    def __init__(self, version: int) -> None:
        self.coordinator = Coordinator(version)
        self.asked: list[RequestKind] = []
        self.fates: deque[Fate | ErrorCode | KafkaError] = deque()
        self.hold: set[RequestKind] = set()
        self.held = asyncio.Event()
        self.release = asyncio.Event()
        self.is_unreachable = False
        self.init_version = 6

    def forget(self, ask: Ask) -> None:
        """Nothing is remembered."""

    async def ask(self, ask: Ask, sending: OnSending) -> Any:
        await asyncio.sleep(0)
        if self.is_unreachable:
            raise NotSent("unreachable")
        fate = self.fates.popleft() if self.fates else Fate.SERVED
        if isinstance(fate, KafkaError):
            raise fate
        sending(CoordinatorFeatures(self.init_version, 1, self.coordinator.version))
        self.asked.append(ask.kind)
        await asyncio.sleep(0)
        if isinstance(fate, ErrorCode):
            return refused(ask, fate)
        if fate in REFUSALS:
            return refused(ask, REFUSALS[fate])
        if fate is Fate.REQUEST_LOST:
            raise AnswerLost("lost")
        response = self.coordinator.serve(ask)
        if ask.kind in self.hold:
            self.held.set()
            await self.release.wait()
        await asyncio.sleep(0)
        if fate is Fate.ANSWER_LOST:
            raise AnswerLost("lost")
        return response


class ScriptedBatches:
    """An accumulator of one record per batch, and a sender that looks when it is woken.

    Attributes:
        errors: what batches failed with.
        is_stopped: nothing goes out.
        fail_next: the next batch fails with this.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.transactions: Transactions | None = None
        self.errors: list[Exception] = []
        self.acknowledged: list[int] = []
        self.is_stopped = False
        self.fail_next: ErrorCode | None = None
        self._coordinator = coordinator
        self._waiting: list[Batch] = []
        self._in_flight: list[Batch] = []
        self._sequences: dict[Any, int] = {}
        self._changed: list[asyncio.Future[None]] = []
        self._gap: ProducerIdAndEpoch | None = None

    def send(self, partition: Any, value: int) -> None:
        """Append, or raise why not."""
        assert self.transactions is not None
        refusal = self.transactions.refusal
        if refusal is not None:
            raise refusal
        self._waiting.append(Batch(partition, value))
        self.wake()

    def wake(self) -> None:
        asyncio.get_running_loop().call_soon(self._look)

    async def flush(self) -> None:
        while self._waiting or self._in_flight:
            await self._change()

    def fail_waiting(self, error: KafkaError) -> None:
        for _ in self._waiting:
            self.errors.append(error)
        self._waiting.clear()
        self._tell()

    @property
    def has_in_flight(self) -> bool:
        return bool(self._in_flight)

    async def in_flight_done(self) -> None:
        while self._in_flight:
            await self._change()

    @property
    def needs_new_epoch(self) -> bool:
        """Whether a sequence number of the present pair has been left out."""
        assert self.transactions is not None
        return self._gap == self.transactions.producer

    def _look(self) -> None:
        transactions = self.transactions
        assert transactions is not None
        for batch in [] if self.is_stopped else list(self._waiting):
            if not transactions.admit(*batch.partition):
                continue
            self._waiting.remove(batch)
            self._in_flight.append(batch)
            batch.pair = transactions.producer
            key = (batch.partition, batch.pair)
            batch.sequence = self._sequences[key] = self._sequences.get(key, -1) + 1
            asyncio.get_running_loop().call_soon(self._answered, batch)

    def _answered(self, batch: Batch) -> None:
        assert self.transactions is not None
        self._in_flight.remove(batch)
        code = self.fail_next or self._coordinator.produce(batch)
        if code is ErrorCode.NONE:
            self.acknowledged.append(batch.value)
        else:
            self.fail_next = None
            self._gap = batch.pair
            error = error_for(code, None, "produce")
            self.errors.append(error)
            self.transactions.batch_failed(*batch.partition, error, may_be_written=False)
        self._tell()

    async def _change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._changed.append(future)
        await future

    def _tell(self) -> None:
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    @property
    def aborted_count(self) -> int:
        """Batches that failed because their transaction did."""
        return sum(isinstance(each, TransactionAborted) for each in self.errors)
