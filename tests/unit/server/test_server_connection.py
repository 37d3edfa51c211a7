"""One connection step by step, on a transport and a loop that do as the test says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from moldau.protocol.errors import RemoteProtocolError
from moldau.runtime.files import FileRegion
from moldau.runtime.telemetry.metrics import Registry
from moldau.server.connection_limits import ServerLimits
from moldau.server.loop_watchdog import STALL_MS
from moldau.server.memory_shares import PeerKind, Share
from moldau.server.outgoing import SENDFILE_MIN_BYTES
from moldau.server.quotas.core.connection_rates import ConnectionRates
from moldau.server.request import Request, RequestMetrics
from moldau.server.server_connection import (
    FRAME_MS,
    MAX_HELD_BYTES,
    MAX_HELD_REQUESTS,
    MAX_IN_FLIGHT_REQUESTS,
    MAX_PENDING_RESPONSE_BYTES,
    UNSENT_MS,
    ServerConnection,
)
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

# -- a connection begins --------------------------------------------------------------------------


def test_what_a_connection_is_called() -> None:
    rig = Rig()
    first, second = rig.connection(), rig.connection("M", ("::ffff:10.0.0.8", 7))
    assert first.connection_id == "10.0.0.1:9092-10.0.0.9:5000-1"
    assert second.connection_id == "10.0.0.1:9092-::ffff:10.0.0.8:7-2"
    assert (second.client_host, second.client_port) == ("10.0.0.8", 7)
    assert (first.client_software_name, first.client_software_version) == ("unknown", "unknown")
    assert (first.principal, first.token_authenticated, first.state) == (
        "User:ANONYMOUS",
        False,
        {},
    )
    assert first.opened_ms == first.last_active_ms == rig.clock.monotonic_ms()
    nameless = rig.connection("L", None)
    assert (nameless.client_host, nameless.client_port) == ("", 0)
    assert (len(rig.group), rig.group.created_count) == (3, 3)


def test_a_connection_without_addresses_has_a_number() -> None:
    class Nameless(Transport):
        def get_extra_info(self, name: str) -> None:
            """A socket that is closed already knows no address."""

    rig = Rig()
    connection = ServerConnection(rig.group, "L")
    connection.connection_made(Nameless())  # type: ignore[arg-type]
    assert connection.connection_id == ":0-:0-1"


def test_a_closed_group_takes_no_connection() -> None:
    rig = Rig()
    rig.group.is_open = False
    refused = rig.connection()
    assert refused.is_closed
    assert (len(rig.group), rig.group.rejected_count, rig.group.created_count) == (0, 0, 0)


# -- requests and answers -------------------------------------------------------------------------


def test_answers_given_at_once_leave_together() -> None:
    rig = Rig()
    rig.on_request = answer
    connection = rig.connection()
    receive(connection, frame(1), frame(2), frame(3))
    assert transport_of(connection).written == [b"1;2;3;"]
    assert rig.group.bytes_received == len(frame(1)) * 3
    assert rig.group.bytes_sent == 6
    assert rig.memory.reserved_bytes == 0
    assert not rig.loop.soon


def test_answers_given_later_leave_in_order_with_the_next_look_at_the_loop() -> None:
    rig = Rig()
    connection = rig.connection()
    receive(connection, frame(1), frame(2), frame(3))
    first, second, third = rig.handled
    answer(second)
    assert not rig.loop.soon, "the first one's answer comes first"
    answer(first)
    answer(third)
    assert len(rig.loop.soon) == 1, "one flush is enough"
    rig.loop.run()
    assert transport_of(connection).written == [b"1;2;3;"]
    assert connection.is_idle
    assert connection.in_flight_count == 0
    receive(connection, frame(4))
    assert not connection.is_idle
    answer(rig.handled[-1])
    rig.loop.run()
    assert transport_of(connection).written[1:] == [b"4;"]


def test_whose_move_is_next() -> None:
    rig = Rig()
    connection = rig.connection()
    assert connection.is_idle
    receive(connection, frame(1), frame(2))
    assert not connection.is_idle
    answer(rig.handled[0])
    assert not connection.is_idle, "ours: the answer has not left"
    connection.pause_writing()
    assert connection.is_idle, "the peer's: it reads nothing"
    rig.loop.run()
    assert not connection.is_idle, "ours: it waits for the second answer"


def test_one_flush_that_fails_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    connections = [rig.connection() for _ in range(4)]
    for connection in connections:
        receive(connection, frame(1))
    for request in rig.handled:
        answer(request)
    broken = connections[1]

    def fail() -> None:
        raise KeyError("a fault of ours")

    transport_of(broken).write = lambda _: fail()  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        rig.loop.step()
    assert [len(transport_of(each).written) for each in connections] == [1, 0, 0, 0]
    rig.loop.step()
    assert [len(transport_of(each).written) for each in connections] == [1, 0, 1, 1]


def test_requests_in_flight_are_limited_and_go_on_at_half() -> None:
    rig = Rig()
    connection = rig.connection()
    count = MAX_IN_FLIGHT_REQUESTS + 3
    receive(connection, *(frame(number) for number in range(count)))
    assert len(rig.handled) == MAX_IN_FLIGHT_REQUESTS
    assert not transport_of(connection).is_reading
    for request in rig.handled[: MAX_IN_FLIGHT_REQUESTS // 2 - 1]:
        answer(request)
    rig.loop.run()
    assert len(rig.handled) == MAX_IN_FLIGHT_REQUESTS
    answer(rig.handled[MAX_IN_FLIGHT_REQUESTS // 2 - 1])
    rig.loop.run()
    assert len(rig.handled) == count
    assert transport_of(connection).is_reading


@pytest.mark.parametrize("body", [b"\xff\xfe", b""])
def test_a_header_that_makes_no_sense_ends_the_connection_behind_the_answers(body: bytes) -> None:
    rig = Rig()
    rig.on_request = answer
    connection = rig.connection()
    transport = transport_of(connection)
    bad = struct.pack(">hhih", 3, 0, 2, 500) + body
    receive(connection, frame(1), struct.pack(">i", len(bad)) + bad)
    assert (transport.written, transport.aborted) == ([b"1;"], 1)
    assert connection.is_closed
    assert rig.memory.reserved_bytes == 0


def test_a_body_that_makes_no_sense_ends_the_connection_behind_the_answers() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)

    def handle(request: Request) -> None:
        if request.correlation_id == 2:
            raise RemoteProtocolError("nonsense")
        answer(request)

    rig.on_request = handle
    receive(connection, frame(1), frame(2), frame(3))
    assert (numbers(rig), transport.written, transport.aborted) == ([1, 2], [b"1;"], 1)
    assert rig.memory.reserved_bytes == 0


def test_a_length_that_makes_no_sense_ends_the_connection_behind_what_waits() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)
    receive(connection, frame(1), struct.pack(">i", -1))
    assert (transport.aborted, transport.closed, transport.is_reading) == (0, 0, False)
    answer(rig.handled[0])
    rig.loop.run()
    assert (transport.written, transport.closed) == ([b"1;"], 1)


def test_a_frame_over_the_limit_of_now_is_refused() -> None:
    rig = Rig()
    connection = rig.connection()
    connection.limit_frames(100)
    receive(connection, frame(1, bytes(100 - len(frame(1)) + 4)))
    assert len(rig.handled) == 1
    transport = transport_of(connection)
    receive(connection, struct.pack(">i", 101))
    assert transport.closed + transport.aborted == 0 or connection.is_closed
    answer(rig.handled[0])
    rig.loop.run()
    assert transport.closed + transport.aborted == 1


def test_a_file_s_bytes_are_joined_or_sent_by_themselves() -> None:
    class File:
        name = "f"
        holders = 0

        def acquire(self) -> None:
            self.holders += 1

        def release(self) -> None:
            self.holders -= 1

        def fileno(self) -> int:
            return -1

        def pread(self, size_bytes: int, position: int) -> bytes:
            return b"f" * size_bytes

    rig, file = Rig(), File()
    connection = rig.connection()
    small = FileRegion(file, 0, SENDFILE_MIN_BYTES - 1)  # type: ignore[arg-type]
    large = FileRegion(file, 0, SENDFILE_MIN_BYTES)  # type: ignore[arg-type]

    class Source:
        def read(self) -> bytes:
            return b"source"

        def __len__(self) -> int:
            return 6

    receive(connection, frame(1))
    answer(rig.handled[0], small, Source(), large, b"tail")
    rig.loop.run()
    written = transport_of(connection).written
    joined = b"1;" + b"f" * (SENDFILE_MIN_BYTES - 1) + b"source"
    assert b"".join(written) == joined + b"f" * SENDFILE_MIN_BYTES + b"tail"
    assert file.holders == 0
    assert rig.group.bytes_sent == len(joined) + SENDFILE_MIN_BYTES + 4


def test_a_file_that_cannot_be_read_ends_the_connection() -> None:
    class Broken:
        name = "f"

        def acquire(self) -> None:
            """Held."""

        release = acquire

        def pread(self, size_bytes: int, position: int) -> bytes:
            raise OSError(5, "no luck")

    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)
    receive(connection, frame(1), frame(2))
    answer(rig.handled[0], FileRegion(Broken(), 0, 10))  # type: ignore[arg-type]
    rig.loop.run()
    assert (transport.written, transport.aborted) == ([], 1)
    answer(rig.handled[1])
    assert rig.memory.reserved_bytes == 0


class Zeros:
    """A file of zeros that has no descriptor."""

    name = "f"

    def acquire(self) -> None:
        """Held."""

    release = acquire

    def fileno(self) -> int:
        return -1

    def pread(self, size_bytes: int, position: int) -> bytes:
        return bytes(size_bytes)


# -- turns ----------------------------------------------------------------------------------------


def test_a_turn_has_an_end_and_the_rest_waits_behind_others() -> None:
    rig = Rig()
    greedy, other = rig.connection(), rig.connection()

    def handle(request: Request) -> None:
        rig.clock.stand_still(AT_ONCE_MS)
        answer(request)

    rig.on_request = handle
    receive(greedy, *(frame(number) for number in range(4)))
    assert numbers(rig) == [0], "one at least"
    assert not transport_of(greedy).is_reading
    receive(other, frame(50), frame(51))
    assert numbers(rig) == [0, 50]
    rig.loop.step()
    assert numbers(rig) == [0, 50, 1]
    rig.loop.step()
    assert numbers(rig) == [0, 50, 1, 51]
    rig.loop.run()
    assert numbers(rig) == [0, 50, 1, 51, 2, 3]
    assert transport_of(greedy).is_reading
    assert transport_of(other).is_reading
    assert rig.memory.reserved_bytes == 0


@pytest.mark.parametrize(("cost_ms", "written"), [(0.5, [b"0;", b"1;2;", b"3;4;", b"5;"])])
def test_the_answers_of_turns_leave_when_enough_has_been_handled(
    cost_ms: float, written: list[bytes]
) -> None:
    rig = Rig()
    connection = rig.connection()

    def handle(request: Request) -> None:
        rig.clock.stand_still(cost_ms)
        answer(request)

    rig.on_request = handle
    receive(connection, *(frame(number) for number in range(6)))
    rig.loop.run()
    assert transport_of(connection).written == written
    assert cost_ms * 2 == UNSENT_MS


def test_what_is_answered_does_not_wait_for_the_turn() -> None:
    rig = Rig()
    greedy, waiting = rig.connection(), rig.connection()
    receive(waiting, frame(9))
    question = rig.handled.pop()
    order: list[str] = []

    def handle(request: Request) -> None:
        rig.clock.stand_still(AT_ONCE_MS)
        order.append("turn")

    rig.on_request = handle
    receive(greedy, frame(0), frame(1))
    transport_of(waiting).write = lambda _: order.append("answer")  # type: ignore[method-assign]
    answer(question)
    rig.loop.step()
    assert order == ["turn", "answer", "turn"]


def test_a_long_step_is_reported_with_its_request() -> None:
    told: list[tuple[int, float]] = []

    class Watchdog:
        def held_by(self, request: Request, elapsed_ms: float) -> None:
            told.append((request.correlation_id, elapsed_ms))

    rig = Rig(watchdog=Watchdog())
    costs = {1: STALL_MS, 2: STALL_MS + 1, 3: 0.0}
    rig.on_request = lambda request: rig.clock.stand_still(costs[request.correlation_id])
    connection = rig.connection()
    receive(connection, *(frame(number) for number in costs))
    rig.loop.run()
    assert told == [(2, STALL_MS + 1)]


def test_a_request_is_timed_from_its_reception_to_its_answer() -> None:
    heard: list[tuple[int, float, float]] = []

    class Heard(RequestMetrics):
        def request_completed(
            self, request: Request, response_bytes: int, local_ms: float, total_ms: float
        ) -> None:
            heard.append((response_bytes, local_ms, total_ms))

    rig = Rig(metrics=Heard(Registry(lambda: 0.0)))
    rig.on_request = lambda _: rig.clock.stand_still(3)
    connection = rig.connection()
    receive(connection, frame(1))
    rig.clock.stand_still(4)
    answer(rig.handled[0])
    rig.loop.run()
    assert heard == [(2, 3.0, 7.0)]


def test_a_fault_of_ours_ends_the_connection_and_is_raised() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)

    def handle(request: Request) -> None:
        raise KeyError("a fault of ours")

    rig.on_request = handle
    with pytest.raises(KeyError):
        receive(connection, frame(1), frame(2))
    assert (transport.aborted, rig.memory.reserved_bytes) == (1, 0)
    assert numbers(rig) == [1]


# -- reasons to wait ------------------------------------------------------------------------------


def test_a_pause_lasts_as_long_as_the_longest_that_was_asked_for() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)
    for nothing in (0, -5):
        connection.throttle(nothing)
    assert transport.is_reading
    connection.throttle(100)
    connection.throttle(100)
    connection.throttle(50)
    assert not transport.is_reading
    assert len(rig.group.timers) == 1
    rig.clock.advance(60)
    assert not transport.is_reading, "the shorter one ends nothing"
    connection.throttle(100)
    rig.clock.advance(60)
    assert not transport.is_reading
    rig.clock.advance(50)
    assert transport.is_reading
    rig.clock.advance(1_000)
    connection.throttle(1)
    assert not transport.is_reading
    connection.throttle(10)
    rig.clock.advance(5)
    assert not transport.is_reading
    connection.close("the test ends it")
    assert len(rig.group.timers) == 0
    connection.throttle(10)
    assert len(rig.group.timers) == 0


@pytest.mark.parametrize(
    ("size_bytes", "most"), [(1_000, MAX_HELD_REQUESTS), (MAX_HELD_BYTES // 2, 2)]
)
def test_requests_that_are_held_stop_those_behind_them(size_bytes: int, most: int) -> None:
    rig = Rig()
    rig.on_request = lambda request: request.connection.hold(request)
    connection = rig.connection()
    body = bytes(size_bytes - len(frame(1)) + 4)
    for number in range(most):
        receive(connection, frame(number, body))
        assert len(rig.handled) == number + 1
    assert rig.handled[0].size_bytes == size_bytes
    assert not transport_of(connection).is_reading
    answer(rig.handled[1])
    assert transport_of(connection).is_reading
    answer(rig.handled[0])
    rig.loop.run()
    receive(connection, frame(100, body))
    assert numbers(rig) == [*range(most), 100]


def test_a_suspended_connection_goes_on_when_all_have_let_go() -> None:
    rig = Rig()
    connection = rig.connection()
    connection.suspend()
    connection.suspend()
    connection.proceed()
    assert not transport_of(connection).is_reading
    connection.proceed()
    assert transport_of(connection).is_reading


def test_unread_answers_stop_further_requests_until_they_are_read() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)
    connection.pause_writing()
    receive(connection, frame(1), frame(2), frame(3))
    answer(rig.handled[0], bytes(MAX_PENDING_RESPONSE_BYTES - 2))
    rig.loop.run()
    assert transport.is_reading
    assert connection.share.unread_bytes >= MAX_PENDING_RESPONSE_BYTES
    answer(rig.handled[1])
    rig.loop.run()
    assert not transport.is_reading
    assert not transport.written
    connection.resume_writing()
    assert transport.is_reading
    assert transport.written
    answer(rig.handled[2])
    rig.loop.run()
    assert connection.share.unread_bytes == connection.share.held_bytes == 0


def test_a_file_that_is_not_read_stops_further_requests_though_it_is_not_in_memory() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)
    connection.pause_writing()
    receive(connection, frame(1))
    region = FileRegion(Zeros(), 0, MAX_PENDING_RESPONSE_BYTES)  # type: ignore[arg-type]
    answer(rig.handled[0], region)
    rig.loop.run()
    assert not transport.is_reading
    assert connection.share.unread_bytes == 2
    connection.resume_writing()
    assert transport.is_reading
    assert sum(map(len, transport.written)) == 2 + MAX_PENDING_RESPONSE_BYTES


# -- the end --------------------------------------------------------------------------------------


def test_a_connection_that_is_to_end_answers_what_it_has_taken() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)
    receive(connection, frame(1))
    connection.begin_closing()
    assert (transport.closed, transport.is_reading) == (0, False)
    answer(rig.handled[0])
    rig.loop.run()
    assert (transport.written, transport.closed) == ([b"1;"], 1)
    idle = rig.connection()
    idle.begin_closing()
    assert transport_of(idle).closed == 1
    idle.close("the test ends it")
    idle.begin_closing()
    assert transport_of(idle).closed == 1


def test_the_end_of_a_connection_is_reported_once_and_drops_everything() -> None:
    rig = Rig()
    connection = rig.connection()
    transport = transport_of(connection)
    told: list[object] = []
    connection.on_close(told.append)
    receive(connection, frame(1), frame(2))
    answer(rig.handled[1])
    connection.eof_received()
    assert (transport.aborted, connection.is_closed, told) == (1, True, [connection])
    connection.close("again")
    assert (transport.aborted, told) == (1, [connection])
    assert rig.handled[1].is_done
    answer(rig.handled[0])
    assert rig.memory.reserved_bytes == 0
    connection.connection_lost(None)
    assert len(rig.group) == 0
    assert not hasattr(connection, "transport")
    assert told == [connection]


def test_nothing_is_read_or_flushed_after_the_end() -> None:
    rig = Rig()
    connection = rig.connection()
    receive(connection, frame(1))
    answer(rig.handled[0])
    buffer = connection.get_buffer(-1)
    data = frame(2)
    buffer[: len(data)] = data
    connection.close("the test ends it")
    connection.buffer_updated(len(data))
    rig.loop.run()
    connection.take_turn()
    assert numbers(rig) == [1]
    assert transport_of(connection).written == []
    assert connection.memory_available() is True


# -- whose memory it is ---------------------------------------------------------------------------


def small_rig(**more: Any) -> Rig:
    """One whose budgets are as small as they can be, and whose largest frame is one of 1 MiB."""
    return Rig(ServerLimits(queued_max_request_bytes=1, request_max_bytes=1024 * 1024, **more))


def test_a_frame_waits_for_memory_and_goes_on_when_there_is_some() -> None:
    rig = small_rig()
    rig.on_request = answer
    connection = rig.connection()
    transport = transport_of(connection)
    hog = Share(rig.group.shares, connection, connection.share.budget.kind, "x", "y")
    hog.charge(connection.share.budget.limit_bytes)
    receive(connection, frame(1)[:8])
    assert not transport.is_reading
    assert connection.share.is_waiting
    rig.loop.run()
    assert connection.share.is_waiting
    hog.refund(hog.held_bytes)
    rig.group.on_memory_released()
    rig.loop.run()
    assert transport.is_reading
    assert not connection.share.is_waiting
    receive(connection, frame(1)[8:], frame(2))
    assert numbers(rig) == [1, 2]
    assert connection.share.held_bytes == 0


def test_a_frame_that_is_not_needed_any_more_makes_room_for_one_that_waits() -> None:
    rig = small_rig()
    answered, waiting = rig.connection(), rig.connection("L", ("10.0.0.8", 1))
    receive(answered, frame(1))
    hog = Share(rig.group.shares, answered, answered.share.budget.kind, "x", "y")
    budget = answered.share.budget
    hog.charge(budget.limit_bytes - budget.held_bytes - len(frame(2)))
    receive(waiting, frame(2))
    rig.loop.run()
    assert (numbers(rig), waiting.share.is_waiting) == ([1], True)
    answer(rig.handled[0])
    rig.loop.run()
    assert (numbers(rig), waiting.share.is_waiting) == ([1, 2], False)


def test_what_was_read_whole_is_handled_when_there_is_memory_for_it() -> None:
    rig = small_rig()
    rig.on_request = answer
    connection = rig.connection()
    hog = Share(rig.group.shares, connection, connection.share.budget.kind, "x", "y")
    hog.charge(connection.share.budget.limit_bytes)
    receive(connection, frame(1) + frame(2))
    assert numbers(rig) == []
    hog.refund(hog.held_bytes)
    rig.group.on_memory_released()
    rig.loop.step()
    assert numbers(rig) == []
    assert not transport_of(connection).is_reading, "the handler has not had what was read"
    rig.loop.run()
    assert numbers(rig) == [1, 2]
    assert transport_of(connection).is_reading


def test_nonsense_that_waited_for_memory_ends_the_connection() -> None:
    rig = small_rig()
    connection = rig.connection()
    hog = Share(rig.group.shares, connection, connection.share.budget.kind, "x", "y")
    hog.charge(connection.share.budget.limit_bytes)
    receive(connection, struct.pack(">i", -1))
    assert not connection.is_closed
    hog.refund(hog.held_bytes)
    rig.group.on_memory_released()
    rig.loop.run()
    assert connection.is_closed
    assert rig.group.shares.waiting_count == 0


def test_what_a_closed_connection_held_is_for_others_at_once() -> None:
    rig = small_rig()
    greedy, other = rig.connection(), rig.connection("L", ("10.0.0.8", 1))
    size = 1024 * 1024
    greedy.pause_writing()
    receive(greedy, frame(1))
    answer(rig.handled[0], bytes(greedy.share.budget.limit_bytes))
    rig.loop.run()
    assert greedy.share.budget.is_flooded
    greedy.share.charge(greedy.share.budget.limit_bytes)
    receive(other, frame(2, bytes(size - 100))[:100])
    assert other.share.is_waiting
    greedy.share.refund(greedy.share.budget.limit_bytes)
    greedy.close("the test ends it")
    rig.loop.run()
    assert not greedy.share.budget.is_flooded
    assert not other.share.is_waiting
    assert greedy.share.budget.holders.keys() == {(False, "10.0.0.8")}
    other.close("the test ends it")
    assert rig.group.shares.held_bytes == 0
    assert rig.memory.reserved_bytes == 0


def test_answers_that_are_read_are_paid_for_no_more() -> None:
    rig = small_rig()
    connection = rig.connection()
    connection.pause_writing()
    receive(connection, frame(1))
    answer(rig.handled[0], bytes(200_000))
    rig.loop.run()
    assert connection.share.unread_bytes == 200_002
    assert connection.is_idle, "the next move is the peer's"
    rig.clock.advance(5)
    connection.resume_writing()
    assert connection.share.unread_bytes == 0
    assert connection.last_active_ms == rig.clock.monotonic_ms()
    assert b"".join(transport_of(connection).written) == b"1;" + bytes(200_000)


def test_a_slow_reader_of_large_answers_is_behind_its_time() -> None:
    rig = Rig()
    rig.group.start_sweeping()
    connection = rig.connection()
    connection.pause_writing()
    receive(connection, frame(1), frame(2))
    answer(rig.handled[0], bytes(SENDFILE_MIN_BYTES - 2))
    rig.loop.run()
    for _ in range(3):
        rig.clock.advance(1_000)
    assert connection.lag_ms == -FRAME_MS, "what is small may be one of files"
    answer(rig.handled[1])
    rig.loop.run()
    before = connection.lag_ms
    assert before == 3_000
    rig.clock.advance(1_000)
    assert connection.lag_ms == 4_000
    connection._unread.update(SENDFILE_MIN_BYTES + 1)
    assert connection.lag_ms == 4_000 - FRAME_MS * connection._unread.read_part
    assert connection._unread.read_part > 0


class Sasl:
    """The security of a listener whose clients log in."""

    contexts: object = None
    sasl = object()

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem

    def greet(self, connection: ServerConnection, group: Any) -> str | None:
        return self.problem


@pytest.mark.parametrize(
    ("listener", "before", "after"),
    [
        ("L", PeerKind.CLIENT_LOGINS, PeerKind.CLIENTS),
        ("N", PeerKind.NODE_LOGINS, PeerKind.NODES),
    ],
)
def test_a_peer_s_budget_is_that_of_its_listener_and_of_who_it_is(
    listener: str, before: PeerKind, after: PeerKind
) -> None:
    rig = Rig(ServerLimits(node_listeners=frozenset({"N"})))
    connection = ServerConnection(rig.group, listener, Sasl())  # type: ignore[arg-type]
    connection.connection_made(Transport())  # type: ignore[arg-type]
    assert connection.share.budget.kind is before
    assert connection._reader.is_frugal
    connection.authenticate("User:alice")
    assert (connection.principal, connection.share.user) == ("User:alice", "User:alice")
    assert connection.share.budget.kind is after
    assert not connection._reader.is_frugal
    connection.authenticate("User:ANONYMOUS")
    assert connection.share.user == ""
    plain = rig.connection(listener)
    assert (plain.share.budget.kind, plain.share.user) == (after, "")
    assert not plain._reader.is_frugal


def test_a_peer_that_its_listener_refuses_is_cut_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    refused = ServerConnection(rig.group, "L", Sasl("no such name"))  # type: ignore[arg-type]
    refused.connection_made(Transport())  # type: ignore[arg-type]
    assert transport_of(refused).aborted == 1
    assert "from host = 10.0.0.9 on listener = L: no such name" in caplog.text
    taken = ServerConnection(rig.group, "L", Sasl())  # type: ignore[arg-type]
    taken.connection_made(Transport())  # type: ignore[arg-type]
    assert not taken.is_closed


@pytest.mark.parametrize(("has_tls", "is_refused"), [(False, True), (True, False)])
def test_a_connection_counts_for_the_rate_unless_its_handshake_has(
    has_tls: bool, is_refused: bool
) -> None:
    rates = ConnectionRates()
    rates.change({(("ip", "10.0.0.9"),): {"connection_creation_rate": 1.0}})
    rig = Rig(rates=rates)
    security = Sasl()
    security.contexts = object() if has_tls else None
    for _ in range(11):
        connection = ServerConnection(rig.group, "L", security)  # type: ignore[arg-type]
        connection.connection_made(Transport())  # type: ignore[arg-type]
    assert (len(rig.group), rig.group.rejected_count) == ((10, 1) if is_refused else (11, 0))


async def test_work_runs_beside_the_loop_where_there_is_such_a_place() -> None:
    async def beside(function: Callable[..., Any], *args: Any) -> Any:
        return "beside", function(*args)

    assert await Rig(offload=beside).connection().offload(lambda: 1) == ("beside", 1)  # type: ignore[comparison-overlap]
    rig = Rig()
    connection = rig.connection()
    assert await connection.offload(lambda: 1) == 1
    ended: list[int] = []

    async def work() -> None:
        ended.append(1)

    connection.start(work())
    await asyncio.sleep(0)
    assert ended == [1]
