"""What a connection gives back and lets go of: when it ends, is paused, or has memory again."""

from __future__ import annotations

import socket
import struct

import pytest

from moldau.protocol.framing import CHUNK_BYTES
from moldau.runtime.files import FileRegion
from moldau.server.connection_limits import ServerLimits
from moldau.server.memory_shares import Share
from moldau.server.outgoing import SENDFILE_MIN_BYTES
from moldau.server.request import Request
from moldau.server.server_connection import FRAME_MS, ServerConnection
from moldau.server.turns import AT_ONCE_MS
from tests.unit.server.connection_rig import (
    Rig,
    Transport,
    answer,
    frame,
    numbers,
    receive,
    transport_of,
)

NONSENSE = struct.pack(">i", -1)


class Contents:
    """A file of zeros without a descriptor, which counts those that hold it."""

    name = "f"
    holders = 0

    def acquire(self) -> None:
        self.holders += 1

    def release(self) -> None:
        self.holders -= 1

    def fileno(self) -> int:
        return -1

    def pread(self, size_bytes: int, position: int) -> bytes:
        return bytes(size_bytes)


def hog_of(rig: Rig, connection: object) -> Share:
    """Takes all that is left of the connection's budget."""
    share: Share = connection.share  # type: ignore[attr-defined]
    hog = Share(rig.group.shares, share.owner, share.budget.kind, "x", "y")
    hog.charge(share.budget.limit_bytes - share.budget.held_bytes)
    return hog


def small_rig() -> Rig:
    return Rig(ServerLimits(queued_max_request_bytes=1, request_max_bytes=1024 * 1024))


def test_a_connection_has_the_options_of_its_server() -> None:
    class Socket:
        def __init__(self) -> None:
            self.options: dict[int, int] = {}

        def setsockopt(self, level: int, option: int, value: int) -> None:
            self.options[option] = value

    class WithSocket(Transport):
        def get_extra_info(self, name: str) -> object:
            return used if name == "socket" else super().get_extra_info(name)

    used = Socket()
    rig = Rig(ServerLimits(send_buffer_bytes=70_000))
    connection = ServerConnection(rig.group, "L")
    connection.connection_made(WithSocket())  # type: ignore[arg-type]
    assert used.options == {
        socket.TCP_NODELAY: 1,
        socket.SO_KEEPALIVE: 1,
        socket.SO_SNDBUF: 70_000,
    }


# -- ends -----------------------------------------------------------------------------------------


def test_what_waits_for_its_turn_is_dropped_by_a_connection_that_is_to_end() -> None:
    rig = Rig()
    rig.on_request = lambda _: rig.clock.stand_still(AT_ONCE_MS)
    connection = rig.connection()
    receive(connection, frame(1), frame(2), frame(3))
    assert numbers(rig) == [1]
    connection.begin_closing()
    answer(rig.handled[0])
    rig.loop.run()
    assert (numbers(rig), transport_of(connection).closed) == ([1], 1)
    assert rig.memory.reserved_bytes == 0
    connection.connection_lost(None)
    assert rig.memory.reserved_bytes == 0, "once"


def test_what_comes_after_the_end_is_not_kept() -> None:
    rig = Rig()
    connection = rig.connection()
    data = frame(1)
    connection.get_buffer(-1)[: len(data)] = data
    connection.close("the test ends it")
    connection.buffer_updated(len(data))
    assert (numbers(rig), rig.group.bytes_received, rig.memory.reserved_bytes) == ([], 0, 0)


def test_a_connection_that_ends_lets_go_of_files_and_requests() -> None:
    rig, file = Rig(), Contents()
    connection = rig.connection()
    connection.pause_writing()
    receive(connection, frame(1), frame(2))
    answer(rig.handled[0], FileRegion(file, 0, SENDFILE_MIN_BYTES))  # type: ignore[arg-type]
    rig.loop.run()
    assert (file.holders, connection.in_flight_count) == (1, 1)
    connection.close("the test ends it")
    assert (file.holders, connection.in_flight_count) == (0, 0)
    answer(rig.handled[1])
    assert rig.memory.reserved_bytes == 0


def test_a_connection_that_is_lost_has_ended() -> None:
    rig = Rig()
    connection = rig.connection()
    told: list[object] = []
    connection.on_close(told.append)
    receive(connection, frame(1))
    connection.connection_lost(None)
    assert (connection.is_closed, told, len(rig.group)) == (True, [connection], 0)
    answer(rig.handled[0])
    assert rig.memory.reserved_bytes == 0


def test_an_answer_whose_sending_ends_the_connection_pauses_nothing() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)
    receive(connection, frame(1))
    transport.write = lambda _: connection.close("the test ends it")  # type: ignore[method-assign]
    answer(rig.handled[0])
    rig.loop.run()
    assert (transport.aborted, connection.share.unread_bytes) == (1, 0)
    assert rig.memory.reserved_bytes == 0


def test_a_length_that_makes_no_sense_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.on_request = answer
    connection = rig.connection()
    receive(connection, frame(1) + NONSENSE)
    rig.loop.run()
    assert transport_of(connection).closed + transport_of(connection).aborted == 1
    assert len(caplog.records) == 1
    assert "closing connection 10.0.0.1:9092-10.0.0.9:5000-1" in caplog.text


def test_a_frame_below_the_limit_of_now_is_refused() -> None:
    rig = Rig()
    connection = rig.connection()
    size = len(frame(1)) - 4
    connection.limit_frames(1_000, size)
    receive(connection, frame(1))
    assert numbers(rig) == [1]
    connection.limit_frames(1_000, size + 1)
    receive(connection, frame(2))
    answer(rig.handled[0])
    rig.loop.run()
    assert numbers(rig) == [1]
    assert transport_of(connection).closed + transport_of(connection).aborted == 1


# -- pauses ---------------------------------------------------------------------------------------


def test_what_has_to_wait_for_its_turn_is_not_read_on() -> None:
    rig = Rig()
    one, other = rig.connection(), rig.connection("L", ("10.0.0.8", 1))
    for connection in (other, one):
        receive(connection, frame(0))
    party = one.share.party
    party.credit_ms, party.credited_ms = 0.0, rig.clock.monotonic_ms()
    rig.group.turns.at_once_ms(other.share.party, rig.clock.monotonic_ms())
    receive(one, frame(1))
    assert numbers(rig) == [0, 0]
    assert not transport_of(one).is_reading
    rig.loop.run()
    assert numbers(rig) == [0, 0, 1]
    assert transport_of(one).is_reading


def test_a_connection_is_active_when_it_has_sent_something() -> None:
    rig = Rig()
    connection = rig.connection()
    rig.clock.advance(7)
    receive(connection, frame(1)[:3])
    assert connection.last_active_ms == rig.clock.monotonic_ms()


def test_a_large_frame_is_owed_until_it_is_whole() -> None:
    rig = Rig()
    connection = rig.connection()
    whole = frame(1, bytes(2 * CHUNK_BYTES))
    assert not connection.is_inside_large_frame
    receive(connection, whole[:100])
    assert connection.is_inside_large_frame
    receive(connection, whole[100:])
    assert not connection.is_inside_large_frame
    answer(rig.handled[0])
    rig.loop.run()
    assert rig.memory.reserved_bytes == 0


def test_what_is_read_of_the_answers_makes_room_for_others_that_wait() -> None:
    rig = Rig()
    reader, other = rig.connection(), rig.connection("L", ("10.0.0.8", 1))
    reader.pause_writing()
    receive(reader, frame(1))
    answer(rig.handled[0], b"unread")
    rig.loop.run()
    assert reader.share.unread_bytes == 8
    receive(other, frame(2)[:5])
    rig.group.shares.wait(other.share)
    reader.resume_writing()
    rig.loop.run()
    assert reader.share.unread_bytes == 0
    assert not other.share.is_waiting


def test_a_sweep_counts_what_has_been_read_since() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)
    left_bytes = 90_000
    transport.get_write_buffer_size = lambda: left_bytes  # type: ignore[method-assign]
    connection.pause_writing()
    receive(connection, frame(1), frame(2))
    answer(rig.handled[0])
    rig.loop.run()
    assert connection.share.unread_bytes == 90_002
    left_bytes = 70_000
    connection.swept(1_000)
    assert connection.share.unread_bytes == 70_002
    left_bytes = 60_000
    answer(rig.handled[1], bytes(8_000))
    rig.loop.run()
    assert connection.share.unread_bytes == 68_004
    read_part = 1 - 60_002 / 90_002
    assert connection.lag_ms == pytest.approx(1_000 - FRAME_MS * read_part), (
        "what is new is not due"
    )


# -- memory ---------------------------------------------------------------------------------------


def test_nonsense_that_waited_for_memory_is_done_with() -> None:
    rig = small_rig()
    connection = rig.connection()
    hog = hog_of(rig, connection)
    receive(connection, NONSENSE)
    assert connection.share.is_waiting
    hog.refund(hog.held_bytes)
    rig.group.shares.leave_line(connection.share)
    assert connection.memory_available() is True
    assert connection.is_closed


def test_whether_a_connection_went_on() -> None:
    rig = small_rig()
    connection = rig.connection()
    hog = hog_of(rig, connection)
    receive(connection, frame(1)[:8])
    assert connection.memory_available() is False
    hog.refund(hog.held_bytes)
    rig.group.shares.leave_line(connection.share)
    assert connection.memory_available() is True
    assert transport_of(connection).is_reading


def test_the_time_of_the_next_frame_begins_with_it() -> None:
    rig = small_rig()
    taken: list[Request] = []
    rig.on_request = taken.append
    connection = rig.connection()
    receive(connection, frame(1)[:8])
    connection.swept(1_000)
    connection.swept(1_000)
    before = connection.lag_ms
    assert before > -FRAME_MS
    hog = hog_of(rig, connection)
    receive(connection, frame(1)[8:] + frame(2)[:8])
    hog.refund(hog.held_bytes)
    rig.group.on_memory_released()
    rig.loop.run()
    assert numbers(rig) == [1]
    assert connection.lag_ms < before - 1_000, "it has only begun"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_connection_ends_with_its_peer_though_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    asked = []

    def has_lost_peer(transport: object, missing_bytes: int) -> bool:
        asked.append((transport, missing_bytes))
        return is_lost

    monkeypatch.setattr("moldau.server.server_connection.has_lost_peer", has_lost_peer)
    rig = Rig()
    connection = rig.connection()
    receive(connection, frame(1, bytes(1_000))[:100])
    transport = transport_of(connection)
    connection.end_if_peer_is_lost()
    assert asked == [(transport, len(frame(1, bytes(1_000))) - 100)]
    assert (connection.is_closed, transport.aborted) == (is_lost, is_lost)
