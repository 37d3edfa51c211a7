"""Keeps the real world out of the gate: no sockets with addresses, no child processes, no sleeping.

Owns: the audit hook, which sees such calls whichever module makes them, a `time.sleep` that says
what it was asked for (Python 3.11 has no event for it), and the failure that says what to do. Must
not: look at tests of other kinds, or at threads that earlier tests have left. Invariant: a test of
the gate that did one of these fails, even if it caught what came of it. (What libraries in C do by
themselves, librdkafka and uvloop among them, is not seen.)
"""

from __future__ import annotations

import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.kinds import Kind, kind_of

ADDRESSED = (socket.AF_INET, socket.AF_INET6)
CHILDREN = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec"})
SOCKETS = frozenset({"socket.bind", "socket.connect"})
HARMLESS = ("git",)
"""Tidy tests ask it which files there are."""

MOST_DEEDS = 3
WATCHED = CHILDREN | SOCKETS
ADVICE = (
    "A test of the gate has neither sockets, child processes nor time.sleep: use the simulated "
    "network and loop, or mark it: pytestmark = pytest.mark.real"
)


class Guard:
    """What the test that is running did."""

    def __init__(self) -> None:
        self.deeds: list[str] = []
        self._older: frozenset[int] | None = None
        """Threads that ran before the test; None while no test is watched."""
        self._is_installed = False
        self._real_sleep = time.sleep

    def begin(self) -> None:
        """Watch from here on. The hook is made at the first test of the gate: it stays for good."""
        if not self._is_installed:
            sys.addaudithook(self._heard)
            self._is_installed = True
        self.deeds.clear()
        here = threading.get_ident()
        self._older = frozenset(each for each in sys._current_frames() if each != here)
        time.sleep = self._sleep

    def end(self) -> None:
        """Watch no longer."""
        self._older = None
        time.sleep = self._real_sleep

    def verify(self) -> None:
        """Raises: pytest.fail.Exception: the test did something; reported once"""
        if self.deeds:
            deeds = "\n".join(self.deeds)
            self.deeds.clear()
            pytest.fail(f"{deeds}\n{ADVICE}", pytrace=False)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._older is None or event not in WATCHED:
            return
        if event in SOCKETS and arguments[0].family not in ADDRESSED:
            return
        if event == "subprocess.Popen" and arguments[0] in HARMLESS:
            return
        self._note(f"{event} {arguments[1] if len(arguments) > 1 else ''}".rstrip())

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._note(f"time.sleep({seconds})")
        self._real_sleep(seconds)

    def _note(self, deed: str) -> None:
        older = self._older
        if older is None or threading.get_ident() in older or len(self.deeds) >= MOST_DEEDS:
            return
        self.deeds.append(f"{deed} in\n{_place()}")


GUARD = Guard()


def _place() -> str:
    """The calls that lead there: the newest few of this repository's own."""
    frames = [
        each
        for each in traceback.extract_stack()
        if "/tests/" in each.filename or "/moldau/" in each.filename
    ]
    own = [each for each in frames if each.filename != __file__] or frames
    return "".join(traceback.format_list(own[-4:])).rstrip()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fixtures of whatever scope count for the test that asks first."""
    if kind_of(item) is not Kind.GATE:
        return (yield)
    GUARD.begin()
    try:
        return (yield)
    finally:
        GUARD.end()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Iterator[None]:
    """A fixture that did it fails its test before it runs."""
    result = yield
    GUARD.verify()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Iterator[None]:
    """A test that failed by itself has that as its report."""
    result = yield
    GUARD.verify()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """What fixtures do in the end counts as well; not after the last test of all, when those of
    the session end, which real tests have asked for.
    """
    if nextitem is None:
        GUARD.end()
    result = yield
    GUARD.verify()
    return result
