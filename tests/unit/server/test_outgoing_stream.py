"""Each step of an outgoing stream, on a socket and a loop that do what the test says."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.runtime.files import FileRegion
from moldau.server import outgoing
from moldau.server.outgoing import (
    PIECE_BYTES,
    PREFETCH_BYTES,
    PUMP_LIMIT_BYTES,
    RESIDENCY_STEP_BYTES,
    TOUCH_BYTES,
    OutgoingStream,
    is_in_page_cache,
)

CONTENTS = bytes(range(251)) * 60_000
SOCKET_FD, COPY_FD = 70, 71


class Contents:
    """A file in memory; `end` is where it ends."""

    name = "0.log"

    def __init__(self, fd: int = 5) -> None:
        self.fd = fd
        self.end = len(CONTENTS)
        self.holders = 0
        self.touched: list[tuple[int, int]] = []

    def fileno(self) -> int:
        return self.fd

    def acquire(self) -> None:
        self.holders += 1

    def release(self) -> None:
        self.holders -= 1

    def pread(self, size_bytes: int, position: int) -> bytes:
        return CONTENTS[position : min(position + size_bytes, self.end)]

    def pread_into(self, buffer: bytearray, position: int) -> int:
        count = max(min(len(buffer), self.end - position), 0)
        self.touched.append((position, count))
        return count


class Wire:
    """The duplicate of a socket: takes `room` bytes, then is full."""

    def __init__(self) -> None:
        self.room = 1 << 30
        self.most_at_once = 1 << 30
        self.sent = b""
        self.calls: list[tuple[int, int]] = []
        """Bytes and flags of each call that took something."""
        self.is_closed = False
        self.is_blocking = True

    def setblocking(self, flag: bool) -> None:
        self.is_blocking = flag

    def fileno(self) -> int:
        return COPY_FD

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        count = min(len(data), self.room, self.most_at_once)
        if not count:
            raise BlockingIOError
        self.room -= count
        self.sent += bytes(data[:count])
        self.calls.append((count, flags))
        return count

    def sendfile(self, out: int, source: int, offset: int, count: int) -> int:
        assert (out, source) == (COPY_FD, 5)
        self.asked.append((offset, count))
        left = max(min(count, self.file_end - offset), 0)
        return self.send(CONTENTS[offset : offset + left]) if left else 0

    def close(self) -> None:
        self.is_closed = True

    asked: list[tuple[int, int]]
    file_end = len(CONTENTS)


class Transport:
    """Takes everything; the test says when its buffer is full."""

    def __init__(self, *, has_socket: bool = True, is_tls: bool = False) -> None:
        self.written: list[bytes] = []
        self.limits: list[dict[str, int]] = []
        self.buffered = 0
        self.closed = 0
        socket = SimpleNamespace(fileno=lambda: SOCKET_FD) if has_socket else None
        self._extra = {"socket": socket, "sslcontext": object() if is_tls else None}

    def get_extra_info(self, name: str) -> object:
        return self._extra[name]

    def set_write_buffer_limits(self, **limits: int) -> None:
        self.limits.append(limits)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed += 1


class Loop:
    """Remembers what waits for a socket, and what is to be called soon."""

    def __init__(self) -> None:
        self.writers: dict[int, Callable[[], None]] = {}
        self.soon: list[Callable[[], None]] = []
        self.tasks: list[Any] = []

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        assert fd not in self.writers
        self.writers[fd] = callback

    def remove_writer(self, fd: int) -> None:
        self.writers.pop(fd, None)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def create_task(self, coroutine: Any) -> Any:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.append(task)
        return task


class Rig:
    """A stream, and what is reported to its connection."""

    def __init__(self, offload: Any = None, **kind: bool) -> None:
        self.file = Contents()
        self.wire = Wire()
        self.transport = Transport(**kind)
        self.loop = Loop()
        self.drained = self.progress = 0
        self.failures: list[OSError] = []
        self.regions: list[FileRegion] = []
        self.stream = OutgoingStream(
            self.transport,  # type: ignore[arg-type]
            self,
            self.loop,  # type: ignore[arg-type]
            offload=offload,
        )

    def on_drained(self) -> None:
        self.drained += 1

    def on_progress(self) -> None:
        self.progress += 1

    def on_send_failed(self, error: OSError) -> None:
        self.failures.append(error)

    def region(self, position: int, length: int, *, is_cold: bool = False) -> FileRegion:
        made = FileRegion(self.file, position, length, is_cold=is_cold)  # type: ignore[arg-type]
        self.regions.append(made)  # one that nothing holds lets go of its file by itself
        return made

    def empty(self, room: int = 1 << 30) -> None:
        """The peer reads: the socket has room again."""
        self.wire.room = room
        self.loop.writers[COPY_FD]()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    monkeypatch.setattr(outgoing, "_HAS_SENDFILE", True)

    def made(*args: Any, **options: Any) -> Rig:
        rig = Rig(*args, **options)
        wire = rig.wire
        wire.asked = []

        def socket_of(*, fileno: int) -> Wire:
            assert fileno == COPY_FD
            return wire

        def dup(fd: int) -> int:
            assert fd == SOCKET_FD
            return COPY_FD

        system = SimpleNamespace(dup=dup, sendfile=wire.sendfile)
        monkeypatch.setattr(outgoing, "os", system)
        monkeypatch.setattr(outgoing, "socket", SimpleNamespace(socket=socket_of))
        return rig

    return made


Make = Callable[..., Rig]


# -- through the transport ------------------------------------------------------------------------


def test_small_and_large_bytes_go_to_the_transport_at_once(make: Make) -> None:
    rig = make()
    large = bytes(PIECE_BYTES + 1)
    rig.stream.write(b"")
    rig.stream.write(b"small")
    rig.stream.write(large)
    assert rig.transport.written == [b"small", large]
    assert (rig.stream.pending_bytes, rig.stream.is_empty) == (0, True)
    assert rig.transport.limits == [{"high": 0}]


def test_bytes_wait_while_the_transport_is_full(make: Make) -> None:
    rig = make()
    rig.stream.pause_writing()
    assert not rig.stream.is_empty
    rig.stream.write(b"one")
    rig.stream.write(b"two")
    assert (rig.transport.written, rig.stream.pending_bytes) == ([], 6)
    rig.stream.resume_writing()
    assert rig.transport.written == [b"one", b"two"]
    assert (rig.stream.pending_bytes, rig.stream.is_empty) == (0, True)
    assert (rig.progress, rig.drained) == (1, 1)


def test_what_is_in_memory_is_what_waits_here_and_in_the_transport(make: Make) -> None:
    rig = make(has_socket=False)
    assert rig.stream.unsent_memory_bytes() == 0
    rig.transport.buffered = 100
    rig.stream.pause_writing()
    rig.stream.write(b"four")
    rig.stream.write_region(rig.region(0, 1_000))
    assert (rig.stream.unsent_memory_bytes(), rig.stream.pending_bytes) == (104, 1_004)


def test_that_all_was_sent_is_reported_when_nothing_waits(make: Make) -> None:
    rig = make()
    rig.stream.pause_writing()
    rig.stream.write(b"one")
    rig.stream.resume_writing()
    rig.stream.pause_writing()
    rig.stream.resume_writing()
    assert (rig.progress, rig.drained) == (2, 2)
    rig.stream.detach()
    rig.stream.resume_writing()
    assert rig.drained == 2


@pytest.mark.parametrize("kind", [{"has_socket": False}, {"is_tls": True}])
def test_without_sendfile_all_goes_in_pieces_through_the_transport(
    make: Make, kind: dict[str, bool]
) -> None:
    rig = make(**kind)
    exact, large = bytes(PIECE_BYTES), bytes(2 * PIECE_BYTES + 1)
    rig.stream.write(exact)
    rig.stream.write(large)
    rig.stream.write_region(rig.region(3, PIECE_BYTES + 7))
    assert [len(each) for each in rig.transport.written] == [
        *(PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 1),
        *(PIECE_BYTES, 7),
    ]
    assert b"".join(rig.transport.written) == exact + large + CONTENTS[3 : PIECE_BYTES + 10]
    assert (rig.stream.pending_bytes, rig.file.holders) == (0, 0)
    assert rig.wire.calls == []


def test_a_transport_of_tls_has_its_limits_once_the_handshake_is_behind_it(make: Make) -> None:
    rig = make(is_tls=True)
    assert rig.transport.limits == []
    (limit,) = rig.loop.soon
    limit()
    assert rig.transport.limits == [{"high": 1, "low": 0}]
    rig.stream.detach()
    limit()
    assert len(rig.transport.limits) == 1


def test_each_piece_waits_until_the_last_one_has_left(make: Make) -> None:
    rig = make(is_tls=True)
    rig.stream.pause_writing()
    rig.stream.write(CONTENTS[: PIECE_BYTES + 5])
    rig.stream.write_region(rig.region(PIECE_BYTES + 5, 10))
    rig.transport.write = lambda data: (  # type: ignore[method-assign]
        rig.transport.written.append(data),
        rig.stream.pause_writing(),
    )
    left = [PIECE_BYTES + 15, 15, 10, 0]
    for count, expected in enumerate(left):
        assert (rig.stream.pending_bytes, len(rig.transport.written)) == (expected, count)
        rig.stream.resume_writing()
    assert b"".join(rig.transport.written) == CONTENTS[: PIECE_BYTES + 15]
    assert rig.drained == 1


# -- by sendfile ----------------------------------------------------------------------------------


def test_a_region_moves_the_connection_to_a_duplicate_for_good(make: Make) -> None:
    rig = make()
    rig.stream.write_before_region(b"head")
    assert (rig.transport.written, rig.stream.pending_bytes) == ([], 4)
    rig.stream.write_region(rig.region(10, 1_000))
    assert rig.wire.sent == b"head" + CONTENTS[10:1_010]
    assert not rig.wire.is_blocking
    assert rig.wire.asked == [(10, 1_000)]
    assert rig.wire.calls == [(4, outgoing._MSG_MORE), (1_000, 0)]
    assert (rig.stream.pending_bytes, rig.stream.is_empty, rig.file.holders) == (0, True, 0)
    rig.stream.write(b"tail")
    rig.stream.write_region(rig.region(0, 5))
    assert rig.wire.sent.endswith(b"tail" + CONTENTS[:5])
    assert rig.transport.written == []
    assert (rig.progress, rig.drained) == (3, 3)


def test_the_move_waits_for_what_the_transport_holds(make: Make) -> None:
    rig = make()
    rig.stream.pause_writing()
    rig.transport.buffered = 100
    rig.stream.write_region(rig.region(0, 10))
    assert (rig.wire.sent, rig.stream.pending_bytes) == (b"", 10)
    rig.transport.buffered = 0
    rig.stream.resume_writing()
    assert rig.wire.sent == CONTENTS[:10]


def test_only_bytes_before_a_region_say_that_more_follows(make: Make) -> None:
    rig = make()
    rig.stream.write_region(rig.region(0, 1))
    rig.wire.calls.clear()
    rig.wire.room = 0
    rig.stream.write(b"a")
    rig.stream.write(b"b")
    rig.stream.write_before_region(b"c")
    rig.stream.write_region(rig.region(0, 1))
    rig.stream.write(b"d")
    rig.empty()
    more = outgoing._MSG_MORE
    assert rig.wire.calls == [(1, 0), (1, 0), (1, more), (1, 0), (1, 0)]
    assert more


def test_what_the_socket_did_not_take_follows_when_it_has_room(make: Make) -> None:
    rig = make()
    rig.wire.room = 3
    rig.stream.write_before_region(b"header")
    rig.stream.write_region(rig.region(7, 100))
    assert (rig.wire.sent, rig.stream.pending_bytes) == (b"hea", 103)
    assert set(rig.loop.writers) == {COPY_FD}
    rig.stream.write(b"tail")
    assert rig.wire.sent == b"hea", "nothing is tried while the socket is full"
    rig.empty(13)
    assert rig.wire.sent == b"header" + CONTENTS[7:17]
    assert rig.wire.asked == [(7, 100), (17, 90)]
    assert (rig.stream.pending_bytes, rig.file.holders) == (94, 1)
    rig.empty(91)
    rig.empty()
    assert rig.wire.sent == b"header" + CONTENTS[7:107] + b"tail"
    assert (rig.stream.pending_bytes, rig.file.holders, rig.loop.writers) == (0, 0, {})
    assert rig.drained == 1


def test_a_socket_that_takes_a_little_at_a_time_gets_all_in_order(make: Make) -> None:
    rig = make()
    rig.wire.most_at_once = 7
    rig.stream.write_before_region(CONTENTS[:20])
    rig.stream.write_region(rig.region(20, 30))
    rig.stream.write(CONTENTS[50:75])
    assert rig.wire.sent == CONTENTS[:75]
    assert (rig.stream.pending_bytes, rig.file.holders) == (0, 0)


def test_a_full_socket_is_no_progress(make: Make) -> None:
    rig = make()
    rig.wire.room = 0
    rig.stream.write_region(rig.region(0, 10))
    assert (rig.progress, rig.drained) == (0, 0)
    rig.empty(5)
    assert (rig.progress, rig.drained) == (1, 0)


def test_one_connection_sends_so_much_and_then_others_have_their_turn(make: Make) -> None:
    rig = make()
    half = PUMP_LIMIT_BYTES // 2
    rig.stream.write_before_region(bytes(half))
    rig.stream.write_region(rig.region(0, half))
    assert len(rig.wire.sent) == PUMP_LIMIT_BYTES
    assert not rig.loop.writers
    rig.stream.write_region(rig.region(0, PUMP_LIMIT_BYTES + 10))
    assert len(rig.wire.sent) == 2 * PUMP_LIMIT_BYTES
    assert rig.wire.asked[-1] == (0, PUMP_LIMIT_BYTES)
    assert set(rig.loop.writers) == {COPY_FD}
    rig.empty()
    assert rig.wire.asked[-1] == (PUMP_LIMIT_BYTES, 10)
    assert rig.stream.is_empty


def test_a_file_that_ends_inside_a_response_breaks_the_connection(make: Make) -> None:
    rig = make()
    rig.wire.file_end = 50
    rig.stream.write_region(rig.region(0, 100))
    assert [str(each) for each in rig.failures] == ["0.log ends inside a response"]
    assert len(rig.wire.sent) == 50
    through = make(has_socket=False)
    through.file.end = 50
    through.stream.write_region(through.region(0, 100))
    assert [str(each) for each in through.failures] == ["0.log ends inside a response"]


def test_a_region_of_one_byte_is_sent(make: Make) -> None:
    rig = make()
    rig.stream.write_region(rig.region(9, 1))
    assert (rig.wire.sent, rig.failures) == (CONTENTS[9:10], [])


def test_a_file_without_a_descriptor_is_read(make: Make) -> None:
    rig = make()
    rig.file.fd = -1
    rig.stream.write_region(rig.region(4, 10))
    assert (rig.transport.written, rig.wire.sent) == ([CONTENTS[4:14]], b"")
    rig.file.fd = 5
    rig.stream.write_region(rig.region(0, 1))
    rig.file.fd = -1
    rig.wire.most_at_once = 1_000
    rig.stream.write_region(rig.region(4, PIECE_BYTES + 10))
    assert rig.wire.sent == CONTENTS[:1] + CONTENTS[4 : PIECE_BYTES + 14]


def test_an_empty_region_lets_go_of_its_file_and_of_what_waited_for_it(make: Make) -> None:
    rig = make()
    rig.stream.write_before_region(b"head")
    rig.stream.write_region(rig.region(0, 0))
    assert (rig.transport.written, rig.file.holders) == ([b"head"], 0)
    rig.stream.write_region(rig.region(0, 10))
    rig.wire.room = 0
    rig.stream.write(b"waits")
    rig.stream.write_region(rig.region(0, 0))
    assert rig.wire.sent == CONTENTS[:10]
    rig.empty()
    assert rig.wire.sent == CONTENTS[:10] + b"waits"


# -- the end --------------------------------------------------------------------------------------


def test_the_end_comes_behind_everything(make: Make) -> None:
    at_once = make()
    at_once.stream.close_when_sent()
    assert at_once.transport.closed == 1
    rig = make()
    rig.wire.room = 5
    rig.stream.write_region(rig.region(0, 10))
    rig.stream.close_when_sent()
    assert rig.transport.closed == 0
    rig.empty()
    assert (rig.transport.closed, rig.drained) == (1, 0)


def test_the_end_waits_for_what_the_transport_has_not_taken(make: Make) -> None:
    rig = make(is_tls=True)
    rig.stream.pause_writing()
    rig.stream.write(b"last")
    rig.stream.close_when_sent()
    rig.transport.write = lambda data: (  # type: ignore[method-assign]
        rig.transport.written.append(data),
        rig.stream.pause_writing(),
    )
    rig.stream.resume_writing()
    assert (rig.transport.written, rig.transport.closed) == ([b"last"], 0)
    rig.stream.resume_writing()
    assert (rig.transport.closed, rig.drained) == (1, 0)


@pytest.mark.parametrize("room", [0, 1 << 30])
def test_a_lost_connection_holds_nothing(make: Make, room: int) -> None:
    rig = make()
    rig.stream.write_region(rig.region(0, 1))
    rig.wire.room = room
    if not room:
        rig.stream.write(b"bytes")
        rig.stream.write_region(rig.region(0, 10))
        assert rig.file.holders == 1
    rig.stream.detach()
    assert (rig.file.holders, rig.stream.pending_bytes, rig.loop.writers) == (0, 0, {})
    assert rig.stream.unsent_memory_bytes() == 0
    assert rig.wire.is_closed
    rig.stream.detach()
    sent = rig.wire.sent
    rig.stream.write(b"more")
    rig.stream.write_before_region(b"more")
    rig.stream.write_region(rig.region(0, 10))
    rig.stream.close_when_sent()
    assert (rig.wire.sent, rig.transport.written, rig.transport.closed) == (sent, [], 0)
    assert (rig.file.holders, rig.stream.pending_bytes) == (0, 0)


def test_a_writer_that_comes_late_finds_a_lost_connection(make: Make) -> None:
    rig = make()
    rig.wire.room = 0
    rig.stream.write_region(rig.region(0, 10))
    (late,) = rig.loop.writers.values()
    rig.stream.detach()
    late()
    assert (rig.wire.sent, rig.loop.writers) == (b"", {})


# -- cold regions ---------------------------------------------------------------------------------


class Beside:
    """An `offload` that waits for the test."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.gate = asyncio.Event()
        self.failure: OSError | None = None

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        self.asked.append((function.__name__, *args))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return function(*args)


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the page cache was asked about; it has nothing, unless the list begins with a True."""
    asked: list[tuple[Any, ...]] = []

    def ask(*question: Any) -> bool:
        asked.append(question)
        return asked[0] is True  # type: ignore[comparison-overlap]

    monkeypatch.setattr(outgoing, "is_in_page_cache", ask)
    return asked


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_cold_region_is_read_ahead_beside_the_loop_step_by_step(
    make: Make, resident: list[tuple[Any, ...]]
) -> None:
    beside = Beside()
    rig = make(beside)
    length = 2 * PREFETCH_BYTES + 5
    rig.stream.write_region(rig.region(11, length, is_cold=True))
    await _settled()
    assert beside.asked == [("_touch", rig.file, 11, PREFETCH_BYTES)]
    assert (rig.wire.sent, rig.file.holders) == (b"", 2)
    rig.stream.write(b"tail")
    assert rig.wire.sent == b"", "what follows waits too"
    beside.gate.set()
    await _settled()
    while rig.loop.writers:
        rig.empty()
        await _settled()
    assert beside.asked == [
        ("_touch", rig.file, 11, PREFETCH_BYTES),
        ("_touch", rig.file, 11 + PREFETCH_BYTES, PREFETCH_BYTES),
        ("_touch", rig.file, 11 + 2 * PREFETCH_BYTES, 5),
    ]
    assert resident == [each[1:] for each in beside.asked]
    assert rig.wire.sent == CONTENTS[11 : 11 + length] + b"tail"
    assert (rig.stream.pending_bytes, rig.file.holders) == (0, 0)
    rig.stream.write_region(rig.region(0, 9, is_cold=True))
    await _settled()
    assert beside.asked[-1] == ("_touch", rig.file, 0, 9), "the next one is as cold"
    assert rig.wire.sent.endswith(b"tail" + CONTENTS[:9])


async def test_what_is_in_the_page_cache_is_asked_for_once_a_step(
    make: Make, resident: list[tuple[Any, ...]]
) -> None:
    resident.append(True)  # type: ignore[arg-type]
    beside = Beside()
    rig = make(beside, has_socket=False)
    length = PREFETCH_BYTES + 5
    rig.stream.write_region(rig.region(11, length, is_cold=True))
    assert resident[1:] == [
        (rig.file, 11, PREFETCH_BYTES),
        (rig.file, 11 + PREFETCH_BYTES, 5),
    ]
    assert beside.asked == []
    assert b"".join(rig.transport.written) == CONTENTS[11 : 11 + length]


async def test_a_cold_region_through_the_transport_waits_as_well(
    make: Make, resident: list[tuple[Any, ...]]
) -> None:
    beside = Beside()
    rig = make(beside, has_socket=False)
    rig.stream.write_region(rig.region(0, PIECE_BYTES + 1, is_cold=True))
    await _settled()
    rig.stream.pause_writing()
    rig.stream.resume_writing()
    assert (rig.transport.written, rig.drained) == ([], 0)
    beside.gate.set()
    await _settled()
    assert b"".join(rig.transport.written) == CONTENTS[: PIECE_BYTES + 1]
    assert len(beside.asked) == 1
    assert rig.drained == 1


@pytest.mark.parametrize("options", [{"is_cold": False}, {"is_cold": True}])
async def test_without_need_or_means_nothing_is_read_ahead(
    make: Make, resident: list[tuple[Any, ...]], options: dict[str, bool]
) -> None:
    beside = None if options["is_cold"] else Beside()
    rig = make(beside)
    rig.stream.write_region(rig.region(0, 10, **options))
    assert (resident, rig.wire.sent) == ([], CONTENTS[:10])


async def test_a_file_that_cannot_be_read_ahead_breaks_the_connection(
    make: Make, resident: list[tuple[Any, ...]]
) -> None:
    beside = Beside()
    beside.failure = OSError(errno.EIO, "broken")
    beside.gate.set()
    rig = make(beside)
    rig.stream.write_region(rig.region(0, 10, is_cold=True))
    await _settled()
    assert rig.failures == [beside.failure]
    assert (rig.wire.sent, rig.file.holders) == (b"", 1)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_connection_that_was_lost_while_it_read_ahead_hears_nothing(
    make: Make, resident: list[tuple[Any, ...]], fails: bool
) -> None:
    beside = Beside()
    beside.failure = OSError(errno.EIO, "broken") if fails else None
    rig = make(beside)
    rig.stream.write_region(rig.region(0, 10, is_cold=True))
    await _settled()
    rig.stream.detach()
    assert rig.file.holders == 1, "the thread's"
    beside.gate.set()
    await _settled()
    assert (rig.file.holders, rig.failures, rig.wire.sent) == (0, [], b"")
    assert (rig.drained, rig.progress) == (0, 0)


@pytest.mark.parametrize(
    ("position", "size_bytes", "places"),
    [
        (0, 1, [0, 0]),
        (10, RESIDENCY_STEP_BYTES, [10, 9 + RESIDENCY_STEP_BYTES]),
        (
            10,
            RESIDENCY_STEP_BYTES + 1,
            [10, 10 + RESIDENCY_STEP_BYTES, 10 + RESIDENCY_STEP_BYTES],
        ),
    ],
)
def test_a_byte_of_every_step_and_the_last_one_are_probed(
    monkeypatch: pytest.MonkeyPatch, position: int, size_bytes: int, places: list[int]
) -> None:
    probed: list[int] = []

    def preadv(fd: int, buffers: tuple[bytearray, ...], place: int, flags: int) -> int:
        assert (fd, [len(each) for each in buffers], flags) == (5, [1], 8)
        probed.append(place)
        return 1

    monkeypatch.setattr(outgoing, "_RWF_NOWAIT", 8)
    monkeypatch.setattr(outgoing, "os", SimpleNamespace(preadv=preadv))
    assert is_in_page_cache(Contents(), position, size_bytes)  # type: ignore[arg-type]
    assert probed == places


@pytest.mark.parametrize(
    ("number", "is_known"),
    [
        (errno.EAGAIN, True),
        (errno.EOPNOTSUPP, True),
        (errno.EINVAL, True),
        (errno.ENOSYS, True),
        (errno.EIO, False),
    ],
)
def test_only_a_failure_that_says_so_means_that_a_page_is_not_there(
    monkeypatch: pytest.MonkeyPatch, number: int, is_known: bool
) -> None:
    def preadv(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(outgoing, "_RWF_NOWAIT", 8)
    monkeypatch.setattr(outgoing, "os", SimpleNamespace(preadv=preadv))
    if is_known:
        assert not is_in_page_cache(Contents(), 0, 1)  # type: ignore[arg-type]
    else:
        with pytest.raises(OSError, match="Input/output"):
            is_in_page_cache(Contents(), 0, 1)  # type: ignore[arg-type]


def test_where_the_system_cannot_tell_nothing_is_in_the_page_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outgoing, "os", SimpleNamespace(preadv=lambda *_: 1))
    monkeypatch.setattr(outgoing, "_RWF_NOWAIT", 0)
    assert not is_in_page_cache(Contents(), 0, 1)  # type: ignore[arg-type]
    monkeypatch.setattr(outgoing, "_RWF_NOWAIT", 8)
    assert not is_in_page_cache(Contents(fd=-1), 0, 1)  # type: ignore[arg-type]
    assert is_in_page_cache(Contents(fd=0), 0, 1)  # type: ignore[arg-type]


def test_a_stretch_is_touched_from_end_to_end() -> None:
    file = Contents()
    outgoing._touch(file, 5, 2 * TOUCH_BYTES)  # type: ignore[arg-type]
    assert file.touched == [(5, TOUCH_BYTES), (5 + TOUCH_BYTES, TOUCH_BYTES)]
    file.touched.clear()
    outgoing._touch(file, 5, 1)  # type: ignore[arg-type]
    assert file.touched == [(5, 1)]
    file.touched.clear()
    file.end = TOUCH_BYTES + 1
    outgoing._touch(file, 0, 3 * TOUCH_BYTES)  # type: ignore[arg-type]
    assert file.touched == [(0, TOUCH_BYTES), (TOUCH_BYTES, 1), (TOUCH_BYTES + 1, 0)]
