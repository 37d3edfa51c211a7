"""From where each partition is read: committed offsets, resets, and checks against new leaders.

Owns finding that out, in one background task that runs while a position is missing and was started
by a poll. Must not fetch records. Invariants: a seek of the user's always wins over what is found
out at the same time; an error that the user has to know is raised by the next poll, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.signal import Signal
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.commits import Commits
from moldau.client.consumer.core.partition_state import (
    LATEST,
    UNKNOWN_EPOCH,
    FetchState,
    PartitionState,
    ResetKind,
)
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.consumer.offset_lookup import UNKNOWN_OFFSET, EpochEnd, OffsetLookup
from moldau.client.errors import KafkaError, LogTruncated, NoOffsetForPartition, RequestTimeout
from moldau.client.records import OffsetAndMetadata
from moldau.protocol.types import TopicPartition

logger: Final = logging.getLogger("moldau.client.consumer")


class Positions:
    """Gives every assigned partition a position. States: idle ⇄ working → closed. `on_news` is
    called, and `settled` set, when something has been found out or has gone wrong.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        lookup: OffsetLookup,
        commits: Commits | None,
        on_news: Callable[[], None],
    ) -> None:
        self._client = client
        self._config = config
        self._subscription = subscription
        self._lookup = lookup
        self._commits = commits
        self._clock = client.clock
        self._on_news = on_news
        self._signal = Signal(client.clock)
        self.settled: Signal = Signal(client.clock)
        self._task: asyncio.Task[None] | None = None
        self._error: KafkaError | None = None
        self._closed = False

    def kick(self) -> None:
        """Find out the positions that are missing: called by every poll. Raises: KafkaError, what
        went wrong since the last call.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if not self._subscription.is_unsettled or self._closed:
            return
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="find out positions")
            self._task.add_done_callback(self._ended)
        else:
            self._signal.set()

    def leaders_changed(self) -> None:
        """The metadata have been updated: positions are checked where the leader is new, and begin
        where `auto.offset.reset` says when the topic is another one of the same name. With `none` a
        poll raises NoOffsetForPartition.
        """
        topics = self._client.metadata.topics
        recreated: set[str] = set()
        for state in self._subscription.states():
            name, partition = state.topic_partition
            topic = topics.get(name)
            if topic is None:
                continue
            if state.topic_seen(topic.topic_id) and self._subscription.may_reset:
                recreated.add(name)
                state.request_reset(self._subscription.default_reset)
            found = topic.partitions.get(partition)
            if found is not None:
                state.leader_seen(found.leader, found.leader_epoch)
        for name in sorted(recreated):
            logger.warning(
                "topic %s was deleted and created again (its id is %s now): what was not read of "
                "the former one is gone; the new one is read from where auto.offset.reset=%s says",
                name,
                topics[name].topic_id,
                self._subscription.default_reset,
            )
        self._signal.set()

    async def until_known(
        self,
        states: Iterable[PartitionState],
        timeout_ms: float | None,
        check: Callable[[], None],
    ) -> None:
        """Return when all of them have a position, or are not assigned any more. Calls `check`
        before each wait. Raises: RequestTimeout; what `check` raises; KafkaError as `kick`.
        """
        limit_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        waiting = list(states)
        while True:
            waiting = [
                state
                for state in waiting
                if state.state in (FetchState.INITIALIZING, FetchState.RESETTING)
                and self._subscription.get(state.topic_partition) is state
            ]
            if not waiting:
                return
            check()
            self.kick()
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                names = ", ".join(str(state.topic_partition) for state in waiting)
                raise RequestTimeout(
                    f"the position of {names} was not found out within {limit_ms:.0f} ms: see "
                    "whether its leader can be reached"
                )
            await self.settled.wait(left_ms)

    async def committed(
        self, states: Iterable[PartitionState]
    ) -> Mapping[TopicPartition, OffsetAndMetadata | None]:
        if self._commits is None:
            return {}
        return await self._commits.committed([state.topic_partition for state in states])

    def begin_at(
        self,
        states: Iterable[PartitionState],
        committed: Mapping[TopicPartition, OffsetAndMetadata | None],
    ) -> list[PartitionState]:
        """Read on from what is committed, else as `auto.offset.reset` says. Returns the partitions
        for which it says nothing.
        """
        missing = []
        for state in states:
            found = committed.get(state.topic_partition)
            if found is not None:
                epoch = UNKNOWN_EPOCH if found.leader_epoch is None else found.leader_epoch
                state.seek(found.offset, epoch)
            elif self._subscription.may_reset:
                state.request_reset(self._subscription.default_reset)
            else:
                missing.append(state)
        return missing

    async def close(self) -> None:
        """Wait until the task has ended: after the client has closed."""
        self._closed = True
        self._signal.set()
        while self._task is not None:
            await asyncio.wait([self._task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        fault = None if task.cancelled() else task.exception()
        if isinstance(fault, KafkaError):
            self._error = fault
        elif fault is not None and not self._closed:
            self._error = KafkaError(f"finding out positions failed: {fault!r}", final=True)
            self._error.__cause__ = fault
        if not self._closed:
            self._news()

    def _news(self) -> None:
        self.settled.set()
        self._on_news()

    async def _work(self) -> None:
        while not self._closed:
            self._subscription.is_unsettled = False
            pending = [
                state
                for state in self._subscription.states()
                if state.state is not FetchState.FETCHING
            ]
            if not pending:
                return
            self._subscription.is_unsettled = True
            now_ms = self._clock.monotonic_ms()
            due = [state for state in pending if state.retry_at_ms <= now_ms]
            if not due:
                await self._signal.wait(min(state.retry_at_ms for state in pending) - now_ms)
                continue
            await self._initialize([each for each in due if each.state is FetchState.INITIALIZING])
            await self._reset([each for each in due if each.state is FetchState.RESETTING])
            await self._validate([each for each in due if each.state is FetchState.VALIDATING])
            self._news()

    async def _initialize(self, states: list[PartitionState]) -> None:
        if not states:
            return
        try:
            committed = await self.committed(states)
        except KafkaError as error:
            self._rest_or_raise(states, error)
            return
        # A seek, or a revocation, may have come while the answer was under way.
        missing = self.begin_at(
            [each for each in states if each.state is FetchState.INITIALIZING], committed
        )
        if missing:
            for state in missing:
                state.retry_at_ms = self._clock.monotonic_ms() + self._config.retry_backoff_ms
            raise NoOffsetForPartition(state.topic_partition for state in missing)

    async def _reset(self, states: list[PartitionState]) -> None:
        wanted = {
            state.topic_partition: (state, state.reset)
            for state in states
            if state.reset is not None
        }
        now_ms = self._clock.now_ms()
        targets = {name: reset.timestamp_ms(now_ms) for name, (_, reset) in wanted.items()}
        if not targets:
            return
        answers = await self._lookup.offsets(targets)
        beyond = {}
        for name, answer in answers.items():
            state, reset = wanted[name]
            if isinstance(answer, KafkaError):
                self._rest_or_raise([state], answer)
            elif answer.offset == UNKNOWN_OFFSET and reset.kind is ResetKind.BY_DURATION:
                beyond[name] = LATEST.timestamp_ms(now_ms)
            else:
                state.position_reset(reset, max(answer.offset, 0), answer.leader_epoch)
        # No record is that young: begin with the next one.
        for name, answer in (await self._lookup.offsets(beyond) if beyond else {}).items():
            state, reset = wanted[name]
            if isinstance(answer, KafkaError):
                self._rest_or_raise([state], answer)
            else:
                state.position_reset(reset, max(answer.offset, 0), answer.leader_epoch)

    async def _validate(self, states: list[PartitionState]) -> None:
        asked = {}
        for state in states:
            epoch = state.records.position_epoch
            if epoch == UNKNOWN_EPOCH:
                state.validated(state.generation)
            else:
                asked[state.topic_partition] = (state, state.generation, epoch)
        if not asked:
            return
        answers = await self._lookup.epoch_ends({name: each[2] for name, each in asked.items()})
        truncated: LogTruncated | None = None
        for name, answer in answers.items():
            state, generation, _epoch = asked[name]
            if state.generation != generation or state.state is not FetchState.VALIDATING:
                continue
            if isinstance(answer, KafkaError):
                self._rest_or_raise([state], answer)
            else:
                truncated = self._compare(state, answer) or truncated
        if truncated is not None:
            raise truncated

    def _compare(self, state: PartitionState, end: EpochEnd) -> LogTruncated | None:
        """Check that the log still is what was read (KIP-320); else go to where it differs."""
        position = state.records.position
        if end.is_unsupported or (end.is_known and end.end_offset >= position):
            state.validated(state.generation)
            return None
        if end.is_known and self._subscription.may_reset:
            state.seek(end.end_offset, UNKNOWN_EPOCH)
            return None
        if self._subscription.may_reset:
            state.request_reset(self._subscription.default_reset)
            return None
        # The position stays, unvalidated: without a seek the next check finds the same.
        state.retry_at_ms = self._clock.monotonic_ms() + self._config.retry_backoff_ms
        return LogTruncated(
            state.topic_partition, position, end.end_offset if end.is_known else None
        )

    def _rest_or_raise(self, states: list[PartitionState], error: KafkaError) -> None:
        """Try again after a pause; raise what no retry helps against."""
        again_ms = self._clock.monotonic_ms() + self._config.retry_backoff_ms
        for state in states:
            state.retry_at_ms = again_ms
        if not error.retriable:
            raise error
