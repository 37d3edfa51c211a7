"""The task that keeps a consumer in its group between and during polls.

Owns the one background task of a member: it sends what the state machine asks for, one request at a
time, takes the answers, and watches whether the user polls. Must not touch what the user consumes:
that happens in polls. Invariants: the task is asked to stop, never cancelled before; requests own
no state, so they may be cancelled at any time; nothing is sent while the member leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final
from uuid import UUID

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.classic_group import ClassicGroup
from moldau.client.consumer.core.classic_member import ClassicMember
from moldau.client.consumer.core.consumer_member import ConsumerMember, Wish
from moldau.client.consumer.core.rebalance_steps import (
    NEVER_MS,
    NO_GENERATION,
    Assign,
    GroupRequest,
    Identity,
    Partitions,
    PollWatch,
    Standing,
)
from moldau.client.consumer.group_link import MEMBERSHIP, OFFSETS, AnswerLost, GroupLink
from moldau.client.errors import CommitFailed, KafkaError, RebalanceInProgress
from moldau.config.backoff import Backoff
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from moldau.runtime.signal import Signal

logger: Final = logging.getLogger(__name__)

REGEX_VERSION: Final = 1
"""From this version on a heartbeat can carry a regular expression."""


class Membership:
    """One member of one group, alive in the background. States: idle → running → stopped. `error`
    is what to raise for the member's next `Fail`, when it is more than a code.

    Args:
        progress, on_attention: as `GroupCoordinator`'s.
        tick: called whenever the task looks around; returns when it is to be called again (ms of
            the clock, infinity for never).
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        link: GroupLink,
        *,
        progress: Callable[[], object],
        on_attention: Callable[[], None],
        tick: Callable[[float], float],
    ) -> None:
        self._client = client
        self._config = config
        self._link = link
        self._clock = client.clock
        self._on_attention = on_attention
        self._tick = tick
        self._signal = Signal(client.clock)
        self.watch: PollWatch = PollWatch(config.max_poll_interval_ms, client.clock.monotonic_ms())
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, client.random)
        self.group: ClassicGroup | ConsumerGroup
        if config.group_protocol == "classic":
            self.group = ClassicGroup(client, config, link, self.watch, backoff, self._attend)
        else:
            member_id = str(UUID(int=client.random.getrandbits(128), version=4))
            self.group = ConsumerGroup(
                client, config, link, self.watch, backoff, self._attend, member_id
            )
        self.member: ClassicMember | ConsumerMember = self.group.member
        self.is_subscribed: bool = False
        self.error: BaseException | None = None
        self._progress = progress
        self._seen_progress = progress()
        self._asked_at_ms = NEVER_MS
        self._task: asyncio.Task[None] | None = None
        self._exchange: asyncio.Task[object] | None = None
        self._leaving: set[asyncio.Task[object]] = set()
        self._naming: asyncio.Task[None] | None = None
        self._stopping = False

    # -- what polls do --------------------------------------------------------------------------

    def subscribe(self, topics: frozenset[str], pattern: str | None, *, is_new: bool) -> None:
        """What to consume; begins the task. `pattern` is for the broker to match (KIP-848)."""
        self.is_subscribed = True
        self.group.subscribe(topics, pattern, is_new=is_new)
        if self._task is None and not self._stopping:
            self._task = asyncio.create_task(self._run())
        self._signal.set()

    def unsubscribe(self, reason: str) -> tuple[Partitions, bool]:
        """Leave in the background. Returns what was owned, and whether it was lost already."""
        self.is_subscribed = False
        if self._exchange is not None:
            # A join that has not been written yet would make a new member.
            self._exchange.cancel()
        outcome = self.group.unsubscribe(reason)
        self._signal.set()
        return outcome

    def has_polled(self) -> None:
        """What a poll itself has handed out is no progress after it."""
        self._seen_progress = self._progress()

    def wake(self) -> None:
        self._signal.set()

    def metadata_changed(self) -> None:
        self.group.metadata_changed()
        self._signal.set()

    async def stop(self, deadline_ms: float) -> None:
        """Leave the group if that is due, for as long as there is time, then end everything."""
        self._stopping = True
        self._signal.set()
        if self._exchange is not None:
            self._exchange.cancel()
        self._leave()
        left_ms = deadline_ms - self._clock.monotonic_ms()
        if self._leaving and left_ms > 0:
            await asyncio.wait(self._leaving, timeout=left_ms / 1000)
        for task in [*self._leaving, *filter(None, (self._exchange, self._naming))]:
            task.cancel()
        self._link.close()
        if self._task is not None:
            await asyncio.wait([self._task])

    # -- signing commits ------------------------------------------------------------------------

    def identity(self) -> Identity:
        if self.is_subscribed:
            return self.member.identity()
        return Identity(NO_GENERATION, "", self._config.group_instance_id)

    def sign(self) -> Identity:
        """The signature of a commit. Raises: CommitFailed, RebalanceInProgress."""
        standing = self.member.standing() if self.is_subscribed else Standing.MEMBER
        if standing is Standing.MEMBER:
            return self.identity()
        if standing is Standing.REBALANCING:
            raise RebalanceInProgress(
                "the offsets were not committed: the group rebalances. Poll until it is done, "
                "then commit what is still yours"
            )
        raise CommitFailed(
            "the offsets were not committed: this consumer is not in its group (it has not polled "
            "yet, or it was expelled and its partitions are others'). Poll to join; raise "
            "max.poll.interval.ms or lower max.poll.records when it takes too long between polls"
        )

    def may_sign_again(self, partitions: Partitions) -> bool:
        """Whether these are still this member's to commit, under a newer epoch (KIP-848)."""
        member = self.member
        return member.standing() is Standing.MEMBER and member.owned.issuperset(partitions)

    def commit_refused(self, identity: Identity, code: ErrorCode) -> None:
        if self.is_subscribed:
            self.member.commit_refused(identity, code)
            self._signal.set()

    # -- the task -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopping:
            now_ms = self._clock.monotonic_ms()
            due_ms = min(self._look_at_polls(now_ms), self._tick(now_ms))
            self._send_due(now_ms)
            due_ms = min(due_ms, self.member.due_ms())
            if self._leaving:
                due_ms = NEVER_MS  # their end wakes the task
            await self._signal.wait(None if due_ms == NEVER_MS else max(1.0, due_ms - now_ms))

    def _look_at_polls(self, now_ms: float) -> float:
        """Find out whether the user takes records without polling, or waits in a poll. Returns
        when to look again.
        """
        watch = self.watch
        if now_ms >= watch.ask_at_ms and self._asked_at_ms != watch.ask_at_ms:
            self._asked_at_ms = watch.ask_at_ms
            self._note_progress(now_ms)
            self._on_attention()
        elif now_ms >= watch.deadline_ms:
            self._note_progress(now_ms)
        return NEVER_MS if self._asked_at_ms == watch.ask_at_ms else watch.ask_at_ms

    def _note_progress(self, now_ms: float) -> None:
        progress = self._progress()
        if progress != self._seen_progress:
            self._seen_progress = progress
            self.watch.note(now_ms)

    def _send_due(self, now_ms: float) -> None:
        member = self.member
        if member.needs_coordinator:
            member.needs_coordinator = False
            self._link.forget()
        if member.needs_topic_names and self._naming is None:
            self._naming = asyncio.create_task(self._ask_for_names())
            self._naming.add_done_callback(self._named)
        while not self._leaving and not self._stopping:
            request = member.next_request(now_ms)
            if request is None:
                return
            if request is GroupRequest.LEAVE:
                self._leave()
                continue
            if self._exchange is not None:
                self._exchange.cancel()  # its answer is not wanted any more
            self._exchange = self._begin(request, now_ms)

    def _begin(self, request: GroupRequest, now_ms: float) -> asyncio.Task[object]:
        attempt, exchange = self.group.exchange(request, now_ms)
        task = asyncio.create_task(exchange)
        task.add_done_callback(lambda done: self._ended(done, request, attempt))
        return task

    def _ended(self, task: asyncio.Task[object], request: GroupRequest, attempt: int) -> None:
        if self._exchange is task:
            self._exchange = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or self._stopping:
            return
        now_ms = self._clock.monotonic_ms()
        if error is None:
            self.group.accept(request, attempt, task.result(), now_ms)
        elif isinstance(error, (AnswerLost, *PASSING_FAULTS)):
            logger.info("group %s: %s", request.name.lower(), error)
            self.member.failed(attempt, now_ms)
        else:
            # The cluster refuses for good, or an assignor of the user's own raised.
            code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
            self.error = error
            self.group.refused(request, attempt, now_ms, code)
        self._attend()

    def _attend(self) -> None:
        """Wake the task and the poll that waits."""
        self._signal.set()
        self._on_attention()

    def _leave(self) -> None:
        farewell = self.group.farewell()
        if farewell is not None:
            task = asyncio.create_task(farewell)
            self._leaving.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[object]) -> None:
        self._leaving.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # The coordinator removes the member when its session times out.
            logger.info("leaving the group: %s", task.exception())
        self._signal.set()

    async def _ask_for_names(self) -> None:
        """Ask for all topics: only the ids of the wanted ones are known (KIP-848)."""
        await self._client.refresh_metadata(None)
        self.metadata_changed()
        # The broker that answered may learn of a new or deleted topic a little later.
        await asyncio.sleep(self._config.retry_backoff_ms / 1000)

    def _named(self, task: asyncio.Task[None]) -> None:
        self._naming = None
        if not task.cancelled() and task.exception() is not None:
            logger.info("asking for topic names: %s", task.exception())
        self._signal.set()


class ConsumerGroup:
    """A group of the new protocol (KIP-848), as one member sees it, with the methods of
    `ClassicGroup`. The member decides what is in a heartbeat and when it is sent.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        link: GroupLink,
        watch: PollWatch,
        backoff: Backoff,
        on_attention: Callable[[], None],
        member_id: str,
    ) -> None:
        self._link = link
        self.member: Final = ConsumerMember(
            group_id=link.group_id,
            member_id=member_id,
            group_instance_id=config.group_instance_id,
            rack_id=config.client_rack or None,
            server_assignor=config.group_remote_assignor,
            poll_watch=watch,
            backoff=backoff,
            name_of=lambda topic_id: client.metadata.topic_names.get(topic_id),
            on_attention=on_attention,
        )

    def subscribe(self, topics: frozenset[str], pattern: str | None, *, is_new: bool) -> None:
        self.member.subscribe(Wish(topics, pattern), is_new=is_new)

    def unsubscribe(self, reason: str) -> tuple[Partitions, bool]:
        return self.member.unsubscribe()

    def metadata_changed(self) -> None:
        self.member.names_changed()

    def before_assign(self, step: Assign) -> None:
        """There is no assignor on this side."""

    def exchange(
        self, request: GroupRequest, now_ms: float
    ) -> tuple[int, Coroutine[object, object, object]]:
        attempt, message = self.member.sent(now_ms)
        lowest = REGEX_VERSION if message.subscribed_topic_regex is not None else 0
        return attempt, self._link.ask(
            ConsumerGroupHeartbeatRequest,
            lambda version: message,
            purpose=MEMBERSHIP,
            versions=(lowest, ConsumerGroupHeartbeatRequest.MAX_VERSION),
        )

    def accept(self, request: GroupRequest, attempt: int, response: object, now_ms: float) -> None:
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            self.member.refused(attempt, now_ms, code, response.error_message)
        else:
            self.member.answered(attempt, now_ms, response)

    def refused(self, request: GroupRequest, attempt: int, now_ms: float, code: ErrorCode) -> None:
        self.member.refused(attempt, now_ms, code)

    def farewell(self) -> Coroutine[object, object, object] | None:
        message = self.member.take_leave()
        if message is None:
            return None
        return self._link.ask(
            ConsumerGroupHeartbeatRequest, lambda version: message, purpose=OFFSETS
        )
