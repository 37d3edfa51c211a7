"""The outgoing side of one server connection: bytes and file regions, strictly in order.

Owns: the queue of what is still to be sent, and the duplicate of the socket that sendfile writes
to. Must not: know requests; hand a buffer that is reused later to the transport (uvloop keeps
references). Invariant: what was queued first leaves first. A connection begins by writing through
its transport; with its first big region it moves to the duplicate for good, at a moment when the
transport's own buffer is empty, so that the two never write to the socket by turns.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, ParamSpec, Protocol, TypeVar

from moldau.runtime.files import File, FileRegion

SENDFILE_MIN_BYTES: Final = 64 * 1024
"""Below this a region is read and joined with the bytes around it (measured: even at 64 KB)."""

PUMP_LIMIT_BYTES: Final = 4 * 1024 * 1024
"""What one connection may send before the loop serves others."""

PIECE_BYTES: Final = 64 * 1024
"""How much is given to the transport at a time where sendfile cannot be used: the buffer in which
TLS encrypts it grows to that, and is kept as long as the connection.
"""

TOUCH_BYTES: Final = 256 * 1024
"""How much of a cold region is read at a time."""

PREFETCH_BYTES: Final = 4 * 1024 * 1024
"""How much of a cold region is brought into the page cache at a time."""

RESIDENCY_STEP_BYTES: Final = 64 * 1024
"""How densely a cold region is probed for pages that are missing from the page cache."""

_MSG_MORE: Final = getattr(socket, "MSG_MORE", 0)
_HAS_SENDFILE: Final = hasattr(os, "sendfile")
_RWF_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)

P = ParamSpec("P")
T = TypeVar("T")


class Offload(Protocol):
    """Runs a function beside the loop."""

    async def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...


async def run_inline(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """An `Offload` for where there is nothing beside the loop."""
    return function(*args, **kwargs)


class OutgoingOwner(Protocol):
    """The connection, which learns from the stream what became of its bytes."""

    def on_drained(self) -> None:
        """Everything queued has been taken by the kernel."""

    def on_progress(self) -> None:
        """The peer took some bytes."""

    def on_send_failed(self, error: OSError) -> None:
        """The stream is broken in the middle of a response: the connection has to go."""


@dataclass(slots=True, eq=False, repr=False)
class OutgoingStream:
    """Sends bytes and FileRegions over a transport with back-pressure from the socket.

    States: through the transport; switching (waiting for the transport's buffer to empty); direct
    on the duplicate; closed. `pending_bytes` counts what is queued here, file regions included.
    `offload` runs a blocking function elsewhere; without it the loop reads cold regions.
    """

    _transport: asyncio.Transport
    _owner: OutgoingOwner
    _loop: asyncio.AbstractEventLoop
    _: KW_ONLY
    offload: Offload | None = None
    _queue: deque[bytes | FileRegion] = field(default_factory=deque)
    _head_sent: int = 0
    _direct: socket.socket | None = None
    _switching: bool = False
    _paused: bool = False
    _blocked: bool = False
    _closing: bool = False
    _closed: bool = False
    _prefetch: asyncio.Task[None] | None = None
    _prefetched: int = 0
    pending_bytes: int = 0
    _can_sendfile: bool = field(init=False)

    def __post_init__(self) -> None:
        transport = self._transport
        is_tls = transport.get_extra_info("sslcontext") is not None
        self._can_sendfile = (
            _HAS_SENDFILE and transport.get_extra_info("socket") is not None and not is_tls
        )
        # With a limit of zero the transport says pause as soon as it buffers anything, and resume
        # when it is empty: exactly what the switch to the duplicate needs to know. To one of TLS
        # zero means pause at once; and it may hold bytes of the handshake already, so that it says
        # pause before its owner knows this stream.
        if is_tls:
            self._loop.call_soon(self._limit_tls_buffer)
        else:
            transport.set_write_buffer_limits(high=0)

    def _limit_tls_buffer(self) -> None:
        if not self._closed:
            self._transport.set_write_buffer_limits(high=1, low=0)

    @property
    def is_empty(self) -> bool:
        """Whether the kernel (or the transport) has everything."""
        return not self._queue and not self._paused

    def unsent_memory_bytes(self) -> int:
        """What is queued here or in the transport and is in memory: regions of files are not."""
        queued = sum(len(part) for part in self._queue if isinstance(part, bytes))
        if self._queue and isinstance(self._queue[0], bytes):
            queued -= self._head_sent
        return queued + self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if not data or self._closed:
            return
        if (
            self._direct is None
            and not self._queue
            and not self._paused
            and (self._can_sendfile or len(data) <= PIECE_BYTES)
        ):
            self._transport.write(data)
            return
        self._queue.append(data)
        self.pending_bytes += len(data)
        if not self._blocked:
            self._pump()

    def write_region(self, region: FileRegion) -> None:
        """Send a file region after everything queued before, and release it when sent."""
        if self._closed or not region.length:
            region.release()
            if self._queue and not self._blocked:
                self._pump()  # what `write_before_region` left to a region's turn
            return
        if self._can_sendfile and region.file.fileno() >= 0 and self._direct is None:
            self._switching = True
        self._queue.append(region)
        self.pending_bytes += region.length
        if not self._blocked:
            self._pump()

    def write_before_region(self, data: bytes) -> None:
        """Queue bytes that a region follows: they share a packet where the system can."""
        if data and not self._closed:
            self._queue.append(data)
            self.pending_bytes += len(data)

    def close_when_sent(self) -> None:
        """Close the connection once all that is queued has left (idempotent)."""
        self._closing = True
        if not self._queue and not self._closed:
            self._transport.close()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        """From the protocol: the transport's buffer is empty."""
        self._paused = False
        self._owner.on_progress()
        if self._queue:
            if not self._blocked:
                self._pump()
        else:
            self._end_or_go_on()

    def detach(self) -> None:
        """The connection is lost: drop everything (idempotent)."""
        self._closed = True
        for part in self._queue:
            if not isinstance(part, bytes):
                part.release()
        self._queue.clear()
        self.pending_bytes = 0
        # The thread ends by itself (it holds the file); only its report is not wanted any more.
        self._prefetch = None
        direct, self._direct = self._direct, None
        if direct is not None:
            if self._blocked:
                self._loop.remove_writer(direct.fileno())
            direct.close()

    # -- inner workings -------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send from the queue until it is empty, the socket is full, or others deserve a turn."""
        try:
            if self._direct is None and self._switching and not self._paused:
                self._switch()
            if self._direct is not None:
                self._pump_direct(self._direct)
            else:
                self._pump_transport()
        except OSError as error:
            self._owner.on_send_failed(error)
            return
        if not self._queue and not self._paused:
            self._end_or_go_on()

    def _end_or_go_on(self) -> None:
        """All that was queued has left."""
        if self._closed:
            return
        if self._closing:
            self._transport.close()
        else:
            self._owner.on_drained()

    def _switch(self) -> None:
        assert self._transport.get_write_buffer_size() == 0, "bytes left in the transport"
        original: socket.socket = self._transport.get_extra_info("socket")
        duplicate = socket.socket(fileno=os.dup(original.fileno()))
        duplicate.setblocking(False)
        self._direct = duplicate
        self._switching = False

    def _pump_transport(self) -> None:
        queue = self._queue
        while queue and not self._paused and not self._blocked:
            head = queue[0]
            if isinstance(head, bytes):
                piece = head
                if not self._can_sendfile:
                    piece = head[self._head_sent : self._head_sent + PIECE_BYTES]
                self.pending_bytes -= len(piece)
                self._head_sent += len(piece)
                if self._head_sent == len(head):
                    queue.popleft()
                    self._head_sent = 0
                self._transport.write(piece)
                continue
            if self._needs_prefetch(head, PIECE_BYTES):
                return
            piece = self._read_piece(head)
            self._advance_region(head, len(piece))
            self._transport.write(piece)

    def _pump_direct(self, direct: socket.socket) -> None:
        queue = self._queue
        budget = PUMP_LIMIT_BYTES
        progress = False
        try:
            while queue and not self._blocked:
                head = queue[0]
                if budget <= 0:
                    self._wait_writable(direct)
                elif isinstance(head, bytes):
                    budget -= self._send_bytes(direct, head)
                else:
                    if self._needs_prefetch(head, PREFETCH_BYTES):
                        break
                    budget -= self._send_region(direct, head)
                progress = True
        except BlockingIOError:
            self._wait_writable(direct)
        if progress:
            self._owner.on_progress()

    def _send_bytes(self, direct: socket.socket, head: bytes) -> int:
        queue = self._queue
        flags = _MSG_MORE if len(queue) > 1 and not isinstance(queue[1], bytes) else 0
        if self._head_sent:
            with memoryview(head) as view:
                sent = direct.send(view[self._head_sent :], flags)
        else:
            sent = direct.send(head, flags)
        self.pending_bytes -= sent
        self._head_sent += sent
        if self._head_sent == len(head):
            queue.popleft()
            self._head_sent = 0
        return sent

    def _send_region(self, direct: socket.socket, region: FileRegion) -> int:
        if region.file.fileno() < 0:
            # Without a descriptor, on a connection that has already left its transport.
            sent = direct.send(self._read_piece(region))
            self._advance_region(region, sent)
            return sent
        offset = region.position + self._head_sent
        count = min(region.length - self._head_sent, PUMP_LIMIT_BYTES)
        sent = os.sendfile(direct.fileno(), region.file.fileno(), offset, count)
        if sent == 0:
            raise OSError(f"{region.file.name} ends inside a response")
        self._advance_region(region, sent)
        return sent

    def _read_piece(self, region: FileRegion) -> bytes:
        size = min(PIECE_BYTES, region.length - self._head_sent)
        piece = region.file.pread(size, region.position + self._head_sent)
        if len(piece) != size:
            raise OSError(f"{region.file.name} ends inside a response")
        return piece

    def _advance_region(self, region: FileRegion, sent: int) -> None:
        self.pending_bytes -= sent
        self._head_sent += sent
        if self._head_sent == region.length:
            self._queue.popleft()
            self._head_sent = 0
            self._prefetched = 0
            region.release()

    def _wait_writable(self, direct: socket.socket) -> None:
        self._blocked = True
        self._loop.add_writer(direct.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        if self._direct is not None:
            self._loop.remove_writer(self._direct.fileno())
            self._blocked = False
            self._pump()

    def _needs_prefetch(self, region: FileRegion, step_bytes: int) -> bool:
        """Start reading ahead where bytes may have to come from a disk; True while that runs."""
        if not region.is_cold or self.offload is None or self._head_sent < self._prefetched:
            return False
        step = min(max(step_bytes, PREFETCH_BYTES), region.length - self._head_sent)
        if is_in_page_cache(region.file, region.position + self._head_sent, step):
            self._prefetched = self._head_sent + step
            return False
        # Held separately: the connection may be lost, and the region released, while the thread
        # reads.
        region.file.acquire()
        self._blocked = True
        self._prefetch = self._loop.create_task(
            self._run_prefetch(self.offload, region.file, region.position + self._head_sent, step)
        )
        return True

    async def _run_prefetch(
        self, offload: Offload, file: File, position: int, size_bytes: int
    ) -> None:
        failure: OSError | None = None
        try:
            await offload(_touch, file, position, size_bytes)
        except OSError as error:
            failure = error
        finally:
            file.release()
        if self._closed:
            return
        self._prefetch = None
        self._blocked = False
        if failure is not None:
            self._owner.on_send_failed(failure)
            return
        self._prefetched = self._head_sent + size_bytes
        self._pump()


def is_in_page_cache(file: File, position: int, size_bytes: int) -> bool:
    """Whether a stretch of a file can very likely be read without waiting for a disk.

    Probes a byte of every 64 KB (measured: 10 µs per MB, where reading costs 140). A hole between
    probes is read on the loop; where the system cannot tell, the answer is no.
    """
    descriptor = file.fileno()
    if not _RWF_NOWAIT or descriptor < 0:
        return False
    probe = (bytearray(1),)
    end = position + size_bytes
    try:
        for place in range(position, end, RESIDENCY_STEP_BYTES):
            os.preadv(descriptor, probe, place, _RWF_NOWAIT)
        os.preadv(descriptor, probe, end - 1, _RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise
    return True


def _touch(file: File, position: int, size_bytes: int) -> None:
    """Read a stretch of a file for the page cache's sake."""
    scratch = bytearray(min(TOUCH_BYTES, size_bytes))
    end = position + size_bytes
    while position < end:
        count = file.pread_into(scratch, position)
        if count == 0:
            return
        position += count
