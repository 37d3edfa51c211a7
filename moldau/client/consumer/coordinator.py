"""A consumer's side of its group: what polls do about rebalances, automatic commits, and the end.

Owns the order of things at a rebalance (commit, listener, taking away, handing out), which happen
inside polls only, and when a commit is due by itself. Must not fetch records; the membership's own
life is `membership.py`'s. Invariants: a step of a rebalance that has begun is finished exactly
once, even when the poll that began it is cancelled; nothing of a partition is handed out between
its revocation and its next assignment.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import re
from collections.abc import Callable, Iterable
from typing import Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.automatic_commits import AutomaticCommits
from moldau.client.consumer.commits import CommitCallback, Commits, Offsets
from moldau.client.consumer.core.rebalance_steps import (
    NO_GENERATION,
    Assign,
    Fail,
    Identity,
    Lose,
    Partitions,
    Revoke,
    Standing,
    Step,
)
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.consumer.group_link import GroupLink
from moldau.client.consumer.membership import Membership
from moldau.client.consumer.rebalance_listener import RebalanceListener
from moldau.client.consumer.signal import Signal
from moldau.client.errors import (
    ClientClosed,
    CommitFailed,
    ConfigurationError,
    RebalanceInProgress,
    error_for,
)
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from moldau.protocol.errors import ErrorCode
from moldau.runtime.clock import Clock

FAREWELL_MS: Final = 1_000.0
"""Left for saying good-bye even when the time for closing was used up before."""


class GroupCoordinator:
    """What a `Consumer` with a `group.id` does about its group. States: open → closed.

    Args:
        client: connections and metadata.
        config: the consumer's settings; `group_id` is set.
        subscription: what is subscribed to and assigned.
        clock, source: ports.
    """

    def __init__(
        self,
        client: ClusterClient,
        config: ConsumerConfig,
        subscription: SubscriptionState[RebalanceListener],
        *,
        clock: Clock,
        source: random.Random,
    ) -> None:
        assert config.group_id is not None, "without a group there is nothing to coordinate"
        self._client = client
        self._config = config
        self._subscription = subscription
        self._clock = clock
        self._group_id = config.group_id
        self._changed = Signal(clock)
        self._on_attention: list[Callable[[], None]] = []
        link = GroupLink(client, config.group_id)
        self._commits = Commits(
            client,
            config.group_id,
            link,
            self,
            uses_epochs=config.group_protocol == "consumer",
            clock=clock,
            on_attention=self._attend,
        )
        self._automatic = AutomaticCommits(
            config, self._commits, subscription, clock.monotonic_ms()
        )
        self._membership = Membership(
            client,
            config,
            config.group_id,
            link,
            clock=clock,
            source=source,
            on_attention=self._attend,
            tick=self._tick,
        )
        self._matches_here = config.group_protocol == "classic"
        self._seen_version = -1
        self._pattern: re.Pattern[str] | None = None
        self._pattern_is_known = True
        self._is_member = False
        self._step: asyncio.Task[None] | None = None
        self._farewells: list[tuple[RebalanceListener, Partitions, bool]] = []
        self._closed = False
        client.on_update(self._metadata_changed)

    # -- polling --------------------------------------------------------------------------------

    def on_attention(self, callback: Callable[[], None]) -> None:
        """Call it on the loop whenever `poll` has something to do."""
        self._on_attention.append(callback)

    def set_progress(self, progress: Callable[[], object]) -> None:
        """A value that changes while the user takes records without polling."""
        self._membership.set_progress(progress)

    def needs_poll(self, now_ms: float) -> bool:
        """Whether `poll` has something to do. Asking counts as polling."""
        self._membership.watch.note(now_ms)
        member = self._membership.member
        return (
            self._seen_version != self._subscription.subscription_version
            or self._step is not None
            or (self._is_member and (member.has_step() or not member.is_settled))
            or self._commits.has_callbacks
            or bool(self._farewells)
            or self._automatic.is_due(now_ms)
        )

    async def poll(self, deadline_ms: float) -> None:
        """Do what is due: commit, call listeners, take away and hand out partitions, join.

        Returns when there is nothing left to do or to wait for, or at the deadline (monotonic ms);
        a listener or a commit that has begun is waited for beyond it.

        Raises:
            KafkaError: the group refuses this member; what a listener or a callback raised.
            ClientClosed: the consumer was closed meanwhile.
        """
        while True:
            self._check_open()
            now_ms = self._clock.monotonic_ms()
            self._membership.watch.note(now_ms)
            if self._step is not None:
                await self._finish_step()
                continue
            await self._say_farewells()
            await self._commits.run_callbacks()
            self._follow_subscription()
            self._automatic.commit_if_due(now_ms)
            if self._is_member:
                member = self._membership.member
                if member.has_step():
                    step = member.next_step(now_ms)
                    self._membership.wake()
                    if isinstance(step, Fail):
                        raise self._failure(step)
                    if step is not None:
                        self._begin_step(step)
                    continue
                if not member.is_settled and now_ms < deadline_ms:
                    await self._wait(deadline_ms - now_ms)
                    continue
            if not self._pattern_is_known and now_ms < deadline_ms:
                await self._learn_topics(deadline_ms - now_ms)
                continue
            return

    def unsubscribe(self) -> None:
        """Leave the group, in the background; listeners hear of it in the next poll or `close`."""
        self._stop_being_member("the consumer unsubscribed from all topics")

    async def close(self, deadline_ms: float, *, commits: bool) -> None:
        """Commit if that is automatic, tell listeners, leave the group (static members stay).

        Ends a poll that is under way. Raises what a listener or a callback raises, at the end.

        Args:
            commits: False: nothing is committed automatically any more.
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
            await self._commits.drain(deadline_ms)
            self._stop_being_member("the consumer is being closed")
            await self._say_farewells()
        finally:
            now_ms = self._clock.monotonic_ms()
            await self._membership.stop(max(deadline_ms, now_ms + FAREWELL_MS))
            await self._commits.close()
        await self._commits.run_callbacks()

    # -- offsets --------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit these, or the positions of everything assigned; returns when it is done.

        Raises:
            CommitFailed: this member is not (or no longer) in the group.
            RebalanceInProgress: poll first.
            RequestTimeout: no answer within `timeout_ms` (None: `default.api.timeout.ms`).
        """
        given = self._subscription.all_consumed() if offsets is None else offsets
        await self._commits.commit(given, timeout_ms)
        await self._commits.run_callbacks()

    def commit_nowait(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commit in the background, without retries; a later poll, commit or `close` calls
        `callback(offsets, error or None)`.
        """
        self._check_open()
        given = self._subscription.all_consumed() if offsets is None else offsets
        self._commits.commit_nowait(given, callback)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed of these; None where it has not."""
        return await self._commits.committed(partitions, timeout_ms)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this consumer is in its group, for a producer's transaction (KIP-447)."""
        identity = self._membership.member.identity() if self._is_member else self._nobody()
        return ConsumerGroupMetadata(
            self._group_id,
            identity.generation_id,
            identity.member_id,
            self._config.group_instance_id,
        )

    # -- signing commits ------------------------------------------------------------------------

    def sign(self) -> Identity:
        """For `Commits`."""
        if not self._is_member:
            return self._nobody()
        match self._membership.member.standing():
            case Standing.MEMBER:
                return self._membership.member.identity()
            case Standing.REBALANCING:
                raise RebalanceInProgress(
                    "the offsets were not committed: the group rebalances. Poll until it is done, "
                    "then commit what is still yours"
                )
        raise CommitFailed(
            "the offsets were not committed: this consumer is not in its group (it has not polled "
            "yet, or it was expelled and its partitions are others'). Poll to join; raise "
            "max.poll.interval.ms or lower max.poll.records when it takes too long between polls"
        )

    def may_sign_anew(self, offsets: Offsets, identity: Identity) -> bool:
        """For `Commits`."""
        member = self._membership.member
        return member.standing() is Standing.MEMBER and member.owned.issuperset(offsets)

    def refused(self, identity: Identity, code: ErrorCode) -> None:
        """For `Commits`."""
        if self._is_member:
            self._membership.member.commit_refused(identity, code)
            self._membership.wake()

    def _nobody(self) -> Identity:
        return Identity(NO_GENERATION, "", self._config.group_instance_id)

    # -- the subscription -----------------------------------------------------------------------

    def _follow_subscription(self) -> None:
        """Tell the membership what is subscribed to, when that has changed."""
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
            self._client.want_all()
            self._pattern_is_known = False
            return
        self._join(self._subscription.topics, pattern, anew=True)

    def _join(self, topics: frozenset[str], pattern: str | None, *, anew: bool) -> None:
        self._is_member = True
        self._membership.subscribe(topics, pattern, anew=anew)

    async def _learn_topics(self, timeout_ms: float) -> None:
        """Before a pattern can be matched here, all topics have to be known once."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._client.refresh_metadata(None)
        except PASSING_FAULTS:
            await self._wait(min(timeout_ms, self._config.retry_backoff_ms))
            return
        self._pattern_is_known = True
        self._match(anew=True)

    def _match(self, *, anew: bool) -> None:
        assert self._pattern is not None
        topics = frozenset(
            name
            for name, topic in self._client.metadata.topics.items()
            if self._pattern.fullmatch(name)
            and not (topic.is_internal and self._config.exclude_internal_topics)
        )
        if anew or topics != self._subscription.matched_topics:
            self._subscription.subscribed_by_pattern(topics)
            self._join(topics, None, anew=anew)

    def _metadata_changed(self) -> None:
        if self._closed or not self._is_member:
            return
        if self._pattern is not None and self._pattern_is_known:
            self._match(anew=False)
        self._membership.metadata_changed()

    def _stop_being_member(self, reason: str) -> None:
        if not self._is_member:
            return
        self._is_member = False
        self._pattern = None
        self._pattern_is_known = True
        owned, was_lost = self._membership.unsubscribe(reason)
        listener = self._subscription.listener or self._listener
        if owned and listener is not None:
            self._farewells.append((listener, owned, was_lost))

    # -- steps ----------------------------------------------------------------------------------

    _listener: RebalanceListener | None = None
    """The listener of the last step: `unsubscribe` forgets the subscription's."""

    def _begin_step(self, step: Step) -> None:
        assert self._step is None, "one step at a time"
        self._step = asyncio.create_task(self._carry_out(step))

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
            case Assign(partitions, added):
                await self._assign(step, partitions, added)

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

    async def _assign(self, step: Assign, partitions: Partitions, added: Partitions) -> None:
        subscription, member = self._subscription, self._membership.member
        self._membership.group.before_assign(step)
        subscription.assign_from_group(sorted(partitions))
        subscription.mark_assigned_pending_listener(added, True)
        member.assigned(partitions, self._clock.monotonic_ms())
        self._automatic.restart(self._clock.monotonic_ms())
        try:
            # With KIP-848 there is no end of a rebalance to tell of, only what is new.
            if added or self._matches_here:
                await self._tell("assigned", added)
        finally:
            subscription.mark_assigned_pending_listener(added, False)
            member.acknowledge(self._clock.monotonic_ms())

    def _take_away(self, partitions: Partitions) -> None:
        if partitions and self._is_member:
            left = self._subscription.assignment() - partitions
            self._subscription.assign_from_group(sorted(left))

    async def _tell(self, what: str, partitions: Partitions) -> None:
        listener = self._subscription.listener
        self._listener = listener
        if listener is not None:
            await _call(listener, what, partitions)

    async def _say_farewells(self) -> None:
        while self._farewells:
            listener, partitions, was_lost = self._farewells.pop(0)
            await _call(listener, "lost" if was_lost else "revoked", partitions)

    # -- inner workings -------------------------------------------------------------------------

    def _failure(self, step: Fail) -> BaseException:
        error, self._membership.error = self._membership.error, None
        if error is not None:
            return error
        advice = step.message or _ADVICE.get(step.code)
        return error_for(step.code, advice, f"group {self._group_id}")

    async def _wait(self, timeout_ms: float) -> None:
        """For anything to change; waiting counts as polling."""
        watch = self._membership.watch
        watch.begin(self._clock.monotonic_ms())
        try:
            await self._changed.wait(timeout_ms)
        finally:
            watch.end(self._clock.monotonic_ms())

    def _tick(self, now_ms: float) -> float:
        """From the membership's task: automatic commits that wait for a poll."""
        due_ms = self._automatic.due_ms()
        if now_ms < due_ms:
            return due_ms
        self._attend()
        return now_ms + self._config.auto_commit_interval_ms

    def _attend(self) -> None:
        self._changed.set()
        for callback in self._on_attention:
            callback()

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
