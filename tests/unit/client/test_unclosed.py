"""Clients that are collected without having been closed warn, once, by their own name."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from moldau import client
from moldau.client import ConfigurationError, sync
from tests.fake_broker import FakeCluster, ThreadedCluster
from tests.kit.waiting import until

pytestmark = pytest.mark.real

NAMES = ("Admin", "Consumer", "Producer")

AT_EXIT = """
import sys
from moldau.client import sync
producer = sync.Producer(sys.argv[1])
producer.send("t", b"delivered all the same")
"""

#: Scripts that end while a client is open, which a part of Python that goes last still holds.
LAST = {
    "a blocking client": "warnings.kept = sync.Producer(sys.argv[1])",
    "an asyncio client": (
        "async def main():\n"
        "    abc.kept = client.Admin(sys.argv[1])\n"
        "    await abc.kept.list_topics()\n"
        "asyncio.run(main())"
    ),
    "a block that was not left": (
        "def opened():\n"
        "    with sync.Producer(sys.argv[1]) as producer:\n"
        "        yield producer\n"
        "kept = opened()\n"
        "next(kept)"
    ),
    "a transaction that was not left": (
        "def opened():\n"
        "    with sync.Producer(sys.argv[1], transactional_id='last') as producer:\n"
        "        with producer.transaction():\n"
        "            producer.send('t', b'aborted')\n"
        "            yield producer\n"
        "kept = opened()\n"
        "next(kept)"
    ),
}


@pytest.fixture(scope="module")
def threaded() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(lambda: FakeCluster(1, topics={"t": 1})) as running:
        yield running


@pytest.fixture
def servers(threaded: ThreadedCluster) -> str:
    return threaded.cluster.bootstrap_servers


@contextmanager
def heard() -> Iterator[list[str]]:
    """What was warned of in the block, garbage included."""
    texts: list[str] = []
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
        gc.collect()
    texts.extend(str(each.message) for each in caught)


def expected(module: str, name: str, servers: str) -> list[str]:
    return [f"unclosed <{module}.{name} client_id=moldau bootstrap={servers}>"]


async def ask(asked: Any) -> None:
    """Have a client connect."""
    if isinstance(asked, client.Admin):
        await asked.list_topics()
    else:
        assert await asked.partitions_for("t") == [0]


def ask_blocking(asked: Any) -> None:
    if isinstance(asked, sync.Admin):
        asked.list_topics()
    else:
        assert asked.partitions_for("t") == [0]


@pytest.mark.parametrize("name", NAMES)
def test_an_asyncio_client_that_outlived_its_loop_is_all_that_is_warned_of(name: str, servers: str):
    async def use() -> None:
        await ask(getattr(client, name)(servers))

    with heard() as texts:
        asyncio.run(use())
    assert texts == expected("moldau.client", name, servers)


def test_an_asyncio_client_that_is_dropped_while_its_loop_runs_loses_its_connections(
    threaded: ThreadedCluster, servers: str
):
    async def use() -> list[str]:
        admin = client.Admin(servers)
        await admin.list_topics()
        [connection] = admin._client._connections._open.values()
        assert not connection.is_closed
        with heard() as texts:
            del admin
        await asyncio.sleep(0)
        assert connection.is_closed
        return texts

    with heard() as later:
        assert asyncio.run(use()) == expected("moldau.client", "Admin", servers)
    assert later == []


@pytest.mark.parametrize("name", NAMES)
def test_a_blocking_client_warns_and_is_closed_in_the_background(name: str, servers: str):
    blocking = getattr(sync, name)(servers)
    ask_blocking(blocking)
    behind = [blocking._inner]
    with heard() as texts:
        del blocking
    assert texts == expected("moldau.client.sync", name, servers)
    until(lambda: behind[0]._client._connections.is_closed, what="it is closed")
    with heard() as texts:
        behind.clear()
    assert texts == []


async def _closed(made: Any) -> None:
    await ask(made)
    await made.close()


async def _left(made: Any) -> None:
    async with made:
        await ask(made)


async def _unused(made: Any) -> None:
    assert repr(made)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("use", [_closed, _left, _unused])
def test_nothing_is_warned_of_an_asyncio_client_that_leaves_nothing(
    name: str, use: Callable[[Any], Awaitable[None]], servers: str
):
    async def used() -> None:
        await use(getattr(client, name)(servers))

    with heard() as texts:
        asyncio.run(used())
    assert texts == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_warned_of_a_blocking_client_that_was_closed(name: str, servers: str):
    with heard() as texts, getattr(sync, name)(servers) as blocking:
        ask_blocking(blocking)
        del blocking
    assert texts == []


@pytest.mark.parametrize("module", [client, sync])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_warned_of_a_client_that_could_not_be_made(module: Any, name: str):
    with heard() as texts, pytest.raises(ConfigurationError):
        getattr(module, name)("localhost:9092", no_such_setting=1)
    assert texts == []


def test_an_application_s_own_class_is_called_by_its_own_name(servers: str):
    class Mine(client.Producer):
        pass

    assert repr(Mine(servers)).startswith(f"<{__name__}.{Mine.__qualname__} client_id=moldau ")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_the_child_of_a_fork_neither_warns_nor_touches_its_parent_s_connections(servers: str):
    async def use() -> int:
        async with client.Admin(servers) as admin:
            await admin.list_topics()
            connections = admin._client._connections
            process_id = os.fork()
            if process_id == 0:
                os._exit(int(connections.abandon()))
            _, status = await asyncio.to_thread(os.waitpid, process_id, 0)
            await admin.list_topics()
            return status

    assert asyncio.run(use()) == 0


def test_a_script_that_ends_with_an_open_client_delivers_and_is_warned(
    threaded: ThreadedCluster, servers: str
):
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", AT_EXIT, servers],
        capture_output=True,
        text=True,
        check=True,
    )
    unclosed = [line for line in ended.stderr.splitlines() if "unclosed" in line]
    [told] = expected("moldau.client.sync", "Producer", servers)
    assert len(unclosed) == 1, ended.stderr
    assert unclosed[0].endswith(f"ResourceWarning: {told}")
    assert b"delivered all the same" in threaded.call(lambda cluster: cluster.values("t"))


@pytest.mark.parametrize("options", [(), ("-W", "always")], ids=["", "warned"])
@pytest.mark.parametrize("script", LAST.values(), ids=LAST)
def test_a_client_that_is_collected_last_leaves_no_traceback(
    servers: str, script: str, options: tuple[str, ...]
):
    """Then modules have lost their names already, the interpreter's own too."""
    imports = "import abc, asyncio, sys, warnings\nfrom moldau import client\n"
    code = f"{imports}from moldau.client import sync\n{script}"
    ended = subprocess.run(
        [sys.executable, *options, "-c", code, servers], capture_output=True, text=True, check=True
    )
    lines = ended.stderr.splitlines()
    assert [line for line in lines if "ResourceWarning: unclosed <moldau.client" not in line] == []
    assert len(lines) <= (1 if options else 0)
