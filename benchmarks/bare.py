"""The limits: what a loop does that only moves the bytes. `python -m benchmarks.bare MODE JSON`.

`receive` takes bytes off a socket and writes them to a file, with a fixed answer per request;
`sendfile` answers every request with the next stretch of a file; `relay` does both, the file's new
bytes going to the one reader as they come. uvloop, BufferedProtocol, 256 KB, as the broker has it.
Must not parse, check or keep anything. Prints `ready: PORT`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.processes import given

CHUNK_BYTES: Final = 256 * 1024
PIECE_BYTES: Final = 128 * 1024
"""What is written at a time: the limit shall have what helps a broker, too."""

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class BareOrder:
    """Sizes of everything; `head_bytes` come before the batches in an answer to a fetch."""

    path: str
    frame_bytes: int = 0
    answer_bytes: int = 0
    request_bytes: int = 0
    head_bytes: int = 0
    batch_bytes: int = 0
    fetch_bytes: int = 0


class Receiver(asyncio.BufferedProtocol):
    """Writes what it receives and answers every `frame_bytes`."""

    def __init__(self, order: BareOrder, file: int, relay: Relay | None = None) -> None:
        self._order = order
        self._file = file
        self._relay = relay
        self._buffer = bytearray(CHUNK_BYTES)
        self._view = memoryview(self._buffer)
        self._until_answer = order.frame_bytes
        self._answer = (order.answer_bytes - 4).to_bytes(4, "big") + bytes(order.answer_bytes - 4)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        for start in range(0, nbytes, PIECE_BYTES):
            os.write(self._file, self._view[start : min(start + PIECE_BYTES, nbytes)])
        self._until_answer -= nbytes
        answers = 0
        while self._until_answer <= 0:
            self._until_answer += self._order.frame_bytes
            answers += 1
        if answers:
            self._transport.write(self._answer * answers)
        if self._relay is not None:
            self._relay.grown(nbytes)


class Relay(asyncio.BufferedProtocol):
    """Answers the one reader's requests with what the file has that it has not got."""

    def __init__(self, order: BareOrder, file: int) -> None:
        self._order = order
        self._file = file
        self._file_bytes = 0
        self._sent_bytes = 0
        self._end_bytes = 0
        self._asked = False
        self._buffer = bytearray(4096)
        self._pending_request_bytes = 0
        self._socket: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        original: Any = transport.get_extra_info("socket")
        self._socket = socket.socket(fileno=os.dup(original.fileno()))
        self._socket.setblocking(False)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._pending_request_bytes += nbytes
        if self._pending_request_bytes == self._order.request_bytes:
            self._pending_request_bytes = 0
            self._asked = True
            self._answer()

    def grown(self, byte_count: int) -> None:
        """The file has more."""
        self._file_bytes += byte_count
        if self._asked:
            self._answer()

    def _answer(self) -> None:
        order = self._order
        available = min(self._file_bytes - self._sent_bytes, order.fetch_bytes)
        count = available // order.batch_bytes * order.batch_bytes
        if not count or self._socket is None:
            return
        self._asked = False
        size = order.head_bytes - 4 + count
        head = size.to_bytes(4, "big") + bytes(order.head_bytes - 4)
        self._socket.send(head, socket.MSG_MORE)
        self._end_bytes = self._sent_bytes + count
        self._pump()

    def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        if self._socket is None:
            return
        descriptor = self._socket.fileno()
        loop.remove_writer(descriptor)
        try:
            while self._sent_bytes < self._end_bytes:
                self._sent_bytes += os.sendfile(
                    descriptor, self._file, self._sent_bytes, self._end_bytes - self._sent_bytes
                )
        except BlockingIOError:
            loop.add_writer(descriptor, self._pump)


async def serve_receive(order: BareOrder, *, relays: bool) -> None:
    """Listen; with `relays` on a second port for the reader."""
    file = os.open(order.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    loop = asyncio.get_running_loop()
    relay = Relay(order, file) if relays else None
    server = await loop.create_server(lambda: Receiver(order, file, relay), HOST, 0)
    ports = [server.sockets[0].getsockname()[1]]
    if relay is not None:
        reading = await loop.create_server(lambda: relay, HOST, 0)
        ports.append(reading.sockets[0].getsockname()[1])
    print("ready:", *ports, flush=True)
    await asyncio.Event().wait()


def serve_sendfile(order: BareOrder) -> None:
    """Answer one reader after the other, each from the file's start; blocking is fastest."""
    listener = socket.create_server((HOST, 0))
    print("ready:", listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        with connection, Path(order.path).open("rb") as file:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _answer_reader(order, connection, file.fileno(), os.fstat(file.fileno()).st_size)


def _answer_reader(order: BareOrder, connection: socket.socket, file: int, file_bytes: int) -> None:
    stretch = order.fetch_bytes // order.batch_bytes * order.batch_bytes
    position = 0
    descriptor = connection.fileno()
    while connection.recv(order.request_bytes, socket.MSG_WAITALL):
        end = min(position + stretch, file_bytes)
        size = order.head_bytes - 4 + end - position
        head = size.to_bytes(4, "big") + bytes(order.head_bytes - 4)
        connection.send(head, socket.MSG_MORE)
        while position < end:
            position += os.sendfile(descriptor, file, position, end - position)


def main() -> None:
    """Serve until killed."""
    mode, order = sys.argv[1], given(BareOrder, 2)
    if mode == "sendfile":
        serve_sendfile(order)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_receive(order, relays=mode == "relay"))


if __name__ == "__main__":
    main()
