"""The frame reader: any way of cutting the stream gives the same frames; bad lengths end it."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.errors import RemoteProtocolError
from moldau.protocol.framing import (
    CHUNK_BYTES,
    FIRST_FRUGAL_BUFFER_BYTES,
    FIRST_LARGE_BUFFER_BYTES,
    POISON_BYTE,
    SCRATCH_BYTES,
    SMALL_FRAME_LIMIT_BYTES,
    Account,
    FrameReader,
    ReceiveMemory,
    Use,
)


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def feed(reader: FrameReader, data: bytes, sizes: list[int]) -> list[memoryview]:
    """Give the reader `data` in pieces of the given sizes (repeated), as a transport would."""
    frames: list[memoryview] = []
    position = turn = 0
    while position < len(data):
        # TLS announces what has come: little may come after all, and into the scratch.
        size = min(max(sizes[turn % len(sizes)], 1), len(data) - position)
        buffer = reader.get_buffer(size if turn % 2 else -1)
        count = min(len(buffer), size)
        buffer[:count] = data[position : position + count]
        position += count
        turn += 1
        frames += reader.buffer_updated(count)
    return frames


SIZES = st.one_of(
    st.integers(1, 200),
    st.integers(SMALL_FRAME_LIMIT_BYTES - 8, SMALL_FRAME_LIMIT_BYTES + 8),
    st.integers(CHUNK_BYTES - 8, CHUNK_BYTES + 8),
)


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(SIZES, min_size=1, max_size=12),
    pieces=st.lists(
        st.one_of(st.integers(1, 9), st.integers(1000, CHUNK_BYTES)), min_size=1, max_size=5
    ).filter(lambda pieces: max(pieces) > 500),
    seed=st.integers(0, 2**32),
    detached=st.booleans(),
    release_early=st.booleans(),
)
def test_any_chunking_gives_the_same_frames(
    lengths: list[int], pieces: list[int], seed: int, detached: bool, release_early: bool
) -> None:
    source = random.Random(seed)
    bodies = [source.randbytes(length) for length in lengths]
    data = framed(*bodies)
    memory = ReceiveMemory(poison=True)
    reader = FrameReader(memory, detached=detached)
    received: list[bytes] = []
    held: list[memoryview] = []
    position = turn = 0
    while position < len(data):
        buffer = reader.get_buffer()
        count = min(len(buffer), pieces[turn % len(pieces)], len(data) - position)
        buffer[:count] = data[position : position + count]
        position, turn = position + count, turn + 1
        for frame in reader.buffer_updated(count):
            if release_early and not detached:
                received.append(bytes(frame))
                reader.release(frame)
            else:
                held.append(frame)
    # What was held all the time has not been overwritten by what came later.
    received += [bytes(frame) for frame in held]
    assert received == bodies
    assert not reader.is_inside_frame
    if not detached:
        for frame in held:
            reader.release(frame)
    assert memory.reserved_bytes == 0


def test_frames_are_writable_and_not_copied() -> None:
    memory = ReceiveMemory()
    reader = FrameReader(memory)
    first, second = feed(reader, framed(b"one", b"two"), [CHUNK_BYTES])
    assert first.obj is second.obj
    first[0:1] = b"O"
    assert bytes(first) == b"One"
    assert not first.readonly


def test_released_frames_are_poisoned_and_their_slices_show_it() -> None:
    reader = FrameReader(ReceiveMemory(poison=True))
    (frame,) = feed(reader, framed(b"records"), [CHUNK_BYTES])
    stolen = frame[2:5]
    reader.release(frame)
    assert bytes(stolen) == bytes([POISON_BYTE]) * 3


def test_a_frame_is_released_once() -> None:
    reader = FrameReader(ReceiveMemory())
    (frame,) = feed(reader, framed(b"x"), [CHUNK_BYTES])
    reader.release(frame)
    with pytest.raises(ValueError, match="released memoryview"):
        reader.release(frame)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 1001, 2**31 - 1])
def test_bad_length_is_the_peers_error(length: int) -> None:
    reader = FrameReader(ReceiveMemory(), max_frame_bytes=1000)
    with pytest.raises(RemoteProtocolError, match=str(length)):
        feed(reader, struct.pack(">i", length), [1])


def test_good_frames_before_a_bad_length_are_delivered() -> None:
    memory = ReceiveMemory()
    reader = FrameReader(memory, max_frame_bytes=1000)
    (frame,) = feed(reader, framed(b"good") + struct.pack(">i", -5), [CHUNK_BYTES])
    assert bytes(frame) == b"good"
    assert reader.bad_length == -5
    with pytest.raises(RemoteProtocolError, match="-5"):
        feed(reader, framed(b"late"), [CHUNK_BYTES])
    reader.release(frame)
    reader.close()
    assert memory.reserved_bytes == 0


def test_announcing_a_large_frame_does_not_allocate_it() -> None:
    memory = ReceiveMemory()
    reader = FrameReader(memory)
    feed(reader, struct.pack(">i", 100_000_000) + b"x", [CHUNK_BYTES])
    assert len(reader.get_buffer()) < FIRST_LARGE_BUFFER_BYTES
    assert memory.reserved_bytes == FIRST_LARGE_BUFFER_BYTES
    reader.close()
    assert memory.reserved_bytes == 0


def test_a_large_frame_grows_as_it_arrives() -> None:
    body = random.Random(7).randbytes(5 * FIRST_LARGE_BUFFER_BYTES + 17)
    reader = FrameReader(ReceiveMemory())
    (frame,) = feed(reader, framed(body), [CHUNK_BYTES - 1])
    assert frame == body


class Limited(Account):
    """Allows what fits below a limit; calm only while nothing is held."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = self.peak_bytes = 0

    @property
    def is_calm(self) -> bool:
        return not self.held_bytes

    def allows(self, size_bytes: int, use: Use) -> bool:
        return self.held_bytes + size_bytes <= self.limit_bytes

    def charge(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def refund(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes


def test_a_large_frame_waits_while_memory_is_used_up() -> None:
    memory, account = ReceiveMemory(), Limited(3 * CHUNK_BYTES)
    holder, waiter = (FrameReader(memory, account=account) for _ in range(2))
    (held,) = feed(holder, framed(bytes(2 * CHUNK_BYTES)), [CHUNK_BYTES])
    assert account.held_bytes == 2 * CHUNK_BYTES
    assert feed(waiter, struct.pack(">i", 90_000) + b"abc", [CHUNK_BYTES]) == []
    assert waiter.is_blocked
    assert account.held_bytes == 2 * CHUNK_BYTES + 7, "what has arrived, and no chunk for it"
    assert waiter.resume() == []
    assert waiter.is_blocked
    holder.release(held)
    assert waiter.resume() == []
    assert not waiter.is_blocked
    (frame,) = feed(waiter, bytes(90_000 - 3), [CHUNK_BYTES])
    assert bytes(frame[:3]) == b"abc"
    waiter.release(frame)
    assert (account.held_bytes, memory.reserved_bytes) == (0, 0)


def test_a_large_frame_that_has_begun_waits_before_its_buffer_grows() -> None:
    memory, account = ReceiveMemory(), Limited(5 * FIRST_LARGE_BUFFER_BYTES)
    reader, other = (FrameReader(memory, account=account) for _ in range(2))
    body = random.Random(1).randbytes(3 * FIRST_LARGE_BUFFER_BYTES)
    (held,) = feed(other, framed(bytes(3 * FIRST_LARGE_BUFFER_BYTES)), [CHUNK_BYTES])
    data = framed(body)
    position = 0
    while not reader.is_blocked:
        buffer = reader.get_buffer()
        count = min(len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        position += count
        assert reader.buffer_updated(count) == []
        assert reader.make_ready() != reader.is_blocked
    assert account.held_bytes == 5 * FIRST_LARGE_BUFFER_BYTES
    assert reader.arrived_part == pytest.approx(2 / 3)
    assert reader.missing_bytes == len(data) - position
    reader.resume()
    assert reader.is_blocked
    other.release(held)
    assert reader.resume() == []
    (frame,) = feed(reader, data[position:], [CHUNK_BYTES])
    assert frame == body
    reader.release(frame)
    assert (account.held_bytes, memory.reserved_bytes) == (0, 0)


def test_small_frames_wait_where_there_is_no_memory_for_a_chunk() -> None:
    memory, account = ReceiveMemory(), Limited(CHUNK_BYTES - 1)
    reader = FrameReader(memory, account=account)
    first = reader.get_buffer()
    assert len(first) == SCRATCH_BYTES
    data = framed(b"one", b"two")
    first[: len(data)] = data
    assert reader.buffer_updated(len(data)) == []
    assert reader.is_blocked
    assert account.held_bytes == len(data)
    account.limit_bytes += CHUNK_BYTES
    one, two = reader.resume()
    assert (bytes(one), bytes(two)) == (b"one", b"two")
    assert reader.make_ready()
    reader.release(one)
    reader.release(two)
    assert account.held_bytes == 0


def test_a_frame_whose_length_is_not_known_has_a_byte_at_least() -> None:
    reader = FrameReader(ReceiveMemory())
    assert reader.missing_bytes == 5
    assert feed(reader, b"\0\0\0", [CHUNK_BYTES]) == []
    assert reader.missing_bytes == 2
    assert feed(reader, b"\x07", [CHUNK_BYTES]) == []
    assert reader.missing_bytes == 7


def test_a_small_frame_that_is_not_complete_holds_what_has_arrived() -> None:
    memory, account = ReceiveMemory(), Limited(10 * CHUNK_BYTES)
    reader = FrameReader(memory, account=account)
    data = framed(b"first", bytes(60_000))
    (first,) = feed(reader, data[:1_000], [CHUNK_BYTES])
    assert account.held_bytes == CHUNK_BYTES
    reader.release(first)
    assert account.held_bytes == 1_000 - 9
    assert reader.arrived_part == pytest.approx((1_000 - 13) / 60_000)
    assert reader.missing_bytes == len(data) - 1_000
    (second,) = feed(reader, data[1_000:], [CHUNK_BYTES])
    assert second == bytes(60_000)
    reader.release(second)
    assert account.held_bytes == 0


def test_a_frugal_reader_holds_frames_and_what_has_arrived_of_them() -> None:
    memory, account = ReceiveMemory(), Limited(10 * CHUNK_BYTES)
    reader = FrameReader(memory, account=account)
    reader.is_frugal = True
    (frame,) = feed(reader, framed(b"a token"), [CHUNK_BYTES])
    assert account.held_bytes == len(frame)
    assert feed(reader, struct.pack(">i", 2 * CHUNK_BYTES) + b"abc", [CHUNK_BYTES]) == []
    assert account.held_bytes == len(frame) + FIRST_FRUGAL_BUFFER_BYTES
    reader.release(frame)
    (large,) = feed(reader, bytes(2 * CHUNK_BYTES - 3), [CHUNK_BYTES])
    assert len(large) == 2 * CHUNK_BYTES
    reader.release(large)
    assert (account.held_bytes, memory.reserved_bytes) == (0, 0)


def test_a_call_returns_as_many_frames_as_it_may() -> None:
    memory = ReceiveMemory(poison=True)
    reader = FrameReader(memory, max_cut_count=3)
    data = framed(*(b"%d" % number for number in range(7))) + framed(b"")
    frames = feed(reader, data, [CHUNK_BYTES])
    taken: list[bytes] = []
    for count in (3, 3, 1):
        assert len(frames) == count
        assert reader.has_uncut
        for frame in frames:
            taken.append(bytes(frame))
            reader.release(frame)
        if count == 1:
            with pytest.raises(RemoteProtocolError, match="not positive"):
                reader.cut_more()
        else:
            frames = reader.cut_more()
    assert taken == [b"%d" % number for number in range(7)]
    assert not reader.has_uncut
    reader.close()
    assert memory.reserved_bytes == 0


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(SIZES, min_size=1, max_size=12),
    piece=st.integers(100, CHUNK_BYTES),
    seed=st.integers(0, 2**32),
    limit_bytes=st.integers(3 * CHUNK_BYTES, 8 * CHUNK_BYTES),
    is_frugal=st.booleans(),
)
def test_frames_are_the_same_whatever_waits_for_memory(
    lengths: list[int], piece: int, seed: int, limit_bytes: int, is_frugal: bool
) -> None:
    dice = random.Random(seed)
    bodies = [dice.randbytes(length) for length in lengths]
    data = framed(*bodies)
    memory, account = ReceiveMemory(poison=True), Limited(limit_bytes)
    reader = FrameReader(memory, account=account, max_cut_count=dice.choice([1, 3, 64]))
    reader.is_frugal = is_frugal
    received: list[bytes] = []
    held: list[memoryview] = []
    position = 0

    def give_back(count: int) -> None:
        for _ in range(min(count, len(held))):
            received.append(bytes(held[0]))
            reader.release(held.pop(0))

    while position < len(data) or reader.is_blocked or reader.has_uncut:
        if reader.has_uncut:
            held += reader.cut_more()
        elif not reader.make_ready():
            give_back(dice.randrange(1, 4))
            held += reader.resume()
            assert held or not reader.is_blocked, "a frame fits where nothing else is held"
        else:
            buffer = reader.get_buffer(dice.choice([-1, piece]))
            count = min(len(buffer), piece, len(data) - position)
            buffer[:count] = data[position : position + count]
            position += count
            held += reader.buffer_updated(count)
        give_back(dice.choice([0, 0, 1, 5]))
    give_back(len(held))
    assert received == bodies
    # What has arrived into the scratch or is moved to a larger buffer comes on top for the moment.
    assert account.peak_bytes <= limit_bytes + 3 * CHUNK_BYTES
    assert (account.held_bytes, memory.reserved_bytes) == (0, 0)


def test_an_idle_connection_holds_no_buffer_and_the_pool_is_bounded() -> None:
    memory = ReceiveMemory(pool_limit_bytes=2 * CHUNK_BYTES)
    readers = [FrameReader(memory) for _ in range(5)]
    frames = [(reader, feed(reader, framed(b"x"), [CHUNK_BYTES])[0]) for reader in readers]
    for reader, frame in frames:
        reader.release(frame)
    assert memory.pooled_bytes == 2 * CHUNK_BYTES
    again = FrameReader(memory)
    again.get_buffer()
    assert memory.pooled_bytes == CHUNK_BYTES


def test_truncated_stream_leaves_nothing_behind() -> None:
    memory = ReceiveMemory()
    for cut in (1, 3, 4, 5, 70_000, 100_003):
        reader = FrameReader(memory)
        assert feed(reader, framed(bytes(100_000))[:cut], [CHUNK_BYTES]) == []
        assert reader.is_inside_frame
        reader.close()
    assert memory.reserved_bytes == 0


def test_a_detached_frames_buffer_is_used_again_only_when_no_view_of_it_is_left() -> None:
    reader = FrameReader(ReceiveMemory(), detached=True)
    source = random.Random(3)
    held: list[tuple[memoryview, bytes]] = []
    buffers = set()
    for _ in range(60):
        body = source.randbytes(source.randrange(SMALL_FRAME_LIMIT_BYTES + 1, 4 * CHUNK_BYTES))
        [frame] = feed(reader, framed(body), [CHUNK_BYTES])
        buffers.add(id(frame.obj))
        # Of some only a slice is kept, as of a response its records.
        held.append((frame, body) if source.random() < 0.5 else (frame[7:99], body[7:99]))
        del frame
        while len(held) > source.randrange(1, 5):
            held.pop(source.randrange(len(held)))
        assert all(view == expected for view, expected in held)
    assert len(buffers) < 30


@pytest.mark.parametrize("length", [5, SMALL_FRAME_LIMIT_BYTES + 1])
def test_a_reader_that_is_asked_for_a_buffer_in_vain_holds_none(length: int) -> None:
    """TLS asks after each handshake and each large frame, when nothing has come yet."""
    memory = ReceiveMemory()
    readers = [FrameReader(memory) for _ in range(3)]
    body = bytes(range(256)) * (length // 256) + bytes(length % 256)
    for turn in range(2):
        for reader in readers:
            assert len(reader.get_buffer(SCRATCH_BYTES)) == SCRATCH_BYTES
            assert memory.has_pooled(CHUNK_BYTES) == (turn > 0)
        for reader in readers:
            [frame] = feed(reader, framed(body), [SCRATCH_BYTES])
            assert frame == body
            reader.release(frame)
    assert memory.reserved_bytes == 0


def test_an_empty_frame_where_it_has_a_meaning() -> None:
    memory = ReceiveMemory(poison=True)
    reader = FrameReader(memory)
    reader.min_frame_bytes = 0
    empty, full = feed(reader, framed(b"", b"x"), [CHUNK_BYTES])
    assert (bytes(empty), bytes(full)) == (b"", b"x")
    reader.release(empty)
    reader.release(full)
    reader.min_frame_bytes = 1
    with pytest.raises(RemoteProtocolError, match="not positive"):
        feed(reader, framed(b""), [CHUNK_BYTES])
    assert memory.reserved_bytes == 0
