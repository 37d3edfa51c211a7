"""Keeps the metadata of the topics that matter fresh, in the background.

Owns which topics these are, the one task that asks (`metadata.max.age.ms`), its pauses, when the
bootstrap servers are asked again (`metadata.recovery.strategy`), and the callers that wait for a
topic. Must not ask more often than the back-off allows, however often an update is requested.
Invariant: the task ends with `close`; every attempt, good or bad, wakes all callers that wait.

A topic stays of interest while it is in the set that `want` named, or for `metadata.max.idle.ms`
after the last call of `topic` or `used` for it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.cluster.metadata_cache import MetadataCache, TopicMetadata
from moldau.client.cluster.reachability import RecurringWarning
from moldau.client.config.client import ClientConfig
from moldau.client.errors import (
    ClientClosed,
    KafkaError,
    NoBrokerAvailable,
    RequestTimeout,
    error_for,
)
from moldau.config.backoff import backoff_ms
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from moldau.runtime.clock import Clock
from moldau.runtime.connection import UnsupportedByPeer
from moldau.runtime.signal import Signal
from moldau.text import nearest_names

NEVER: Final = float("inf")

DEFAULT_MAX_IDLE_MS: Final = 300_000
"""`metadata.max.idle.ms` of clients that have no such key."""

MOST_TOLD: Final = 5
"""How many topics one warning names."""
MISSING_MS: Final = 1_000.0
"""How long a topic may be missing without a warning: it may be about to be created."""


@dataclass(eq=False, repr=False)
class MetadataUpdates:
    """States: idle (no task) → running → closed. `_ask` sends a request to any broker."""

    _config: ClientConfig
    _cache: MetadataCache
    _ask: Callable[[MetadataRequest], Awaitable[MetadataResponse]]
    _clock: Clock
    _random: random.Random
    _may_create: bool
    _wanted: frozenset[str] = frozenset()
    _wants_all: bool = False
    _has_all: bool = False
    _used_ms: dict[str, float] = field(default_factory=dict)
    _awaited: Counter[tuple[str, int]] = field(default_factory=Counter)
    _callbacks: list[Callable[[], object]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None
    _is_requested: bool = False
    _is_urgent: bool = False
    _is_closed: bool = False
    _last_attempt_ms: float = -NEVER
    _last_success_ms: float = -NEVER
    _quick_count: int = 0
    _attempt_count: int = 0
    _failing_since_ms: float | None = None
    _fault: BaseException | None = None

    def __post_init__(self) -> None:
        #: What keeps requests waiting, in words.
        self.trouble: Callable[[], str] = str
        self._max_idle_ms: int = getattr(self._config, "metadata_max_idle_ms", DEFAULT_MAX_IDLE_MS)
        self._attempt_ended = Signal(self._clock)
        self._wake = Signal(self._clock)
        self._missing = RecurringWarning(self._clock, after_ms=MISSING_MS)

    # -- what matters ---------------------------------------------------------------------------

    def want(self, topics: Iterable[str]) -> None:
        """Keep these topics fresh, in place of those named before."""
        wanted = frozenset(topics)
        is_news = not wanted <= self._wanted or self._wants_all
        self._wanted = wanted
        self._wants_all = self._has_all = False
        if is_news and wanted:
            self._request(urgent=True)

    def want_all(self) -> None:
        if not self._wants_all:
            self._wants_all = True
            self._request(urgent=True)

    def used(self, topic: str) -> None:
        """Keep the topic fresh for another `metadata.max.idle.ms`."""
        self._used_ms[topic] = self._clock.monotonic_ms()

    def on_update(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)

    def announce(self) -> None:
        for callback in list(self._callbacks):
            callback()

    def request(self) -> None:
        """Ask as soon as the back-off allows: something known is stale."""
        self._request(urgent=False)

    @property
    def has_all(self) -> bool:
        """Whether all topics are wanted, and the cache has had them all since."""
        return self._has_all

    @property
    def is_of_use(self) -> bool:
        return self._wants_all or bool(self._topics_of_interest())

    async def topic(
        self, name: str, *, partition_count: int = 1, timeout_ms: float | None = None
    ) -> TopicMetadata:
        """Wait for a topic with at least so many partitions, unless the cache knows it, for
        `default.api.timeout.ms` unless another time is given. Raises: InvalidTopic,
        TopicAuthorizationFailed, … at once, since waiting changes nothing; UnknownTopicOrPartition
        when the topic does not exist by then; RequestTimeout when no broker has answered;
        ClientClosed.
        """
        limit_ms = self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        self._cache.topic_errors.pop(name, None)
        self._awaited[name, partition_count] += 1
        try:
            return await self._awaited_topic(name, partition_count, limit_ms, deadline_ms)
        finally:
            self._awaited[name, partition_count] -= 1
            self._awaited += Counter()  # drops what no call waits for

    async def _awaited_topic(
        self, name: str, partition_count: int, limit_ms: float, deadline_ms: float
    ) -> TopicMetadata:
        seen = self._attempt_count
        has_waited = False
        while True:
            if self._is_closed:
                raise ClientClosed("the client is closed; make a new one")
            self.used(name)
            found = self._cache.topics.get(name)
            if found is not None and len(found.partitions) >= partition_count:
                return found
            code = self._cache.topic_errors.get(name)
            if code is not None and not code.retriable:
                raise error_for(code, None, f"topic {name}")
            fault = self._fault if self._attempt_count > seen else None
            if isinstance(fault, KafkaError) and not fault.retriable:
                raise fault
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if has_waited and left_ms <= 0:
                raise self._late(name, partition_count, limit_ms)
            self._request(urgent=found is None and code is None)
            await self._attempt_ended.wait(left_ms)
            has_waited = True

    async def close(self) -> None:
        """End the task and wake all callers that wait. The connections are closed already."""
        self._is_closed = True
        self._callbacks.clear()
        self._attempt_ended.set()
        if self._task is not None:
            self._wake.set()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- the task -------------------------------------------------------------------------------

    def _request(self, *, urgent: bool) -> None:
        if self._is_closed:
            return
        self._is_requested = True
        self._is_urgent = self._is_urgent or urgent
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self._wake.set()

    async def _run(self) -> None:
        while not self._is_closed:
            pause_ms = self._due_ms() - self._clock.monotonic_ms()
            if pause_ms > 0:
                await self._wake.wait(pause_ms if pause_ms < NEVER else None)
                continue
            now_ms = self._clock.monotonic_ms()
            calm_ms = 2 * self._config.retry_backoff_max_ms
            is_quick = now_ms - self._last_attempt_ms < calm_ms
            self._quick_count = self._quick_count + 1 if is_quick else 0
            self._is_requested = self._is_urgent = False
            self._last_attempt_ms = now_ms
            self._attempt_count += 1
            try:
                await self._update()
            except (*PASSING_FAULTS, UnsupportedByPeer, KafkaError) as error:
                self._failed(error)
            else:
                self._fault = None
                self._failing_since_ms = None
                self._last_success_ms = self._clock.monotonic_ms()
                self._warn_of_missing()
                self.announce()
            self._attempt_ended.set()

    def _due_ms(self) -> float:
        earliest_ms = self._last_attempt_ms + backoff_ms(
            self._quick_count + 1,
            self._config.retry_backoff_ms,
            self._config.retry_backoff_max_ms,
            self._random,
        )
        if self._is_urgent and self._fault is None:
            return 0.0
        if self._is_requested or self._is_urgent:
            return earliest_ms
        if not self.is_of_use:
            return NEVER
        return max(self._last_success_ms + self._config.metadata_max_age_ms, earliest_ms)

    def _topics_of_interest(self) -> frozenset[str] | None:
        """None for all of them."""
        if self._wants_all:
            return None
        oldest_ms = self._clock.monotonic_ms() - self._max_idle_ms
        for name in [name for name, used_ms in self._used_ms.items() if used_ms < oldest_ms]:
            del self._used_ms[name]
        return self._wanted | self._used_ms.keys()

    async def _update(self) -> None:
        topics = self._topics_of_interest()
        may_create = self._may_create and topics is not None
        response = await self._ask(
            metadata_request(None if topics is None else sorted(topics), may_create=may_create)
        )
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.REBOOTSTRAP_REQUIRED:
            self._start_over()
        if code is not ErrorCode.NONE:
            raise error_for(code, None, "update metadata")
        if not response.brokers:
            problem = "the broker that was asked knows of no brokers in the cluster"
            self._missing.note(f"{problem}; the client asks again")
            raise NoBrokerAvailable(problem)
        self._cache.update(response, complete=topics is None)
        self._has_all = self._wants_all and topics is None
        if topics is not None:
            # Topics that became of interest during the request are kept.
            self._cache.retain(topics | (self._topics_of_interest() or frozenset()))
        if _is_unfinished(response) or self._cache.doubted:
            # A topic is being created, a leader elected, or a broker lags: ask again soon.
            self._is_requested = True

    def _warn_of_missing(self) -> None:
        """Say which topics are waited for, or subscribed to, and cannot be used, and why."""
        problems = {name: self._problem(name, 1) for name in self._wanted}
        problems |= {name: self._problem(name, count) for name, count in self._awaited}
        told = [f"topic {name} {problem}" for name, problem in sorted(problems.items()) if problem]
        if told:
            more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
            self._missing.note("; ".join(told[:MOST_TOLD]) + f"{more}; the client asks again")
        else:
            self._missing.end("all topics that were missing can be used now")

    def _problem(self, name: str, partition_count: int) -> str:
        """Why a topic cannot be used, in words; empty when it can, or is not described yet."""
        found = self._cache.topics.get(name)
        if found is not None:
            if len(found.partitions) < partition_count:
                return f"has {len(found.partitions)} partitions: none is {partition_count - 1}"
            leaderless = sorted(n for n, each in found.partitions.items() if each.leader < 0)
            if not leaderless:
                return ""
            code = found.partitions[leaderless[0]].error
            return f"has no leader for partition {leaderless[0]}: {code.name}: {code.message}"
        code = self._cache.topic_errors.get(name, ErrorCode.NONE)
        if code is ErrorCode.NONE:
            return ""
        if code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return f"cannot be used: {code.name}: {code.message}"
        near = nearest_names(name, self._cache.topics, most=3)
        return "does not exist" + (f" (there is {', '.join(near)})" if near else "")

    def _failed(self, error: BaseException) -> None:
        self._fault = error
        self._is_requested = True
        now_ms = self._clock.monotonic_ms()
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        trigger_ms = self._config.metadata_recovery_rebootstrap_trigger_ms
        if now_ms - self._failing_since_ms >= trigger_ms:
            self._failing_since_ms = now_ms
            self._start_over()

    def _start_over(self) -> None:
        if self._config.metadata_recovery_strategy == "rebootstrap":
            self._cache.forget_brokers()

    def _late(self, name: str, partition_count: int, limit_ms: float) -> KafkaError:
        found = self._cache.topics.get(name)
        if found is not None:
            return error_for(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"it has {len(found.partitions)} partitions, and still after {limit_ms:.0f} ms no "
                f"partition {partition_count - 1}",
                f"topic {name}",
            )
        code = self._cache.topic_errors.get(name)
        if code is not None:
            return error_for(
                code,
                f"the topic {self._problem(name, partition_count)}, still so after "
                f"{limit_ms:.0f} ms; was it created?",
                f"topic {name}",
            )
        return RequestTimeout(
            f"topic {name}: no metadata within {limit_ms:.0f} ms: "
            + (describe_fault(self._fault) if self._fault else self.trouble() or "no answer")
        )


def metadata_request(topics: Iterable[str] | None, *, may_create: bool = False) -> MetadataRequest:
    """A request for these topics; None for all of them."""
    return MetadataRequest(
        topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=may_create,
    )


def _is_unfinished(response: MetadataResponse) -> bool:
    return any(
        ErrorCode.of(topic.error_code).invalidates_metadata
        or any(
            ErrorCode.of(partition.error_code).invalidates_metadata
            and partition.error_code != ErrorCode.REPLICA_NOT_AVAILABLE
            for partition in topic.partitions
        )
        for topic in response.topics
    )
