"""Committing offsets, on request and automatically, and reading committed ones.

Owns OffsetCommit v2–v10 and OffsetFetch v1–v10 (which version can say what, and what their errors
mean), the queue of commits that no call waits for, their callbacks, and when automatic commits are
due (`enable.auto.commit`). Runs nothing automatically by itself: polls and `close` ask for it.
Invariants: a commit is signed with the membership under which it was asked for, or fails; commits
arrive in the order in which they were asked for, one at a time: one that is tried again leaves out
what a later one has committed, and repeats the offset of a later one that may have been committed
in place of its own; of waiting ones under one signature only the newest offset of a partition is
sent; every partition that was asked for has an outcome, also when the broker left it out; automatic
commits cover only positions of records that earlier polls handed out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.core.rebalance_steps import NEVER_MS, Identity
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.consumer.group_link import OFFSETS, AnswerLost, GroupLink
from moldau.client.consumer.membership import Membership
from moldau.client.errors import (
    ClientClosed,
    CommitFailed,
    KafkaError,
    NoBrokerAvailable,
    error_for,
)
from moldau.client.records import OffsetAndMetadata, TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.protocol.messages.p09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from moldau.protocol.types import ZERO_UUID, by_topic

logger: Final = logging.getLogger(__name__)

Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback: TypeAlias = Callable[[Offsets, KafkaError | None], object]
"""What `commit_nowait` calls, inside a later poll, commit or close. It may be `async`."""

_TopicIds: TypeAlias = Mapping[str, UUID]
_Found: TypeAlias = dict[TopicPartition, OffsetAndMetadata | None]

WAITING_LIMIT: Final = 10_000
"""Callbacks that may wait at a time."""

_IDS_VERSION: Final = 10
"""From which version on OffsetCommit and OffsetFetch name topics by their ids alone."""
_EPOCHS_VERSION: Final = 9
"""From which version on both carry member epochs (KIP-848)."""
_GROUPS_VERSION: Final = 8
"""From which version on OffsetFetch asks for several groups."""
_STABLE_VERSION: Final = 7
"""From which version on OffsetFetch can insist on finished transactions."""
_STATIC_VERSION: Final = 7
"""From which version on OffsetCommit carries a group instance id."""

_LOOK_AGAIN: Final = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT}
)
_OUT: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH}
)


@dataclass(slots=True)
class _Asked:
    """An offset to be committed. `number`: when it was asked for, counted over all commits."""

    offset: OffsetAndMetadata
    number: int
    is_committed: bool = False


@dataclass(slots=True)
class _Commit:
    """What one call, or several that wait together, asked for."""

    asked: dict[TopicPartition, _Asked]
    identity: Identity
    callbacks: list[Callable[[KafkaError | None], None]] = field(default_factory=list)


class Commits:
    """The commits of one consumer, signed by its `membership`."""

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        link: GroupLink,
        membership: Membership,
        on_attention: Callable[[], None],
    ) -> None:
        self._client = client
        self._link = link
        self._membership = membership
        self._uses_epochs = config.group_protocol == "consumer"
        self._clock = client.clock
        self._on_attention = on_attention
        self._queue: deque[_Commit] = deque()
        self._turn = asyncio.Lock()
        self._asked_count = 0
        self._waited_for_count = 0
        self._newest: dict[TopicPartition, _Asked] = {}
        """The newest offset that is committed, or may be: it was sent, and is in doubt."""
        self._worker: asyncio.Task[None] | None = None
        self._callbacks: deque[tuple[CommitCallback, Offsets, KafkaError | None]] = deque()
        self._waiting_count = 0

    @property
    def has_callbacks(self) -> bool:
        return bool(self._callbacks)

    # -- committing -----------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, timeout_ms: float | None = None) -> None:
        """Commit and wait for it, after everything that `enqueue` was given before. Raises:
        CommitFailed, RebalanceInProgress, RequestTimeout, and what the coordinator refuses.
        """
        if not offsets:
            return
        commit = self._asked(offsets)

        async def attempt() -> None:
            if self._worker is not None:
                await asyncio.wait([self._worker])
            await self._commit_once(commit)

        self._waited_for_count += 1
        try:
            await self._client.retry(attempt, what="commit offsets", timeout_ms=timeout_ms)
        finally:
            self._waited_for_count -= 1
            self._forget_newest()

    def enqueue(self, offsets: Offsets, done: Callable[[KafkaError | None], None]) -> None:
        """Commit in the background, once; `done` is called on the loop with the outcome. Raises:
        CommitFailed, RebalanceInProgress when this member may not commit now.
        """
        commit = self._asked(offsets)
        last = self._queue[-1] if self._queue else None
        if last is not None and last.identity == commit.identity:
            last.asked.update(commit.asked)
        else:
            last = commit
            self._queue.append(last)
        last.callbacks.append(done)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def _asked(self, offsets: Offsets) -> _Commit:
        identity = self._membership.sign()
        self._asked_count += 1
        number = self._asked_count
        return _Commit({each: _Asked(offsets[each], number) for each in offsets}, identity)

    def commit_nowait(self, offsets: Offsets, callback: CommitCallback | None) -> None:
        """Commit in the background, once; a later poll calls the callback, which is never lost.
        Raises: CommitFailed when too many wait already.
        """
        if self._waiting_count >= WAITING_LIMIT:
            raise CommitFailed(
                f"{WAITING_LIMIT} commits wait for their answers or their callbacks: "
                "poll, or await commit()"
            )
        asked = dict(offsets)
        self._waiting_count += 1

        def done(error: KafkaError | None) -> None:
            if callback is not None:
                self._callbacks.append((callback, asked, error))
                self._on_attention()
                return
            self._waiting_count -= 1
            if error is not None:
                logger.warning("offsets were not committed: %s", error)

        if not asked:
            done(None)
            return
        try:
            self.enqueue(asked, done)
        except KafkaError as error:
            done(error)

    async def run_callbacks(self) -> None:
        while self._callbacks:
            callback, offsets, error = self._callbacks.popleft()
            self._waiting_count -= 1
            told = callback(offsets, error)
            if inspect.isawaitable(told):
                await told

    async def drain(self, deadline_ms: float) -> None:
        left_ms = deadline_ms - self._clock.monotonic_ms()
        if self._worker is not None and left_ms > 0:
            await asyncio.wait([self._worker], timeout=left_ms / 1000)

    async def close(self) -> None:
        """Give up what is under way; its callbacks get an error."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def _work(self) -> None:
        waiting: _Commit | None = None
        error: KafkaError | None = None
        try:
            while self._queue:
                waiting, error = self._queue.popleft(), None
                try:
                    await self._commit_once(waiting)
                except KafkaError as refused:
                    error = refused
                done, waiting = waiting, None
                for callback in done.callbacks:
                    callback(error)
        finally:
            self._worker = None
            self._forget_newest()
            closed = ClientClosed("the consumer was closed before the commit was answered")
            for left in [*([waiting] if waiting is not None else []), *self._queue]:
                for callback in left.callbacks:
                    callback(closed)
            self._queue.clear()

    def _forget_newest(self) -> None:
        """Without a commit that may be tried again, none can be overtaken by a later one."""
        if self._worker is None and not self._waited_for_count:
            self._newest.clear()

    async def _commit_once(self, commit: _Commit) -> None:
        """One try. The signature is renewed where the member's epoch has moved on."""
        async with self._turn:
            problems = await self._send(commit)
        for partition, code in problems.items():
            self._judge(partition, code, commit)

    async def _send(self, commit: _Commit) -> Mapping[TopicPartition, ErrorCode]:
        """Send no offset older than one that may be committed: that one is sent again and covers
        both. Kafka's consumer has no such case, as it cannot be called while a commit is retried.
        """
        asked: dict[TopicPartition, _Asked] = {}
        for partition, own in commit.asked.items():
            newest = self._newest.get(partition, own)
            if newest.number < own.number:
                newest = own
            if not newest.is_committed:
                asked[partition] = newest
        if not asked:
            return {}
        try:
            problems = await self._ask(
                {partition: each.offset for partition, each in asked.items()}, commit.identity
            )
        except (NoBrokerAvailable, asyncio.CancelledError):
            self._newest.update(asked)
            raise
        for partition, each in asked.items():
            code = problems.get(partition)
            each.is_committed = code is None
            # A coordinator that did not hear of its replicas in time has written it all the same.
            if code is None or code.retriable:
                self._newest[partition] = each
        return problems

    async def _ask(
        self, offsets: Offsets, identity: Identity
    ) -> Mapping[TopicPartition, ErrorCode]:
        offsets, ids = self._of_existing_topics(offsets)
        if not offsets:
            return {}
        try:
            response = await self._link.ask(
                OffsetCommitRequest,
                lambda version: _commit_request(
                    self._link.group_id, identity, offsets, ids, version
                ),
                purpose=OFFSETS,
                versions=(
                    _EPOCHS_VERSION
                    if self._uses_epochs and identity.generation_id >= 0
                    else OffsetCommitRequest.MIN_VERSION,
                    _highest_version(offsets, ids),
                ),
            )
        except AnswerLost as lost:
            raise NoBrokerAvailable(f"commit offsets: {lost}") from lost
        return _commit_problems(response, offsets, ids)

    def _of_existing_topics(self, offsets: Offsets) -> tuple[Offsets, dict[str, UUID]]:
        """The offsets without those of former topics, and the topics' ids. A position in a deleted
        topic cannot be committed: under the name alone it would count for the topic that was
        created again. Where the client does not know the topic at the moment, the position's own id
        keeps the coordinator from that.
        """
        topics = self._client.metadata.topics
        ids: dict[str, UUID] = {}
        kept: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, offset in offsets.items():
            topic = topics.get(partition.topic)
            known_id = ids.get(partition.topic) if topic is None else topic.topic_id
            if known_id and offset.topic_id and known_id.int and known_id != offset.topic_id:
                continue
            topic_id = known_id or offset.topic_id
            if topic_id is not None:
                ids[partition.topic] = topic_id
            kept[partition] = offset
        return kept, ids

    def _judge(self, partition: TopicPartition, code: ErrorCode, commit: _Commit) -> None:
        """Raise the error that a partition's code means for the whole commit."""
        identity = commit.identity
        if code in _LOOK_AGAIN:
            self._link.forget()
        self._membership.commit_refused(identity, code)
        if code in _OUT:
            raise CommitFailed(
                f"the offsets were not committed ({code.name}): the group has gone on without "
                f"this member (generation {identity.generation_id}), and others may consume its "
                "partitions again from the last commit. Poll, to be a member again. If the time "
                "between polls was longer than max.poll.interval.ms, raise that or take fewer "
                "records at a time (max.poll.records)",
                code=code,
            )
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            if not self._membership.may_sign_again(frozenset(commit.asked)):
                raise CommitFailed(
                    "the offsets were not committed: some of the partitions are not this member's "
                    "any more",
                    code=code,
                )
            commit.identity = self._membership.sign()
            raise _SignAgain(f"commit offsets: {code.name}", code=code)
        if code is ErrorCode.UNKNOWN_TOPIC_ID:
            self._client.updates.request()
        advice = ""
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            advice = "the group rebalances: poll until it is done, then commit what is still yours"
        raise error_for(code, advice or None, f"commit offset of {partition}")

    # -- reading --------------------------------------------------------------------------------

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where it has not. Waits for open transactions that
        have offsets of these (KIP-447).
        """
        wanted = list(dict.fromkeys(partitions))
        if not wanted:
            return {}

        async def attempt() -> _Found:
            return await self._fetch_once(wanted)

        return await self._client.retry(
            attempt, what="fetch committed offsets", timeout_ms=timeout_ms
        )

    async def _fetch_once(self, wanted: list[TopicPartition]) -> _Found:
        identity: Identity | None = None
        if self._uses_epochs:
            try:
                identity = self._membership.sign()
            except KafkaError:
                identity = None  # a client that is no member may read as well
        ids = {
            each.topic: topic.topic_id
            for each in wanted
            if (topic := self._client.metadata.topics.get(each.topic)) is not None
        }
        try:
            response = await self._link.ask(
                OffsetFetchRequest,
                lambda version: _fetch_request(self._link.group_id, identity, wanted, ids, version),
                purpose=OFFSETS,
                versions=(OffsetFetchRequest.MIN_VERSION, _highest_version(wanted, ids)),
            )
        except AnswerLost as lost:
            raise NoBrokerAvailable(f"fetch committed offsets: {lost}") from lost
        code, found, problems = _fetched(response, wanted, ids)
        if code in _LOOK_AGAIN:
            self._link.forget()
        if code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID) and identity:
            self._membership.commit_refused(identity, code)
            raise _SignAgain(f"fetch committed offsets: {code.name}", code=code)
        if code is not ErrorCode.NONE:
            raise error_for(code, None, f"fetch committed offsets of group {self._link.group_id}")
        for partition, problem in problems.items():
            raise error_for(problem, None, f"fetch committed offset of {partition}")
        return found


class AutomaticCommits:
    """The commits of `enable.auto.commit`, due at `due_ms`: never where they are switched off."""

    def __init__(
        self,
        config: ConsumerConfig,
        commits: Commits,
        subscription: SubscriptionState,
        now_ms: float,
    ) -> None:
        self._commits = commits
        self._subscription = subscription
        self._interval_ms = float(config.auto_commit_interval_ms)
        self._retry_ms = float(config.retry_backoff_ms)
        self._is_on = config.enable_auto_commit
        self.due_ms: float = now_ms + self._interval_ms if self._is_on else NEVER_MS
        self._last: Offsets = {}
        self._under_way = False

    def switch_off(self) -> None:
        self._is_on = False
        self.due_ms = NEVER_MS

    def restart(self, now_ms: float) -> None:
        """A new assignment: the interval begins, and nothing is known to be committed."""
        self._last = {}
        if self._is_on:
            self.due_ms = now_ms + self._interval_ms

    def commit_if_due(self, now_ms: float) -> None:
        """Commit in the background when the interval is over and there is something new."""
        if now_ms < self.due_ms:
            return
        self.due_ms = now_ms + self._interval_ms
        offsets = self._subscription.all_consumed()
        if self._under_way or not offsets or offsets == self._last:
            return

        def done(error: KafkaError | None) -> None:
            self._under_way = False
            if error is None:
                self._last = offsets
            elif error.retriable:
                logger.info("automatic commit, to be tried again: %s", error)
                self.due_ms = min(self.due_ms, now_ms + self._retry_ms)
            else:
                logger.warning("automatic commit: %s", error)

        self._under_way = True
        try:
            self._commits.enqueue(offsets, done)
        except KafkaError as error:
            done(error)

    async def commit_now(self, timeout_ms: float) -> None:
        """Commit and wait for it: before partitions are given up, and at the end. A failure is
        logged: the next owner of the partitions reads the records again.
        """
        if not self._is_on:
            return
        offsets = self._subscription.all_consumed()
        if not offsets or (offsets == self._last and not self._under_way):
            return
        try:
            await self._commits.commit(offsets, max(0.0, timeout_ms))
            self._last = offsets
        except KafkaError as error:
            logger.warning("automatic commit before giving partitions up: %s", error)


class _SignAgain(KafkaError):
    """The member has a newer epoch: the answer to its next heartbeat brings it."""

    @property
    def retriable(self) -> bool:
        return True


def _commit_request(
    group_id: str,
    identity: Identity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ids: _TopicIds,
    version: int,
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for each, offset in offsets.items():
        topic = topics.get(each.topic)
        if topic is None:
            topic_id = ids[each.topic] if version >= _IDS_VERSION else ZERO_UUID
            topic = OffsetCommitRequestTopic(name=each.topic, topic_id=topic_id, partitions=[])
            topics[each.topic] = topic
        epoch = offset.leader_epoch
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=each.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=-1 if epoch is None else epoch,
                committed_metadata=offset.metadata,
            )
        )
    instance_id = identity.group_instance_id
    if identity.generation_id < 0 and version < _STATIC_VERSION:
        instance_id = None  # the signature of no member: nothing depends on it
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation_id,
        member_id=identity.member_id,
        group_instance_id=instance_id,
        topics=list(topics.values()),
    )


def _commit_problems(
    response: OffsetCommitResponse, offsets: Iterable[TopicPartition], ids: _TopicIds
) -> dict[TopicPartition, ErrorCode]:
    names = {topic_id: name for name, topic_id in ids.items()}
    outcome: dict[TopicPartition, ErrorCode] = {}
    for topic in response.topics:
        name = topic.name or names.get(topic.topic_id, "")
        for each in topic.partitions:
            outcome[TopicPartition(name, each.partition_index)] = ErrorCode.of(each.error_code)
    problems: dict[TopicPartition, ErrorCode] = {}
    for wanted in offsets:
        code = outcome.get(wanted, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code is not ErrorCode.NONE:
            problems[wanted] = code
    return problems


def _fetch_request(
    group_id: str,
    identity: Identity | None,
    partitions: Iterable[TopicPartition],
    ids: _TopicIds,
    version: int,
) -> OffsetFetchRequest:
    """The request for some partitions' offsets, those of finished transactions only (KIP-447;
    brokers before version 7 cannot tell). `identity` is that of a member with an epoch (KIP-848).
    """
    indexes = by_topic(partitions)
    if version < _GROUPS_VERSION:
        return OffsetFetchRequest(
            group_id=group_id,
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=some)
                for name, some in indexes.items()
            ],
            require_stable=version >= _STABLE_VERSION,
        )
    group = OffsetFetchRequestGroup(
        group_id=group_id,
        topics=[
            OffsetFetchRequestTopics(
                name=name,
                topic_id=ids[name] if version >= _IDS_VERSION else ZERO_UUID,
                partition_indexes=some,
            )
            for name, some in indexes.items()
        ],
    )
    if version >= _EPOCHS_VERSION and identity is not None and identity.generation_id >= 0:
        group.member_id = identity.member_id
        group.member_epoch = identity.generation_id
    return OffsetFetchRequest(groups=[group], require_stable=True)


def _fetched(
    response: OffsetFetchResponse, partitions: Iterable[TopicPartition], ids: _TopicIds
) -> tuple[ErrorCode, _Found, dict[TopicPartition, ErrorCode]]:
    """The group's error, what was committed (None: nothing), and the partitions' errors."""
    names = {topic_id: name for name, topic_id in ids.items()}
    code = ErrorCode.of(response.groups[0].error_code if response.groups else response.error_code)
    found: _Found = {}
    problems: dict[TopicPartition, ErrorCode] = {}
    if code is not ErrorCode.NONE:
        return code, found, problems
    answered: _Found = {}
    topics = response.groups[0].topics if response.groups else response.topics
    for topic in topics:
        topic_id = getattr(topic, "topic_id", ZERO_UUID)
        name = topic.name or names.get(topic_id, "")
        for each in topic.partitions:
            partition = TopicPartition(name, each.partition_index)
            problem = ErrorCode.of(each.error_code)
            if problem is not ErrorCode.NONE:
                problems[partition] = problem
            elif each.committed_offset < 0:
                answered[partition] = None
            else:
                epoch = each.committed_leader_epoch
                answered[partition] = OffsetAndMetadata(
                    each.committed_offset, each.metadata or "", epoch if epoch >= 0 else None
                )
    for wanted in partitions:
        if wanted in answered:
            found[wanted] = answered[wanted]
        elif wanted not in problems:
            problems[wanted] = ErrorCode.UNKNOWN_SERVER_ERROR
    return code, found, problems


def _highest_version(partitions: Iterable[TopicPartition], ids: _TopicIds) -> int:
    """The highest version that can name these topics: by id alone when every id is known."""
    all_known = all(ids.get(each.topic, ZERO_UUID) != ZERO_UUID for each in partitions)
    return _IDS_VERSION if all_known else _IDS_VERSION - 1
