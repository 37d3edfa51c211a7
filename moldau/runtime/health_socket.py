"""Whether a process's event loops run, answered on a Unix domain socket: for probes that need
no network, which others may fill. Those of HTTP are in `node.http.server`.

Owns the socket and the thread that answers on it. Must not do anything on the loops but ask them to
run a callback. Invariants: one question at a time, and one callback that waits at each loop; who
may not write to the socket's file, which is its user's alone, cannot ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

HEALTHY: Final = "ok"
LOOP_TIMEOUT_S: Final = 5.0
"""How long the loops may take to run a callback, all together."""
ASK_TIMEOUT_S: Final = 8.0
_READ_TIMEOUT_S: Final = 1.0
_ACCEPT_PAUSE_S: Final = 1.0
_MAX_ANSWER_BYTES: Final = 1_000


class HealthSocket:
    """States: made → `open` → answering → `close`.

    Args:
        path: of the socket's file; about 100 characters are allowed.
        loops: those that have to run, by name; asked for in the socket's thread.
    """

    def __init__(
        self, path: str, loops: Callable[[], Mapping[str, asyncio.AbstractEventLoop]]
    ) -> None:
        self._path = path
        self._loops = loops
        self._asked: dict[str, tuple[threading.Event, float]] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Answer from now on. Raises: OSError: the file cannot be made, or another process's."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._remove_remains()
            listening.bind(self._path)
            os.chmod(self._path, stat.S_IRUSR | stat.S_IWUSR)  # before it can be connected to
            listening.listen()
        except OSError as error:
            listening.close()
            reason = error.strerror or str(error)
            raise OSError(error.errno or errno.EINVAL, reason, self._path) from None
        self._thread = threading.Thread(
            target=self._serve, args=(listening,), name="moldau-health", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answer no more (idempotent)."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._closing.set()
        with contextlib.suppress(OSError):
            _connected(self._path, _READ_TIMEOUT_S).close()  # it waits for a connection
        thread.join()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _remove_remains(self) -> None:
        """Remove the socket of a process that ended without `close`.

        Raises:
            OSError: it is no socket, or a process answers there.
        """
        try:
            if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
                raise OSError(errno.EEXIST, "it exists, and is no socket")
            _connected(self._path, _READ_TIMEOUT_S).close()
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(self._path)
            return
        raise OSError(errno.EADDRINUSE, "another process answers there")

    def _serve(self, listening: socket.socket) -> None:
        with listening:
            while not self._closing.is_set():
                try:
                    connection, _ = listening.accept()
                except OSError:  # no descriptor is free
                    self._closing.wait(_ACCEPT_PAUSE_S)
                    continue
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(_READ_TIMEOUT_S)
                    connection.sendall(self._verdict().encode())

    def _verdict(self) -> str:
        now_s = time.monotonic()
        until_s = now_s + LOOP_TIMEOUT_S
        for name, loop in self._loops().items():
            asked = threading.Event()
            if name not in self._asked and not loop.is_closed():
                with contextlib.suppress(RuntimeError):  # it has just ended, as the process stops
                    loop.call_soon_threadsafe(asked.set)
                    self._asked[name] = asked, now_s
        for name, (asked, _) in tuple(self._asked.items()):
            if self._closing.is_set() or asked.wait(max(until_s - time.monotonic(), 0.0)):
                del self._asked[name]
        late = [
            f"the {name} loop has not run for {time.monotonic() - asked_s:.0f} s"
            for name, (_, asked_s) in self._asked.items()
        ]
        return "; ".join(late) or HEALTHY


def ask_health(path: str) -> str:
    """HEALTHY, or what is wrong, as the process that answers at a path says.

    Raises:
        OSError: no process answers there, or not in time.
    """
    with _connected(path, ASK_TIMEOUT_S) as connection:
        answer = connection.recv(_MAX_ANSWER_BYTES).decode(errors="replace")
    if not answer:
        raise ConnectionResetError(errno.ECONNRESET, "the process ends", path)
    return answer


def _connected(path: str, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection
