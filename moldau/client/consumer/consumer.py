"""`Consumer`: reading records, with asyncio.

Owns the public face and the rules of a poll: who may poll, what happens in which order, and that
nothing is lost when a poll is cancelled. Must not know wire formats or assignment protocols.
Invariants: records are taken out of the buffer in the same turn of the loop in which they are
returned; assignments change, listeners run and offsets are committed automatically only inside
the user's own calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack

from moldau.client.cluster.cluster_client import ClientPorts
from moldau.client.config.consumer import ConsumerConfig, ConsumerSettings
from moldau.client.consumer.arguments import partitions_of, record_count_of
from moldau.client.consumer.consumer_parts import ConsumerParts, build
from moldau.client.consumer.core.chunks import OpenBatch
from moldau.client.consumer.core.partition_state import PartitionState
from moldau.client.consumer.group_calls import GroupCalls
from moldau.client.consumer.position_calls import PositionCalls
from moldau.client.errors import ClientClosed, ConcurrentUse, InvalidSubscription, WrongEventLoop
from moldau.client.records import ConsumerRecord, TopicPartition
from moldau.client.serialization import DeserializerLike
from moldau.protocol.records import take_columns
from moldau.protocol.reusable_memory import ReusableMemory

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_TURN_MS: Final = 100.0
"""While some partitions are assigned, joining a group waits at most this long before records are
looked for again: cooperative members read on meanwhile."""

QUICK_RUN_MS: Final = 5.0
SLOW_RUN_MS: Final = 25.0
MAX_RUN_RECORDS: Final = 1_000
"""How many records `async for` hands out before it lets others run on the loop: as many as take the
user a few milliseconds, so that heartbeats are sent in time."""

ARROW_POLL_BYTES: Final = 64 * 1024 * 1024
"""What one `poll_arrow` without a limit returns at most, about, in uncompressed bytes."""

ARROW_REUSED_BYTES: Final = 16 * 1024 * 1024
"""Memory of batches that nobody refers to any more, kept for the next ones."""

_UNLIMITED: Final = 2**31 - 1
_EMPTY: Final[tuple[ConsumerRecord, ...]] = ()


class Consumer(GroupCalls, PositionCalls):
    """Reads topics: alone (`assign`), or as a member of a group (`subscribe`).

        async with Consumer("localhost:9092", group_id="g") as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                ...

    States: open → closing → closed. One task polls at a time; the other calls may come from any
    task of the same event loop. Any call may be cancelled: what a cancelled poll did not return,
    the next one does.

    Args:
        bootstrap_servers: "host:port,…": where to begin to look for the cluster.
        config: settings by Kafka's dotted names, or a `ConsumerConfig`; `settings` override it.
        key_deserializer, value_deserializer: what makes keys and values of bytes: an object with
            `deserialize(topic, data)` or a function of the bytes. None leaves bytes. Null stays
            None.
        settings: the same keys with underscores.

    Raises:
        ConfigurationError: an unknown key (with the nearest name), or a value it cannot have.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "",
        *,
        config: ConsumerConfig | Mapping[str, object] | None = None,
        key_deserializer: DeserializerLike | None = None,
        value_deserializer: DeserializerLike | None = None,
        ports: ClientPorts | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._config: ConsumerConfig = ConsumerConfig.resolve(bootstrap_servers, config, settings)
        self._parts: ConsumerParts = build(
            self._config,
            key_deserializer,
            value_deserializer,
            ports or ClientPorts(),
            self._interrupt,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run: Iterator[ConsumerRecord] = iter(_EMPTY)
        self._run_limit = 16
        self._run_started_ms = 0.0
        self._is_polling = False
        self._arrow_memory = ReusableMemory(ARROW_REUSED_BYTES)
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the consumer. When the block is left by an exception nothing is committed
        automatically: what the last poll has handed out may not have been processed.
        """
        await self._close(None, commits=kind is None)

    # -- reading --------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record; waits as long as it takes. Asking for it says that the one before has
        been processed: an automatic commit may cover that one from now on.
        """
        # One list of decoded records after the other; whatever needs attention empties `_run`.
        for record in self._run:
            return record
        return await self._next_record()

    async def getone(self) -> ConsumerRecord:
        """The next record, as `async for`.

        Raises:
            KafkaError: as `getmany`.
        """
        for record in self._run:
            return record
        return await self._next_record()

    async def getmany(
        self, max_records: int | None = None, timeout_ms: float = 0
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records by partition, in order; {} when none came in time.

        Args:
            max_records: at most so many; None for `max.poll.records`.
            timeout_ms: how long to wait for the first one.

        Raises:
            ClientClosed, ConcurrentUse, WrongEventLoop, InvalidSubscription: misuse.
            CorruptRecords: a batch that cannot be read; the position stays in front of it.
            RecordDeserializationError: a deserializer failed; the position stays at the record.
            PositionOutOfRange, NoOffsetForPartition, LogTruncated: there is no position, and
                `auto.offset.reset` is none.
            AuthorizationFailed, and what else the cluster refuses for good.
        """
        limit = (
            self._config.max_poll_records if max_records is None else record_count_of(max_records)
        )
        self._enter_poll()
        try:
            if not await self._wait_for_records(timeout_ms):
                return {}
            return self._parts.buffer.take(limit)
        finally:
            self._is_polling = False

    async def poll_arrow(
        self, max_records: int | None = None, timeout_ms: float = 0
    ) -> pa.RecordBatch:
        """Records as one Arrow batch, without a Python object per record.

        Its columns are those of Spark's Kafka source: key, value, topic, partition, offset,
        timestamp, timestampType, headers. Deserializers are not applied. An empty batch when
        nothing came in time.

        Args:
            max_records: at most so many; None for all that is there, up to about 64 MiB.
            timeout_ms: how long to wait for the first one.

        Raises:
            KafkaError: as `getmany`.
        """
        from moldau.client.arrow.to_arrow import RowRun, to_arrow

        limit = _UNLIMITED if max_records is None else record_count_of(max_records)
        self._enter_poll()
        try:
            opened: list[tuple[PartitionState, list[OpenBatch]]] = []
            if await self._wait_for_records(timeout_ms):
                opened = self._parts.buffer.open_batches(limit, ARROW_POLL_BYTES)
            cursors = [batch.cursor for _, batches in opened for batch in batches]
            with self._parts.buffer.taking(opened):
                counts, columns = take_columns(cursors, limit, memory=self._arrow_memory)
                kinds = (
                    (*state.topic_partition, batch.timestamp_type)
                    for state, batches in opened
                    for batch in batches
                )
                runs = [RowRun(*kind, count) for kind, count in zip(kinds, counts, strict=True)]
                return to_arrow(runs, columns)
        finally:
            self._is_polling = False

    async def _next_record(self) -> ConsumerRecord:
        """The first record of the next run."""
        self._enter_poll()
        try:
            self._fit_run_limit()
            while True:
                await self._wait_for_records(None)
                run = self._parts.buffer.start_run(self._run_limit)
                if run is not None:
                    self._run = run
                    self._run_started_ms = self._parts.clock.monotonic_ms()
                    return next(run)
        finally:
            self._is_polling = False

    def _fit_run_limit(self) -> None:
        """Longer runs while the user is quick with them, shorter ones when he is not."""
        elapsed_ms = self._parts.clock.monotonic_ms() - self._run_started_ms
        if elapsed_ms < QUICK_RUN_MS:
            self._run_limit = min(self._run_limit * 2, MAX_RUN_RECORDS)
        elif elapsed_ms > SLOW_RUN_MS:
            self._run_limit = max(self._run_limit // 2, 1)

    async def _wait_for_records(self, timeout_ms: float | None) -> bool:
        """Do what polls are for, until there is something to hand out or the time is over."""
        parts = self._parts
        now_ms = parts.clock.monotonic_ms()
        deadline_ms = None if timeout_ms is None else now_ms + timeout_ms
        # Others on the loop get their turn however fast the user polls; nothing is taken yet.
        await asyncio.sleep(0)
        while True:
            if self._closing is not None:
                raise _closed()
            patience_ms = parts.raise_refusal(now_ms)
            if parts.group is not None and parts.group.needs_poll(now_ms):
                await parts.group.poll(self._group_deadline_ms(now_ms, deadline_ms))
            parts.positions.kick()
            parts.fetcher.kick()
            if parts.buffer.has_records:
                return True
            now_ms = parts.clock.monotonic_ms()
            left_ms = None if deadline_ms is None else deadline_ms - now_ms
            if left_ms is not None and left_ms <= 0:
                return False
            if patience_ms is not None:
                left_ms = patience_ms if left_ms is None else min(left_ms, patience_ms)
            await parts.signal.wait(left_ms)
            now_ms = parts.clock.monotonic_ms()

    def _group_deadline_ms(self, now_ms: float, deadline_ms: float | None) -> float:
        if self._parts.buffer.has_records:
            return now_ms
        longest = GROUP_TURN_MS if self._parts.subscription.assignment() else _UNLIMITED
        return now_ms + longest if deadline_ms is None else min(deadline_ms, now_ms + longest)

    def _enter_poll(self) -> None:
        self._check_open()
        if self._closing is not None:
            raise _closed()
        if self._is_polling:
            raise ConcurrentUse(
                "another task is polling this consumer, or its rebalance listener polls: one poll "
                "at a time; give every task a consumer of its own, or share one queue"
            )
        if not self._parts.subscription.is_subscribed:
            raise InvalidSubscription("there is nothing to read: subscribe() or assign() first")
        self._run = iter(_EMPTY)
        self._is_polling = True

    def _interrupt(self) -> None:
        """Something wants a poll to look around: the run of `async for` ends here."""
        self._run = iter(_EMPTY)
        self._parts.signal.set()

    def _check_open(self) -> None:
        if self._parts.is_closed:
            raise _closed()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise WrongEventLoop(
                    "this consumer belongs to another event loop: use it only in the loop in which "
                    "it was first used, or use moldau.client.sync from other threads"
                )
            self._loop = loop

    # -- what is read ---------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, instead of those assigned before; no group decides about it.

        Positions begin at what the group has committed (with a `group.id`), else where
        `auto.offset.reset` says. Partitions that stay keep their position.

        Raises:
            InvalidSubscription: the consumer is subscribed to topics or a pattern.
            ValueError: something that is no partition.
        """
        self._check_open()
        names = partitions_of(partitions)
        self._parts.subscription.assign(names)

    # -- the end --------------------------------------------------------------------------------

    async def close(self, timeout_ms: float | None = None) -> None:
        """Commit what polls have handed out (with `enable.auto.commit`), leave the group (static
        members stay), and close everything. Idempotent; when it is cancelled, closing goes on in
        the background.

        Args:
            timeout_ms: for what needs answers; None for `default.api.timeout.ms`, at most 30 s.
        """
        await self._close(timeout_ms, commits=True)

    async def _close(self, timeout_ms: float | None, *, commits: bool) -> None:
        if self._closing is None:
            limit_ms = (
                min(30_000.0, self._config.default_api_timeout_ms)
                if timeout_ms is None
                else timeout_ms
            )
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._interrupt()
            self._closing = asyncio.create_task(self._parts.close(limit_ms, commits=commits))
        await asyncio.shield(self._closing)

    def __repr__(self) -> str:
        state = "open" if self._closing is None else "closed"
        return f"<Consumer {state} {self._config.client_id or ''}>"


def _closed() -> ClientClosed:
    return ClientClosed("the consumer is closed; make a new one")
