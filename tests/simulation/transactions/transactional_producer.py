"""The product's transactional producer in a simulated process, and its reports to the ledger.

Owns: one producer of a transactional id, its drawn configuration, and the calls that are cancelled
or run out of time and are made again. Must not: choose what is written or when. Invariants: the
ledger hears what every call has returned, and where every record was delivered; an error that no
fault explains is a violation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from moldau.client import Producer
from moldau.client.errors import KafkaError, UnsupportedByBroker
from moldau.client.producer.core.transaction_states import TransactionState
from moldau.client.producer.transactions import PreparedTransaction
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata, RecordMetadata
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from moldau.runtime.ports import Ports
from tests.kit.seeds import Violation
from tests.simulation.clients import NO_PROCESS
from tests.simulation.transactions.ledger import ClientTransaction
from tests.virtual.loop import Process, VirtualClock

if TYPE_CHECKING:
    from tests.simulation.transactions.world import TransactionWorld

VERSION_1 = "of version 1"
"""A part of the client id of clients that know no `transaction.version` above 1 (see `taps`)."""

CANCELLED = 0.08
"""So many calls are cancelled, and made again."""

ROUNDING_MS = 0.001
"""The rounding of times that are compared: a call that took all of its time may seem to have taken
less.
"""

NOT_STORED = PreparedTransaction(2**62, 0)
"""No transaction: what an outside coordinator has stored that did not decide to commit."""

Result = TypeVar("Result")

OVERTAKEN = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Another producer has the id, or the transaction has had its time."""

EXPECTED = OVERTAKEN.union(
    (code for code in ErrorCode if code.retriable and code is not ErrorCode.CORRUPT_MESSAGE),
    (
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    ),
)


class MustAbort(Exception):
    """This transaction cannot be committed."""


class Fenced(Exception):
    """This producer can do nothing more: another one has its id, or its transaction has ended."""


class TransactionalProducer:
    """One instance of a transactional id. `settings` win over what is drawn, with None the
    product's own."""

    def __init__(
        self,
        world: TransactionWorld,
        process: Process,
        host: str,
        random: Random,
        transactional_id: str,
        version: int,
        **settings: Any,
    ) -> None:
        self.world = world
        self.random = random
        self.transactional_id = transactional_id
        self.name = process.name
        self.cancelled_share = CANCELLED
        self.is_closed = False
        self.is_calm = False
        """Whether nothing is wrong, so that no call may fail or run out of time."""
        suffix = f" {VERSION_1}" if version < 2 else ""
        self.producer: Producer[bytes, bytes] = Producer(
            ",".join(f"{host}:{port}" for _, host, port in world.broker_addresses),
            ports=Ports(
                VirtualClock(world.loop),
                world.fabric.port_of(process, host),
                Random(random.getrandbits(64)),
            ),
            client_id=f"{process.name}{suffix}",
            transactional_id=transactional_id,
            **{
                name: value
                for name, value in (_drawn_settings(random) | settings).items()
                if value is not None
            },
        )
        keep_open(self.producer)
        self._number = 0
        self._latest: ClientTransaction | None = None
        """The one that it has begun last, so that its records are this producer's to deliver."""

    @property
    def pair(self) -> tuple[int, int]:
        """Its producer id and epoch."""
        return tuple(self._transactions.producer)

    @property
    def state(self) -> TransactionState:
        """What it is doing."""
        return self._transactions.state

    @property
    def _transactions(self) -> Any:
        return self.producer._transactions

    # -- the calls -------------------------------------------------------------------------------

    async def initialize(self, *, keeps: bool = False) -> PreparedTransaction | None:
        """Raises Fenced."""
        init = partial(self.producer.init_transactions, keep_prepared_transaction=keeps)
        prepared = await self._call("init", init)
        data = self.world.data
        keeps = prepared is not None
        self.world.guard(lambda: data.initialized(self.transactional_id, *self.pair, keeps=keeps))
        return prepared

    def begin(self) -> ClientTransaction:
        """Begin a transaction."""
        self._number += 1
        name = f"{self.transactional_id}/{self.name.rpartition('#')[2]}/{self._number}"
        version = self._transactions._manager.transaction_version
        transaction = ClientTransaction(name, self.transactional_id, *self.pair, version)
        self.producer.begin_transaction()
        self._latest = transaction
        self.world.data.begun(transaction)
        return transaction

    async def send(
        self, transaction: ClientTransaction, topic: str, index: int, values: list[bytes]
    ) -> None:
        """Records of one partition, until all are delivered. Raises MustAbort, Fenced."""
        deliveries = []
        try:
            for value in values:
                delivered = partial(self._delivered, transaction, (topic, index), value)
                delivery = self.producer.send_nowait(
                    topic, value, key=value[-1:], partition=index, on_delivery=delivered
                )
                transaction.deliveries.append(delivery)
                deliveries.append(delivery)
            for delivery in deliveries:
                await delivery
        except KafkaError as error:
            raise self._meaning("produce", error) from error

    async def send_offsets(
        self,
        transaction: ClientTransaction,
        group: ConsumerGroupMetadata,
        positions: Mapping[tuple[str, int], int],
    ) -> None:
        """A group's offsets as part of the transaction. Raises MustAbort, Fenced."""
        offsets = {
            TopicPartition(*place): OffsetAndMetadata(offset, metadata=transaction.name)
            for place, offset in positions.items()
        }
        try:
            await self.producer.send_offsets(offsets, group)
        except KafkaError as error:
            raise self._meaning("offsets", error) from error
        for (topic, index), offset in positions.items():
            transaction.offsets[(group.group_id, topic, index)] = offset

    async def end(self, transaction: ClientTransaction, *, is_commit: bool) -> None:
        """Commit or abort. Raises MustAbort (only of a commit), Fenced."""
        transaction.asked.add(is_commit)
        producer, before = self.producer, self.pair
        call = producer.commit_transaction if is_commit else producer.abort_transaction
        await self._call("commit" if is_commit else "abort", call)
        self._has_ended(transaction, before, is_commit=is_commit)

    async def complete(
        self, transaction: ClientTransaction, prepared: PreparedTransaction, *, is_commit: bool
    ) -> None:
        """Decide about a prepared transaction, this instance's or that of one before it. Raises
        Fenced.
        """
        transaction.asked.add(is_commit)
        before = self.pair
        stored = prepared if is_commit else NOT_STORED
        told = await self._call("complete", partial(self.producer.complete_transaction, stored))
        if told is not is_commit:
            raise self.world.found("completed-otherwise", f"{self.name}: {transaction}")
        self._has_ended(transaction, before, is_commit=is_commit)

    async def prepare(self) -> PreparedTransaction:
        """Raises MustAbort, Fenced."""
        return await self._call("prepare", self.producer.prepare_transaction)

    async def close(self, transaction: ClientTransaction | None, timeout_ms: float) -> None:
        """Close it, perhaps with an open transaction, which it aborts if there is time, unless it
        is prepared.
        """
        world, state = self.world, self.state
        is_to_abort = transaction is not None and state is not TransactionState.PREPARED
        self.is_closed = True
        if transaction is not None and is_to_abort:
            transaction.asked.add(False)
        began = world.loop.time()
        await self.producer.close(timeout_ms)
        if self._latest is not None:
            world.guard(world.data.check_decided, self._latest)
        if transaction is None:
            return
        took_ms = (world.loop.time() - began) * 1000
        has_failed = TransactionState.FATAL_ERROR in (state, self.state)
        if is_to_abort and took_ms < timeout_ms - ROUNDING_MS and not has_failed:
            world.counts["closed_in_transactions"] += 1
            world.guard(world.data.check_not_open, transaction)

    # -- what they report ------------------------------------------------------------------------

    async def _call(self, what: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """A call, made again when it is cancelled or out of time. Raises MustAbort, Fenced."""
        loop = self.world.loop
        while True:
            is_cancelled = self.random.random() < self.cancelled_share
            limit_s = self.random.uniform(0.001, 0.2) if is_cancelled else None
            try:
                async with asyncio.timeout(limit_s):
                    return await call()
            except TimeoutError as error:
                kind = "timed_out" if isinstance(error, KafkaError) else "cancelled"
                self.world.counts[f"{what}_{kind}"] += 1
                if self.is_calm and kind == "timed_out":
                    raise self.world.found(
                        "late-in-calm", f"{self.name}: {what}: {error!r}"
                    ) from error
            except UnsupportedByBroker as error:
                if not self.world.draws.levels:
                    raise self._meaning(what, error) from error
                self.world.counts["kept_later"] += 1  # until `transaction.version` is up again
            except KafkaError as error:
                raise self._meaning(what, error) from error
            await loop.elapse(self.random.uniform(0.0, 50.0))

    def _delivered(
        self,
        transaction: ClientTransaction,
        place: tuple[str, int],
        value: bytes,
        metadata: RecordMetadata | None,
        error: Exception | None,
    ) -> None:
        if error is None:
            assert metadata is not None
            data = self.world.data
            self.world.counts["transactional_records"] += 1
            self.world.guard(data.delivered, transaction, place, value, metadata)

    def _has_ended(
        self, transaction: ClientTransaction, before: tuple[int, int], *, is_commit: bool
    ) -> None:
        data, pairs = self.world.data, (before, self.pair)
        # Before it is decided, what is left of another instance may have records on their way,
        # of which that instance does not hear any more.
        if transaction is self._latest or transaction.decided is not None:
            self.world.guard(data.check_decided, transaction)
        self.world.counts["ends_above_level"] += transaction.version > self.world.level_of(
            "transaction.version"
        )
        self.world.guard(lambda: data.ended(transaction, pairs, is_commit=is_commit))

    def _meaning(self, what: str, error: KafkaError) -> Exception:
        """What is to be done about an error. Raises Violation."""
        world = self.world
        world.counts[f"{what} {type(error).__name__} {error.code.name}"] += 1
        if self.is_calm:
            raise self.world.found("refused-in-calm", f"{self.name}: {what}: {error!r}")
        if self.is_closed:
            return Fenced(str(error))
        if error.code not in EXPECTED:
            raise self.world.found("unexpected-error", f"{self.name}: {what}: {error!r}")
        is_fatal = self.state is TransactionState.FATAL_ERROR
        if is_fatal or error.code in OVERTAKEN:
            why = f"{what}: {error!r}"
            world.guard(world.data.was_overtaken, self.transactional_id, self.pair, why)
        if is_fatal:
            return Fenced(str(error))
        if what not in ("produce", "offsets", "commit", "prepare"):
            raise self.world.found("refused", f"{self.name}: {what}: {error!r}")
        return MustAbort(str(error))


def keep_open(client: Any) -> None:
    """A client ends with its process, or is closed by it; the collector does nothing."""
    client._client._connections._owner_process_id = NO_PROCESS


def _drawn_settings(random: Random) -> dict[str, Any]:
    linger_ms = random.choice((0, 5, 40))
    request_timeout_ms = random.choice((800, 2_500))
    return {
        "transaction_timeout_ms": random.choice((1_500, 4_000, 10_000)),
        "max_in_flight_requests_per_connection": random.choice((1, 2, 5)),
        "linger_ms": linger_ms,
        "batch_size": random.choice((1, 200, 16_384)),
        "compression_type": random.choice(("none", "none", "gzip", "zstd")),
        "request_timeout_ms": request_timeout_ms,
        "delivery_timeout_ms": linger_ms + request_timeout_ms + random.choice((0, 3_000, 8_000)),
        "max_block_ms": random.choice((1_000, 4_000, 15_000)),
        "retry_backoff_ms": random.choice((10, 100)),
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 300,
        "socket_connection_setup_timeout_ms": 800,
        "socket_connection_setup_timeout_max_ms": 1_500,
        "metadata_max_age_ms": random.choice((500, 300_000)),
    }


async def gathered(*steps: Any) -> None:
    """All of them to their ends; the worst of their failures."""
    failures = [each for each in await asyncio.gather(*steps, return_exceptions=True) if each]
    for kind in (Violation, Fenced, MustAbort):
        for failure in failures:
            if isinstance(failure, kind):
                raise failure
    for failure in failures:
        raise failure
