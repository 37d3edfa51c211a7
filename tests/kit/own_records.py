"""What `caplog` hears: the test's own records.

Owns the filter. Must not: change what a failed test shows of its log. Invariant: neither what the
garbage collector makes asyncio say of tasks that earlier tests left, nor, in the gate, a thread
that ran before the test, adds a record. (Real tests share machinery with threads: Spark's.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from weakref import WeakSet

import pytest

from tests.kit.kinds import Kind, kind_of

_OLDER: WeakSet[threading.Thread] = WeakSet()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Whose records are not the test's: of threads older than its fixtures."""
    _OLDER.clear()
    if kind_of(item) is not Kind.GATE:
        return
    _OLDER.update(threading.enumerate())
    _OLDER.discard(threading.current_thread())


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """As pytest's, for the test's own records alone."""
    caplog.handler.addFilter(is_own)
    yield caplog
    caplog.handler.removeFilter(is_own)


def is_own(record: logging.LogRecord) -> bool:
    """A handler asks this in the thread that logs."""
    return record.name != "asyncio" and threading.current_thread() not in _OLDER
