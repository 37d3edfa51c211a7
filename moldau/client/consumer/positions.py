"""From where partitions are read: committed offsets, `auto.offset.reset`, checks of new leaders.

Owns finding that out, in one background task that runs while a position is missing and was started
by a poll, and the requests to leaders for it: offsets by time and at the ends of logs (ListOffsets
v1–v11), and where a leader epoch ends in the leader's log (OffsetForLeaderEpoch v2–v4, KIP-320).
Must not fetch records. Invariants: a seek of the user's always wins over what is found out at the
same time; an error that the user has to know is raised by the next poll, once; every partition that
leaders are asked about ends with one answer or one error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from moldau.client.cluster.cluster_client import ClusterClient, Versions
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.cluster.metadata_updates import MISSING_MS
from moldau.client.cluster.reachability import RecurringWarning
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.core.partition_state import (
    LATEST,
    UNKNOWN_EPOCH,
    FetchState,
    PartitionState,
    ResetKind,
)
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.errors import (
    KafkaError,
    LogTruncated,
    NoBrokerAvailable,
    NoOffsetForPartition,
    RequestTimeout,
    UnsupportedByBroker,
    error_for,
)
from moldau.client.records import OffsetAndMetadata, OffsetAndTimestamp
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.schema import Request, Response
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer
from moldau.runtime.signal import Signal

if TYPE_CHECKING:
    from moldau.client.consumer.commits import Commits

logger: Final = logging.getLogger(__name__)


CONSUMER_REPLICA_ID: Final = -1

LIST_OFFSETS_VERSIONS: Final = (1, 11)
EPOCH_END_VERSIONS: Final = (2, 4)
"""Kafka's consumer asks from version 3 on, as older ones need the right to alter the cluster; here
a refusal counts as "cannot say"."""


FoundOffset: TypeAlias = ListOffsetsPartitionResponse
"""A leader's answer. `offset` -1: there is no such record; `leader_epoch` -1: not said."""


class EpochEnd(NamedTuple):
    """The end offset of the largest epoch that is not above the one asked for; -1 for none.
    `is_unsupported`: the broker cannot say.
    """

    leader_epoch: int = -1
    end_offset: int = -1
    is_unsupported: bool = False

    @property
    def is_known(self) -> bool:
        return self.leader_epoch >= 0 and self.end_offset >= 0


Answer = TypeVar("Answer", FoundOffset, EpochEnd)
_Answers: TypeAlias = dict[TopicPartition, Answer | KafkaError]


class OffsetLookup:
    """Asks leaders for offsets; with `read_committed` a log ends at the last stable one."""

    def __init__(self, client: ClusterClient, *, read_committed: bool) -> None:
        self._client = client
        self._missing = RecurringWarning(client.clock, after_ms=MISSING_MS)
        self._isolation_level = int(read_committed)

    async def find(
        self, targets: Mapping[TopicPartition, int], timeout_ms: float | None
    ) -> dict[TopicPartition, FoundOffset]:
        """The first offset at or after each timestamp (or a special one, below zero). Raises:
        KafkaError, that of one partition that could not be asked within the time.
        """
        found: dict[TopicPartition, FoundOffset] = {}

        async def attempt() -> None:
            left = {name: target for name, target in targets.items() if name not in found}
            answers = await self.offsets(left)
            problems = []
            for name, answer in answers.items():
                if isinstance(answer, FoundOffset):
                    found[name] = answer
                else:
                    problems.append(answer)
            if problems:
                raise next((each for each in problems if not each.retriable), problems[0])

        await self._client.retry(attempt, what="list offsets", timeout_ms=timeout_ms)
        return {name: found[name] for name in targets}

    async def by_time(
        self, times_ms: Mapping[TopicPartition, int], timeout_ms: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        found = await self.find(times_ms, timeout_ms)
        return {
            name: None
            if each.offset < 0
            else OffsetAndTimestamp(
                each.offset, each.timestamp, each.leader_epoch if each.leader_epoch >= 0 else None
            )
            for name, each in found.items()
        }

    async def offsets(self, targets: Mapping[TopicPartition, int]) -> _Answers[FoundOffset]:
        """As `find`, with one try: every partition's answer, or why there is none yet."""
        return await self._ask_leaders(targets, self._ask_offsets)

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> _Answers[EpochEnd]:
        """One try: where each epoch ends, or why there is no answer yet."""
        return await self._ask_leaders(epochs, self._ask_epoch_ends)

    async def _ask_leaders(
        self,
        wanted: Mapping[TopicPartition, int],
        ask: Callable[[int, Mapping[TopicPartition, int]], Awaitable[_Answers[Answer]]],
    ) -> _Answers[Answer]:
        """Ask all leaders at once; partitions without a leader have an error."""
        by_leader: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
        answers: _Answers[Answer] = {}
        metadata = self._client.metadata
        unknown = {
            name.topic
            for name in wanted
            if metadata.leader(*name) is None and metadata.expected_epoch(*name) is None
        }
        if unknown:
            try:
                await self._client.refresh_metadata(sorted(unknown))
            except PASSING_FAULTS as fault:
                error = NoBrokerAvailable(f"look for leaders: {describe_fault(fault)}")
                answers.update((name, error) for name in wanted if name.topic in unknown)
        for name, value in wanted.items():
            leader = metadata.leader(*name)
            if leader is not None:
                answers.pop(name, None)
                by_leader[leader][name] = value
            elif name not in answers:
                answers[name] = error_for(metadata.problem(*name), None, str(name))
                self._note_missing(name)
        for found in await asyncio.gather(*(ask(*each) for each in by_leader.items())):
            answers.update(found)
        return answers

    def _note_missing(self, name: TopicPartition) -> None:
        """Warn of what lasts until the cluster is changed, or the user seeks elsewhere."""
        metadata = self._client.metadata
        topic = metadata.topics.get(name.topic)
        epoch = metadata.expected_epoch(*name)
        if topic is not None and name.partition not in topic.partitions:
            self._missing.note(
                f"partition {name} does not exist: the topic has {len(topic.partitions)} "
                "partitions; the client asks again"
            )
        elif topic is not None and epoch is not None:
            self._missing.note(
                f"the position in {name} was given with leader epoch {epoch}, and the brokers name "
                f"epoch {topic.partitions[name.partition].leader_epoch} as the newest: the client "
                "asks again; where the epoch never was, seek to the offset without it"
            )

    async def _ask_offsets(
        self, node_id: int, targets: Mapping[TopicPartition, int]
    ) -> _Answers[FoundOffset]:
        topics: dict[str, ListOffsetsTopic] = {}
        for name, timestamp in targets.items():
            topic = topics.setdefault(name.topic, ListOffsetsTopic(name=name.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=name.partition,
                    current_leader_epoch=self._leader_epoch(name),
                    timestamp=timestamp,
                )
            )
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=self._isolation_level,
            topics=list(topics.values()),
            timeout_ms=int(self._client.config.request_timeout_ms),
        )
        response = await self._ask(node_id, request, LIST_OFFSETS_VERSIONS, "list offsets")
        if isinstance(response, KafkaError):
            return dict.fromkeys(targets, response)
        answers: _Answers[FoundOffset] = {
            name: NoBrokerAvailable(f"list offsets: broker {node_id} left out {name}")
            for name in targets
        }
        for each in response.topics:
            for part in each.partitions:
                name = TopicPartition(each.name, part.partition_index)
                if name in answers:
                    answers[name] = (
                        part
                        if part.error_code == ErrorCode.NONE
                        else self._refused(name, part.error_code, "list offsets")
                    )
        return answers

    async def _ask_epoch_ends(
        self, node_id: int, epochs: Mapping[TopicPartition, int]
    ) -> _Answers[EpochEnd]:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for name, epoch in epochs.items():
            topic = topics.setdefault(
                name.topic, OffsetForLeaderTopic(topic=name.topic, partitions=[])
            )
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=name.partition,
                    current_leader_epoch=self._leader_epoch(name),
                    leader_epoch=epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=CONSUMER_REPLICA_ID, topics=list(topics.values())
        )
        response = await self._ask(node_id, request, EPOCH_END_VERSIONS, "check positions")
        if isinstance(response, UnsupportedByBroker):
            return dict.fromkeys(epochs, EpochEnd(is_unsupported=True))
        if isinstance(response, KafkaError):
            return dict.fromkeys(epochs, response)
        missing = NoBrokerAvailable(f"check positions: broker {node_id} left partitions out")
        answers: _Answers[EpochEnd] = dict.fromkeys(epochs, missing)
        for each in response.topics:
            for part in each.partitions:
                name = TopicPartition(each.topic, part.partition)
                if name in answers:
                    answers[name] = self._epoch_end(name, part)
        return answers

    def _epoch_end(self, name: TopicPartition, part: EpochEndOffset) -> EpochEnd | KafkaError:
        code = part.error_code
        if code == ErrorCode.NONE:
            return EpochEnd(part.leader_epoch, part.end_offset)
        if code in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION):
            return EpochEnd(is_unsupported=True)
        return self._refused(name, code, "check the position of")

    def _leader_epoch(self, name: TopicPartition) -> int:
        topic = self._client.metadata.topics.get(name.topic)
        found = None if topic is None else topic.partitions.get(name.partition)
        return -1 if found is None else found.leader_epoch

    async def _ask(
        self, node_id: int, request: Request[Response], versions: Versions, what: str
    ) -> Response | KafkaError:
        """The leader's response, or why there is none: perhaps another broker leads by now."""
        try:
            return await self._client.ask_node(node_id, request, versions=versions)
        except UnsupportedByPeer as error:
            return UnsupportedByBroker(f"{what}: broker {node_id}: {error}")
        except PASSING_FAULTS as fault:
            self._client.updates.request()
            return NoBrokerAvailable(f"{what}: broker {node_id}: {describe_fault(fault)}")

    def _refused(self, name: TopicPartition, code: int, what: str) -> KafkaError:
        """A partition's error; asks for the metadata again where they are the reason."""
        error = error_for(code, None, f"{what} {name}")
        if error.code.invalidates_metadata:
            self._client.updates.request()
        return error


@dataclass(eq=False, repr=False)
class Positions:
    """Gives every assigned partition a position. States: idle ⇄ working → closed. `on_news` is
    called, and `settled` set, when something has been found out or has gone wrong.
    """

    _client: ClusterClient
    _config: ConsumerConfig
    _subscription: SubscriptionState
    _lookup: OffsetLookup
    _commits: Commits | None
    _on_news: Callable[[], None]
    _task: asyncio.Task[None] | None = None
    _error: KafkaError | None = None
    _closed: bool = False

    def __post_init__(self) -> None:
        self._clock = self._client.clock
        self._signal = Signal(self._clock)
        self.settled: Signal = Signal(self._clock)

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
        poll raises NoOffsetForPartition. Where a coordinator assigns by topic id it is first to
        assign the new topic.
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
                if not state.is_of_another_topic:
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
        self, states: Iterable[PartitionState], timeout_ms: float | None, check: Callable[[], None]
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
                self._client.expect_epoch(*state.topic_partition, epoch)
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
                if state.state is not FetchState.FETCHING and not state.is_of_another_topic
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
        generations = [state.generation for state in states]
        try:
            committed = await self.committed(states)
        except KafkaError as error:
            self._rest_or_raise(states, error)
            return
        # A seek, a revocation or another topic may have come while the answer was under way.
        missing = self.begin_at(
            [
                state
                for state, generation in zip(states, generations, strict=True)
                if state.state is FetchState.INITIALIZING and state.generation == generation
            ],
            committed,
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
            elif answer.offset == -1 and reset.kind is ResetKind.BY_DURATION:
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
