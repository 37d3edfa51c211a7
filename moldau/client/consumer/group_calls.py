"""The consumer's calls about its group: subscribe, commit, committed.

Owns these calls, as a base class of `Consumer`; the group's own work is the coordinator's. Must not
poll. Invariant: without a `group.id` every one of them that needs a group says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.client.consumer.arguments import (
    commits_of,
    partitions_of,
    pattern_of,
    topic_names_of,
)
from moldau.client.errors import InvalidGroupId, InvalidSubscription
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from moldau.client.config.consumer import ConsumerConfig
    from moldau.client.consumer.commits import CommitCallback
    from moldau.client.consumer.consumer_parts import ConsumerParts
    from moldau.client.consumer.coordinator import GroupCoordinator
    from moldau.client.consumer.rebalance_listener import RebalanceListener


class GroupCalls:
    """See the module; `Consumer` is the rest of it."""

    _config: ConsumerConfig
    _parts: ConsumerParts

    def _check_open(self) -> None:
        raise NotImplementedError

    def _interrupt(self) -> None:
        raise NotImplementedError

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read topics as a member of the group `group.id`, instead of those subscribed to before.

        The group decides which partitions this member gets, from the next poll on.

        Args:
            topics: by name.
            pattern: all topics whose whole name matches, also those to come. With
                `group.protocol` consumer the broker matches (RE2 syntax), otherwise this client.
            listener: hears of partitions that come and go, inside polls and `close`.

        Raises:
            InvalidGroupId: there is no `group.id`.
            InvalidSubscription: neither or both of topics and pattern, or another kind of
                subscription is in force.
        """
        self._check_open()
        self._group("subscribe")
        if (topics is None) == (pattern is None):
            raise InvalidSubscription("subscribe() takes either topics or a pattern")
        subscription = self._parts.subscription
        if pattern is not None:
            is_classic = self._config.group_protocol == "classic"
            text = pattern_of(pattern, is_matched_here=is_classic)
            subscription.subscribe_pattern(text, listener)
        else:
            assert topics is not None
            names = topic_names_of(topics)
            if not names:
                self.unsubscribe()
                return
            subscription.subscribe(names, listener)
        self._parts.want_topics()
        self._interrupt()

    def unsubscribe(self) -> None:
        """Read nothing any more; the group is left (in the background)."""
        self._check_open()
        if self._parts.group is not None:
            self._parts.group.unsubscribe()
        self._parts.subscription.unsubscribe()
        self._interrupt()

    def subscription(self) -> set[str]:
        """The topics subscribed to: as named, or those that the pattern matches at the moment."""
        self._check_open()
        return self._parts.subscription.subscription()

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are this consumer's at the moment."""
        self._check_open()
        return self._parts.subscription.assignment()

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Commit positions and wait until they are.

        Args:
            offsets: the next offset to read by partition; None for `positions()`.
            timeout_ms: None for `default.api.timeout.ms`.

        Raises:
            InvalidGroupId: there is no `group.id`.
            CommitFailed: the group has gone on without this member: its partitions are others'.
            RebalanceInProgress: poll first, then commit again (retriable).
            RequestTimeout: no answer in time; it may have been committed.
        """
        self._check_open()
        await self._group("commit").commit(commits_of(offsets), timeout_ms)

    def commit_nowait(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit positions without waiting; `callback(offsets, error)`, which may be a coroutine
        function, is called inside a later poll, commit or close.

        Raises:
            InvalidGroupId: there is no `group.id`.
        """
        self._check_open()
        self._group("commit").commit_nowait(commits_of(offsets), callback)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed, None where nothing is.

        Waits for transactions that are just being committed.

        Raises:
            InvalidGroupId: there is no `group.id`.
            RequestTimeout: no answer in time.
        """
        self._check_open()
        names = partitions_of(partitions)
        return await self._group("committed").committed(names, timeout_ms)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who this consumer is in its group, for `send_offsets` of a transaction (KIP-447).

        Raises:
            InvalidGroupId: there is no `group.id`.
        """
        self._check_open()
        return self._group("group_metadata").group_metadata()

    def _group(self, call: str) -> GroupCoordinator:
        group = self._parts.group
        if group is None:
            raise InvalidGroupId(
                f"{call} needs a group: give the consumer a group_id (group.id), or use assign() "
                "and keep positions elsewhere"
            )
        return group
