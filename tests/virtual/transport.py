"""One end of a simulated TCP connection, as asyncio shows it to a protocol.

Owns: what is written and not yet acknowledged, what has arrived and is not yet read, the end of the
stream. Must not: decide delays or faults (the fabric does).
Invariant: bytes reach the peer's protocol once, in order, without gaps, or the connection ends; at
most WINDOW_BYTES are under way or unread, the rest waits here and pauses the writer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.virtual.loop import Process

if TYPE_CHECKING:
    from tests.virtual.network import Fabric

WINDOW_BYTES = 64 * 1024
DEFAULT_HIGH_WATER_BYTES = 64 * 1024

FIN = b""
"""Stands in the stream for its end."""


class SimulatedTransport(asyncio.Transport):
    """States: open -> closing (what was written still leaves) -> lost."""

    def __init__(
        self,
        fabric: Fabric,
        process: Process,
        host: str,
        local: tuple[str, int],
        remote: tuple[str, int],
        connection_number: int,
        *,
        is_asking: bool,
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self.fabric = fabric
        self.process = process
        self.host = host
        self.remote_host = remote[0]
        self.number = connection_number
        self.is_asking = is_asking
        """Whether this end has connected to the other."""
        self.peer: SimulatedTransport | None = None
        self.protocol: Any = None
        self.is_lost = False
        self.last_arrival = 0.0
        self.stuck_since: float | None = None
        self.under_way_bytes = 0
        """Sent by this end; arrived and not read included."""
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._arrived: deque[bytes] = deque()
        self._reading_scheduled = False
        self._is_closing = False
        self._ends_writing = False
        self._fin_sent = False
        self._reading_paused = False
        self._writer_paused = False
        self._high = DEFAULT_HIGH_WATER_BYTES
        self._low = self._high // 4

    def __repr__(self) -> str:
        return f"Transport({self.number} of {self.process.name} to {self.remote_host})"

    # -- asyncio's side --------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        """Tell the protocol of an accepted connection that it has this transport."""
        was_lost = self.is_lost
        self.protocol = protocol
        protocol.connection_made(self)
        if was_lost:
            # Reset before the server took it from the backlog.
            self.process.loop.call_soon(protocol.connection_lost, None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self.protocol
        return protocol

    def is_closing(self) -> bool:
        return self._is_closing or self.is_lost

    def is_reading(self) -> bool:
        return not self._reading_paused and not self.is_closing()

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._schedule_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = DEFAULT_HIGH_WATER_BYTES if low is None else 4 * low
        self._high = high
        self._low = high // 4 if low is None else low
        self._adjust_writer()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """What was written still leaves, then the stream's end; reading goes on."""
        if not self.is_closing():
            self._ends_writing = True
            self.pump()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self.is_closing() or self._ends_writing or not len(data):
            return
        if self.fabric.on_write is not None:
            self.fabric.on_write(self, bytes(data))
            if self.is_lost:
                return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self.pump()
        self._adjust_writer()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self.is_closing():
            self._is_closing = True
            self._arrived.clear()
            self.pump()

    def abort(self) -> None:
        if not self.is_lost:
            self.fabric.send_reset(self)
            self.lose(None)

    # -- the fabric's side -----------------------------------------------------------------------

    def pump(self) -> None:
        """Hand over to the network what the window allows."""
        while self._unsent and self.under_way_bytes < WINDOW_BYTES and not self.is_lost:
            piece = self.fabric.cut(self._unsent[0])
            if len(piece) == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][len(piece) :]
            self._unsent_bytes -= len(piece)
            self.under_way_bytes += len(piece)
            self.fabric.send(self, piece)
        if self._unsent or self.is_lost or not (self._is_closing or self._ends_writing):
            return
        if not self._fin_sent:
            self._fin_sent = True
            self.fabric.send(self, FIN)
        if self._is_closing:
            self.lose(None)

    def arrive(self, piece: bytes) -> None:
        """A segment of the peer's stream, in order."""
        if self.is_closing():
            # The process does not read here any more: the kernel answers with a reset.
            self.fabric.send_reset(self)
            return
        self._arrived.append(piece)
        self._schedule_reading()

    def acknowledged(self, size_bytes: int) -> None:
        """The peer has read so much."""
        self.under_way_bytes -= size_bytes
        if not self.is_lost:
            self.pump()
            self._adjust_writer()

    def lose(self, error: Exception | None) -> None:
        """The connection is over at this end (idempotent)."""
        if self.is_lost:
            return
        self.is_lost = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._arrived.clear()
        self.fabric.forget(self)
        if self.protocol is not None:
            self.process.loop.call_soon(
                self.protocol.connection_lost, error, context=self.process.context
            )

    # -- inner workings --------------------------------------------------------------------------

    def _schedule_reading(self) -> None:
        if self._arrived and not self._reading_scheduled:
            self._reading_scheduled = True
            self.process.loop.call_soon(self._read, context=self.process.context)

    def _read(self) -> None:
        self._reading_scheduled = False
        if self._reading_paused or self.is_closing() or not self._arrived:
            return
        piece = self._arrived.popleft()
        if piece == FIN:
            if not self.protocol.eof_received():
                self.close()
            return
        if isinstance(self.protocol, asyncio.BufferedProtocol):
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(piece))
            assert count > 0, "a buffered protocol gives room"
            buffer[:count] = piece[:count]
            if count < len(piece):
                self._arrived.appendleft(piece[count:])
            self._acknowledge(count)
            self.protocol.buffer_updated(count)
        else:
            self._acknowledge(len(piece))
            self.protocol.data_received(piece)
        self._schedule_reading()

    def _acknowledge(self, size_bytes: int) -> None:
        if self.peer is not None:
            self.fabric.send_acknowledgement(self, size_bytes)

    def _adjust_writer(self) -> None:
        if self.is_lost or self.protocol is None:
            return
        if not self._writer_paused and self._unsent_bytes > self._high:
            self._writer_paused = True
            self.protocol.pause_writing()
        elif self._writer_paused and self._unsent_bytes <= self._low:
            self._writer_paused = False
            self.protocol.resume_writing()
