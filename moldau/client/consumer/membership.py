"""The task that keeps a consumer in its group between and during polls.

Owns the one background task of a member: it sends what the machine asks for, one request at a time,
hears the answers, watches whether the user polls. Must not touch what the user consumes: that
happens in polls. Invariants: the task is told to stop, never cancelled before; requests own no
state, so theirs may be cancelled at any time; nothing is sent while the member says good-bye.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias
from uuid import UUID

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.classic_group import ClassicGroup, assignors_of
from moldau.client.consumer.consumer_group import ConsumerGroup
from moldau.client.consumer.core.classic_member import ClassicMember
from moldau.client.consumer.core.consumer_member import ConsumerMember, Wish
from moldau.client.consumer.core.rebalance_steps import (
    NEVER_MS,
    Backoff,
    GroupRequest,
    Partitions,
    PollWatch,
)
from moldau.client.consumer.group_link import AnswerLost, GroupLink
from moldau.client.consumer.signal import Signal
from moldau.client.errors import KafkaError
from moldau.protocol.errors import ErrorCode
from moldau.runtime.clock import Clock

logger: Final = logging.getLogger("moldau.client.consumer")

JITTER: Final = 0.2

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup
AnyMember: TypeAlias = ClassicMember | ConsumerMember


class Membership:
    """One member of one group, alive in the background. States: idle → running → stopped.

    Args:
        on_attention: called when a poll has something to do.
        tick: called whenever the task looks around; returns when it is to be called again (ms of
            the clock, infinity for never).

    Attributes:
        member: the machine.
        watch: the user's polls.
        error: what to raise for the member's next `Fail`, when it is more than a code.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        group_id: str,
        link: GroupLink,
        *,
        clock: Clock,
        source: random.Random,
        on_attention: Callable[[], None],
        tick: Callable[[float], float],
    ) -> None:
        self._client = client
        self._config = config
        self._link = link
        self._clock = clock
        self._on_attention = on_attention
        self._tick = tick
        self._signal = Signal(clock)
        self.watch: PollWatch = PollWatch(config.max_poll_interval_ms, clock.monotonic_ms())
        backoff = Backoff(
            config.retry_backoff_ms,
            config.retry_backoff_max_ms,
            lambda: source.uniform(1 - JITTER, 1 + JITTER),
        )
        self.group: AnyGroup
        self.member: AnyMember
        if config.group_protocol == "classic":
            assignors, cooperative = assignors_of(config)
            member = ClassicMember(
                group_instance_id=config.group_instance_id,
                cooperative=cooperative,
                heartbeat_interval_ms=config.heartbeat_interval_ms,
                session_timeout_ms=config.session_timeout_ms,
                poll_watch=self.watch,
                backoff=backoff,
                on_attention=self.attend,
            )
            self.member = member
            self.group = ClassicGroup(client, config, group_id, link, member, assignors)
        else:
            self.member = ConsumerMember(
                group_id=group_id,
                member_id=str(UUID(int=source.getrandbits(128), version=4)),
                group_instance_id=config.group_instance_id,
                rack_id=config.client_rack or None,
                server_assignor=config.group_remote_assignor,
                poll_watch=self.watch,
                backoff=backoff,
                name_of=self._name_of,
                on_attention=self.attend,
            )
            self.group = ConsumerGroup(link, self.member)
        self.error: BaseException | None = None
        self._progress: Callable[[], object] | None = None
        self._seen_progress: object = None
        self._asked_at_ms = NEVER_MS
        self._task: asyncio.Task[None] | None = None
        self._exchange: asyncio.Task[Any] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._naming: asyncio.Task[None] | None = None
        self._stopping = False

    # -- what the coordinator's face calls ------------------------------------------------------

    def subscribe(self, topics: frozenset[str], pattern: str | None, *, anew: bool) -> None:
        """What to consume; begins the task. `pattern` is for the broker to match (KIP-848)."""
        if isinstance(self.group, ClassicGroup):
            self.group.set_topics(topics, anew=anew)
        else:
            self.group.member.subscribe(Wish(topics, pattern), anew=anew)
        if self._task is None and not self._stopping:
            self._task = asyncio.create_task(self._run())
        self._signal.set()

    def unsubscribe(self, reason: str) -> tuple[Partitions, bool]:
        """Leave in the background; what was owned, and whether it had been lost already."""
        if isinstance(self.member, ClassicMember):
            outcome = self.member.unsubscribe(reason)
        else:
            outcome = self.member.unsubscribe()
        self._signal.set()
        return outcome

    def set_progress(self, progress: Callable[[], object]) -> None:
        """A value that changes while the user takes records without a poll."""
        self._progress = progress
        self._seen_progress = progress()

    def attend(self) -> None:
        """Something has changed for the task and for polls."""
        self._signal.set()
        self._on_attention()

    def wake(self) -> None:
        """Look around: a step has been carried out."""
        self._signal.set()

    def metadata_changed(self) -> None:
        """The client knows more, or else, about topics."""
        if isinstance(self.group, ClassicGroup):
            self.group.metadata_changed()
        else:
            self.group.member.names_changed()
        self._signal.set()

    async def stop(self, deadline_ms: float) -> None:
        """Say good-bye if that is due, for as long as there is time, then end everything."""
        self._stopping = True
        self._signal.set()
        if self._exchange is not None:
            self._exchange.cancel()
        self._say_good_bye()
        left_ms = deadline_ms - self._clock.monotonic_ms()
        if self._leaving and left_ms > 0:
            await asyncio.wait(self._leaving, timeout=left_ms / 1000)
        for task in [*self._leaving, *filter(None, (self._exchange, self._naming))]:
            task.cancel()
        self._link.close()
        if self._task is not None:
            await asyncio.wait([self._task])

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
        """Find out whether the user takes records without polling, or waits in a poll; when to
        look again.
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
        if self._progress is not None:
            progress = self._progress()
            if progress != self._seen_progress:
                self._seen_progress = progress
                self.watch.note(now_ms)

    def _send_due(self, now_ms: float) -> None:
        member = self.member
        if member.needs_coordinator:
            member.needs_coordinator = False
            self._link.forget()
        if isinstance(member, ConsumerMember) and member.needs_topic_names:
            self._learn_names()
        while not self._leaving and not self._stopping:
            request = member.next_request(now_ms)
            if request is None:
                return
            if request is GroupRequest.LEAVE:
                self._say_good_bye()
                continue
            if self._exchange is not None:
                self._exchange.cancel()  # nobody wants its answer any more
            self._exchange = self._begin(request, now_ms)

    def _begin(self, request: GroupRequest, now_ms: float) -> asyncio.Task[Any]:
        exchange: Coroutine[Any, Any, Any]
        if isinstance(self.group, ClassicGroup):
            attempt = self.group.member.sent(request, now_ms)
            exchange = self.group.send(request, attempt)
        else:
            attempt, message = self.group.member.sent(now_ms)
            exchange = self.group.send(attempt, message)
        task = asyncio.create_task(exchange)
        task.add_done_callback(lambda done: self._ended(done, request, attempt))
        return task

    def _ended(self, task: asyncio.Task[Any], request: GroupRequest, attempt: int) -> None:
        if self._exchange is task:
            self._exchange = None
        if task.cancelled() or self._stopping:
            return
        now_ms = self._clock.monotonic_ms()
        error = task.exception()
        if error is None:
            self.group.accept(task.result(), now_ms)
        elif isinstance(error, (AnswerLost, *PASSING_FAULTS)):
            logger.info("group %s: %s", request.name.lower(), error)
            self.member.failed(attempt, now_ms)
        else:
            # What the cluster refuses for good, or what an assignor of the user's own raised.
            code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
            self.error = error
            if isinstance(self.member, ClassicMember):
                self.member.refused(attempt, now_ms, request, code)
            else:
                self.member.refused(attempt, now_ms, code)
        self.attend()

    def _say_good_bye(self) -> None:
        farewell: Coroutine[Any, Any, None] | None = None
        if isinstance(self.group, ClassicGroup):
            leave = self.group.member.take_leave()
            if leave is not None:
                farewell = self.group.leave(*leave)
        else:
            message = self.group.member.take_leave()
            if message is not None:
                farewell = self.group.leave(message)
        if farewell is not None:
            task = asyncio.create_task(farewell)
            self._leaving.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # Then the session timeout does it.
            logger.info("leaving the group: %s", task.exception())
        self._signal.set()

    # -- names of topic ids ---------------------------------------------------------------------

    def _name_of(self, topic_id: UUID) -> str | None:
        return self._client.metadata.topic_names.get(topic_id)

    def _learn_names(self) -> None:
        if self._naming is None:
            self._naming = asyncio.create_task(self._ask_for_names())
            self._naming.add_done_callback(self._named)

    async def _ask_for_names(self) -> None:
        """Ask for all topics: which one is meant is known by its id only."""
        await self._client.refresh_metadata(None)
        self.metadata_changed()
        # A topic made or deleted just now: its broker may hear of it a little later.
        await asyncio.sleep(self._config.retry_backoff_ms / 1000)

    def _named(self, task: asyncio.Task[None]) -> None:
        self._naming = None
        if not task.cancelled() and task.exception() is not None:
            logger.info("asking for topic names: %s", task.exception())
        self._signal.set()
