"""Commits that nobody asked for (`enable.auto.commit`).

Owns when they are due and what was committed last. Must not run by itself: polls and `close` call
it. Invariant: only positions of records that earlier polls handed out are committed.
"""

from __future__ import annotations

import logging
from typing import Final

from moldau.client.config.consumer import ConsumerConfig
from moldau.client.consumer.commits import Commits, Offsets
from moldau.client.consumer.core.rebalance_steps import NEVER_MS
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.consumer.rebalance_listener import RebalanceListener
from moldau.client.errors import KafkaError

logger: Final = logging.getLogger("moldau.client.consumer")


class AutomaticCommits:
    """The commits of `auto.commit.interval.ms`. Does nothing where they are switched off."""

    def __init__(
        self,
        config: ConsumerConfig,
        commits: Commits,
        subscription: SubscriptionState[RebalanceListener],
        now_ms: float,
    ) -> None:
        self._commits = commits
        self._subscription = subscription
        self._interval_ms = float(config.auto_commit_interval_ms)
        self._retry_ms = float(config.retry_backoff_ms)
        self._is_on = config.enable_auto_commit
        self._at_ms = now_ms + self._interval_ms if self._is_on else NEVER_MS
        self._last: Offsets = {}
        self._under_way = False

    def switch_off(self) -> None:
        """From now on nothing is committed but what the user commits."""
        self._is_on = False
        self._at_ms = NEVER_MS

    def restart(self, now_ms: float) -> None:
        """A new assignment: the interval begins, and nothing is known to be committed."""
        self._last = {}
        if self._is_on:
            self._at_ms = now_ms + self._interval_ms

    def is_due(self, now_ms: float) -> bool:
        """Whether the next poll is to commit."""
        return now_ms >= self._at_ms

    def due_ms(self) -> float:
        """When that will be."""
        return self._at_ms

    def commit_if_due(self, now_ms: float) -> None:
        """Commit in the background when the interval is over and there is something new."""
        if now_ms < self._at_ms:
            return
        self._at_ms = now_ms + self._interval_ms
        offsets = self._subscription.all_consumed()
        if self._under_way or not offsets or offsets == self._last:
            return

        def done(error: KafkaError | None) -> None:
            self._under_way = False
            if error is None:
                self._last = offsets
            elif error.retriable:
                logger.info("automatic commit, to be tried again: %s", error)
                self._at_ms = min(self._at_ms, now_ms + self._retry_ms)
            else:
                logger.warning("automatic commit: %s", error)

        self._under_way = True
        try:
            self._commits.enqueue(offsets, done)
        except KafkaError as error:
            done(error)

    async def commit_now(self, timeout_ms: float) -> None:
        """Commit and wait for it: before partitions are given up, and at the end. What goes wrong
        is logged: the records are read again by whoever comes next.
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
