"""Fetch sessions (KIP-227): the broker's view and ours stay the same, whatever happens between."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.consumer.core.fetch_session import MAX_EPOCH, FetchSession, Wanted
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p01_fetch import FetchRequest, FetchResponse
from moldau.protocol.types import ZERO_UUID, TopicPartition

IDS = {"a": uuid.UUID(int=1_001), "b": uuid.UUID(int=1_002)}


def wanted(offset: int, topic: str = "a", *, with_id: bool = True) -> Wanted:
    return Wanted(IDS[topic] if with_id else ZERO_UUID, offset, 1, 100)


def named(request: FetchRequest) -> list[tuple[object, int, int]]:
    return [
        (each.topic_id, part.partition, part.fetch_offset)
        for each in request.topics
        for part in each.partitions
    ]


def test_a_full_fetch_then_what_is_new_then_what_is_gone() -> None:
    session = FetchSession()
    first, second = TopicPartition("a", 0), TopicPartition("b", 1)
    request = session.request({first: wanted(5), second: wanted(7, "b")}, may_use_ids=True)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert named(request) == [(IDS["a"], 0, 5), (IDS["b"], 1, 7)]
    session.accept(FetchResponse(session_id=9))
    request = session.request({first: wanted(6), second: wanted(7, "b")}, may_use_ids=True)
    assert (request.session_id, request.session_epoch) == (9, 1)
    assert named(request) == [(IDS["a"], 0, 6)]
    session.accept(FetchResponse(session_id=9))
    request = session.request({first: wanted(6)}, may_use_ids=True)
    assert (request.session_epoch, named(request)) == (2, [])
    assert [(each.topic_id, each.partitions) for each in request.forgotten_topics_data] == [
        (IDS["b"], [1])
    ]
    assert session.topic_of(IDS["b"]) == "b"


def test_a_topic_that_was_created_again_is_forgotten_and_named_again() -> None:
    session = FetchSession()
    name = TopicPartition("a", 0)
    session.request({name: wanted(5)}, may_use_ids=True)
    session.accept(FetchResponse(session_id=9))
    again = Wanted(uuid.UUID(int=2_000), 5, 1, 100)
    request = session.request({name: again}, may_use_ids=True)
    assert named(request) == [(again.topic_id, 0, 5)]
    assert request.forgotten_topics_data[0].topic_id == IDS["a"]


def test_errors_lead_to_a_full_fetch() -> None:
    name = TopicPartition("a", 0)
    for code, session_id in (
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 9),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 9),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 9),
    ):
        session = FetchSession()
        session.request({name: wanted(5)}, may_use_ids=True)
        session.accept(FetchResponse(session_id=9))
        session.request({name: wanted(5)}, may_use_ids=True)
        assert session.accept(FetchResponse(error_code=code)) is code
        request = session.request({name: wanted(5)}, may_use_ids=True)
        assert (request.session_id, request.session_epoch) == (session_id, 0)
        assert named(request) == [(IDS["a"], 0, 5)]


def test_an_answer_that_never_came_leads_to_a_full_fetch_that_ends_the_old_session() -> None:
    session = FetchSession()
    name = TopicPartition("a", 0)
    session.request({name: wanted(5)}, may_use_ids=True)
    session.accept(FetchResponse(session_id=9))
    session.request({name: wanted(6)}, may_use_ids=True)
    session.restart()
    request = session.request({name: wanted(6)}, may_use_ids=True)
    assert (request.session_id, request.session_epoch, len(named(request))) == (9, 0, 1)


def test_names_and_ids_are_never_mixed_in_a_session() -> None:
    session = FetchSession()
    first, second = TopicPartition("a", 0), TopicPartition("b", 0)
    session.request({first: wanted(5)}, may_use_ids=True)
    assert session.uses_ids
    session.accept(FetchResponse(session_id=9))
    request = session.request(
        {first: wanted(5), second: wanted(0, "b", with_id=False)}, may_use_ids=True
    )
    assert not session.uses_ids
    assert (request.session_id, request.session_epoch) == (9, 0)
    assert [each.topic for each in request.topics] == ["a", "b"]


def test_a_broker_without_room_for_sessions_gets_full_fetches() -> None:
    session = FetchSession()
    for _ in range(2):
        request = session.request({TopicPartition("a", 0): wanted(5)}, may_use_ids=True)
        assert (request.session_id, request.session_epoch, len(named(request))) == (0, 0, 1)
        session.accept(FetchResponse(session_id=0))
    assert not session.is_open


def test_the_epoch_wraps_to_one() -> None:
    session = FetchSession()
    name = TopicPartition("a", 0)
    session.request({name: wanted(5)}, may_use_ids=True)
    session.accept(FetchResponse(session_id=9))
    session._epoch = MAX_EPOCH
    session.accept(FetchResponse(session_id=9))
    assert session.request({name: wanted(5)}, may_use_ids=True).session_epoch == 1


NAMES = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 2))
STEPS = st.lists(
    st.tuples(
        st.dictionaries(NAMES, st.integers(0, 3), min_size=1),
        st.sampled_from(["ok", "ok", "ok", "lost", "lost after", "unknown", "evicted"]),
    ),
    max_size=30,
)


@given(STEPS)
def test_the_broker_always_holds_what_was_asked_for(
    steps: list[tuple[dict[TopicPartition, int], str]],
) -> None:
    """A broker that follows KIP-227 to the letter ends with exactly the wanted partitions."""
    session = FetchSession()
    held: dict[int, tuple[int, dict[tuple[object, int], int]]] = {}
    next_id = 1
    for positions, event in steps:
        asked = {name: wanted(offset, name.topic) for name, offset in positions.items()}
        if event == "evicted":
            held.clear()
        request = session.request(asked, may_use_ids=True)
        if event == "lost":
            session.restart()
            continue
        entries = {(topic, part): offset for topic, part, offset in named(request)}
        if request.session_epoch == 0:
            held.pop(request.session_id, None)
            held[next_id] = (1, entries)
            response = FetchResponse(session_id=next_id)
            next_id += 1
        elif request.session_id not in held:
            response = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        else:
            epoch, known = held[request.session_id]
            assert epoch == request.session_epoch
            for each in request.forgotten_topics_data:
                for part in each.partitions:
                    del known[each.topic_id, part]
            known.update(entries)
            held[request.session_id] = (epoch + 1, known)
            response = FetchResponse(session_id=request.session_id)
        if event == "lost after":
            session.restart()
            continue
        if event == "unknown":
            response = FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        if session.accept(response) is ErrorCode.NONE:
            known = held[session.session_id][1]
            assert known == {
                (each.topic_id, name.partition): each.fetch_offset for name, each in asked.items()
            }
            assert len(held) <= 1 + sum(
                1 for _, kind in steps if "lost" in kind or kind == "unknown"
            )


def asked(request: FetchRequest) -> list[tuple[str, list[tuple[int, int, int, int]]]]:
    """What is fetched, topic by topic."""
    return [
        (
            each.topic,
            [
                (
                    part.partition,
                    part.fetch_offset,
                    part.current_leader_epoch,
                    part.partition_max_bytes,
                )
                for part in each.partitions
            ],
        )
        for each in request.topics
    ]


def test_partitions_are_asked_for_in_their_order() -> None:
    session = FetchSession()
    assert not session.is_open
    names = [TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 0)]
    order = {
        name: Wanted(IDS[name.topic], number, number + 3, 100 + number)
        for number, name in enumerate((*names, TopicPartition("a", 2)))
    }
    request = session.request(order, may_use_ids=True)
    assert asked(request) == [
        ("a", [(1, 0, 3, 100), (0, 1, 4, 101)]),
        ("b", [(0, 2, 5, 102)]),
        ("a", [(2, 3, 6, 103)]),
    ]
    assert [each.topic_id for each in request.topics] == [IDS["a"], IDS["b"], IDS["a"]]
    assert (session.topic_of(IDS["a"]), session.topic_of(IDS["b"])) == ("a", "b")
    assert session.topic_of(uuid.UUID(int=5)) is None
    assert session.accept(FetchResponse(session_id=9)) is ErrorCode.NONE
    assert session.is_open
    closing = session.closing_request()
    assert (closing.session_id, closing.session_epoch, closing.topics) == (9, -1, [])


@pytest.mark.parametrize("changed", ["fetch_offset", "leader_epoch", "max_bytes"])
def test_whatever_has_changed_is_asked_for_again(changed: str) -> None:
    session = FetchSession()
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    session.request({first: wanted(5), second: wanted(5)}, may_use_ids=True)
    session.accept(FetchResponse(session_id=9))
    other = wanted(5)
    setattr(other, changed, 7)
    request = session.request({first: wanted(5), second: other}, may_use_ids=True)
    assert [part.partition for each in request.topics for part in each.partitions] == [1]
    assert request.forgotten_topics_data == []


def test_a_topic_that_comes_into_a_session_is_known_by_its_id() -> None:
    session = FetchSession()
    session.request({TopicPartition("a", 0): wanted(5)}, may_use_ids=True)
    session.accept(FetchResponse(session_id=9))
    assert session.topic_of(IDS["b"]) is None
    session.request(
        {TopicPartition("a", 0): wanted(5), TopicPartition("b", 0): wanted(0, "b")},
        may_use_ids=True,
    )
    assert session.topic_of(IDS["b"]) == "b"


def test_what_is_forgotten_is_named_by_topic() -> None:
    session = FetchSession()
    names = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 3)]
    everything = {name: wanted(5, name.topic, with_id=False) for name in names}
    session.request(everything, may_use_ids=False)
    assert not session.uses_ids
    session.accept(FetchResponse(session_id=9))
    request = session.request({names[0]: everything[names[0]]}, may_use_ids=False)
    assert request.topics == []
    assert [(each.topic, each.partitions) for each in request.forgotten_topics_data] == [
        ("a", [1]),
        ("b", [3]),
    ]


def test_topics_with_ids_go_by_name_where_the_connection_needs_it() -> None:
    session = FetchSession()
    name = TopicPartition("a", 0)
    for may_use_ids in (False, True, False):
        request = session.request({name: wanted(5)}, may_use_ids=may_use_ids)
        assert session.uses_ids == may_use_ids
        assert request.session_epoch == 0
        session.accept(FetchResponse(session_id=9))


def test_a_session_that_the_broker_gave_up_is_begun_again() -> None:
    session = FetchSession()
    name = TopicPartition("a", 0)
    session.request({name: wanted(5)}, may_use_ids=True)
    session.accept(FetchResponse(session_id=9))
    session.request({name: wanted(6)}, may_use_ids=True)
    assert session.accept(FetchResponse(session_id=0)) is ErrorCode.NONE
    assert not session.is_open
    request = session.request({name: wanted(6)}, may_use_ids=True)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert named(request) == [(IDS["a"], 0, 6)]
