"""The limit of a client: what moving the same bytes over one blocking socket costs, and no more.

Owns two loads beside those of `client_load`: one sends a ready batch again and again, the other
receives batches and looks only at where the next one begins. No client can spend less CPU on the
same bytes. Must not: check, copy or decode what is inside. Both are lower bounds, not clients.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from benchmarks.sender import Sender, SendOrder
from benchmarks.wire import FetchFrame

IN_FLIGHT: Final = 5
FETCH_BYTES: Final = 1024 * 1024
"""Kafka's default of `max.partition.fetch.bytes`."""

_LONGEST_HEAD_BYTES: Final = 512
_RECEIVE_BYTES: Final = 1024 * 1024
_SIZE: Final = struct.Struct(">i")
_BATCH: Final = struct.Struct(">qiib")  # base offset, length, leader epoch, magic
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT: Final = 23
_LENGTH_COUNTS_FROM: Final = 12
_MAGIC: Final = 2

Timed = Callable[[], AbstractContextManager[None]]


def send_bytes(
    bootstrap: str,
    topic: str,
    value_bytes: int,
    batch_bytes: int,
    counts: tuple[int, int],
    timed: Timed,
) -> None:
    """So many records, warm-up and timed, in ready batches; until the last is acknowledged."""
    host, port = bootstrap.rsplit(":", 1)
    order = SendOrder(
        *(host, int(port), os.getpid(), topic, value_bytes, batch_bytes),
        warm_up_count=0,
        request_count=0,
        in_flight_count=IN_FLIGHT,
    )
    sender = Sender(order)
    warm_up, timed_count = (-(-count // sender.record_count) for count in counts)
    sender.send(warm_up)
    with timed():
        sender.send(timed_count)
    sender.close()


def receive_bytes(bootstrap: str, topic: str, counts: tuple[int, int], timed: Timed) -> None:
    """So many records, warm-up and timed, of the first partition from its start."""
    warm_up, timed_count = counts
    first = _Receiver(bootstrap, topic)
    first.read_to(warm_up)
    first.close()
    receiver = _Receiver(bootstrap, topic)
    with timed():
        receiver.read_to(timed_count)
    receiver.close()


class _Receiver:
    """One connection, one fetch after the other, one buffer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame = FetchFrame(topic, max_bytes=FETCH_BYTES)
        self._view = memoryview(bytearray(2 * FETCH_BYTES + _RECEIVE_BYTES))
        self._request_count = 0
        self.next_offset = 0

    def read_to(self, offset: int) -> None:
        """Until that offset has been passed."""
        while self.next_offset < offset:
            self._request_count += 1
            self._frame.ask_for(self.next_offset, self._request_count)
            self._socket.sendall(self._frame.frame)
            self._walk(self._receive())

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self) -> int:
        """One response, to the front of the buffer; where it ends."""
        view, filled, end = self._view, 0, _SIZE.size
        while filled < end:
            count = self._socket.recv_into(view[filled : filled + _RECEIVE_BYTES])
            if not count:
                raise ConnectionError("the server closed the connection")
            if filled < _SIZE.size <= filled + count:
                end = _SIZE.size + _SIZE.unpack_from(view)[0]
            filled += count
        return end

    def _walk(self, end: int) -> None:
        """From batch to batch, as far as they are whole."""
        view, at = self._view, self._first_batch(end)
        while at + _LAST_OFFSET_DELTA_AT + _LAST_OFFSET_DELTA.size <= end:
            base_offset, length, _, _ = _BATCH.unpack_from(view, at)
            if at + _LENGTH_COUNTS_FROM + length > end:
                break
            (delta,) = _LAST_OFFSET_DELTA.unpack_from(view, at + _LAST_OFFSET_DELTA_AT)
            self.next_offset = base_offset + delta + 1
            at += _LENGTH_COUNTS_FROM + length

    def _first_batch(self, end: int) -> int:
        """Behind the response's own fields: a batch that begins where was asked to."""
        for at in range(_SIZE.size, min(_LONGEST_HEAD_BYTES, end - _BATCH.size)):
            base_offset, length, _, magic = _BATCH.unpack_from(self._view, at)
            if base_offset == self.next_offset and magic == _MAGIC and 0 < length < end:
                return at
        return end
