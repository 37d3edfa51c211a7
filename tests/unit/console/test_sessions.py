"""Sessions end by time, by a logout, and with their credentials; there is a limit to them."""

from __future__ import annotations

from moldau.console import sessions as module
from moldau.console.people import Person
from moldau.console.sessions import IDLE_S, LONGEST_S, Sessions

ALICE, BOB = Person("password", "alice", "a"), Person("password", "bob", "b")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def made() -> tuple[Clock, Sessions]:
    clock = Clock()
    return clock, Sessions(clock)


def test_a_session_is_found_by_its_text_alone() -> None:
    _, sessions = made()
    text, session = sessions.open(ALICE, "User:alice")
    other, _ = sessions.open(ALICE, "User:alice")
    assert text != other
    assert len(text) >= 40
    assert sessions.find(text) is session
    assert sessions.find(text + "x") is None
    assert sessions.find("") is None
    assert sessions.find("\udcff") is None
    assert session.request_token not in repr(session)
    assert "'a'" not in repr(session)


def test_an_idle_session_ends_and_one_in_use_does_not() -> None:
    clock, sessions = made()
    text, session = sessions.open(ALICE, "User:alice")
    for _ in range(3):
        clock.now_s += IDLE_S - 1
        assert sessions.find(text) is session
    clock.now_s += IDLE_S
    assert sessions.find(text) is None
    assert session.is_over
    assert len(sessions) == 0


def test_a_session_ends_however_much_it_is_used() -> None:
    clock, sessions = made()
    text, _ = sessions.open(ALICE, "User:alice")
    began_s = clock.now_s
    while clock.now_s < began_s + LONGEST_S - 60:
        assert sessions.find(text) is not None
        clock.now_s += 60
    clock.now_s = began_s + LONGEST_S
    assert sessions.find(text) is None


def test_a_session_of_a_token_ends_with_it() -> None:
    clock, sessions = made()
    text, _ = sessions.open(ALICE, "User:alice", longest_s=10)
    clock.now_s += 9
    assert sessions.find(text) is not None
    clock.now_s += 1
    assert sessions.find(text) is None


def test_a_logout_ends_one_session() -> None:
    _, sessions = made()
    first, session = sessions.open(ALICE, "User:alice")
    second, _ = sessions.open(ALICE, "User:alice")
    assert sessions.end(first) is session
    assert session.is_over
    assert sessions.end(first) is None
    assert sessions.find(second) is not None
    assert sessions.has(ALICE)
    sessions.end(second)
    assert not sessions.has(ALICE)


def test_credentials_end_all_their_sessions_and_no_others() -> None:
    _, sessions = made()
    texts = [sessions.open(ALICE, "User:alice")[0] for _ in range(3)]
    other, _ = sessions.open(BOB, "User:bob")
    sessions.end_of(ALICE)
    assert [sessions.find(text) for text in texts] == [None] * 3
    assert sessions.find(other) is not None


def test_the_oldest_session_makes_room() -> None:
    clock, sessions = made()
    texts = []
    for _ in range(module.MAX_SESSIONS_PER_PERSON + 1):
        texts.append(sessions.open(ALICE, "User:alice")[0])
        clock.now_s += 1
    assert sessions.find(texts[0]) is None
    assert sessions.find(texts[1]) is not None
    assert len(sessions) == module.MAX_SESSIONS_PER_PERSON


def test_there_are_never_more_than_the_limit() -> None:
    clock, sessions = made()
    for number in range(module.MAX_SESSIONS + 5):
        clock.now_s += 0.001
        sessions.open(Person("password", f"user-{number}", "x"), f"User:user-{number}")
    assert len(sessions) == module.MAX_SESSIONS
    assert not sessions.has(Person("password", "user-0", "x"))


def test_what_is_over_is_swept_away() -> None:
    clock, sessions = made()
    _, session = sessions.open(ALICE, "User:alice")
    clock.now_s += IDLE_S
    assert not sessions.has(ALICE)
    assert len(sessions) == 1
    sessions.sweep()
    assert len(sessions) == 0
    assert session.is_over
