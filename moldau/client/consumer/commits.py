"""Committing offsets, and reading committed ones.

Owns OffsetCommit v2–v10 and OffsetFetch v1–v10, what their errors mean, the queue of commits that
nobody waits for, and their callbacks. Must not decide when to commit automatically. Invariants: a
commit is signed with the membership under which it was asked for, or fails; commits arrive in the
order in which they were asked for, one at a time, and one that is tried again leaves out what a
later one has committed; of waiting ones under one signature only the newest offset of a partition
is sent.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.consumer.core.rebalance_steps import Identity
from moldau.client.consumer.group_link import OFFSETS, AnswerLost, GroupLink
from moldau.client.consumer.offset_messages import (
    commit_problems,
    commit_request,
    commit_versions,
    fetch_request,
    fetch_versions,
    fetched,
)
from moldau.client.errors import (
    ClientClosed,
    CommitFailed,
    KafkaError,
    NoBrokerAvailable,
    error_for,
)
from moldau.client.records import OffsetAndMetadata, TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p08_offset_commit import OffsetCommitRequest
from moldau.protocol.messages.p09_offset_fetch import OffsetFetchRequest
from moldau.runtime.clock import Clock

logger: Final = logging.getLogger("moldau.client.consumer")

Offsets: TypeAlias = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback: TypeAlias = Callable[[Offsets, KafkaError | None], object]
"""What `commit_nowait` calls, inside a later poll, commit or close. It may be `async`."""

WAITING_LIMIT: Final = 10_000
"""Callbacks that may wait at a time."""

_LOOK_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
_OUT: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)


class Signer(Protocol):
    """The membership, as commits need it."""

    def sign(self) -> Identity:
        """Who commits. Raises CommitFailed or RebalanceInProgress where nobody may."""

    def may_sign_anew(self, offsets: Offsets, identity: Identity) -> bool:
        """Whether these are still this member's to commit, under a newer epoch (KIP-848)."""

    def refused(self, identity: Identity, code: ErrorCode) -> None:
        """What was signed like this has been refused."""


@dataclass(slots=True)
class _Commit:
    """Offsets to be committed. `numbers`: when each was asked for, counted over all commits."""

    offsets: dict[TopicPartition, OffsetAndMetadata]
    numbers: dict[TopicPartition, int]
    identity: Identity
    callbacks: list[Callable[[KafkaError | None], None]] = field(default_factory=list)


class Commits:
    """The commits of one consumer.

    Args:
        uses_epochs: the group's protocol is KIP-848's.
        on_attention: called when a callback waits for a poll.
    """

    def __init__(
        self,
        client: ClusterClient,
        group_id: str,
        link: GroupLink,
        signer: Signer,
        *,
        uses_epochs: bool,
        clock: Clock,
        on_attention: Callable[[], None],
    ) -> None:
        self._client = client
        self._group_id = group_id
        self._link = link
        self._signer = signer
        self._uses_epochs = uses_epochs
        self._clock = clock
        self._on_attention = on_attention
        self._queue: deque[_Commit] = deque()
        self._turn = asyncio.Lock()
        self._asked_count = 0
        self._waited_for_count = 0
        self._committed_numbers: dict[TopicPartition, int] = {}
        self._worker: asyncio.Task[None] | None = None
        self._callbacks: deque[tuple[CommitCallback, Offsets, KafkaError | None]] = deque()
        self._waiting_count = 0
        self._closed = False

    @property
    def has_callbacks(self) -> bool:
        """Whether a poll has callbacks to run."""
        return bool(self._callbacks)

    # -- committing -----------------------------------------------------------------------------

    async def commit(self, offsets: Offsets, timeout_ms: float | None = None) -> None:
        """Commit and wait for it, after everything that `enqueue` was given before.

        Raises:
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
            self._forget_numbers()

    def enqueue(self, offsets: Offsets, done: Callable[[KafkaError | None], None]) -> None:
        """Commit in the background, once; `done` is called on the loop with the outcome.

        Raises:
            CommitFailed, RebalanceInProgress: nobody may commit now.
        """
        commit = self._asked(offsets)
        last = self._queue[-1] if self._queue else None
        if last is not None and last.identity == commit.identity:
            last.offsets.update(commit.offsets)
            last.numbers.update(commit.numbers)
        else:
            last = commit
            self._queue.append(last)
        last.callbacks.append(done)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def _asked(self, offsets: Offsets) -> _Commit:
        """A new commit, signed. Raises: CommitFailed, RebalanceInProgress"""
        identity = self._signer.sign()
        self._asked_count += 1
        return _Commit(dict(offsets), dict.fromkeys(offsets, self._asked_count), identity)

    def commit_nowait(self, offsets: Offsets, callback: CommitCallback | None) -> None:
        """Commit in the background, once; a later poll tells the callback, which is never lost.

        Raises:
            CommitFailed: too many wait already.
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
        """Tell the callbacks what became of their commits; what one raises comes out."""
        while self._callbacks:
            callback, offsets, error = self._callbacks.popleft()
            self._waiting_count -= 1
            told = callback(offsets, error)
            if inspect.isawaitable(told):
                await told

    async def drain(self, deadline_ms: float) -> None:
        """Wait for the commits under way, until the deadline."""
        left_ms = deadline_ms - self._clock.monotonic_ms()
        if self._worker is not None and left_ms > 0:
            await asyncio.wait([self._worker], timeout=left_ms / 1000)

    async def close(self) -> None:
        """Give up what is under way; its callbacks hear of it."""
        self._closed = True
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
            self._forget_numbers()
            closed = ClientClosed("the consumer was closed before the commit was answered")
            for left in [*([waiting] if waiting is not None else []), *self._queue]:
                for callback in left.callbacks:
                    callback(closed)
            self._queue.clear()

    def _forget_numbers(self) -> None:
        """Without a commit that may be tried again nothing can be overtaken."""
        if self._worker is None and not self._waited_for_count:
            self._committed_numbers.clear()

    async def _commit_once(self, commit: _Commit) -> None:
        """One try. The signature is renewed where the member's epoch has moved on."""
        async with self._turn:
            newest = self._committed_numbers
            offsets = {
                partition: offset
                for partition, offset in commit.offsets.items()
                if newest.get(partition, 0) <= commit.numbers[partition]
            }
            if not offsets:
                return
            problems = await self._ask(offsets, commit.identity)
            newest.update((each, commit.numbers[each]) for each in offsets if each not in problems)
        for partition, code in problems.items():
            self._judge(partition, code, commit)

    async def _ask(
        self, offsets: Offsets, identity: Identity
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Send a commit; which partitions were refused, and why."""
        offsets, ids = self._of_topics_there_are(offsets)
        if not offsets:
            return {}
        try:
            response = await self._link.ask(
                OffsetCommitRequest,
                lambda version: commit_request(self._group_id, identity, offsets, ids, version),
                purpose=OFFSETS,
                versions=commit_versions(
                    offsets, ids, epochs=self._uses_epochs and identity.generation_id >= 0
                ),
            )
        except AnswerLost as lost:
            raise NoBrokerAvailable(f"commit offsets: {lost}") from lost
        return commit_problems(response, offsets, ids)

    def _of_topics_there_are(self, offsets: Offsets) -> tuple[Offsets, dict[str, UUID]]:
        """The offsets without those of former topics, and the topics' ids.

        A position in a topic that was deleted is nothing that can be committed, and under the name
        alone it would count for the topic that was created again. Where the client does not know
        the topic at the moment, the position's own id keeps the coordinator from taking it so.
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
        """Raise what an error code of one partition means for the whole commit."""
        identity = commit.identity
        if code in _LOOK_AGAIN:
            self._link.forget()
        self._signer.refused(identity, code)
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
            if not self._signer.may_sign_anew(commit.offsets, identity):
                raise CommitFailed(
                    "the offsets were not committed: some of the partitions are not this member's "
                    "any more",
                    code=code,
                )
            commit.identity = self._signer.sign()
            raise _SignAnew(f"commit offsets: {code.name}", code=code)
        if code is ErrorCode.UNKNOWN_TOPIC_ID:
            self._client.request_update()
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

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata | None]:
            return await self._fetch_once(wanted)

        return await self._client.retry(
            attempt, what="fetch committed offsets", timeout_ms=timeout_ms
        )

    async def _fetch_once(
        self, wanted: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        identity: Identity | None = None
        if self._uses_epochs:
            try:
                identity = self._signer.sign()
            except KafkaError:
                identity = None  # anybody may read
        ids = {
            each.topic: topic.topic_id
            for each in wanted
            if (topic := self._client.metadata.topics.get(each.topic)) is not None
        }
        try:
            response = await self._link.ask(
                OffsetFetchRequest,
                lambda version: fetch_request(self._group_id, identity, wanted, ids, version),
                purpose=OFFSETS,
                versions=fetch_versions(wanted, ids),
            )
        except AnswerLost as lost:
            raise NoBrokerAvailable(f"fetch committed offsets: {lost}") from lost
        code, found, problems = fetched(response, wanted, ids)
        if code in _LOOK_AGAIN:
            self._link.forget()
        if code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID) and identity:
            self._signer.refused(identity, code)
            raise _SignAnew(f"fetch committed offsets: {code.name}", code=code)
        if code is not ErrorCode.NONE:
            raise error_for(code, None, f"fetch committed offsets of group {self._group_id}")
        for partition, problem in problems.items():
            raise error_for(problem, None, f"fetch committed offset of {partition}")
        return found


class _SignAnew(KafkaError):
    """The member's epoch moves on: the next heartbeat's answer has the new one."""

    @property
    def retriable(self) -> bool:
        return True
