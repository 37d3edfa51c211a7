"""The consumer's calls about positions: seek, pause, ends of logs, offsets by time, lag.

Owns these calls, as a base class of `Consumer`. Must not poll. Invariant: a seek takes effect at
once; what was buffered or under way for the old position is never handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.client.consumer.arguments import offset_of, partition_of, partitions_of, times_of
from moldau.client.consumer.core.offset_reset import (
    EARLIEST,
    EARLIEST_TIMESTAMP,
    LATEST,
    LATEST_TIMESTAMP,
    OffsetReset,
)
from moldau.client.consumer.core.partition_state import UNKNOWN_EPOCH, FetchState, PartitionState
from moldau.client.errors import NoOffsetForPartition, RequestTimeout, error_for
from moldau.client.records import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from moldau.protocol.types import ZERO_UUID

if TYPE_CHECKING:
    from moldau.client.config.consumer import ConsumerConfig
    from moldau.client.consumer.consumer_parts import ConsumerParts


class PositionCalls:
    """See the module; `Consumer` is the rest of it."""

    _config: ConsumerConfig
    _parts: ConsumerParts

    def _check_open(self) -> None:
        raise NotImplementedError

    def _interrupt(self) -> None:
        raise NotImplementedError

    # -- moving ---------------------------------------------------------------------------------

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Read on from `offset`; with an OffsetAndMetadata that knows its leader epoch, the log is
        checked for having been cut meanwhile (KIP-320).

        With one that knows its topic id, only the topic with this id is read from there. Where the
        brokers tell on and on that the topic of this name has another id, `auto.offset.reset`
        decides as for any topic that is deleted and created again; with `none`, polls raise
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
        state.seek(offset_of(offset), epoch, topic_id)
        if topic_id != ZERO_UUID:
            self._parts.client.expect_topic(topic_partition.topic, topic_id)
            self._parts.positions.leaders_changed()
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
        times = times_of(times)
        states = {name: self._state(name) for name in times}
        found = await self.offsets_for_times(times)
        for name, state in states.items():
            answer = found[name]
            if answer is not None:
                state.seek(answer.offset)
            else:
                state.request_reset(LATEST)
        self._moved()
        await self._until_positioned(states.values(), None)

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Go back to what the group has committed in these partitions (in all assigned ones
        without any), as after an aborted transaction; where nothing is committed,
        `auto.offset.reset` decides.
        """
        self._check_open()
        states = self._states(partitions)
        group = self._parts.group
        committed: Mapping[TopicPartition, OffsetAndMetadata | None] = {}
        if group is not None:
            committed = await group.committed([state.topic_partition for state in states])
        missing = []
        for state in states:
            found = committed.get(state.topic_partition)
            if found is not None:
                epoch = UNKNOWN_EPOCH if found.leader_epoch is None else found.leader_epoch
                state.seek(found.offset, epoch)
            elif self._parts.subscription.may_reset:
                state.request_reset(self._parts.subscription.default_reset)
            else:
                missing.append(state.topic_partition)
        self._moved()
        if missing:
            raise NoOffsetForPartition(missing)
        await self._until_positioned(states, None)

    async def _seek_by(self, reset: OffsetReset, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        states = self._states(partitions)
        for state in states:
            state.request_reset(reset)
        self._moved()
        await self._until_positioned(states, None)

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
            await self._until_positioned([state], timeout_ms)
        return state.records.position

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions after what has been handed out, for every assigned partition that has
        one: what `commit()` commits, and what a transaction's `send_offsets` sends.
        """
        self._check_open()
        return self._parts.subscription.all_consumed()

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """How many offsets the position is behind the end of the log (with read_committed: behind
        the last stable offset), as of the last fetch; None before the first one.
        """
        self._check_open()
        state = self._state(topic_partition)
        end = state.last_stable_offset if self._parts.read_committed else state.high_watermark
        if end < 0 or not state.has_position:
            return None
        return max(end - state.records.position, 0)

    # -- pausing --------------------------------------------------------------------------------

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these until `resume`. What is fetched already is kept; the group
        goes on counting them as this consumer's.
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
            self._parts.buffer.line_up(state)
        self._moved()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        self._check_open()
        states = self._parts.subscription.states()
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
        found = await self._parts.lookup.find(times_of(times), timeout_ms)
        return {
            name: None
            if each.offset < 0
            else OffsetAndTimestamp(
                each.offset,
                each.timestamp_ms,
                each.leader_epoch if each.leader_epoch >= 0 else None,
            )
            for name, each in found.items()
        }

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
        client = self._parts.client

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
        targets = dict.fromkeys(partitions_of(partitions), timestamp)
        found = await self._parts.lookup.find(targets, timeout_ms)
        return {name: max(each.offset, 0) for name, each in found.items()}

    # -- inner workings -------------------------------------------------------------------------

    def _state(self, topic_partition: TopicPartition) -> PartitionState:
        return self._parts.subscription.state_of(partition_of(topic_partition))

    def _states(self, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        names = list(partitions)
        if not names:
            return list(self._parts.subscription.states())
        return [self._state(name) for name in names]

    def _moved(self) -> None:
        """A position or a pause has changed: what is handed out and fetched next has, too."""
        self._interrupt()
        self._parts.fetcher.look()

    async def _until_positioned(
        self, states: Iterable[PartitionState], timeout_ms: float | None
    ) -> None:
        """Until all of them have a position, or are not this consumer's any more."""
        parts = self._parts
        limit_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = parts.clock.monotonic_ms() + limit_ms
        waiting = list(states)
        while True:
            waiting = [
                state
                for state in waiting
                if state.state in (FetchState.INITIALIZING, FetchState.RESETTING)
                and parts.subscription.get(state.topic_partition) is state
            ]
            if not waiting:
                return
            self._check_open()
            parts.positions.kick()
            left_ms = deadline_ms - parts.clock.monotonic_ms()
            if left_ms <= 0:
                names = ", ".join(str(state.topic_partition) for state in waiting)
                raise RequestTimeout(
                    f"the position of {names} was not found out within {limit_ms:.0f} ms: see "
                    "whether its leader can be reached"
                )
            await parts.settled.wait(left_ms)
