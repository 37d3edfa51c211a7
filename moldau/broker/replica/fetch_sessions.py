"""Fetch sessions: what each client fetches, remembered between its requests (KIP-227).

Owns the cache of sessions (`max.incremental.fetch.session.cache.slots`), their epochs and their
eviction, and which partitions of a session have something new. Must not read logs or build
responses. Invariants: a session's `dirty` holds every partition whose latest state the client may
not know; a partition outside `dirty` is watched, so that the next change puts it there. So an
incremental fetch costs what has changed, not what is subscribed. All sessions together hold at most
so many partitions; a principal that fills them, or the slots, takes the equal share of none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from moldau.broker.replica.partition import FetchOwner, FetchPartition, PartitionKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import MAX_TOPIC_NAME_LENGTH
from moldau.text import quoted

if TYPE_CHECKING:
    from random import Random
    from uuid import UUID

    from moldau.protocol.messages.p01_fetch import FetchRequest
    from moldau.runtime.clock import Clock
    from moldau.runtime.telemetry.metrics import Registry

T = TypeVar("T")

logger = logging.getLogger(__name__)

INVALID_SESSION_ID: Final = 0
INITIAL_SESSION_EPOCH: Final = 0
FINAL_SESSION_EPOCH: Final = -1
MAX_SESSION_EPOCH: Final = 2**31 - 1
MIN_EVICTION_MS: Final = 120_000
"""A session used or founded within this time is protected from eviction, see `_make_room`."""


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions one client fetches, from full fetch to full fetch.

    A follower's is privileged: it is not given up for a consumer's.
    """

    session_id: int
    created_ms: float
    uses_topic_ids: bool
    is_privileged: bool
    last_used_ms: float
    principal: str = ""
    session_epoch: int = 1
    partitions: dict[PartitionKey, FetchPartition] = field(default_factory=dict)
    dirty: dict[FetchPartition, None] = field(default_factory=dict)
    waiting: list[FetchOwner] = field(default_factory=list)

    def partition_changed(self, fetched: FetchPartition) -> None:
        """Remember it for the next response, and tell the fetches that wait."""
        self.dirty[fetched] = None
        for fetch in self.waiting:
            fetch.partition_changed(fetched)

    def high_watermark_moved(self, fetched: FetchPartition) -> None:
        self.dirty[fetched] = None
        for fetch in self.waiting:
            fetch.high_watermark_moved(fetched)

    def repeat_position(self, fetched: FetchPartition) -> None:
        """Note the client's position again at its next request, whether that names the partition or
        not: a late request from an older connection may have replaced it.
        """
        fetched.is_position_news = True
        self.dirty[fetched] = None

    def adopt(self, fetched: FetchPartition) -> None:
        """Take over a partition of the full fetch that founds the session, or of a later one."""
        fetched.owner = self
        self.partitions[fetched.key] = fetched
        self.dirty[fetched] = None

    def update(self, request: FetchRequest) -> None:
        """Apply an incremental request: partitions added, moved and forgotten."""
        for fetched in request_partitions(request, self):
            known = self.partitions.get(fetched.key)
            if known is None:
                self.adopt(fetched)
            else:
                if known.current_leader_epoch != fetched.current_leader_epoch:
                    # A follower may have ignored an answer from another leader epoch:
                    #   1. the leader answers with a new high watermark, and notes that
                    #   2. metadata of a new epoch reaches the follower: it ignores the answer
                    #   3. it asks again; nothing has changed since 1: it would never get an answer
                    known.reported_high_watermark = -1
                    known.reported_log_start_offset = -1
                known.fetch_offset = fetched.fetch_offset
                known.current_leader_epoch = fetched.current_leader_epoch
                known.last_fetched_epoch = fetched.last_fetched_epoch
                known.log_start_offset = fetched.log_start_offset
                known.is_position_news = True
                known.partition_max_bytes = fetched.partition_max_bytes
                self.dirty[known] = None
        for forgotten in request.forgotten_topics_data:
            name: str | UUID = forgotten.topic_id if self.uses_topic_ids else forgotten.topic
            for partition_index in forgotten.partitions:
                gone = self.partitions.pop((name, partition_index), None)
                if gone is not None:
                    gone.unwatch()
                    self.dirty.pop(gone, None)

    def close(self) -> None:
        for fetched in self.partitions.values():
            fetched.unwatch()
        self.partitions.clear()
        self.dirty.clear()


def request_partitions(
    request: FetchRequest, owner: FetchOwner, *, takes: bool = False
) -> Iterable[FetchPartition]:
    """What a fetch asks for, in its order; with `takes` the request loses what it asks for on the
    way: both together would be more than is charged for it.
    """
    for topic in _taken(request.topics) if takes else request.topics:
        for asked in _taken(topic.partitions) if takes else topic.partitions:
            yield FetchPartition(
                owner,
                topic.topic,
                topic.topic_id,
                asked.partition,
                asked.current_leader_epoch,
                asked.fetch_offset,
                asked.last_fetched_epoch,
                asked.log_start_offset,
                asked.partition_max_bytes,
            )


def _taken(elements: list[T]) -> Iterator[T]:
    elements.reverse()
    while elements:
        yield elements.pop()


@dataclass(slots=True)
class _Holding:
    """What the sessions of one principal hold together."""

    session_count: int = 0
    partition_count: int = 0


def may_be_kept(request: FetchRequest) -> bool:
    """Whether every topic has a name that a topic can have: others would be of any length."""
    return all(len(topic.topic) <= MAX_TOPIC_NAME_LENGTH for topic in request.topics)


class FetchSessionCache:
    """The sessions of one broker, at most max.incremental.fetch.session.cache.slots of them, with
    `max_partitions` (`moldau.fetch.session.cache.max.partitions`). A client that finds no room
    fetches without a session.

    Epoch rules: a full fetch (epoch 0) founds a session, epoch -1 fetches without one, and both end
    the session they name; an incremental fetch must carry the epoch that follows the last one.
    """

    def __init__(
        self, clock: Clock, random: Random, *, max_sessions: int, max_partitions: int = 500_000
    ) -> None:
        self._clock = clock
        self._random = random
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._holdings: dict[str, _Holding] = {}
        self.partition_count = 0
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def register_gauges(self, registry: Registry) -> None:
        prefix = "kafka.server:type=FetchSessionCache,name="
        registry.gauge(prefix + "NumIncrementalFetchSessions", lambda: float(len(self)))
        registry.gauge(
            prefix + "NumIncrementalFetchPartitionsCached", lambda: float(self.partition_count)
        )
        registry.gauge(
            prefix + "IncrementalFetchSessionEvictions", lambda: float(self.evicted_count)
        )

    def resume(
        self, request: FetchRequest, *, uses_topic_ids: bool
    ) -> tuple[ErrorCode, FetchSession | None]:
        """Find the session of an incremental fetch and apply the request to it.

        Returns the error to answer with, or the session; a session that became empty has ended: it
        is returned closed, and its id is free.
        """
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None
        if session.session_epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, None
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, None
        added_count = self._added_count(session, request)
        if not may_be_kept(request) or not self._has_partitions(
            session.principal, added_count, session.is_privileged, session
        ):
            self.end(session.session_id)  # the client goes on without a session
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None
        before_count = len(session.partitions)
        session.update(request)
        self._hold(session.principal, 0, len(session.partitions) - before_count)
        if not session.partitions:
            self.end(session.session_id)
            return ErrorCode.NONE, session
        session.session_epoch = _next_epoch(session.session_epoch)
        session.last_used_ms = self._clock.monotonic_ms()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return ErrorCode.NONE, session

    def found(
        self,
        partitions: Iterable[FetchPartition],
        *,
        count: int,
        uses_topic_ids: bool,
        principal: str = "",
        is_privileged: bool = False,
    ) -> FetchSession | None:
        """Found a session for the `count` partitions of a full fetch, if there is room for it; a
        follower's is privileged.
        """
        if not self._make_room(principal, count, is_privileged) or not self._has_partitions(
            principal, count, is_privileged
        ):
            return None
        now_ms = self._clock.monotonic_ms()
        session = FetchSession(
            self._new_id(), now_ms, uses_topic_ids, is_privileged, now_ms, principal
        )
        self._hold(principal, 1, count)
        for fetched in partitions:
            session.adopt(fetched)
        self._sessions[session.session_id] = session
        return session

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._hold(session.principal, -1, -len(session.partitions))
            session.close()

    def _added_count(self, session: FetchSession, request: FetchRequest) -> int:
        """How many partitions a request adds to a session; while there is room for all that it
        names, so many at most.
        """
        named_count = sum(len(topic.partitions) for topic in request.topics)
        if self.partition_count + named_count <= self._max_partitions:
            return named_count
        known = session.partitions.keys()
        forgotten = {
            (topic.topic_id if session.uses_topic_ids else topic.topic, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        }
        named = {each.key for each in request_partitions(request, session)}
        return len(named - known) - len(forgotten & known)

    def _hold(self, principal: str, session_count: int, partition_count: int) -> None:
        holding = self._holdings.setdefault(principal, _Holding())
        holding.session_count += session_count
        holding.partition_count += partition_count
        self.partition_count += partition_count
        if not holding.session_count:
            del self._holdings[principal]

    def _evict(self, session: FetchSession) -> None:
        self.end(session.session_id)
        self.evicted_count += 1

    def _has_partitions(
        self,
        principal: str,
        count: int,
        is_privileged: bool,
        growing: FetchSession | None = None,
    ) -> bool:
        """Whether there is room for `count` more partitions, made if need be: by sessions that are
        stale, by those of consumers for a follower's, and by those of the principal that holds most
        for one that stays within an equal share.
        """
        while self.partition_count + count > self._max_partitions:
            victim = next(iter(self._sessions.values()), None)
            if victim is None:
                return False
            idle_ms = self._clock.monotonic_ms() - victim.last_used_ms
            if idle_ms <= MIN_EVICTION_MS or victim is growing:
                victim = self._outranked(principal, count, is_privileged)
            if victim is None:
                logger.warning(
                    "sessions hold %d partitions, further ones of %s are fetched without a session",
                    self.partition_count,
                    quoted(principal),
                )
                return False
            self._evict(victim)
        return True

    def _outranked(self, principal: str, count: int, is_privileged: bool) -> FetchSession | None:
        """The largest session of the principal that holds the most partitions, if it has to yield
        to one that asks for `count` more.
        """
        mine = self._holdings.get(principal, _Holding()).partition_count
        principal_count = len(self._holdings.keys() | {principal})
        if not is_privileged and mine + count > self._max_partitions // principal_count:
            return None
        sessions = [
            each
            for each in self._sessions.values()
            if not each.is_privileged and (is_privileged or each.principal != principal)
        ]
        return max(
            sessions,
            key=lambda each: (self._holdings[each.principal].partition_count, len(each.partitions)),
            default=None,
        )

    def _make_room(self, principal: str, partition_count: int, is_privileged: bool) -> bool:
        """Evict one session when the cache is full, if KIP-227 allows it, or if the principal has
        less than an equal share of the slots: then the one of the principal that has most which was
        used least recently.

        First choice is the least recently used session when it is stale; otherwise the lowest of
        those that the new one outranks: consumers below followers, then small below large. A
        session in use is protected until it is MIN_EVICTION_MS old; a consumer's session is not
        protected from a follower's.
        """
        if self._max_sessions <= 0:
            return False
        if len(self._sessions) < self._max_sessions:
            return True
        now_ms = self._clock.monotonic_ms()
        victim = next(iter(self._sessions.values()))
        if now_ms - victim.last_used_ms <= MIN_EVICTION_MS:
            evictable = [
                session
                for session in self._sessions.values()
                if (is_privileged and not session.is_privileged)
                or (
                    session.is_privileged <= is_privileged
                    and now_ms - session.created_ms > MIN_EVICTION_MS
                )
            ]
            found = min(evictable, key=_rank, default=None)
            if found is None or _rank(found)[:2] >= (is_privileged, partition_count):
                found = self._greediest(principal)
            if found is None:
                return False
            victim = found
        self._evict(victim)
        return True

    def _greediest(self, principal: str) -> FetchSession | None:
        mine = self._holdings.get(principal, _Holding()).session_count
        if mine >= self._max_sessions // len(self._holdings.keys() | {principal}):
            return None
        return max(
            (each for each in self._sessions.values() if not each.is_privileged),
            key=lambda each: self._holdings[each.principal].session_count,
            default=None,
        )

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randint(1, MAX_SESSION_EPOCH)
            if session_id not in self._sessions:
                return session_id


def _rank(session: FetchSession) -> tuple[bool, int, int]:
    return (session.is_privileged, len(session.partitions), session.session_id)


def _next_epoch(session_epoch: int) -> int:
    """Epochs count up from 1 and start over at 1: 0 and -1 have meanings of their own."""
    return 1 if session_epoch == MAX_SESSION_EPOCH else session_epoch + 1
