"""What is prefetched for a consumer: which partition is read next, and how much is in memory.

Owns the queue of partitions that have records, and the count of bytes. Must not fetch, nor know
positions (a partition's records do). Invariants: a partition is in the queue at most once; it is
read to the end of what it had when its turn came, then the next one is served, so that a partition
that always has more never starves the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.client.consumer.core.partition_records import Chunk, FrameMemory, OpenBatch
from moldau.client.consumer.core.partition_state import NO_TURN, PartitionState
from moldau.client.errors import KafkaError
from moldau.client.records import ConsumerRecord, TopicPartition
from moldau.protocol.records import InvalidBatch


class FetchBuffer:
    """The prefetched records of all partitions of one consumer, full at `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.memory: FrameMemory = FrameMemory()
        self._limit_bytes = limit_bytes
        self._queue: deque[PartitionState] = deque()

    @property
    def is_full(self) -> bool:
        return self.memory.pinned_bytes >= self._limit_bytes

    def add(self, state: PartitionState, chunk: Chunk) -> bool:
        """Take what came for a partition; False when it holds not even one whole batch."""
        if not state.records.append(chunk):
            return False
        if state.paused:
            state.records.own_bytes()
        self.line_up(state)
        return True

    def line_up(self, state: PartitionState) -> None:
        """Queue the partition, if it has something that may be handed out (also after a pause)."""
        if not state.is_ready and state.may_hand_out and not state.records.is_empty:
            state.is_ready = True
            state.turn_end = NO_TURN
            self._queue.append(state)

    @property
    def has_records(self) -> bool:
        """Whether some partition has something to hand out (or a fault to raise)."""
        return self._first() is not None

    def take(self, max_records: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """At most `max_records`, partition by partition. Raises a partition's fault, when nothing
        comes before it. What is buffered of that partition is dropped and fetched again, as the
        fault may have been the transport's.
        """
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        left = max_records
        while left > 0:
            state = self._first()
            if state is None:
                break
            try:
                records = state.records.take(left)
            except KafkaError:
                if taken:
                    break
                self._drop(state)
                raise
            if records:
                left -= len(records)
                name = state.topic_partition
                if name in taken:
                    taken[name] += records
                else:
                    taken[name] = records
            if state.records.is_empty:
                self._next_turn(state)
        return taken

    def start_run(self, max_records: int) -> Iterator[ConsumerRecord] | None:
        """An iterator over at most `max_records` of one partition; advancing it hands them out.
        None when there is nothing. Raises as `take`.
        """
        while (state := self._first()) is not None:
            try:
                run = state.records.start_run(max_records)
            except KafkaError:
                self._drop(state)
                raise
            if run.__length_hint__():  # type: ignore[attr-defined]
                return run
            self._next_turn(state)
        return None

    def open_batches(
        self, max_records: int, max_bytes: int
    ) -> list[tuple[PartitionState, list[OpenBatch]]]:
        """Open batches of as many partitions as it takes for so many records or bytes, for taking
        rows off their cursors in that order, inside `taking`. Raises as `take`.
        """
        opened: list[tuple[PartitionState, list[OpenBatch]]] = []
        states = [state for state in self._queue if state.may_hand_out]
        for state in states:
            if max_records <= 0 or max_bytes <= 0:
                break
            try:
                batches = state.records.open_batches(max_records, max_bytes)
            except KafkaError:
                if opened:
                    break
                self._drop(state)
                raise
            if batches:
                opened.append((state, batches))
                max_records -= sum(batch.cursor.remaining for batch in batches)
                max_bytes -= sum(len(batch.section) for batch in batches)
            elif state.records.is_empty:
                self._next_turn(state)
        return opened

    @contextmanager
    def taking(self, opened: list[tuple[PartitionState, list[OpenBatch]]]) -> Iterator[None]:
        """Around taking rows off the cursors of `open_batches`: positions follow afterwards. When
        the block raises, nothing counts as taken. Raises: CorruptRecords in place of InvalidBatch.
        """
        try:
            yield
        except InvalidBatch as error:
            for state, _ in opened:
                state.records.rewind()
            state = next(state for state, _ in opened if not state.records.is_empty)
            corrupt = state.records.unreadable(error)
            self._drop(state)
            raise corrupt from error
        except BaseException:
            for state, _ in opened:
                state.records.rewind()
            raise
        for state, batches in opened:
            state.records.batches_taken()
            if batches[-1].cursor.is_exhausted:
                self._next_turn(state)

    def _first(self) -> PartitionState | None:
        """The partition whose turn it is; those that may not be served now leave the queue."""
        while self._queue:
            state = self._queue[0]
            records = state.records
            records.settle()
            if not state.may_hand_out or records.is_empty:
                self._queue.popleft()
                state.is_ready = False
            elif state.turn_end == NO_TURN:
                state.turn_end = records.fetch_offset
            elif records.position >= state.turn_end and not records.has_fault:
                self._queue.rotate(-1)
                state.turn_end = NO_TURN
            else:
                return state
        return None

    def _next_turn(self, state: PartitionState) -> None:
        if state.is_ready:
            self._queue.remove(state)
            state.is_ready = False
        self.line_up(state)

    def _drop(self, state: PartitionState) -> None:
        state.forget_buffered()
        self._next_turn(state)
