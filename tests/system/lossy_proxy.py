"""A TCP proxy that loses answers: requests reach the node, responses do not reach the client.

Owns its thread, sockets and one listening port. Must not change what it forwards.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

SIZE = struct.Struct(">i")
REQUEST_HEAD = struct.Struct(">hhi")
CORRELATION_ID = struct.Struct(">i")
PRODUCE = 0


class LossyProxy:
    """Forwards to `target`; while `losses` is above 0 a Produce response costs the connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target = ("", 0)
        self.lost_count = 0
        self._losses = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def lose(self, count: int) -> None:
        """Swallow so many Produce responses more, each with its connection."""
        with self._lock:
            self._losses += count

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in self._sockets:
            self._end(each)
        for thread in self._threads:
            thread.join(10)

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    node = socket.create_connection(self.target)
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, node]
                produced: set[int] = set()
                self._run(self._requests, client, node, produced)
                self._run(self._responses, node, client, produced)

    def _requests(self, client: socket.socket, node: socket.socket, produced: set[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := self._frame(client):
                api_key, _, correlation_id = REQUEST_HEAD.unpack_from(frame)
                if api_key == PRODUCE:
                    produced.add(correlation_id)
                node.sendall(SIZE.pack(len(frame)) + frame)
        self._end(client, node)

    def _responses(self, node: socket.socket, client: socket.socket, produced: set[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := self._frame(node):
                if CORRELATION_ID.unpack_from(frame)[0] in produced and self._takes_loss():
                    break
                client.sendall(SIZE.pack(len(frame)) + frame)
        self._end(client, node)

    def _takes_loss(self) -> bool:
        with self._lock:
            if self._losses == 0:
                return False
            self._losses -= 1
            self.lost_count += 1
            return True

    @staticmethod
    def _end(*ended: socket.socket) -> None:
        for each in ended:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    @staticmethod
    def _frame(source: socket.socket) -> bytes:
        head = source.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return b""
        size_bytes = SIZE.unpack(head)[0]
        return source.recv(size_bytes, socket.MSG_WAITALL)
