"""Who writes while topics come and go: idempotent and transactional, asyncio and blocking.

Owns the producers; each record has its number as its value. Must not judge. Invariant: every record
that was handed over is in the account before it is sent, and its outcome when it is known.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, Protocol

from moldau.client import KafkaError, Producer, ProducerFenced, sync
from moldau.client.records import RecordMetadata
from tests.system.topics.account import Account, Fate, Phase, Record, Transaction
from tests.system.topics.pauses import pause

SETTINGS: Final[dict[str, Any]] = {
    "linger_ms": 5,
    "max_block_ms": 5_000,
    "request_timeout_ms": 4_000,
    "delivery_timeout_ms": 12_000,
    "metadata_max_age_ms": 2_000,
    "reconnect_backoff_max_ms": 500,
}
TRANSACTION_TIMEOUT_MS: Final = 10_000
PAUSE_S: Final = 0.04
BURST: Final = 8
ROOM: Final = 400
"""So many records may be without their outcome."""
ABORTED: Final = 0.25
CLOSE_S: Final = 30.0


class Sends(Protocol):
    """The face of a producer that both have."""

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        *,
        partition: int | None = None,
        on_delivery: Callable[[RecordMetadata | None, Exception | None], None] | None = None,
    ) -> Any:
        """As `Producer.send_nowait`."""


class Writer:
    """One producer's records. States: writing ⇄ resting → closed."""

    def __init__(self, name: str, account: Account, seed: float) -> None:
        self.name = name
        self._account = account
        self._dice = Random(seed)
        self._lock = threading.Lock()
        self.open_count = 0

    def burst(self, producer: Sends, transaction: Transaction | None) -> list[Record]:
        """A few records to anywhere: most often to partitions that there are."""
        sent = []
        for _ in range(self._dice.randint(1, BURST)):
            topic = self._dice.choice([*self._account.topics.values()])
            if topic.phase is not Phase.LIVE and self._dice.random() < 0.8:
                continue
            partition = self._dice.randrange(max(1, topic.partition_count))
            sent.append(self.send(producer, topic.name, partition, transaction))
        return sent

    def send(
        self, producer: Sends, topic: str, partition: int, transaction: Transaction | None
    ) -> Record:
        """One record."""
        number, record = self._account.new(topic, partition, transaction)
        with self._lock:
            self.open_count += 1

        def told(metadata: RecordMetadata | None, error: Exception | None) -> None:
            with self._lock:
                self.open_count -= 1
            self._account.told(record, None if metadata is None else metadata.offset, error)

        try:
            producer.send_nowait(topic, b"%d" % number, partition=partition, on_delivery=told)
        except KafkaError as error:
            told(None, error)
        return record

    def all_places(self) -> list[tuple[str, int]]:
        """Every partition of the live topics."""
        return [
            (topic.name, partition)
            for topic in self._account.topics.values()
            for partition in range(topic.partition_count)
        ]


class PlainWriter(Writer):
    """asyncio, idempotent."""

    def __init__(self, name: str, account: Account, seed: float, bootstrap: str) -> None:
        super().__init__(name, account, seed)
        self._producer = Producer(bootstrap, **SETTINGS)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run())

    async def rest(self) -> None:
        """Stop, with everything acknowledged or failed."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._producer.flush()

    async def probe(self) -> list[Record]:
        """A record to every partition there is: none may fail."""
        sent = [self.send(self._producer, *place, None) for place in self.all_places()]
        await self._producer.flush()
        return sent

    async def close(self) -> None:
        """The end."""
        await self._producer.close()

    async def _run(self) -> None:
        while True:
            if self.open_count < ROOM:
                self.burst(self._producer, None)
            await pause(PAUSE_S)


class TransactionalWriter(PlainWriter):
    """asyncio, in transactions, a quarter of which are aborted."""

    def __init__(self, name: str, account: Account, seed: float, bootstrap: str) -> None:
        super().__init__(name, account, seed, bootstrap)
        self._producer = Producer(
            bootstrap,
            transactional_id=name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            **SETTINGS,
        )
        self._resting = False
        self._is_ready = False

    async def start(self) -> None:
        """Begin to write."""
        self._resting = False
        await super().start()

    async def rest(self) -> None:
        """Stop after the transaction that is open."""
        self._resting = True
        if self._task is not None:
            await self._task

    async def probe(self) -> list[Record]:
        """A transaction with a record to every partition there is."""
        return await self._transaction(probing=True)

    async def _run(self) -> None:
        while not self._resting:
            await self._transaction(probing=False)
            await pause(PAUSE_S)

    async def _transaction(self, *, probing: bool) -> list[Record]:
        transaction = Transaction()
        sent: list[Record] = []
        producer = self._producer
        try:
            if not self._is_ready:
                await producer.init_transactions()
                self._is_ready = True
            producer.begin_transaction()
            if probing:
                sent = [self.send(producer, *place, transaction) for place in self.all_places()]
            else:
                for _ in range(self._dice.randint(1, 4)):
                    sent += self.burst(producer, transaction)
                    await pause(PAUSE_S / 4)
            if probing or self._dice.random() >= ABORTED:
                await producer.commit_transaction()
                transaction.fate = Fate.COMMITTED
                self._account.counts["transactions committed"] += 1
                return sent
        except ProducerFenced:
            transaction.fate = Fate.UNKNOWN
            raise
        except KafkaError as error:
            self._account.counts[f"{self.name}: {type(error).__name__}"] += 1
        await self._abort(transaction)
        return sent

    async def _abort(self, transaction: Transaction) -> None:
        """Try until it is aborted, or a commit whose outcome was not known has succeeded after
        all.
        """
        end = time.monotonic() + CLOSE_S
        ends = [self._producer.abort_transaction, self._producer.commit_transaction]
        while True:
            try:
                await ends[0]()
            except KafkaError as error:
                self._account.counts[f"{self.name}, ending: {type(error).__name__}"] += 1
                if time.monotonic() > end:
                    raise
                ends.reverse()
                await pause(PAUSE_S)
            else:
                is_aborted = ends[0] == self._producer.abort_transaction
                transaction.fate = Fate.ABORTED if is_aborted else Fate.COMMITTED
                self._account.counts["transactions aborted"] += is_aborted
                return


class BlockingWriter(Writer):
    """A thread with a blocking producer, idempotent."""

    def __init__(self, name: str, account: Account, seed: float, bootstrap: str) -> None:
        super().__init__(name, account, seed)
        self._producer = sync.Producer(bootstrap, **SETTINGS)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Begin to write."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    async def rest(self) -> None:
        """Stop, with everything acknowledged or failed."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._producer.flush)

    async def probe(self) -> list[Record]:
        """A record to every partition there is: none may fail."""
        sent = [self.send(self._producer, *place, None) for place in self.all_places()]
        await asyncio.to_thread(self._producer.flush)
        return sent

    async def close(self) -> None:
        """The end."""
        await asyncio.to_thread(self._producer.close)

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            if self.open_count < ROOM:
                self.burst(self._producer, None)
