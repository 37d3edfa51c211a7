"""A test of the gate that touches the real world fails, and says how."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.kit.guard import ADVICE, Guard
from tests.kit.kinds import Kind, kind_at, place_of

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def guard():
    """One: each of them puts a hook into the process for good."""
    return Guard()


@pytest.fixture
def watching(guard):
    guard.begin()
    yield guard
    guard.end()
    guard.deeds.clear()


async def _listen() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()


def _bind() -> None:
    with socket.socket(socket.AF_INET6) as made:
        made.bind(("::1", 0))


def _connect() -> None:
    with socket.socket() as made, pytest.raises(ConnectionError):
        made.connect(("127.0.0.1", 1))


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _in_a_thread() -> None:
    thread = threading.Thread(target=_bind)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        (_bind, "socket.bind ('::1', 0) in"),
        (_connect, "socket.connect ('127.0.0.1', 1) in"),
        (lambda: asyncio.run(_listen()), "socket.bind ('127.0.0.1', 0) in"),
        (lambda: subprocess.run([sys.executable, "-c", ""], check=True), "subprocess.Popen ["),
        (_fork, "os.fork in"),
        (_in_a_thread, "socket.bind"),
        (lambda: time.sleep(0.001), "time.sleep(0.001) in"),
    ],
)
def test_a_deed_is_reported_once_with_its_place_and_the_advice(watching, deed, said):
    deed()
    with pytest.raises(pytest.fail.Exception) as raised:
        watching.verify()
    assert said in str(raised.value)
    assert "test_guard.py" in str(raised.value)
    assert ADVICE in str(raised.value)
    watching.verify()


def test_what_stays_in_the_process_is_allowed(watching, tmp_path):
    first, second = socket.socketpair()
    first.close()
    second.close()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
    asyncio.run(asyncio.sleep(0))
    time.sleep(0)
    subprocess.run(["git", "--version"], check=True, capture_output=True)
    watching.verify()
    assert watching.deeds == []


def test_a_thread_of_an_earlier_test_is_not_the_test(guard):
    go, done = threading.Event(), threading.Event()

    def older() -> None:
        go.wait()
        _bind()
        done.set()

    thread = threading.Thread(target=older)
    thread.start()
    guard.begin()
    go.set()
    done.wait()
    guard.end()
    thread.join()
    assert guard.deeds == []


def test_nothing_is_heard_between_tests_of_the_gate(guard):
    _bind()
    assert guard.deeds == []


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("unit/raft/test_peers.py::test_it", Kind.GATE),
        ("interop/kcat/test_it.py::test_it[a/b::c]", Kind.REAL),
        ("interoperable/test_it.py::test_it", Kind.GATE),
        ("system/transactions/test_checker.py::test_it", Kind.GATE),
        ("system/transactions/test_checker_of_all.py::test_it", Kind.REAL),
        ("deploy/test_image.py::TestIt::test_it", Kind.LONG),
    ],
)
def test_the_longest_row_above_a_test_says_its_kind(place, kind):
    assert kind_at(place) is kind


def test_a_mark_says_more_than_the_table(request):
    assert kind_at(place_of(request.node)) is Kind.GATE
    assert [each.name for each in request.node.iter_markers("real")] != []


@pytest.mark.parametrize(("scope", "status"), [("session", 0), ("function", 1)])
def test_what_ends_with_the_session_is_not_the_last_test_s_own(tmp_path, scope, status):
    made_up = tmp_path / "test_made_up.py"
    made_up.write_text(
        "import time\nimport pytest\n\n"
        f"@pytest.fixture(scope={scope!r})\ndef ends_late():\n    yield\n    time.sleep(0.001)\n\n"
        "@pytest.mark.real\ndef test_asks(ends_late):\n    pass\n\n"
        f"def test_logic({'ends_late' if scope == 'function' else ''}):\n    pass\n\n"
        "def test_last():\n    pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    real: .\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.kit.guard", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == status, ended.stdout
    assert (ADVICE in ended.stdout) == bool(status)
