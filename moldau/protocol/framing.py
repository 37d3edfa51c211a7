"""Cutting a byte stream into Kafka frames (4-byte big-endian length, then that many bytes).

Owns: receive buffers, where the transport puts bytes, and the account of the memory they take.
Must not: look into frames, do I/O, or copy a frame's bytes when it can be avoided.
Invariant: bytes handed out as a frame stay where they are, untouched, until `release(frame)`; a
buffer with views on it is never resized, and goes back to the pool only when no unreleased frame
lies in it.

How the bytes move: small frames are cut from a shared-size chunk in place. A frame over
`SMALL_FRAME_LIMIT_BYTES` gets a buffer of its own, so that nothing else keeps it alive. That buffer
grows as bytes arrive: announcing 100 MB costs the peer 100 MB of sending before it costs us the
memory.
"""

from __future__ import annotations

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

DEFAULT_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""Default of `socket.request.max.bytes`."""

DEFAULT_MEMORY_LIMIT_BYTES: Final = 1024 * 1024 * 1024
"""Frames received and not yet released, over all connections (`queued.max.request.bytes`)."""

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


class ReceiveMemory:
    """The receive buffers of all connections of one event loop: a pool, and an account with a
    limit.

    A frame is charged with its full length from the moment it starts (a large one) or is complete
    (a small one) until its release. The limit is soft by one frame, so that the biggest allowed
    frame always fits when nothing else is in the way.
    """

    __slots__ = (
        "_pool",
        "limit_bytes",
        "poison",
        "pool_limit_bytes",
        "pooled_bytes",
        "reserved_bytes",
        "scratch",
    )

    def __init__(
        self,
        limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
        *,
        pool_limit_bytes: int = DEFAULT_POOL_LIMIT_BYTES,
        poison: bool = False,
    ) -> None:
        """`poison` overwrites released frames, so that tests notice code that still reads them."""
        self.limit_bytes: int = limit_bytes
        self.pool_limit_bytes: int = pool_limit_bytes
        self.poison: bool = poison
        self.reserved_bytes: int = 0
        self.pooled_bytes: int = 0
        self.scratch: bytearray = bytearray(SCRATCH_BYTES)
        self._pool: dict[int, list[FrameBuffer]] = {}

    @property
    def is_exhausted(self) -> bool:
        """Whether new frames have to wait."""
        return self.reserved_bytes >= self.limit_bytes

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


class FrameReader:
    """One connection's incoming side. Feed it through `get_buffer` and `buffer_updated`.

    States: reading small frames from the chunk; filling a large frame; blocked (a large frame waits
    for memory, see `is_blocked`); failed (`error` is set: nothing more is accepted).

    `detached` frames (for clients) need not be released: they stay as they are while any view on
    them exists.
    """

    __slots__ = (
        "_chunk",
        "_detached",
        "_end",
        "_large",
        "_large_filled",
        "_large_length",
        "_memory",
        "_peek",
        "_reusable",
        "_start",
        "error",
        "is_blocked",
        "max_frame_bytes",
        "min_frame_bytes",
    )

    def __init__(
        self,
        memory: ReceiveMemory,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        detached: bool = False,
    ) -> None:
        self._memory = memory
        self.max_frame_bytes = max_frame_bytes
        self.min_frame_bytes = 1
        """0 where an empty frame has a meaning: as a token of SASL without a request around it."""
        self._detached = detached
        self._chunk: FrameBuffer | None = None
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._reusable = ReusableMemory(REUSED_LARGE_BYTES) if detached else None
        self._large_length = 0
        self._large_filled = 0
        self._peek = False
        self.error: RemoteProtocolError | None = None
        self.is_blocked = False

    @property
    def is_inside_frame(self) -> bool:
        """Whether a frame has begun to arrive and is not complete."""
        return self._large is not None or self._end > self._start

    @property
    def holds_large_frame(self) -> bool:
        """Whether an incomplete large frame has memory reserved."""
        return self._large is not None

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the transport shall put the next bytes; valid until this reader is called again, or
        another one with the same memory if it has announced at most `SCRATCH_BYTES`.
        """
        large = self._large
        if large is not None:
            if self._large_filled == len(large):
                large = self._grow_large(large)
            return memoryview(large)[self._large_filled : self._large_length]
        chunk = self._chunk
        if chunk is None:
            if 0 <= size_hint <= SCRATCH_BYTES:
                return memoryview(self._memory.scratch)  # an idle connection holds no chunk
            chunk = self._take_chunk()
        elif CHUNK_BYTES - self._end < _MIN_FREE_BYTES or self._needs_room():
            chunk = self._make_room(chunk)
        assert self._end < CHUNK_BYTES, "reading goes on although the reader is blocked"
        if self._peek:
            # After a large frame another is likely: see its length first, receive it in its own
            # buffer.
            return memoryview(chunk)[self._end : self._end + _PEEK_BYTES]
        return memoryview(chunk)[self._end :]

    def buffer_updated(self, byte_count: int) -> list[memoryview]:
        """Account for received bytes; the frames they complete, writable and without length prefix.

        Raises RemoteProtocolError for a length that is negative, zero or over the maximum. When
        good frames precede it they are returned, `error` is set, and the next call raises.
        """
        large = self._large
        if large is None:
            if self._chunk is None:
                self._take_chunk()[:byte_count] = self._memory.scratch[:byte_count]
            self._end += byte_count
            return self._cut()
        self._large_filled += byte_count
        assert self._large_filled <= self._large_length, "bytes past the large frame"
        if self._large_filled < self._large_length:
            return []
        self._large = None
        self._peek = True
        if self._detached:
            self._memory.reserved_bytes -= self._large_length
        else:
            assert isinstance(large, FrameBuffer), "of our own memory"
            large.outstanding_count = 1
        return [memoryview(large)[: self._large_length]]

    def resume(self) -> list[memoryview]:
        """Try again after memory was released; returns what `buffer_updated` would have."""
        self.is_blocked = False
        return self._cut()

    def release(self, frame: memoryview) -> None:
        """Take a frame back whose owner needs neither its bytes nor slices of it any more."""
        buffer = frame.obj
        assert isinstance(buffer, FrameBuffer), "not a frame, or released before"
        memory = self._memory
        memory.reserved_bytes -= len(frame)
        if memory.poison:
            frame[:] = bytes((POISON_BYTE,)) * len(frame)
        frame.release()
        buffer.outstanding_count -= 1
        if buffer.outstanding_count == 0:
            if buffer is not self._chunk:
                memory.give(buffer)
            elif self._start == self._end:
                self._drop_chunk()

    def close(self) -> None:
        """Give back what is only partly received; frames handed out stay valid until released."""
        if self._large is not None:
            self._memory.reserved_bytes -= self._large_length
            if isinstance(self._large, FrameBuffer):
                self._memory.give(self._large)
            self._large = None
        self._start = self._end
        if self._chunk is not None and self._chunk.outstanding_count == 0:
            self._drop_chunk()
        else:
            self._chunk = None

    def _take_chunk(self) -> FrameBuffer:
        chunk = self._chunk = self._memory.take(CHUNK_BYTES)
        self._start = self._end = 0
        return chunk

    def _drop_chunk(self) -> None:
        """An idle connection holds no buffer."""
        assert self._chunk is not None
        self._memory.give(self._chunk)
        self._chunk = None
        self._start = self._end = 0

    def _needs_room(self) -> bool:
        """Whether the partial small frame cannot be completed where it lies."""
        start = self._start
        if self._end - start < 4:
            return False
        assert self._chunk is not None
        (length,) = _LENGTH.unpack_from(self._chunk, start)
        return bool(start + 4 + length > CHUNK_BYTES and length <= SMALL_FRAME_LIMIT_BYTES)

    def _make_room(self, chunk: FrameBuffer) -> FrameBuffer:
        """Move the partial frame to the chunk's front, or to a new chunk when frames lie in it."""
        start, end = self._start, self._end
        target = chunk
        if chunk.outstanding_count:
            target = self._chunk = self._memory.take(CHUNK_BYTES)
        if end > start:
            with memoryview(chunk) as view, view[start:end] as tail:
                target[: end - start] = tail
        self._start, self._end = 0, end - start
        return target

    def _cut(self) -> list[memoryview]:
        frames: list[memoryview] = []
        chunk = self._chunk
        if chunk is None:
            return frames
        if self.error is not None:
            self._end = self._start
            raise self.error
        start, end = self._start, self._end
        whole = memoryview(chunk)
        reserved = 0
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(chunk, start)
            if not self.min_frame_bytes <= length <= self.max_frame_bytes:
                self.error = self._refuse(length)
                end = start  # what follows has no meaning
                break
            frame_end = start + 4 + length
            if frame_end <= end:
                frames.append(whole[start + 4 : frame_end])
                reserved += length
                start = frame_end
                self._peek = False
            elif length > SMALL_FRAME_LIMIT_BYTES:
                self._start = start
                if not self._begin_large(chunk, length, reserved):
                    break
                start = end
                break
            else:
                self._peek = False
                break
        self._start = start
        self._end = end
        if not self._detached:
            chunk.outstanding_count += len(frames)
            self._memory.reserved_bytes += reserved
        if self.error is not None and not frames:
            raise self.error
        if start == end and self._chunk is chunk and chunk.outstanding_count == 0:
            self._drop_chunk()
        if self._detached:
            return [memoryview(bytearray(frame)) for frame in frames]
        return frames

    def _refuse(self, length: int) -> BadFrameLength:
        if length >> 16 == TLS_HANDSHAKE:
            return BadFrameLength("the peer speaks TLS, which is not spoken here", length)
        if length <= 0:
            return BadFrameLength(f"frame length {length} is not positive", length)
        return BadFrameLength(
            f"frame length {length} is over the limit of {self.max_frame_bytes} bytes", length
        )

    def _begin_large(self, chunk: FrameBuffer, length: int, just_cut_bytes: int) -> bool:
        """Move what has arrived of a large frame into its own buffer, if there is memory for it."""
        memory = self._memory
        if memory.reserved_bytes + just_cut_bytes >= memory.limit_bytes:
            self.is_blocked = True
            return False
        memory.reserved_bytes += length
        rounded = -(-length // CHUNK_BYTES) * CHUNK_BYTES
        arrived = self._end - self._start - 4
        large = None if self._reusable is None else self._reusable.take(length)
        if large is None:
            is_growing = rounded > FIRST_LARGE_BUFFER_BYTES and not memory.has_pooled(rounded)
            large = memory.take(FIRST_LARGE_BUFFER_BYTES if is_growing else rounded)
        with memoryview(chunk) as view, view[self._start + 4 : self._end] as head:
            large[:arrived] = head
        self._large = large
        self._large_length = length
        self._large_filled = arrived
        return True

    def _grow_large(self, large: bytearray) -> FrameBuffer:
        rounded = -(-self._large_length // CHUNK_BYTES) * CHUNK_BYTES
        bigger = self._memory.take(min(2 * len(large), rounded))
        bigger[: len(large)] = large
        assert isinstance(large, FrameBuffer), "what is used again is large enough"
        self._memory.give(large)
        self._large = bigger
        return bigger
