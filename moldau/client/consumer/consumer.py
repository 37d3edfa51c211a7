"""`Consumer`: reading records, with asyncio.

Owns the public face, the rules of a poll (which task may poll, what happens in which order, that
nothing is lost when a poll is cancelled), the wiring of its parts and the order of closing. Must
not know wire formats, assignment protocols or where reading begins (`positions` does). Invariants:
records are taken out of the buffer in the same turn of the loop in which they are returned;
assignments change, listeners run and offsets are committed automatically only inside the user's own
calls; a seek takes effect at once, and what was buffered or under way for the old position is never
handed out; after `close` no task, connection or fetch session of the consumer is left.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, Self, Unpack

from moldau.client.cluster.cluster_client import ClusterClient, ClusterUser
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.config.keywords import ConsumerSettings
from moldau.client.consumer import arguments
from moldau.client.consumer.core.fetch_buffer import FetchBuffer
from moldau.client.consumer.core.partition_records import (
    PartitionRecords,
    ReadOptions,
    deserialize_with,
)
from moldau.client.consumer.core.partition_state import (
    EARLIEST,
    EARLIEST_TIMESTAMP,
    LATEST,
    LATEST_TIMESTAMP,
    UNKNOWN_EPOCH,
    OffsetReset,
    PartitionState,
)
from moldau.client.consumer.core.subscription_state import RebalanceListener, SubscriptionState
from moldau.client.consumer.fetcher import Fetcher
from moldau.client.consumer.positions import OffsetLookup, Positions
from moldau.client.errors import (
    ClientClosed,
    ConcurrentUse,
    InvalidGroupId,
    InvalidSubscription,
    KafkaError,
    NoOffsetForPartition,
    WrongEventLoop,
    error_for,
)
from moldau.client.records import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from moldau.client.serialization import DeserializerLike, Key, Value
from moldau.protocol.reusable_memory import ReusableMemory
from moldau.protocol.types import ZERO_UUID
from moldau.runtime.clock import Clock
from moldau.runtime.ports import Ports
from moldau.runtime.shared_work import outcome_of
from moldau.runtime.signal import Signal

if TYPE_CHECKING:
    import pyarrow as pa

    from moldau.client.consumer.commits import CommitCallback
    from moldau.client.consumer.coordinator import GroupCoordinator

GROUP_TURN_MS: Final = 100.0
"""While some partitions are assigned, joining a group waits at most this long before records are
looked for again: cooperative members go on reading."""

QUICK_RUN_MS: Final = 5.0
SLOW_RUN_MS: Final = 25.0
MAX_RUN_RECORDS: Final = 1_000
"""`async for` hands out as many records as take the user a few milliseconds: other tasks run then,
so that heartbeats are sent in time."""

ARROW_REUSED_BYTES: Final = 16 * 1024 * 1024
"""Memory of batches that are not referred to any more, kept for the next ones."""

SESSION_END_MS: Final = 1_000.0
"""How long closing waits for brokers to forget the fetch sessions, which age by themselves."""

_UNLIMITED: Final = 2**31 - 1
_EMPTY: Final[tuple[ConsumerRecord, ...]] = ()


class Consumer(ClusterUser, Generic[Key, Value]):
    """Reads topics: alone (`assign`), or as a member of a group (`subscribe`).

        async with Consumer("localhost:9092", group_id="g") as consumer:
            consumer.subscribe(["flights"])
            async for record in consumer:
                ...

    States: open → closing → closed. One task polls at a time; the other calls may come from any
    task of the same event loop. Any call may be cancelled: what a cancelled poll did not return,
    the next one does.

    Args:
        bootstrap_servers: "host:port,…": brokers to ask first.
        config: settings by Kafka's dotted names, or a `ConsumerConfig`; `settings` override it.
        key_deserializer, value_deserializer: an object with `deserialize(topic, data)`, or a
            function of the bytes; None leaves bytes. Null stays None. What they return is the
            type of the records' keys and values: `Consumer[str, dict]`.
        ports: clock, network and randomness of a simulation; None for the machine's own.
        settings: the same keys with underscores.

    Raises:
        ConfigurationError: an unknown key (with the nearest name), or a value it cannot have.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "",
        *,
        config: ConsumerConfig | Mapping[str, object] | None = None,
        key_deserializer: DeserializerLike[Key] | None = None,
        value_deserializer: DeserializerLike[Value] | None = None,
        ports: Ports | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        config = ConsumerConfig.resolve(bootstrap_servers, config, settings)
        self._config: ConsumerConfig = config
        self._client: ClusterClient = ClusterClient(
            config, allow_auto_topic_creation=config.allow_auto_create_topics, ports=ports
        )
        self._clock: Clock = self._client.clock
        self._read_committed = config.isolation_level == "read_committed"
        self._signal = Signal(self._clock)
        self._buffer: FetchBuffer = FetchBuffer(config.fetch_buffer_bytes)
        options = ReadOptions(
            check_crcs=config.check_crcs,
            read_committed=self._read_committed,
            deserialize=deserialize_with(key_deserializer, value_deserializer),
        )
        memory = self._buffer.memory
        self._subscription: SubscriptionState = SubscriptionState(
            OffsetReset.of(config.auto_offset_reset),
            lambda name: PartitionRecords(name, options, memory),
        )
        self._lookup = OffsetLookup(self._client, read_committed=self._read_committed)
        self._run: Iterator[ConsumerRecord[Key, Value]] = iter(_EMPTY)
        self._latest_run = self._run
        self._group: GroupCoordinator | None = None
        if config.group_id is not None:
            from moldau.client.consumer.coordinator import GroupCoordinator

            self._group = GroupCoordinator(
                self._client,
                config,
                self._subscription,
                progress=self._left_in_run,
                on_attention=self._interrupt,
            )
        self._positions = Positions(
            self._client,
            config,
            self._subscription,
            self._lookup,
            None if self._group is None else self._group.commits,
            self._positions_found,
        )
        self._fetcher = Fetcher(
            self._client, self._subscription, self._buffer, config, self._signal.set
        )
        self._client.updates.on_update(self._metadata_updated)
        self._subscription.on_change = self._assignment_changed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run_limit = 16
        self._run_started_ms = 0.0
        self._is_polling = False
        self._arrow_memory = ReusableMemory(ARROW_REUSED_BYTES)
        self._closing: asyncio.Task[None] | None = None
        # Listeners may still call the consumer until the group has been left.
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the consumer. When the block is left by an exception nothing is committed
        automatically: what the last poll has handed out may not have been processed.
        """
        await self._close(None, commits=kind is None)

    # -- reading --------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def getone(self) -> ConsumerRecord[Key, Value]:
        """The next record, as in `async for`; waits as long as it takes. Asking for it means that
        the one before has been processed: an automatic commit may cover that one from now on.

        Raises:
            KafkaError: as `getmany`.
        """
        # One list of decoded records after the other; what needs attention empties `_run`.
        for record in self._run:
            return record
        return await self._next_record()

    __anext__ = getone

    async def getmany(
        self, max_records: int | None = None, timeout_ms: float = 0
    ) -> dict[TopicPartition, list[ConsumerRecord[Key, Value]]]:
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
        limit = arguments.record_count_of(max_records, self._config.max_poll_records)
        self._enter_poll()
        try:
            if not await self._wait_for_records(timeout_ms):
                return {}
            return self._buffer.take(limit)
        finally:
            self._leave_poll()

    async def poll_arrow(
        self, max_records: int | None = None, timeout_ms: float = 0
    ) -> pa.RecordBatch:
        """Records as one Arrow batch, without a Python object per record.

        Its columns are those of Spark's Kafka source: key, value, topic, partition, offset,
        timestamp, timestampType, headers. Deserializers are not applied. An empty batch when
        nothing came in time.

        Args:
            max_records: at most so many; None for all that have come, up to about 64 MiB.
            timeout_ms: how long to wait for the first one.

        Raises:
            KafkaError: as `getmany`.
        """
        from moldau.client.arrow.to_arrow import take_rows

        limit = arguments.record_count_of(max_records, _UNLIMITED)
        self._enter_poll()
        try:
            has_records = await self._wait_for_records(timeout_ms)
            return take_rows(self._buffer, limit if has_records else 0, self._arrow_memory)
        finally:
            self._leave_poll()

    async def _next_record(self) -> ConsumerRecord[Key, Value]:
        self._enter_poll()
        try:
            self._fit_run_limit()
            while True:
                await self._wait_for_records(None)
                run = self._buffer.start_run(self._run_limit)
                if run is not None:
                    self._run = self._latest_run = run
                    self._run_started_ms = self._clock.monotonic_ms()
                    return next(run)
        finally:
            self._leave_poll()

    def _fit_run_limit(self) -> None:
        """Longer runs while the user is quick with them, shorter ones otherwise."""
        elapsed_ms = self._clock.monotonic_ms() - self._run_started_ms
        if elapsed_ms < QUICK_RUN_MS:
            self._run_limit = min(self._run_limit * 2, MAX_RUN_RECORDS)
        elif elapsed_ms > SLOW_RUN_MS:
            self._run_limit = max(self._run_limit // 2, 1)

    async def _wait_for_records(self, timeout_ms: float | None) -> bool:
        """Do what is due in polls, until there is something to hand out or the time is over."""
        now_ms = self._clock.monotonic_ms()
        deadline_ms = None if timeout_ms is None else now_ms + timeout_ms
        # Other tasks of the loop run however fast the user polls; nothing is taken yet.
        await asyncio.sleep(0)
        while True:
            if self._closing is not None:
                raise _closed()
            patience_ms = self._fetcher.raise_refusal(now_ms)
            if self._group is not None and self._group.needs_poll(now_ms):
                await self._group.poll(self._group_deadline_ms(now_ms, deadline_ms))
            self._positions.kick()
            self._fetcher.kick()
            if self._buffer.has_records:
                return True
            now_ms = self._clock.monotonic_ms()
            left_ms = None if deadline_ms is None else deadline_ms - now_ms
            if left_ms is not None and left_ms <= 0:
                return False
            if patience_ms is not None:
                left_ms = patience_ms if left_ms is None else min(left_ms, patience_ms)
            await self._signal.wait(left_ms)
            now_ms = self._clock.monotonic_ms()

    def _group_deadline_ms(self, now_ms: float, deadline_ms: float | None) -> float:
        if self._buffer.has_records:
            return now_ms
        longest = GROUP_TURN_MS if self._subscription.assignment() else _UNLIMITED
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
        if not self._subscription.is_subscribed:
            raise InvalidSubscription("there is nothing to read: subscribe() or assign() first")
        self._run = self._latest_run = iter(_EMPTY)
        self._is_polling = True

    def _leave_poll(self) -> None:
        self._is_polling = False
        if self._group is not None:
            self._group.has_polled()

    def _left_in_run(self) -> int:
        """Changes while the user takes records of a run, and not otherwise until the next poll."""
        return self._latest_run.__length_hint__()  # type: ignore[attr-defined, no-any-return]

    def _interrupt(self) -> None:
        """Have a poll look around: the run of `async for` ends here."""
        self._run = iter(_EMPTY)
        self._signal.set()

    def _check_open(self) -> None:
        if self._is_closed:
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
        """Read these partitions, instead of those assigned before; no group is involved.

        Positions begin at what the group has committed (with a `group.id`), else where
        `auto.offset.reset` says. Partitions that stay keep their position.

        Raises:
            InvalidSubscription: the consumer is subscribed to topics or a pattern.
            ValueError: something that is no partition.
        """
        self._check_open()
        self._subscription.assign(arguments.partitions_of(partitions))

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics as a member of the group `group.id`, instead of those subscribed to before.

        The group decides which partitions this member gets, from the next poll on.

        Args:
            topics: by name.
            pattern: all topics whose whole name matches, also those to come. With
                `group.protocol` consumer the broker matches (RE2 syntax), otherwise this client.
            listener: called when partitions come and go, inside polls and `close`.

        Raises:
            InvalidGroupId: there is no `group.id`.
            InvalidSubscription: neither or both of topics and pattern, or another kind of
                subscription is in force.
        """
        self._check_open()
        self._needed_group("subscribe")
        if (topics is None) == (pattern is None):
            raise InvalidSubscription("subscribe() takes either topics or a pattern")
        subscription = self._subscription
        if pattern is not None:
            is_classic = self._config.group_protocol == "classic"
            text = arguments.pattern_of(pattern, is_matched_here=is_classic)
            subscription.subscribe_pattern(text, listener)
        else:
            assert topics is not None
            names = arguments.topic_names_of(topics)
            if not names:
                self.unsubscribe()
                return
            subscription.subscribe(names, listener)
        self._want_topics()
        self._interrupt()

    def unsubscribe(self) -> None:
        """Read nothing any more; the group is left in the background."""
        self._check_open()
        if self._group is not None:
            self._group.unsubscribe()
        self._subscription.unsubscribe()
        self._interrupt()

    def subscription(self) -> set[str]:
        """The topics subscribed to: as named, or those that the pattern matches at the moment."""
        self._check_open()
        return self._subscription.subscription()

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are assigned to this consumer at the moment."""
        self._check_open()
        return self._subscription.assignment()

    # -- the group's offsets --------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Commit positions and wait until they are.

        Args:
            offsets: the next offset to read by partition; None for `positions()`.
            timeout_ms: None for `default.api.timeout.ms`.

        Raises:
            InvalidGroupId: there is no `group.id`.
            CommitFailed: the group has gone on without this member, whose partitions are others'.
            RebalanceInProgress: poll first, then commit again (retriable).
            RequestTimeout: no answer in time; it may have been committed.
        """
        self._check_open()
        await self._needed_group("commit").commit(arguments.commits_of(offsets), timeout_ms)

    def commit_nowait(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit positions without waiting; `callback(offsets, error)`, which may be a coroutine
        function, is called inside a later poll, commit or close.

        Raises:
            InvalidGroupId: there is no `group.id`.
        """
        self._check_open()
        self._needed_group("commit").commit_nowait(arguments.commits_of(offsets), callback)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed, None where nothing is.

        Waits for transactions that are just being committed.

        Raises:
            InvalidGroupId: there is no `group.id`.
            RequestTimeout: no answer in time.
        """
        self._check_open()
        names = arguments.partitions_of(partitions)
        return await self._needed_group("committed").commits.committed(names, timeout_ms)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """This consumer's membership, for `send_offsets` of a transaction (KIP-447).

        Raises:
            InvalidGroupId: there is no `group.id`.
        """
        self._check_open()
        return self._needed_group("group_metadata").group_metadata()

    def _needed_group(self, call: str) -> GroupCoordinator:
        group = self._group
        if group is None:
            raise InvalidGroupId(
                f"{call} needs a group: give the consumer a group_id (group.id), or use assign() "
                "and keep positions elsewhere"
            )
        return group

    # -- moving ---------------------------------------------------------------------------------

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Read on from `offset`; with an OffsetAndMetadata that has a leader epoch, the log is
        checked for having been truncated since (KIP-320), once brokers name a leader of that epoch
        or a newer one.

        With one that has a topic id, only the topic with this id is read from there. Where the
        brokers keep saying that the topic of this name has another id, `auto.offset.reset` decides
        as for any topic that is deleted and created again; with `none`, polls raise
        NoOffsetForPartition.

        Raises:
            NotAssigned: the partition is not this consumer's.
            ValueError: the offset is below zero.
        """
        self._check_open()
        epoch, topic_id = UNKNOWN_EPOCH, ZERO_UUID
        if isinstance(offset, OffsetAndMetadata):
            epoch = UNKNOWN_EPOCH if offset.leader_epoch is None else offset.leader_epoch
            topic_id = offset.topic_id or ZERO_UUID
            offset = offset.offset
        state = self._state(topic_partition)
        state.seek(arguments.offset_of(offset), epoch, topic_id)
        if topic_id != ZERO_UUID:
            self._client.expect_topic(topic_partition.topic, topic_id)
            self._positions.leaders_changed()
        self._client.expect_epoch(*topic_partition, epoch)
        self._moved()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on from the first record of these partitions (of all assigned ones without any)."""
        await self._seek_by(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read only what comes from now on in these partitions (in all assigned ones without
        any); with read_committed, from the last stable offset.
        """
        await self._seek_by(LATEST, partitions)

    async def seek_to_time(self, times: Mapping[TopicPartition, int]) -> None:
        """Read on from the first record at or after a time, in milliseconds since 1970 UTC; from
        the end where there is none.
        """
        self._check_open()
        times = arguments.times_of(times)
        states = {name: self._state(name) for name in times}
        found = await self.offsets_for_times(times)
        for name, state in states.items():
            answer = found[name]
            if answer is not None:
                state.seek(answer.offset)
            else:
                state.request_reset(LATEST)
        self._moved()
        await self._until_known(states.values(), None)

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Go back to what the group has committed in these partitions (in all assigned ones
        without any), as after an aborted transaction; where nothing is committed,
        `auto.offset.reset` decides.
        """
        self._check_open()
        states = self._states(partitions)
        missing = self._positions.begin_at(states, await self._positions.committed(states))
        self._moved()
        if missing:
            raise NoOffsetForPartition(state.topic_partition for state in missing)
        await self._until_known(states, None)

    async def _seek_by(self, reset: OffsetReset, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        states = self._states(partitions)
        for state in states:
            state.request_reset(reset)
        self._moved()
        await self._until_known(states, None)

    # -- where it stands ------------------------------------------------------------------------

    async def position(
        self, topic_partition: TopicPartition, timeout_ms: float | None = None
    ) -> int:
        """The offset of the next record to be handed out.

        Waits until it is known, for `default.api.timeout.ms` unless `timeout_ms` says otherwise.

        Raises:
            NotAssigned: the partition is not this consumer's.
            RequestTimeout: it could not be found out in time.
        """
        self._check_open()
        state = self._state(topic_partition)
        if not state.has_position:
            await self._until_known([state], timeout_ms)
        return state.records.position

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions after what has been handed out, for every assigned partition that has
        one: what `commit()` commits, and what a transaction's `send_offsets` sends.
        """
        self._check_open()
        return self._subscription.all_consumed()

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """How many offsets the position is behind the end of the log (with read_committed: the
        last stable offset), as of the last fetch; None before the first one.
        """
        self._check_open()
        state = self._state(topic_partition)
        end = state.last_stable_offset if self._read_committed else state.high_watermark
        if end < 0 or not state.has_position:
            return None
        return max(end - state.records.position, 0)

    # -- pausing --------------------------------------------------------------------------------

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these until `resume`. What is fetched already is kept, and they stay
        assigned to this consumer.
        """
        self._check_open()
        for state in [self._state(name) for name in partitions]:
            state.paused = True
            state.records.own_bytes()
        self._moved()

    def resume(self, *partitions: TopicPartition) -> None:
        """Hand out records of these again."""
        self._check_open()
        for state in [self._state(name) for name in partitions]:
            state.paused = False
            self._buffer.line_up(state)
        self._moved()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        self._check_open()
        states = self._subscription.states()
        return {state.topic_partition for state in states if state.paused}

    # -- looking up -----------------------------------------------------------------------------

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time, in milliseconds since 1970 UTC; None where there is
        none. The partitions need not be assigned.

        Raises:
            ValueError: a time below zero.
            UnknownTopicOrPartition, RequestTimeout: it could not be found out in time.
        """
        self._check_open()
        return await self._lookup.by_time(arguments.times_of(times), timeout_ms)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record in each log. The partitions need not be assigned."""
        return await self._ends(partitions, EARLIEST_TIMESTAMP, timeout_ms)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each log: the high watermark, or with
        read_committed the last stable offset. The partitions need not be assigned.
        """
        return await self._ends(partitions, LATEST_TIMESTAMP, timeout_ms)

    async def partitions_for(self, topic: str, timeout_ms: float | None = None) -> list[int]:
        """The topic's partitions, in order.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
        """
        self._check_open()
        client = self._client

        async def attempt() -> list[int]:
            await client.refresh_metadata([topic])
            found = client.metadata.topics.get(topic)
            if found is None:
                raise error_for(client.metadata.problem(topic, 0), None, f"topic {topic}")
            return sorted(found.partitions)

        return await client.retry(attempt, what=f"describe topic {topic}", timeout_ms=timeout_ms)

    async def _ends(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout_ms: float | None
    ) -> dict[TopicPartition, int]:
        self._check_open()
        targets = dict.fromkeys(arguments.partitions_of(partitions), timestamp)
        found = await self._lookup.find(targets, timeout_ms)
        return {name: max(each.offset, 0) for name, each in found.items()}

    def _state(self, topic_partition: TopicPartition) -> PartitionState:
        return self._subscription.state_of(arguments.partition_of(topic_partition))

    def _states(self, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        names = list(partitions)
        if not names:
            return list(self._subscription.states())
        return [self._state(name) for name in names]

    def _moved(self) -> None:
        """A position or a pause has changed: hand out and fetch accordingly."""
        self._interrupt()
        self._fetcher.look()

    async def _until_known(
        self, states: Iterable[PartitionState], timeout_ms: float | None
    ) -> None:
        await self._positions.until_known(states, timeout_ms, self._check_open)

    # -- its parts ------------------------------------------------------------------------------

    def _want_topics(self) -> None:
        """Have the metadata of everything that is read, and nothing else, kept fresh."""
        subscription = self._subscription
        if subscription.pattern is None or self._config.group_protocol != "classic":
            assigned = {name.topic for name in subscription.assignment()}
            self._client.updates.want(subscription.topics | assigned)

    def _positions_found(self) -> None:
        self._fetcher.look()
        self._signal.set()

    def _assignment_changed(self) -> None:
        if not self._is_closed:
            self._want_topics()
            self._positions.leaders_changed()
            self._fetcher.changed()
            self._interrupt()

    def _metadata_updated(self) -> None:
        self._positions.leaders_changed()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self._fetcher.look()
        # A topic that is refused, a position to be validated: the next poll has to look.
        if self._subscription.is_unsettled or self._client.metadata.topic_errors:
            self._interrupt()

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
            if timeout_ms is None:
                timeout_ms = min(30_000.0, self._config.default_api_timeout_ms)
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._interrupt()
            self._closing = asyncio.create_task(self._shut_down(timeout_ms, commits=commits))
        await outcome_of(self._closing)

    async def _shut_down(self, timeout_ms: float, *, commits: bool) -> None:
        """Leave the group, end the fetch sessions, close the connections, in this order."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        failure: KafkaError | None = None
        try:
            if self._group is not None:
                await self._group.close(deadline_ms, commits=commits)
        except KafkaError as error:
            failure = error
        finally:
            self._is_closed = True
            left_ms = max(deadline_ms - self._clock.monotonic_ms(), 0.0)
            try:
                await self._fetcher.end_sessions(min(left_ms, SESSION_END_MS))
            finally:
                await self._client.close()
                await self._fetcher.join()
                await self._positions.close()
                self._subscription.assign_from_group([])
                self._signal.set()
                self._positions.settled.set()
        if failure is not None:
            raise failure


def _closed() -> ClientClosed:
    return ClientClosed("the consumer is closed; make a new one")
