"""Cutting a byte stream into Kafka frames (4-byte big-endian length, then that many bytes).

Owns: receive buffers, where the transport puts bytes, and what they are charged with.
Must not: look into frames, do I/O, or copy a frame's bytes when it can be avoided.
Invariants: bytes handed out as a frame stay where they are, untouched, until `release(frame)`; a
buffer with views on it is never resized, and goes back to the pool only when no unreleased frame
lies in it; a reader is charged with the buffers that it holds, at their size in memory, and with
nothing else.

How the bytes move: small frames are cut from a shared-size chunk in place. A frame over
`SMALL_FRAME_LIMIT_BYTES` gets its own buffer, so that nothing else keeps it alive. That buffer
grows as bytes arrive: announcing 100 MB costs the peer 100 MB of sending before it costs us the
memory. Between two reads a small frame that is not complete holds the bytes that have arrived.
"""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from struct import Struct
from typing import Final

from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.reusable_memory import ReusableMemory

CHUNK_BYTES: Final = 256 * 1024
"""What one receive may bring (measured: bigger gains nothing)."""

SMALL_FRAME_LIMIT_BYTES: Final = 64 * 1024
"""Frames above this size get their own buffer."""

FIRST_LARGE_BUFFER_BYTES: Final = 1024 * 1024
"""The first buffer of a large frame, before its bytes arrive; it doubles up to the frame's size."""

FIRST_FRUGAL_BUFFER_BYTES: Final = 1024
"""The same of a peer that has not said who it is."""

DEFAULT_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""Default of `socket.request.max.bytes`."""

DEFAULT_POOL_LIMIT_BYTES: Final = 16 * 1024 * 1024
"""Unused buffers kept for reuse: fresh memory costs far more than recently used memory."""

REUSED_LARGE_BYTES: Final = 8 * 1024 * 1024
"""Buffers of detached large frames, which their reader uses again once no view on them is left."""

SCRATCH_BYTES: Final = 256
"""A transport that announces so little brings nothing, or next to it: the loops' own TLS, which
clients use, asks for a buffer before it has anything to decrypt. uvloop adds 256 to what it has,
asyncio nothing.
"""

POISON_BYTE: Final = 0xDB

_MIN_FREE_BYTES: Final = 16 * 1024
_PEEK_BYTES: Final = 4 * 1024
_LENGTH = Struct(">i")
_EMPTY: Final = memoryview(b"")


TLS_HANDSHAKE: Final = 0x1603
"""The first two bytes of a peer that begins with TLS."""


class BadFrameLength(RemoteProtocolError):
    """The first four bytes cannot be a length; often they are another protocol's."""

    def __init__(self, message: str, length: int = 0) -> None:
        super().__init__(message)
        self.length = length


class FrameBuffer(bytearray):
    """A receive buffer and how many unreleased frames lie in it."""

    __slots__ = ("outstanding_count",)

    outstanding_count: int


class Use(Enum):
    """What a reader wants memory for."""

    READ = "a chunk to read small frames into"
    LARGE = "the first buffer of a large frame"
    GROWTH = "more room for a large frame that has begun"


class Account:
    """Who pays for what a reader holds. This one has no limit: a client reads what it asked for."""

    __slots__ = ()

    @property
    def is_calm(self) -> bool:
        """Whether a large frame may have a large buffer at once, before its bytes arrive."""
        return True

    def allows(self, size_bytes: int, use: Use) -> bool:
        """Whether so much more may be charged now."""
        return True

    def charge(self, size_bytes: int) -> None:
        """So much more is held."""

    def refund(self, size_bytes: int) -> None:
        """So much has been given back."""


NO_LIMIT: Final = Account()


@dataclass(slots=True, eq=False, repr=False)
class ReceiveMemory:
    """The receive buffers of all connections of one event loop: a pool, and how much is in use."""

    _: KW_ONLY
    pool_limit_bytes: int = DEFAULT_POOL_LIMIT_BYTES
    poison: bool = False
    """Overwrites released frames, so that tests notice code that still reads them."""
    reserved_bytes: int = 0
    pooled_bytes: int = 0
    scratch: bytearray = field(default_factory=lambda: bytearray(SCRATCH_BYTES))
    _pool: dict[int, list[FrameBuffer]] = field(default_factory=dict)

    def take(self, size_bytes: int) -> FrameBuffer:
        """A buffer of exactly this size, its contents arbitrary."""
        pooled = self._pool.get(size_bytes)
        if pooled:
            self.pooled_bytes -= size_bytes
            return pooled.pop()
        buffer = FrameBuffer(size_bytes)
        buffer.outstanding_count = 0
        return buffer

    def has_pooled(self, size_bytes: int) -> bool:
        """Whether `take` would cost no new memory."""
        return bool(self._pool.get(size_bytes))

    def give(self, buffer: FrameBuffer) -> None:
        """Take back a buffer without unreleased frames."""
        assert buffer.outstanding_count == 0, "a frame in this buffer is still in use"
        size = len(buffer)
        if size % CHUNK_BYTES:
            return
        if self.pooled_bytes + size > self.pool_limit_bytes:
            # The sizes in use change over time: drop buffers of another size before this one.
            self._drop_other_size(size)
            if self.pooled_bytes + size > self.pool_limit_bytes:
                return
        self._pool.setdefault(size, []).append(buffer)
        self.pooled_bytes += size

    def _drop_other_size(self, kept_size: int) -> None:
        for size, buffers in self._pool.items():
            if buffers and size != kept_size and size != CHUNK_BYTES:
                self.pooled_bytes -= size * len(buffers)
                buffers.clear()
                return


@dataclass(slots=True, eq=False, repr=False)
class FrameReader:
    """One connection's incoming side. Feed it through `get_buffer` and `buffer_updated`.

    States: reading small frames from the chunk; filling a large frame; blocked (the next bytes wait
    for memory, see `is_blocked`); failed (`bad_length` is set: nothing more is accepted).

    `detached` frames (for clients) need not be released: they stay as they are while any view on
    them exists.

    Attributes:
        account: pays for what is held.
        min_frame_bytes: 0 where an empty frame has a meaning: as a token of SASL without a request
            around it.
        is_frugal: small frames are copied into buffers of their own size, and large ones begin
            small: for peers that are not to hold more than what they have sent.
        max_cut_count: frames that one call returns; `cut_more` returns the next ones.
        has_uncut: whether `cut_more` has something to return, or to raise.
        is_blocked: whether `resume` has to be called before more is read.
    """

    _memory: ReceiveMemory
    _: KW_ONLY
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    max_cut_count: int = sys.maxsize
    account: Account = NO_LIMIT
    detached: bool = False
    min_frame_bytes: int = 1
    _chunk: FrameBuffer | None = None
    _start: int = 0
    _end: int = 0
    _rest: bytearray | bytes = b""
    _large: bytearray | None = None
    _reusable: ReusableMemory | None = field(init=False)
    _large_length: int = 0
    _large_filled: int = 0
    _peek: bool = False
    bad_length: int | None = None
    has_uncut: bool = False
    is_blocked: bool = False
    is_frugal: bool = False

    def __post_init__(self) -> None:
        self._reusable = ReusableMemory(REUSED_LARGE_BYTES) if self.detached else None

    @property
    def is_inside_frame(self) -> bool:
        """Whether a frame has begun to arrive and is not complete."""
        return self._large is not None or self._end > self._start or bool(self._rest)

    @property
    def holds_large_frame(self) -> bool:
        """Whether an incomplete large frame has a buffer."""
        return self._large is not None

    @property
    def arrived_part(self) -> float:
        """How much of the frame that is not complete has arrived, from 0 to 1."""
        if self._large is not None:
            return self._large_filled / self._large_length
        arrived, length = self._arrived()
        if arrived <= 4:
            return 0.0
        return min((arrived - 4) / max(length, 1), 1.0)

    @property
    def missing_bytes(self) -> int:
        """How much of the frame that is not complete has not arrived; where not even its length
        has, the least that it can be.
        """
        if self._large is not None:
            return self._large_length - self._large_filled
        arrived, length = self._arrived()
        return 4 + length - arrived

    def _arrived(self) -> tuple[int, int]:
        """How many bytes of a small frame have arrived, and its length: 1 while that has not."""
        held: bytearray | bytes = self._rest
        start, end = 0, len(held)
        if self._chunk is not None:
            held, start, end = self._chunk, self._start, self._end
        length = 1 if end - start < 4 else int(_LENGTH.unpack_from(held, start)[0])
        return end - start, length

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the transport shall put the next bytes; valid until this reader is called again, or
        another one with the same memory.
        """
        large = self._large
        if large is not None:
            return memoryview(large)[self._large_filled : self._large_length]
        chunk = self._chunk
        if chunk is not None and self._lacks_room:
            chunk = self._make_room(chunk)
        if chunk is None:
            # An idle connection holds no chunk: nothing may come. And after a large frame another
            # is likely: see its length first, receive it in its own buffer.
            is_little = self._peek or 0 <= size_hint <= SCRATCH_BYTES
            if is_little or not self.account.allows(CHUNK_BYTES, Use.READ):
                return memoryview(self._memory.scratch)
            chunk = self._take_chunk()
        assert self._end < CHUNK_BYTES, "reading goes on although the reader is blocked"
        if self._peek:
            return memoryview(chunk)[self._end : self._end + _PEEK_BYTES]
        return memoryview(chunk)[self._end :]

    def buffer_updated(self, byte_count: int) -> list[memoryview]:
        """Account for received bytes; the frames they complete, writable and without length prefix.

        Raises RemoteProtocolError for a length that is negative, zero or over the maximum. When
        good frames precede it they are returned, `bad_length` is set, and the next call raises.
        """
        large = self._large
        if large is None:
            if self._chunk is None:
                scratch = memoryview(self._memory.scratch)[:byte_count]
                if not self.account.allows(CHUNK_BYTES, Use.READ):
                    self._keep(bytes(self._rest) + scratch)
                    self.is_blocked = True
                    return []
                chunk = self._take_chunk()
                chunk[self._end : self._end + byte_count] = scratch
            self._end += byte_count
            return self._cut()
        self._large_filled += byte_count
        assert self._large_filled <= self._large_length, "bytes past the large frame"
        if self._large_filled < self._large_length:
            if self._large_filled == len(large):
                self._grow_large(large)
            return []
        self._large = None
        self._peek = True
        if self.detached:
            if isinstance(large, FrameBuffer):
                self._refund(len(large))
        else:
            assert isinstance(large, FrameBuffer), "of our own memory"
            large.outstanding_count = 1
        return [memoryview(large)[: self._large_length]]

    def cut_more(self) -> list[memoryview]:
        """The next frames of what has been read. Raises RemoteProtocolError."""
        return self._cut()

    def settle(self) -> None:
        """Give back a chunk for which no bytes have come for a while."""
        if self._chunk is not None and not self._chunk.outstanding_count:
            self._leave_chunk(self._chunk, is_resting=True)

    def make_ready(self) -> bool:
        """Whether the next bytes may be read: they have where to go. Else `resume` comes first."""
        if self.is_blocked or self._large is not None:
            return not self.is_blocked
        chunk = self._chunk
        if chunk is None or not chunk.outstanding_count or not self._lacks_room:
            return True
        self.is_blocked = self._make_room(chunk) is chunk
        return not self.is_blocked

    def resume(self) -> list[memoryview]:
        """Try again after memory was released; returns what `buffer_updated` would have.

        Raises RemoteProtocolError.
        """
        self.is_blocked = False
        if self._large is not None:
            self._grow_large(self._large)
            return []
        if self._chunk is None and self._rest:
            if not self.account.allows(CHUNK_BYTES, Use.READ):
                self.is_blocked = True
                return []
            self._take_chunk()
        frames = self._cut()
        self.make_ready()
        return frames

    def release(self, frame: memoryview) -> None:
        """Take a frame back whose owner needs neither its bytes nor slices of it any more."""
        buffer = frame.obj
        assert isinstance(buffer, FrameBuffer), "not a frame, or released before"
        if self._memory.poison:
            frame[:] = bytes((POISON_BYTE,)) * len(frame)
        frame.release()
        buffer.outstanding_count -= 1
        if buffer.outstanding_count == 0:
            if buffer is self._chunk:
                self._leave_chunk(buffer)
            else:
                self._give(buffer)

    def close(self) -> None:
        """Give back what is only partly received; frames handed out stay valid until released."""
        if self._large is not None:
            if isinstance(self._large, FrameBuffer):
                self._give(self._large)
            self._large = None
        self.has_uncut = False
        self._start = self._end
        chunk = self._chunk
        if chunk is not None and chunk.outstanding_count == 0:
            self._leave_chunk(chunk)
        self._chunk = None
        self._keep(b"")

    # -- what is held ----------------------------------------------------------------------------

    def _take(self, size_bytes: int) -> FrameBuffer:
        buffer = self._memory.take(size_bytes)
        self._memory.reserved_bytes += size_bytes
        self.account.charge(size_bytes)
        return buffer

    def _give(self, buffer: FrameBuffer) -> None:
        self._refund(len(buffer))
        self._memory.give(buffer)

    def _refund(self, size_bytes: int) -> None:
        self._memory.reserved_bytes -= size_bytes
        self.account.refund(size_bytes)

    def _keep(self, rest: bytearray | bytes) -> None:
        """Hold these bytes until there is a chunk for them, in the place of those held before."""
        more = len(rest) - len(self._rest)
        self._rest = rest
        self._memory.reserved_bytes += more
        self.account.charge(more)

    def _take_chunk(self) -> FrameBuffer:
        """A chunk that begins with what has arrived before."""
        memory = self._memory
        chunk = self._chunk = memory.take(CHUNK_BYTES)
        memory.reserved_bytes += CHUNK_BYTES
        self.account.charge(CHUNK_BYTES)
        rest = self._rest
        self._start, self._end = 0, len(rest)
        if rest:
            chunk[: len(rest)] = rest
            self._keep(b"")
        return chunk

    def _leave_chunk(self, chunk: FrameBuffer, *, is_resting: bool = False) -> None:
        """Hold no chunk without a frame in it: what has arrived of one is kept by itself, unless
        there is memory enough, and the rest of it is likely to be on its way.
        """
        start, end = self._start, self._end
        if end > start:
            if self.has_uncut or not (is_resting or self.is_frugal or not self.account.is_calm):
                return
            self._keep(chunk[start:end])
        self._chunk = None
        self._start = self._end = 0
        memory = self._memory
        memory.reserved_bytes -= CHUNK_BYTES
        self.account.refund(CHUNK_BYTES)
        memory.give(chunk)

    @property
    def _lacks_room(self) -> bool:
        """Whether too little of the chunk is left, or the partial small frame cannot be completed
        where it lies.
        """
        start, end = self._start, self._end
        if CHUNK_BYTES - end < _MIN_FREE_BYTES:
            return True
        if end - start < 4:
            return False
        assert self._chunk is not None
        (length,) = _LENGTH.unpack_from(self._chunk, start)
        return bool(start + 4 + length > CHUNK_BYTES and length <= SMALL_FRAME_LIMIT_BYTES)

    def _make_room(self, chunk: FrameBuffer) -> FrameBuffer | None:
        """Move the partial frame to the chunk's front, or to a new chunk when frames lie in it;
        None if there is no partial frame then. The chunk itself, as it is, when there is no memory
        for another one.
        """
        start, end = self._start, self._end
        target = chunk
        if chunk.outstanding_count:
            if start == end:
                self._chunk = None  # its frames give it back
                self._start = self._end = 0
                return None
            if not self.account.allows(CHUNK_BYTES, Use.READ):
                return chunk
            target = self._chunk = self._take(CHUNK_BYTES)
        if end > start:
            with memoryview(chunk) as view, view[start:end] as tail:
                target[: end - start] = tail
        self._start, self._end = 0, end - start
        return target

    # -- frames ----------------------------------------------------------------------------------

    def _cut(self) -> list[memoryview]:
        frames: list[memoryview] = []
        self.has_uncut = False
        self.check()
        chunk = self._chunk
        if chunk is None:
            return frames
        start, end = self._start, self._end
        whole = memoryview(chunk)
        while end - start >= 4:
            if len(frames) == self.max_cut_count:
                self.has_uncut = True
                break
            (length,) = _LENGTH.unpack_from(chunk, start)
            if not self.min_frame_bytes <= length <= self.max_frame_bytes:
                self.bad_length = length
                self.has_uncut = bool(frames)
                end = start  # what follows has no meaning
                break
            frame_end = start + 4 + length
            if frame_end <= end:
                frames.append(whole[start + 4 : frame_end])
                start = frame_end
                self._peek = False
            elif length > SMALL_FRAME_LIMIT_BYTES:
                self._start = start
                if self._begin_large(chunk, length):
                    start = end
                break
            else:
                self._peek = False
                break
        self._start = start
        self._end = end
        if self.detached:
            frames = [memoryview(bytearray(frame)) for frame in frames]
        elif self.is_frugal:
            frames = [self._copied(frame) for frame in frames]
        else:
            chunk.outstanding_count += len(frames)
        if chunk.outstanding_count == 0:
            self._leave_chunk(chunk)
        if not frames:
            self.check()
        return frames

    def _copied(self, frame: memoryview) -> memoryview:
        buffer = self._take(len(frame))
        buffer[:] = frame
        buffer.outstanding_count = 1
        return memoryview(buffer)

    def check(self) -> None:
        """Raise BadFrameLength if a length that cannot be one has come. It is a new one each time:
        one that was kept would hold the calls that it went through, and these the connection.
        """
        length = self.bad_length
        if length is None:
            return
        if length >> 16 == TLS_HANDSHAKE:
            raise BadFrameLength("the peer speaks TLS, which is not spoken here", length)
        if length <= 0:
            raise BadFrameLength(f"frame length {length} is not positive", length)
        raise BadFrameLength(
            f"frame length {length} is over the limit of {self.max_frame_bytes} bytes", length
        )

    def _begin_large(self, chunk: FrameBuffer, length: int) -> bool:
        """Move what has arrived of a large frame into its own buffer, if there is memory for it."""
        arrived = self._end - self._start - 4
        large = None if self._reusable is None else self._reusable.take(length)
        if large is None:
            size = self._first_bytes(length, arrived)
            if not self.account.allows(size, Use.LARGE):
                self.is_blocked = True
                return False
            large = self._take(size)
        with memoryview(chunk) as view, view[self._start + 4 : self._end] as head:
            large[:arrived] = head
        self._large = large
        self._large_length = length
        self._large_filled = arrived
        return True

    def _first_bytes(self, length: int, arrived: int) -> int:
        """The size of a large frame's first buffer, in which there is room for more."""
        rounded = rounded_bytes(length)
        if self.is_frugal:
            return min(max(FIRST_FRUGAL_BUFFER_BYTES, 2 * arrived), rounded)
        if self.account.is_calm:
            is_growing = rounded > FIRST_LARGE_BUFFER_BYTES and not self._memory.has_pooled(rounded)
            return FIRST_LARGE_BUFFER_BYTES if is_growing else rounded
        return min(2 * CHUNK_BYTES if 2 * arrived > CHUNK_BYTES else CHUNK_BYTES, rounded)

    def _grow_large(self, large: bytearray) -> None:
        """Go on with the frame in a larger buffer, or block."""
        assert isinstance(large, FrameBuffer), "what is used again is large enough"
        size = min(2 * len(large), rounded_bytes(self._large_length))
        if not self.account.allows(size - len(large), Use.GROWTH):
            self.is_blocked = True
            return
        # Both at once are held, and charged with, while the bytes are copied and no longer.
        bigger = self._take(size)
        bigger[: len(large)] = large
        self._give(large)
        self._large = bigger


def rounded_bytes(length: int) -> int:
    """The size of the buffer that a large frame ends in."""
    return -(-length // CHUNK_BYTES) * CHUNK_BYTES
