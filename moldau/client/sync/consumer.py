"""The blocking consumer: `moldau.client.Consumer` for threads, scripts and notebooks.

Owns iteration without a call to the portal's thread per record, and the way of listeners to the
thread that polls. Must not keep records or positions of its own. Invariant: a record counts as
handed out exactly when the user has it; what an interrupted poll had taken is taken back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Self, Unpack

from moldau.client.config.consumer import ConsumerConfig
from moldau.client.config.keywords import ConsumerSettings
from moldau.client.consumer.consumer import Consumer as AsyncConsumer
from moldau.client.consumer.core.subscription_state import RebalanceListener
from moldau.client.errors import KafkaError
from moldau.client.records import ConsumerRecord, OffsetAndMetadata, TopicPartition
from moldau.client.serialization import DeserializerLike, Key, Value
from moldau.client.sync.client import BlockingClient, face_of, quick_face_of
from moldau.client.sync.portal import Callers, Kept

if TYPE_CHECKING:
    import pyarrow as pa

    from moldau.client.consumer.commits import CommitCallback


class Consumer(BlockingClient[AsyncConsumer[Key, Value]], Generic[Key, Value]):
    """Reads topics: alone (`assign`), or as a member of a group (`subscribe`).

        with Consumer("localhost:9092", group_id="g") as consumer:
            consumer.subscribe(["flights"])
            for record in consumer:
                ...

    Arguments, calls and errors are those of `moldau.client.Consumer`; here they block. One thread
    polls at a time, the other calls may come from any thread. Rebalance listeners and callbacks of
    `commit_nowait` are plain functions, called in the thread that polls or closes, where they may
    use the consumer; deserializers run in the background thread.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "",
        *,
        config: ConsumerConfig | Mapping[str, object] | None = None,
        key_deserializer: DeserializerLike[Key] | None = None,
        value_deserializer: DeserializerLike[Value] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._callers: Callers = Callers()
        resolved = ConsumerConfig.resolve(bootstrap_servers, config, settings)
        super().__init__(
            lambda: AsyncConsumer(
                config=resolved,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
            )
        )

    # -- reading --------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def getone(self) -> ConsumerRecord[Key, Value]:
        """The next record, as in a `for` loop, and as `moldau.client.Consumer.getone`."""
        # A run is a list iterator, which threads may share; the position is behind what it has
        # given to any thread. Only the next run needs a call to the portal's thread.
        for record in self._inner._run:
            return record
        kept: Kept[ConsumerRecord[Key, Value]] = Kept(
            self._inner.getone, self._take_back_one, self._portal.call
        )
        try:
            self._call(kept.run, callers=self._callers)
            return kept.result
        except BaseException:
            kept.give_back()
            raise

    __next__ = getone

    def getmany(
        self, max_records: int | None = None, timeout_ms: float = 0
    ) -> dict[TopicPartition, list[ConsumerRecord[Key, Value]]]:
        """Records by partition, in order; {} when none came in time, as
        `moldau.client.Consumer.getmany`.
        """
        kept: Kept[dict[TopicPartition, list[ConsumerRecord[Key, Value]]]] = Kept(
            self._inner.getmany, self._take_back_all, self._portal.call
        )
        try:
            self._call(kept.run, max_records, timeout_ms, callers=self._callers)
            return kept.result
        except BaseException:
            kept.give_back()
            raise

    def poll_arrow(self, max_records: int | None = None, timeout_ms: float = 0) -> pa.RecordBatch:
        """Records as one Arrow batch, without a Python object per record, as
        `moldau.client.Consumer.poll_arrow`.
        """
        kept: Kept[pa.RecordBatch] = Kept(
            self._inner.poll_arrow, self._take_back_rows, self._portal.call
        )
        try:
            self._call(kept.run, max_records, timeout_ms, callers=self._callers)
            return kept.result
        except BaseException:
            kept.give_back()
            raise

    def _take_back_one(self, record: ConsumerRecord) -> None:
        self._seek_back({record.topic_partition: record.offset})

    def _take_back_all(self, polled: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        self._seek_back({name: records[0].offset for name, records in polled.items() if records})

    def _take_back_rows(self, batch: pa.RecordBatch) -> None:
        first: dict[TopicPartition, int] = {}
        columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        for topic, partition, offset in zip(*columns, strict=True):
            first.setdefault(TopicPartition(topic, partition), offset)
        self._seek_back(first)

    def _seek_back(self, first_offsets: Mapping[TopicPartition, int]) -> None:
        """Have the next poll return again what was taken when the caller was interrupted. On the
        loop.
        """
        for name, offset in first_offsets.items():
            try:
                self._inner.seek(name, offset)
            except (KafkaError, ValueError):
                continue  # closed, or assigned to another member, which begins at what is committed

    # -- what is read ---------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics as a member of the group `group.id`, instead of those subscribed to before,
        as `moldau.client.Consumer.subscribe`.

        Args:
            listener: called when partitions come and go, in the thread that polls or closes; its
                methods are plain functions and may use the consumer.
        """
        wrapped = None if listener is None else _InCaller(listener, self._callers)
        self._call_now(partial(self._inner.subscribe, topics, pattern=pattern, listener=wrapped))

    assign: Final = quick_face_of(AsyncConsumer.assign)
    unsubscribe: Final = quick_face_of(AsyncConsumer.unsubscribe)
    subscription: Final = quick_face_of(AsyncConsumer.subscription)
    assignment: Final = quick_face_of(AsyncConsumer.assignment)
    pause: Final = quick_face_of(AsyncConsumer.pause)
    resume: Final = quick_face_of(AsyncConsumer.resume)
    paused: Final = quick_face_of(AsyncConsumer.paused)

    # -- positions ------------------------------------------------------------------------------

    seek: Final = quick_face_of(AsyncConsumer.seek)
    seek_to_beginning: Final = face_of(AsyncConsumer.seek_to_beginning)
    seek_to_end: Final = face_of(AsyncConsumer.seek_to_end)
    seek_to_time: Final = face_of(AsyncConsumer.seek_to_time)
    seek_to_committed: Final = face_of(AsyncConsumer.seek_to_committed)
    position: Final = face_of(AsyncConsumer.position)
    positions: Final = quick_face_of(AsyncConsumer.positions)
    lag: Final = quick_face_of(AsyncConsumer.lag)
    offsets_for_times: Final = face_of(AsyncConsumer.offsets_for_times)
    beginning_offsets: Final = face_of(AsyncConsumer.beginning_offsets)
    end_offsets: Final = face_of(AsyncConsumer.end_offsets)
    partitions_for: Final = face_of(AsyncConsumer.partitions_for)

    # -- the group ------------------------------------------------------------------------------

    commit: Final = face_of(AsyncConsumer.commit, runs_errands=True)

    def commit_nowait(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit positions without waiting; `callback(offsets, error)` is called inside a later
        poll, commit or close, in the thread that makes it.

        Raises:
            InvalidGroupId: there is no `group.id`.
        """
        told: CommitCallback | None = None
        if callback is not None:
            given = callback

            async def told(
                offsets: Mapping[TopicPartition, OffsetAndMetadata], error: KafkaError | None
            ) -> None:
                await self._callers.run(given, offsets, error)

        self._call_now(partial(self._inner.commit_nowait, offsets, told))

    committed: Final = face_of(AsyncConsumer.committed)
    group_metadata: Final = quick_face_of(AsyncConsumer.group_metadata)

    # -- the end --------------------------------------------------------------------------------

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """As `moldau.client.Consumer`: left by an exception, nothing is committed automatically."""
        if kind is None:
            self.close()
        else:
            self._close(self._closed_without_commit, callers=self._callers)

    async def _closed_without_commit(self) -> None:
        await self._inner._close(None, commits=False)

    def close(self, timeout_ms: float | None = None) -> None:
        """Commit, leave the group and close everything, as `moldau.client.Consumer.close`.
        Interrupted, it goes on in the background.
        """
        self._close(self._inner.close, timeout_ms, callers=self._callers)


class _InCaller(RebalanceListener):
    """Calls a listener in the thread that polls."""

    def __init__(self, listener: RebalanceListener, callers: Callers) -> None:
        self._listener = listener
        self._callers = callers

    async def on_partitions_revoked(self, partitions: AbstractSet[TopicPartition]) -> None:
        await self._callers.run(self._listener.on_partitions_revoked, partitions)

    async def on_partitions_assigned(self, partitions: AbstractSet[TopicPartition]) -> None:
        await self._callers.run(self._listener.on_partitions_assigned, partitions)

    async def on_partitions_lost(self, partitions: AbstractSet[TopicPartition]) -> None:
        await self._callers.run(self._listener.on_partitions_lost, partitions)
