"""A follower's side of its fetch session with one leader (KIP-227).

Owns what the leader's session knows of the partitions, what of that has changed, and the session's
id and epoch. Must not know connections, logs or times. Invariants: building a request and reading
its answer cost what has changed since the last one, not what is followed (except for the full fetch
with which a session begins); a partition that is wanted is in the leader's session, or in the next
request: what a leader leaves out of its answers is requested again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from moldau.protocol.types import TopicPartition

if TYPE_CHECKING:
    from moldau.protocol.messages.p01_fetch import FetchResponse

NO_SESSION_ID: Final = 0
FULL_FETCH_EPOCH: Final = 0
MAX_SESSION_EPOCH: Final = 2**31 - 1

PartitionKey = tuple[UUID, int]
"""How a Fetch names a partition from v13 on."""

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""The leader has lost the session, or requests of it: a full fetch begins a new one."""


class FollowerPosition(NamedTuple):
    """The leader that a replica follows and where its log stands. `last_fetched_epoch` is the
    newest leader epoch in its log, -1 without one.
    """

    topic_partition: TopicPartition
    topic_id: UUID
    leader_id: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    high_watermark: int


class FollowerAnswer(NamedTuple):
    """What the leader says about one partition, and the position of the request."""

    key: PartitionKey
    requested: FollowerPosition
    data: PartitionData


def _asks_the_same(one: FollowerPosition, other: FollowerPosition) -> bool:
    """Whether both make the same entry in a request; the high watermark is not part of it."""
    return (
        one.fetch_offset == other.fetch_offset
        and one.leader_epoch == other.leader_epoch
        and one.last_fetched_epoch == other.last_fetched_epoch
        and one.log_start_offset == other.log_start_offset
    )


@dataclass(slots=True, eq=False)
class FollowerSession:
    """States: none (the next fetch is full) -> open (fetches are incremental) -> none, when the
    leader or the connection has lost it. One request is under way at a time: `build`, then `take`
    or `lose`.
    """

    partition_max_bytes: int
    session_id: int = NO_SESSION_ID
    session_epoch: int = FULL_FETCH_EPOCH
    _wanted: dict[PartitionKey, FollowerPosition] = field(default_factory=dict)
    _known: dict[PartitionKey, FollowerPosition] = field(default_factory=dict)
    """As the last request reported it to the leader."""
    _changed: dict[PartitionKey, FollowerPosition] = field(default_factory=dict)
    _forgotten: dict[PartitionKey, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def is_open(self) -> bool:
        """Whether the next request is incremental."""
        return self.session_epoch != FULL_FETCH_EPOCH

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to tell the leader: no partition to fetch, none to forget."""
        return not self._wanted and not (self._known and self.is_open)

    def want(self, position: FollowerPosition) -> None:
        key = (position.topic_id, position.topic_partition.partition)
        self._forgotten.pop(key, None)
        known = self._known.get(key)
        if known is not None and _asks_the_same(known, position):
            self._changed.pop(key, None)
            self._wanted[key] = position
            return
        # To the end: a full fetch begins with the partitions whose turn was longest ago.
        self._wanted.pop(key, None)
        self._wanted[key] = position
        self._changed[key] = position

    def drop(self, key: PartitionKey) -> None:
        """Do not fetch the partition until it is wanted again."""
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            if key in self._known:
                self._forgotten[key] = None

    def build(self) -> FetchRequest:
        """The next request's partitions and session; the caller adds the rest."""
        request = FetchRequest(session_id=self.session_id, session_epoch=self.session_epoch)
        if self.is_open:
            asked = self._changed
            for key in self._forgotten:
                del self._known[key]
            self._known.update(asked)
            request.forgotten_topics_data = _forgotten_topics(self._forgotten)
        else:
            asked = self._wanted
            self._known = dict(asked)
        request.topics = self._topics(asked)
        self._changed = {}
        self._forgotten = {}
        return request

    def take(self, response: FetchResponse) -> tuple[ErrorCode, list[FollowerAnswer]]:
        """Take the answer to the request built last. Returns the error of the whole answer, or NONE
        and the answers about requested partitions.
        """
        error = ErrorCode.of(response.error_code)
        if error is not ErrorCode.NONE:
            self.lose(is_gone=error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return error, []
        answers: list[FollowerAnswer] = []
        has_strangers = False
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                requested = self._known.get(key)
                if requested is None:
                    has_strangers = True
                else:
                    answers.append(FollowerAnswer(key, requested, data))
        if has_strangers:
            # The leader knows the session otherwise than this follower.
            self.lose()
        elif not self.is_open:
            self._founded(response.session_id, answers)
        elif response.session_id != self.session_id or not self._known:
            self.lose(is_gone=response.session_id == NO_SESSION_ID)
        else:
            epoch = self.session_epoch
            self.session_epoch = 1 if epoch == MAX_SESSION_EPOCH else epoch + 1
        return ErrorCode.NONE, answers

    def lose(self, *, is_gone: bool = False) -> None:
        """The answer is lost, or makes no sense: start over with a full fetch, which ends the
        session at the leader unless it is gone there.
        """
        if is_gone:
            self.session_id = NO_SESSION_ID
        self.session_epoch = FULL_FETCH_EPOCH
        self._known = {}
        self._changed = {}
        self._forgotten = {}

    def _founded(self, session_id: int, answers: list[FollowerAnswer]) -> None:
        if session_id == NO_SESSION_ID:
            # No room in the leader's cache: every fetch is a full one.
            self.lose(is_gone=True)
            return
        self.session_id = session_id
        self.session_epoch = 1
        if len(answers) >= len(self._known):
            return
        for key in self._known.keys() - {answer.key for answer in answers}:
            position = self._wanted.get(key)
            if position is not None:
                self._changed[key] = position

    def _topics(self, asked: dict[PartitionKey, FollowerPosition]) -> list[FetchTopic]:
        topics: dict[UUID, FetchTopic] = {}
        for (topic_id, partition_index), position in asked.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic(topic_id=topic_id, partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=partition_index,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=self.partition_max_bytes,
                )
            )
        return list(topics.values())


def _forgotten_topics(forgotten: dict[PartitionKey, None]) -> list[ForgottenTopic]:
    topics: dict[UUID, ForgottenTopic] = {}
    for topic_id, partition_index in forgotten:
        topic = topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[]))
        topic.partitions.append(partition_index)
    return list(topics.values())
