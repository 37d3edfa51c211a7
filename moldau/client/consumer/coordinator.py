"""A consumer's side of its group: what polls do about rebalances, automatic commits, and the end.

Owns the order of a rebalance (commit, listener, taking away, handing out), which happens inside
polls only. Must not fetch records, or decide when a commit is due (`commits` does); the member's
life between polls is `Membership`'s. Invariants: a step of a rebalance that has begun is finished
exactly once, even when the poll that began it is cancelled; nothing of a partition is handed out
between its revocation and its next assignment.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from typing import Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.commits import AutomaticCommits, CommitCallback, Commits, Offsets
from moldau.client.consumer.core.rebalance_steps import Assign, Fail, Lose, Partitions, Revoke, Step
from moldau.client.consumer.core.subscription_state import RebalanceListener, SubscriptionState
from moldau.client.consumer.group_link import GroupLink
from moldau.client.consumer.membership import Membership
from moldau.client.errors import ClientClosed, ConfigurationError, error_for
from moldau.client.records import ConsumerGroupMetadata
from moldau.protocol.errors import ErrorCode
from moldau.runtime.signal import Signal

FAREWELL_MS: Final = 1_000.0
"""The least time for leaving the group, even when the time for closing is used up."""


class GroupCoordinator:
    """What a `Consumer` with a `group.id` does about its group. States: open → closed.

    Args:
        progress: a value that changes while the user takes records without polling.
        on_attention: called on the loop whenever `poll` has something to do.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        *,
        progress: Callable[[], object],
        on_attention: Callable[[], None],
    ) -> None:
        assert config.group_id is not None, "without a group there is nothing to coordinate"
        self._client = client
        self._config = config
        self._subscription = subscription
        self._clock = client.clock
        self._group_id = config.group_id
        self._changed = Signal(client.clock)
        self._on_attention = on_attention
        link = GroupLink(client, config.group_id)
        self._membership = Membership(
            client, config, link, progress=progress, on_attention=self._attend, tick=self._tick
        )
        self.commits: Commits = Commits(client, config, link, self._membership, self._attend)
        self._automatic = AutomaticCommits(
            config, self.commits, subscription, self._clock.monotonic_ms()
        )
        self._matches_here = config.group_protocol == "classic"
        self._seen_version = -1
        self._pattern: re.Pattern[str] | None = None
        self._pattern_is_known = True
        # The listener of the last step: `unsubscribe` forgets the subscription's.
        self._listener: RebalanceListener | None = None
        self._step: asyncio.Task[None] | None = None
        self._former_listeners: list[tuple[RebalanceListener, Partitions, bool]] = []
        self._closed = False
        client.updates.on_update(self._metadata_changed)

    # -- polling --------------------------------------------------------------------------------

    def needs_poll(self, now_ms: float) -> bool:
        """Whether `poll` has something to do. Counts as polling."""
        self._membership.watch.note(now_ms)
        member = self._membership.member
        return (
            self._seen_version != self._subscription.subscription_version
            or self._step is not None
            or not self._pattern_is_known
            or (self._membership.is_subscribed and (member.has_step() or not member.is_settled))
            or self.commits.has_callbacks
            or bool(self._former_listeners)
            or now_ms >= self._automatic.due_ms
        )

    def has_polled(self) -> None:
        """A poll of the user has ended, and handed out what it found."""
        self._membership.has_polled()

    async def poll(self, deadline_ms: float) -> None:
        """Do what is due: commit, call listeners, take away and hand out partitions, join. Returns
        when there is nothing left to do or to wait for, or at the deadline (monotonic ms); a
        listener or a commit that has begun is awaited beyond it. Raises: ClientClosed; KafkaError
        when the group refuses this member; what a listener or a callback raised.
        """
        while True:
            self._check_open()
            now_ms = self._clock.monotonic_ms()
            self._membership.watch.note(now_ms)
            if self._step is not None:
                await self._finish_step()
                continue
            await self._call_former_listeners()
            await self.commits.run_callbacks()
            self._follow_subscription()
            self._automatic.commit_if_due(now_ms)
            if self._membership.is_subscribed:
                member = self._membership.member
                if member.has_step():
                    step = member.next_step(now_ms)
                    self._membership.wake()
                    if isinstance(step, Fail):
                        raise self._failure(step)
                    if step is not None:
                        assert self._step is None, "one step at a time"
                        self._step = asyncio.create_task(self._carry_out(step))
                    continue
                if not member.is_settled and now_ms < deadline_ms:
                    await self._wait(deadline_ms - now_ms)
                    continue
            if not self._pattern_is_known:
                if self._client.updates.has_all:
                    self._match_first()
                    continue
                if now_ms < deadline_ms:
                    await self._learn_topics(deadline_ms - now_ms)
                    continue
            return

    def unsubscribe(self) -> None:
        """Leave the group in the background; the next poll or `close` calls the listener."""
        self._stop_being_member("the consumer unsubscribed from all topics")

    async def close(self, deadline_ms: float, *, commits: bool) -> None:
        """Commit if that is automatic and `commits` allows it, call listeners, which may still
        commit as a member, then leave the group (static members stay). Ends a poll that is under
        way. Raises what a listener or a callback raises, at the end.
        """
        if self._closed:
            return
        if not commits:
            self._automatic.switch_off()
        self._closed = True
        self._changed.set()
        try:
            if self._step is not None:
                await self._finish_step()
            left_ms = deadline_ms - self._clock.monotonic_ms()
            await self._automatic.commit_now(left_ms)
            await self.commits.drain(deadline_ms)
            await self._give_up()
            await self._call_former_listeners()
        finally:
            self._stop_being_member("the consumer is being closed")
            now_ms = self._clock.monotonic_ms()
            await self._membership.stop(max(deadline_ms, now_ms + FAREWELL_MS))
            await self.commits.close()
        await self.commits.run_callbacks()

    # -- offsets --------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit these, or the positions of everything assigned; returns when it is done. Raises:
        CommitFailed, RebalanceInProgress, RequestTimeout.
        """
        given = self._subscription.all_consumed() if offsets is None else offsets
        await self.commits.commit(given, timeout_ms)
        await self.commits.run_callbacks()

    def commit_nowait(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> None:
        self._check_open()
        given = self._subscription.all_consumed() if offsets is None else offsets
        self.commits.commit_nowait(given, callback)

    def group_metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(self._group_id, *self._membership.identity())

    # -- the subscription -----------------------------------------------------------------------

    def _follow_subscription(self) -> None:
        version = self._subscription.subscription_version
        if version == self._seen_version:
            return
        self._seen_version = version
        if not self._subscription.is_automatic:
            self._stop_being_member("the consumer unsubscribed from all topics")
            return
        pattern = self._subscription.pattern
        self._pattern = None
        self._pattern_is_known = True
        if pattern is not None and self._matches_here:
            try:
                self._pattern = re.compile(pattern)
            except re.error as error:
                raise ConfigurationError(
                    f"the pattern {pattern!r} cannot be read: {error}"
                ) from error
            self._client.updates.want_all()
            self._pattern_is_known = False
            return
        self._membership.subscribe(self._subscription.topics, pattern, is_new=True)

    async def _learn_topics(self, timeout_ms: float) -> None:
        """Have all topics known once, before a pattern can be matched here."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._client.refresh_metadata(None)
        except PASSING_FAULTS:
            await self._wait(min(timeout_ms, self._config.retry_backoff_ms))
            return
        self._match_first()

    def _match_first(self) -> None:
        self._pattern_is_known = True
        self._match(is_new=True)

    def _match(self, *, is_new: bool) -> None:
        assert self._pattern is not None
        topics = frozenset(
            name
            for name, topic in self._client.metadata.topics.items()
            if self._pattern.fullmatch(name)
            and not (topic.is_internal and self._config.exclude_internal_topics)
        )
        if is_new or topics != self._subscription.matched_topics:
            self._subscription.matched_topics = topics
            self._membership.subscribe(topics, None, is_new=is_new)

    def _metadata_changed(self) -> None:
        if self._closed or not self._membership.is_subscribed:
            return
        if self._pattern is not None and self._pattern_is_known:
            self._match(is_new=False)
        self._membership.metadata_changed()

    def _stop_being_member(self, reason: str) -> None:
        self._pattern = None
        self._pattern_is_known = True
        if not self._membership.is_subscribed:
            return
        owned, was_lost = self._membership.unsubscribe(reason)
        listener = self._subscription.listener or self._listener
        if owned and listener is not None:
            self._former_listeners.append((listener, owned, was_lost))

    # -- steps ----------------------------------------------------------------------------------

    async def _finish_step(self) -> None:
        """Wait for the step under way. A poll that is cancelled here leaves it to the next one."""
        task = self._step
        assert task is not None
        await asyncio.wait([task])
        if self._step is task:
            self._step = None
            self._membership.wake()
            task.result()

    async def _carry_out(self, step: Step) -> None:
        match step:
            case Revoke(partitions):
                await self._revoke(partitions)
            case Lose(partitions):
                self._subscription.mark_pending_revocation(partitions)
                try:
                    await self._tell("lost", partitions)
                finally:
                    self._take_away(partitions)
                    self._membership.member.lost(partitions, self._clock.monotonic_ms())
            case Assign():
                await self._assign(step)

    async def _revoke(self, partitions: Partitions) -> None:
        subscription = self._subscription
        subscription.mark_pending_revocation(partitions)
        try:
            if self._membership.member.owned:
                await self._automatic.commit_now(self._config.request_timeout_ms)
            if partitions:
                await self._tell("revoked", partitions)
        finally:
            self._take_away(partitions)
            self._membership.member.revoked(partitions, self._clock.monotonic_ms())

    async def _give_up(self) -> None:
        """Tell the listener that all is revoked, or lost if it is, before the group is left."""
        member = self._membership.member
        if self._membership.is_subscribed and member.owned:
            step = member.next_step(self._clock.monotonic_ms())
            await self._carry_out(step if isinstance(step, Lose) else Revoke(member.owned))

    async def _assign(self, step: Assign) -> None:
        subscription, member, added = self._subscription, self._membership.member, step.added
        self._membership.group.before_assign(step)
        subscription.assign_from_group(sorted(step.partitions), step.topic_ids)
        subscription.mark_assigned_pending_listener(added, True)
        member.assigned(step, self._clock.monotonic_ms())
        self._automatic.restart(self._clock.monotonic_ms())
        try:
            # With KIP-848 a rebalance has no end to report, only what is new.
            if added or self._matches_here:
                await self._tell("assigned", added)
        finally:
            subscription.mark_assigned_pending_listener(added, False)
            member.acknowledge(self._clock.monotonic_ms())

    def _take_away(self, partitions: Partitions) -> None:
        if partitions and self._membership.is_subscribed:
            left = self._subscription.assignment() - partitions
            self._subscription.assign_from_group(sorted(left))

    async def _tell(self, what: str, partitions: Partitions) -> None:
        listener = self._subscription.listener
        self._listener = listener
        if listener is not None:
            await _call(listener, what, partitions)

    async def _call_former_listeners(self) -> None:
        while self._former_listeners:
            listener, partitions, was_lost = self._former_listeners.pop(0)
            await _call(listener, "lost" if was_lost else "revoked", partitions)

    def _failure(self, step: Fail) -> BaseException:
        error, self._membership.error = self._membership.error, None
        if error is not None:
            return error
        advice = step.message or _ADVICE.get(step.code)
        return error_for(step.code, advice, f"group {self._group_id}")

    async def _wait(self, timeout_ms: float) -> None:
        """Wait until something changes; counts as polling."""
        watch = self._membership.watch
        watch.begin(self._clock.monotonic_ms())
        try:
            await self._changed.wait(timeout_ms)
        finally:
            watch.end(self._clock.monotonic_ms())

    def _tick(self, now_ms: float) -> float:
        """From the membership's task: wake a poll when an automatic commit is due."""
        due_ms = self._automatic.due_ms
        if now_ms < due_ms:
            return due_ms
        self._attend()
        return now_ms + self._config.auto_commit_interval_ms

    def _attend(self) -> None:
        self._changed.set()
        self._on_attention()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed")


_ADVICE: Final = {
    ErrorCode.FENCED_INSTANCE_ID: "another consumer with this group.instance.id has joined; "
    "every consumer needs one of its own",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another consumer still holds this group.instance.id; "
    "close it, or wait until its session is over, then subscribe again",
    ErrorCode.INVALID_SESSION_TIMEOUT: "session.timeout.ms has to lie between the broker's "
    "group.min.session.timeout.ms and group.max.session.timeout.ms",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group's other members offer none of the assignors "
    "in partition.assignment.strategy, or the group is no consumers' group",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the brokers do not have the assignor in group.remote.assignor",
    ErrorCode.UNSUPPORTED_VERSION: "the brokers do not serve this group protocol; "
    "group.protocol=classic works with all",
}


async def _call(listener: RebalanceListener, what: str, partitions: Partitions) -> None:
    method = getattr(listener, f"on_partitions_{what}")
    told = method(set(partitions))
    if inspect.isawaitable(told):
        await told
