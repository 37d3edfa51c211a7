"""A follower's fetch session: full, incremental, forgotten, lost."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.broker.replica.follower_session import (
    MAX_SESSION_EPOCH,
    FollowerPosition,
    FollowerSession,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from moldau.protocol.types import TopicPartition

TOPIC_IDS = {"one": UUID(int=1), "two": UUID(int=2)}


def position(
    topic: str = "one", index: int = 0, *, offset: int = 0, leader_epoch: int = 3, **more: int
) -> FollowerPosition:
    fields: dict[str, Any] = {
        "last_fetched_epoch": -1,
        "log_start_offset": 0,
        "high_watermark": 0,
        **more,
    }
    return FollowerPosition(
        TopicPartition(topic, index), TOPIC_IDS[topic], 1, leader_epoch, offset, **fields
    )


def asked(request: FetchRequest) -> dict[tuple[UUID, int], int]:
    """Fetch offsets by partition."""
    return {
        (topic.topic_id, each.partition): each.fetch_offset
        for topic in request.topics
        for each in topic.partitions
    }


def forgotten(request: FetchRequest) -> set[tuple[UUID, int]]:
    return {
        (topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    }


def answer(
    *positions: FollowerPosition, session_id: int = 7, error: ErrorCode = ErrorCode.NONE
) -> FetchResponse:
    response = FetchResponse(session_id=session_id, error_code=error, responses=[])
    for each in positions:
        data = PartitionData(partition_index=each.topic_partition.partition, high_watermark=1)
        response.responses.append(FetchableTopicResponse(topic_id=each.topic_id, partitions=[data]))
    return response


def opened(*positions: FollowerPosition) -> FollowerSession:
    session = FollowerSession(1000)
    for each in positions:
        session.want(each)
    session.build()
    assert session.take(answer(*positions))[0] is ErrorCode.NONE
    assert session.is_open
    return session


def test_the_first_fetch_is_full_and_founds_a_session() -> None:
    session = FollowerSession(1000)
    assert session.is_idle
    session.want(position("one", 0, offset=5, last_fetched_epoch=2, log_start_offset=1))
    session.want(position("one", 1))
    session.want(position("two", 0))
    request = session.build()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert asked(request) == {(UUID(int=1), 0): 5, (UUID(int=1), 1): 0, (UUID(int=2), 0): 0}
    assert len(request.topics) == 2
    first = request.topics[0].partitions[0]
    assert (first.current_leader_epoch, first.last_fetched_epoch) == (3, 2)
    assert (first.log_start_offset, first.partition_max_bytes) == (1, 1000)
    error, answers = session.take(
        answer(position("one", 0), position("one", 1), position("two", 0))
    )
    assert error is ErrorCode.NONE
    assert [each.requested.fetch_offset for each in answers] == [5, 0, 0]
    second = session.build()
    assert (second.session_id, second.session_epoch) == (7, 1)
    assert second.topics == second.forgotten_topics_data == []


def test_an_incremental_fetch_names_what_has_changed() -> None:
    session = opened(position("one", 0), position("one", 1), position("two", 0))
    session.want(position("one", 1, offset=9))
    session.want(position("two", 0, high_watermark=50))  # nothing that a request says
    request = session.build()
    assert asked(request) == {(UUID(int=1), 1): 9}
    _, answers = session.take(answer(position("one", 1)))
    assert answers[0].requested.fetch_offset == 9
    assert session.build().session_epoch == 2


@pytest.mark.parametrize("change", ["leader_epoch", "last_fetched_epoch", "log_start_offset"])
def test_everything_that_a_request_says_is_a_change(change: str) -> None:
    session = opened(position("one", 0))
    session.want(position("one", 0, **{change: 1}))
    assert len(asked(session.build())) == 1


def test_a_change_that_is_taken_back_is_none() -> None:
    session = opened(position("one", 0))
    session.want(position("one", 0, offset=4))
    session.want(position("one", 0))
    assert asked(session.build()) == {}


def test_what_is_dropped_is_forgotten_once() -> None:
    session = opened(position("one", 0), position("two", 0))
    session.drop((TOPIC_IDS["one"], 0))
    session.drop((TOPIC_IDS["one"], 1))  # never wanted
    request = session.build()
    assert forgotten(request) == {(UUID(int=1), 0)}
    session.take(answer())
    assert forgotten(session.build()) == set()


def test_dropped_and_wanted_again_between_two_fetches() -> None:
    session = opened(position("one", 0))
    session.drop((TOPIC_IDS["one"], 0))
    session.want(position("one", 0))
    request = session.build()
    assert (asked(request), forgotten(request)) == ({}, set())
    session.take(answer())
    session.drop((TOPIC_IDS["one"], 0))
    session.want(position("one", 0, offset=3))
    request = session.build()
    assert (asked(request), forgotten(request)) == ({(UUID(int=1), 0): 3}, set())


def test_a_session_without_partitions_is_given_back() -> None:
    session = opened(position("one", 0))
    session.drop((TOPIC_IDS["one"], 0))
    assert not session.is_idle
    request = session.build()
    assert forgotten(request) == {(UUID(int=1), 0)}
    session.take(answer(session_id=0))
    assert session.is_idle
    session.want(position("one", 0))
    assert (session.build().session_id, session.session_epoch) == (0, 0)


@pytest.mark.parametrize(
    ("error", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 7),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 7),
    ],
)
def test_after_an_error_the_next_fetch_is_full(error: ErrorCode, session_id: int) -> None:
    session = opened(position("one", 0), position("two", 0))
    session.want(position("one", 0, offset=8))
    session.build()
    assert session.take(answer(error=error, session_id=0)) == (error, [])
    request = session.build()
    # The leader ends the session that is named.
    assert (request.session_id, request.session_epoch) == (session_id, 0)
    assert asked(request) == {(UUID(int=1), 0): 8, (UUID(int=2), 0): 0}


def test_what_changes_while_an_answer_is_on_its_way_is_in_the_next_request() -> None:
    session = opened(position("one", 0))
    session.want(position("one", 0, offset=2))
    session.build()
    session.want(position("two", 0))
    session.want(position("one", 0, offset=2, leader_epoch=4))
    _, answers = session.take(answer(position("one", 0)))
    assert answers[0].requested.leader_epoch == 3
    assert asked(session.build()) == {(UUID(int=2), 0): 0, (UUID(int=1), 0): 2}


def test_a_leader_without_room_for_sessions_gets_full_fetches_in_turn() -> None:
    session = FollowerSession(1000)
    for index in range(3):
        session.want(position("one", index))
    session.build()
    _, answers = session.take(answer(*(position("one", index) for index in range(3)), session_id=0))
    assert len(answers) == 3
    session.want(position("one", 0, offset=100))  # it had its turn
    request = session.build()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert [each.partition for each in request.topics[0].partitions] == [1, 2, 0]


def test_what_a_leader_leaves_out_of_its_first_answer_is_asked_for_again() -> None:
    session = FollowerSession(1000)
    session.want(position("one", 0))
    session.want(position("one", 1))
    session.build()
    session.take(answer(position("one", 0)))
    assert asked(session.build()) == {(UUID(int=1), 1): 0}


def test_an_answer_about_partitions_not_asked_for_ends_the_session() -> None:
    session = opened(position("one", 0))
    session.build()
    error, answers = session.take(answer(position("two", 5), position("one", 0)))
    assert error is ErrorCode.NONE
    assert [each.key for each in answers] == [(UUID(int=1), 0)]
    assert not session.is_open
    assert asked(session.build()) == {(UUID(int=1), 0): 0}


def test_a_leader_that_ended_the_session_gets_a_full_fetch() -> None:
    session = opened(position("one", 0))
    session.build()
    _, answers = session.take(answer(position("one", 0), session_id=0))
    assert len(answers) == 1
    request = session.build()
    assert (request.session_id, request.session_epoch) == (0, 0)


def test_session_epochs_wrap_to_one() -> None:
    session = opened(position("one", 0))
    session.session_epoch = MAX_SESSION_EPOCH
    assert session.build().session_epoch == MAX_SESSION_EPOCH
    session.take(answer())
    assert session.build().session_epoch == 1


def test_a_lost_answer_is_asked_for_in_full() -> None:
    session = opened(position("one", 0), position("two", 0))
    session.want(position("one", 0, offset=8))
    session.build()
    session.lose()
    request = session.build()
    assert (request.session_id, request.session_epoch) == (7, 0)
    assert asked(request) == {(UUID(int=1), 0): 8, (UUID(int=2), 0): 0}
