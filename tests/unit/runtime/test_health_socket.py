"""The health socket: loops that run, that are held, that have ended, and remains of a process."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.runtime import health_socket
from moldau.runtime.health_socket import HEALTHY, HealthSocket, ask_health

pytestmark = pytest.mark.real


class RunningLoop:
    """A loop on its own thread, which can be held."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._go_on = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    def hold(self) -> None:
        held = threading.Event()
        self._go_on.clear()

        def wait() -> None:
            held.set()
            self._go_on.wait()

        self.loop.call_soon_threadsafe(wait)
        held.wait()

    def go_on(self) -> None:
        self._go_on.set()

    def stop(self) -> None:
        self.go_on()
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()


@pytest.fixture
def loops() -> Iterator[dict[str, RunningLoop]]:
    made = {"data": RunningLoop(), "quorum": RunningLoop()}
    yield made
    for each in made.values():
        each.stop()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A short one, as pytest's own may be longer than a socket's path may be."""
    monkeypatch.chdir(tmp_path)
    return "health"


@pytest.fixture
def answering(loops: dict[str, RunningLoop], path: str) -> Iterator[HealthSocket]:
    made = HealthSocket(path, lambda: {name: each.loop for name, each in loops.items()})
    made.open()
    yield made
    made.close()


def test_loops_that_run_are_healthy(answering: HealthSocket, path: str):
    for _ in range(3):
        assert ask_health(path) == HEALTHY
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    answering.close()
    assert not os.path.exists(path)
    with pytest.raises(FileNotFoundError):
        ask_health(path)


@pytest.mark.parametrize("name", ["data", "quorum"])
def test_a_loop_that_is_held_is_named_until_it_goes_on(
    answering: HealthSocket,
    loops: dict[str, RunningLoop],
    path: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(health_socket, "LOOP_TIMEOUT_S", 0.05)
    loops[name].hold()
    for _ in range(3):
        assert ask_health(path).startswith(f"the {name} loop has not run for ")
    assert len(answering._asked) == 1, "one callback waits"
    loops[name].go_on()
    monkeypatch.setattr(health_socket, "LOOP_TIMEOUT_S", 20.0)
    assert ask_health(path) == HEALTHY


def test_a_loop_that_has_ended_is_not_waited_for(
    answering: HealthSocket, loops: dict[str, RunningLoop], path: str
):
    loops["quorum"].stop()
    assert ask_health(path) == HEALTHY


def test_a_client_that_says_nothing_holds_up_none(answering: HealthSocket, path: str):
    silent = [socket.socket(socket.AF_UNIX) for _ in range(5)]
    for each in silent:
        each.connect(path)
    assert ask_health(path) == HEALTHY
    for each in silent:
        each.close()
    assert ask_health(path) == HEALTHY


def test_remains_of_a_process_that_was_killed_are_removed(loops: dict[str, RunningLoop], path: str):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with pytest.raises(ConnectionRefusedError):
        ask_health(path)
    made = HealthSocket(path, dict)
    made.open()
    assert ask_health(path) == HEALTHY
    with pytest.raises(OSError, match="another process answers there"):
        HealthSocket(path, dict).open()
    assert ask_health(path) == HEALTHY
    made.close()


def test_what_cannot_be_a_socket_is_left_as_it_is(path: str):
    Path(path).write_text("a file")
    with pytest.raises(OSError, match="it exists, and is no socket"):
        HealthSocket(path, dict).open()
    assert Path(path).read_text() == "a file"
    with pytest.raises(OSError, match="No such file") as missing:
        HealthSocket("none/health", dict).open()
    assert missing.value.filename == "none/health"
    with pytest.raises(OSError, match="path too long") as long:
        HealthSocket("x" * 200, dict).open()
    assert (long.value.errno, long.value.filename) == (errno.EINVAL, "x" * 200)
