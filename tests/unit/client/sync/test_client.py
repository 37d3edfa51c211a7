"""What all blocking clients share, on a client of the test's own: calls, listeners, the end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from moldau.client.errors import ClientClosed, InvalidState, KafkaError
from moldau.client.sync.client import BlockingClient, face_of, quick_face_of
from moldau.client.sync.portal import Callers, ThreadPortal


class Inner:
    """An asyncio client that notes its calls and threads."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.made_in = threading.get_ident()
        self.close_error: Exception | None = None
        self.callers: Callers | None = None
        self.listener: Callable[[], object] = threading.get_ident
        self.step: asyncio.Task[object] | None = None

    async def add(self, first: int, second: int = 2, *, third: int = 3) -> tuple[int, ...]:
        """Documented here."""
        await asyncio.sleep(0)
        self.calls.append(("add", threading.get_ident()))
        return first, second, third

    async def fail(self, error: BaseException) -> None:
        raise error

    async def listen(self) -> object:
        assert self.callers is not None
        if self.step is None:
            self.step = asyncio.create_task(self.callers.run(self.listener))
        await asyncio.wait([self.step], timeout=0)
        return self.step.result() if self.step.done() else None

    async def listen_on(self) -> object:
        assert self.step is not None
        return await self.step

    async def close_listening(self) -> None:
        assert self.callers is not None
        await self.callers.run(self.listener)
        await self.close()

    def plain(self, first: int, *, second: int = 2) -> tuple[int, int, int]:
        """Documented here too."""
        asyncio.get_running_loop()
        return first, second, threading.get_ident()

    async def close(self, *arguments: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        self.calls.append(("close", *arguments))
        if self.close_error is not None:
            raise self.close_error

    def __repr__(self) -> str:
        return "<moldau.client.inner of moldau.client.x>"


class Face(BlockingClient[Inner]):
    """Its blocking client."""

    def __init__(self, make: Callable[[], Inner] = Inner) -> None:
        super().__init__(make)
        self._callers = self._inner.callers = Callers()

    add: Final = face_of(Inner.add)
    fail: Final = face_of(Inner.fail)
    listen: Final = face_of(Inner.listen)
    listen_on: Final = face_of(Inner.listen_on, runs_errands=True)
    plain: Final = quick_face_of(Inner.plain)

    def close_with(self, *arguments: int) -> None:
        self._close(self._inner.close, *arguments)

    def close_listening(self) -> None:
        self._close(self._inner.close_listening, callers=self._callers)


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPortal]:
    """A portal for this test alone."""
    made = ThreadPortal()
    monkeypatch.setattr("moldau.client.sync.client.thread_portal", lambda: made)
    yield made
    made.forked = False
    made.stop()


@pytest.fixture
def face(portal: ThreadPortal) -> Iterator[Face]:
    made = Face()
    yield made
    portal.forked = False
    made._inner.close_error = None
    made.close()


def inner_of(face: Face) -> Inner:
    inner: Inner = face._inner
    return inner


def test_the_client_is_made_and_called_in_the_portals_thread(face: Face, portal: ThreadPortal):
    inner = inner_of(face)
    assert inner.made_in == portal._thread_ident != threading.get_ident()
    assert face.add(1) == (1, 2, 3)
    assert face.add(4, second=5, third=6) == (4, 5, 6)
    assert face.plain(7) == (7, 2, inner.made_in)
    assert face.plain(7, second=8) == (7, 8, inner.made_in)
    assert inner.calls == [("add", inner.made_in)] * 2


def test_errors_and_documentation_are_the_clients_own(face: Face):
    error = ValueError("its own")
    with pytest.raises(ValueError, match="its own") as raised:
        face.fail(error)
    assert raised.value is error
    with pytest.raises(TypeError):
        face.plain()
    assert Face.add.__doc__ == "Documented here."
    assert Face.plain.__doc__ == "Documented here too."
    assert Face.add.__name__ == "add"


def test_what_cannot_be_made_is_no_client(portal: ThreadPortal):
    def make() -> Inner:
        raise KafkaError("no settings")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KafkaError, match="no settings"):
            Face(make)
        gc.collect()


def test_a_client_is_closed_once_and_takes_no_calls_then(face: Face):
    inner = inner_of(face)
    face.close_with(5, 6)
    assert inner.calls == [("close", 5, 6)], "and it has ended"
    face.close()
    face.close_with(7)
    assert inner.calls == [("close", 5, 6)]
    for call in (lambda: face.add(1), lambda: face.plain(1)):
        with pytest.raises(ClientClosed, match="has been closed"):
            call()


def test_a_block_closes_its_client(portal: ThreadPortal):
    with Face() as face:
        assert face.add(1) == (1, 2, 3)
    assert inner_of(face).calls[-1] == ("close",)
    with pytest.raises(LookupError), Face() as face:
        raise LookupError
    assert inner_of(face).calls == [("close",)]


def test_what_closing_raises_is_raised_once(face: Face):
    inner_of(face).close_error = KafkaError("not all was sent")
    with pytest.raises(KafkaError, match="not all was sent"):
        face.close()
    face.close()
    assert inner_of(face).calls == [("close",)]


def test_an_interruption_leaves_closing_to_the_background(face: Face, portal: ThreadPortal):
    inner = inner_of(face)
    inner.close_error = None
    gate: list[asyncio.Event] = []

    async def closing() -> None:
        gate.append(asyncio.Event())
        os.kill(os.getpid(), signal.SIGINT)
        await gate[0].wait()
        inner.calls.append(("closed late",))

    with pytest.raises(KeyboardInterrupt):
        face._close(closing)
    with pytest.raises(ClientClosed):
        face.add(1)
    face.close()
    assert inner.calls == []
    portal.post(gate[0].set)
    portal.stop()
    assert inner.calls == [("closed late",)], "the interpreter's end waits for it"


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_interpreters_end_closes_what_is_open(portal: ThreadPortal, is_closed: bool):
    face = Face()
    inner = inner_of(face)
    if is_closed:
        face.close()
    portal.stop()
    assert inner.calls == [("close",)]
    with pytest.raises(ClientClosed):
        face.add(1)
    face.close()
    assert inner.calls == [("close",)]
    assert warned(lambda: None, face.close) == []
    holder = [face]
    del face
    assert warned(holder.clear) == [], "it was closed in the end"


def warned(*calls: Callable[[], object]) -> list[warnings.WarningMessage]:
    """The warnings of resources that the calls, and a collection, lead to."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in calls:
            call()
        gc.collect()
    return [each for each in caught if each.category is ResourceWarning]


def test_a_closed_client_is_let_go_of(portal: ThreadPortal):
    face = Face()
    reference = weakref.ref(inner_of(face))
    face.close()
    face.close()
    portal.call(asyncio.sleep, 0)
    del face
    gc.collect()
    assert reference() is None


def test_of_two_threads_that_close_one_does_it(face: Face):
    """The other one has just begun, and has not got so far as to say so."""
    finalizer = face._finalizer
    assert finalizer.detach() is not None
    face.close()
    assert inner_of(face).calls == []
    with pytest.raises(ClientClosed):
        face.add(1)


@pytest.mark.parametrize("is_quiet", ["closed", "forked", "open"])
def test_a_client_that_is_collected_is_closed_with_a_warning(portal: ThreadPortal, is_quiet: str):
    face = Face()
    inner = inner_of(face)
    if is_quiet == "closed":
        face.close()
    portal.forked = is_quiet == "forked"
    holder = [face]
    del face
    heard = warned(holder.clear)
    named = "unclosed <moldau.client.sync.inner of moldau.client.x>"
    assert [str(each.message) for each in heard] == ([named] if is_quiet == "open" else [])
    assert all(each.filename == __file__ for each in heard), "where it was let go of"
    portal.forked = False
    portal.stop()
    assert inner.calls == [("close",)]


def test_a_client_of_a_parent_process_says_so(face: Face, portal: ThreadPortal):
    portal.forked = True
    for call in (lambda: face.add(1), lambda: face.plain(1), face.close):
        with pytest.raises(InvalidState, match="made before a fork"):
            call()
    portal.forked = False
    assert face.add(1) == (1, 2, 3), "it was not closed by that"


def test_listeners_wait_for_a_call_that_runs_them(face: Face):
    threads: list[int] = []
    inner_of(face).listener = lambda: threads.append(threading.get_ident())
    face.listen()
    assert threads == []
    face.listen_on()
    assert threads == [threading.get_ident()]


def test_a_listener_that_closing_calls_may_call_the_client_and_other_threads_may_not(face: Face):
    heard: list[object] = []

    def call_late() -> None:
        try:
            face.add(1)
        except ClientClosed as error:
            heard.append(type(error))

    def listener() -> None:
        heard.append(face.add(4))
        other = threading.Thread(target=call_late)
        other.start()
        other.join(60)
        face.close()

    inner_of(face).listener = listener
    face.close_listening()
    assert heard == [(4, 2, 3), ClientClosed]
    assert inner_of(face).calls[-1] == ("close",)
    with pytest.raises(ClientClosed):
        face.add(1)


def test_faces_refuse_to_block_the_portals_thread(face: Face, portal: ThreadPortal):
    async def work() -> None:
        face.add(1)

    with pytest.raises(InvalidState, match="would wait for itself"):
        portal.call(work)


def test_faces_are_named_after_their_class_unless_it_is_an_applications():
    class Ours(BlockingClient[Inner]):
        __module__ = "moldau.client.sync.ours"
        add: Final = face_of(Inner.add)
        plain: Final = quick_face_of(Inner.plain)

    class Theirs(BlockingClient[Inner]):
        add: Final = face_of(Inner.add)

    for name in ("add", "plain"):
        face = getattr(Ours, name)
        assert face.__module__ == "moldau.client.sync.ours"
        assert face.__qualname__ == f"{Ours.__qualname__}.{name}"
    assert (Theirs.add.__module__, Theirs.add.__qualname__) == (__name__, "Inner.add")
