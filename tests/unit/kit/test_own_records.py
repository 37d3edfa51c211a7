"""`caplog` hears the test, not what others left."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

_log = logging.getLogger("moldau.test")


@pytest.fixture(scope="module")
def older() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        made.submit(threading.get_ident).result()
        yield made


def test_a_thread_of_the_test_is_heard(older, caplog):
    """So is one of a fixture that this test is the first to ask for."""
    older.submit(_log.warning, "of the fixture").result()
    with ThreadPoolExecutor(1) as own:
        own.submit(_log.warning, "of the test").result()
    assert caplog.messages == ["of the fixture", "of the test"]


def test_an_older_thread_is_not_heard(older, caplog):
    older.submit(_log.warning, "of the fixture").result()
    _log.warning("of the test")
    assert caplog.messages == ["of the test"]


def test_what_becomes_of_garbage_is_not_heard(caplog):
    async def leave() -> None:
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(ValueError("nothing retrieves it"))

    asyncio.run(leave())
    gc.collect()
    assert not caplog.records
