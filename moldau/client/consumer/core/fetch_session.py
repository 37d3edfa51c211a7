"""One fetch session with one broker: what to name in the next fetch (KIP-227).

Owns the session's id, epoch and partitions. Must not send, nor know what partitions' data mean.
Invariant: after a response that was accepted, `partitions` is exactly what the broker holds for
the session; whenever that is not certain, the next request is a full one, which also closes the
session that may be left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final
from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from moldau.protocol.types import ZERO_UUID, TopicPartition

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1

FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
LAST_VERSION_WITH_NAMES: Final = 12


@dataclass(slots=True)
class Wanted:
    """From where a partition is fetched, by the leader epoch of the metadata (-1: unknown). Equal
    values need not be sent again in a session.
    """

    topic_id: UUID
    fetch_offset: int
    leader_epoch: int
    max_bytes: int


@dataclass(slots=True, eq=False, repr=False)
class FetchSession:
    """States: no session → (a response with an id) session → (an error) full fetch again.
    `uses_ids`: whether the last request names topics by id: version 13 or later, otherwise earlier.
    """

    session_id: int = NO_SESSION
    uses_ids: bool = False
    _epoch: int = INITIAL_EPOCH
    _partitions: dict[TopicPartition, Wanted] = field(default_factory=dict)
    _sent: dict[TopicPartition, Wanted] = field(default_factory=dict)
    _topics: dict[UUID, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.session_id != NO_SESSION

    def request(
        self, wanted: Mapping[TopicPartition, Wanted], *, may_use_ids: bool
    ) -> FetchRequest:
        """A request for these partitions, in their order: full, or what is new in the session. The
        caller fills in its limits. `may_use_ids`: the connection serves version 13; when some topic
        has no id, all go by name (version 12 at most, see `uses_ids`).
        """
        uses_ids = may_use_ids and all(each.topic_id != ZERO_UUID for each in wanted.values())
        if uses_ids != self.uses_ids:
            self.restart()
            self.uses_ids = uses_ids
        self._sent = dict(wanted)
        if self._epoch == INITIAL_EPOCH:
            named: Mapping[TopicPartition, Wanted] = wanted
            forgotten: dict[TopicPartition, Wanted] = {}
            self._topics = {each.topic_id: name.topic for name, each in wanted.items()}
        else:
            known = self._partitions
            forgotten = {
                name: each
                for name, each in known.items()
                if name not in wanted or wanted[name].topic_id != each.topic_id
            }
            named = {name: each for name, each in wanted.items() if known.get(name) != each}
            for name, each in named.items():
                self._topics[each.topic_id] = name.topic
        return FetchRequest(
            session_id=self.session_id,
            session_epoch=self._epoch,
            topics=[
                FetchTopic(topic=topic, topic_id=topic_id, partitions=list(map(_asked, some)))
                for topic, topic_id, some in _by_topic(named)
            ],
            forgotten_topics_data=[
                ForgottenTopic(
                    topic=topic, topic_id=topic_id, partitions=[name.partition for name, _ in some]
                )
                for topic, topic_id, some in _by_topic(forgotten)
            ],
        )

    def topic_of(self, topic_id: UUID) -> str | None:
        return self._topics.get(topic_id)

    def accept(self, response: FetchResponse) -> ErrorCode:
        """Take the response to the last request. Returns its error: then the next fetch is full."""
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            if code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = NO_SESSION
            self.restart()
            return code
        if self._epoch == INITIAL_EPOCH:
            self.session_id = response.session_id
            self._epoch = INITIAL_EPOCH if self.session_id == NO_SESSION else 1
        elif response.session_id == NO_SESSION:
            # The broker has given the session up, for another client's.
            self.session_id = NO_SESSION
            self.restart()
            return code
        else:
            self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1
        self._partitions = self._sent
        return code

    def closing_request(self) -> FetchRequest:
        return FetchRequest(session_id=self.session_id, session_epoch=FINAL_EPOCH)

    def restart(self) -> None:
        """The next request is a full one, also when it is unknown whether the broker served the
        last one; with the id, so that the broker forgets the old session.
        """
        self._epoch = INITIAL_EPOCH
        self._partitions = {}


def _asked(entry: tuple[TopicPartition, Wanted]) -> FetchPartition:
    name, wanted = entry
    return FetchPartition(
        partition=name.partition,
        current_leader_epoch=wanted.leader_epoch,
        fetch_offset=wanted.fetch_offset,
        partition_max_bytes=wanted.max_bytes,
    )


def _by_topic(
    partitions: Mapping[TopicPartition, Wanted],
) -> Iterator[tuple[str, UUID, list[tuple[TopicPartition, Wanted]]]]:
    """Neighbours of one topic in one entry: their order is the order in which they are served."""
    neighbours = groupby(partitions.items(), lambda entry: (entry[0].topic, entry[1].topic_id))
    for (topic, topic_id), entries in neighbours:
        yield topic, topic_id, list(entries)
