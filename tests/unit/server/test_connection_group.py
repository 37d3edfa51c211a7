"""What connections share: places, rates, sweeps and the end, step by step."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from moldau.protocol.framing import CHUNK_BYTES
from moldau.server.connection_group import (
    LATE_SWEEP_MS,
    SWEEP_INTERVAL_MS,
)
from moldau.server.connection_limits import ConnectionPlaces, ServerLimits
from moldau.server.quotas.core.connection_rates import ConnectionRates
from moldau.server.server_connection import (
    FRAME_MS,
    OVER_SHARE_FRAME_MS,
    Unread,
)
from tests.unit.server.connection_rig import Rig, answer, frame, receive, transport_of

# -- limits on connections ------------------------------------------------------------------------


@pytest.mark.parametrize("with_handshakes", [True, False])
def test_places_are_limited_in_all_and_by_address(with_handshakes: bool) -> None:
    limits = ServerLimits(
        max_connections=4, max_connections_per_ip=2, max_connections_per_ip_overrides={"x": 3}
    )
    places = ConnectionPlaces()
    ask = lambda host, total: places.reached_limit(  # noqa: E731
        limits, host, total, with_handshakes=with_handshakes
    )
    assert ask("h", 3) is None
    assert ask("h", 4) == "max.connections=4"
    places.connections["h"] = 1
    places.handshakes["h"] = 1
    by_address = "max.connections.per.ip=2" if with_handshakes else None
    assert ask("h", 1) == by_address
    assert ask("h", 3) == ("max.connections=4" if with_handshakes else None)
    places.connections["h"] = 2
    assert ask("h", 2) == "max.connections.per.ip=2"
    places.connections["x"] = 2
    assert ask("x", 2) is None
    places.connections["x"] = 3
    assert ask("x", 2) == "max.connections.per.ip=3"
    places.leave(places.connections, "h")
    assert places.connections["h"] == 1
    places.leave(places.connections, "h")
    assert "h" not in places.connections


def test_a_handshake_holds_the_place_of_its_connection() -> None:
    rig = Rig(ServerLimits(max_connections_per_ip=1))
    group = rig.group
    assert group.begin_handshake("L", "h")
    assert not group.begin_handshake("L", "h")
    assert group.begin_handshake("L", "other")
    assert group.rejected_count == 1
    group.end_handshake("L", "h", None)
    assert group.begin_handshake("L", "h")


def test_limits_hold_for_what_comes_next() -> None:
    rig = Rig()
    kept = rig.connection()
    rig.group.update_limits(
        ServerLimits(
            max_connections=1,
            queued_max_request_bytes=1_000_000_000,
            max_connection_creation_rate=7,
            unlimited_rate_listener="INTERNAL",
            listen_backlog=9,
        )
    )
    assert not kept.is_closed
    assert rig.connection().is_closed
    assert rig.group.shares.limit_bytes == 1_000_000_000
    rates = rig.group.rates
    assert (rates.node_limit, rates.unlimited_listener, rates.max_waiting) == (7, "INTERNAL", 9)


def test_a_connection_above_the_rate_waits_or_ends_later() -> None:
    rates = ConnectionRates()
    rates.change({(("ip", "10.0.0.9"),): {"connection_creation_rate": 1.0}})
    rig = Rig(rates=rates)
    for _ in range(10):
        assert not rig.connection().is_closed
    refused = rig.connection()
    rig.loop.run()
    assert not refused.is_closed
    assert not transport_of(refused).is_reading
    assert len(rig.group) == 10
    rig.clock.advance(999)
    assert transport_of(refused).aborted == 0
    rig.clock.advance(10)
    assert transport_of(refused).aborted == 1
    gone = rig.connection()
    rig.loop.run()
    gone.connection_lost(None)
    assert len(rig.group.timers) == 0, "its end waits for nothing"


# -- sweeping -------------------------------------------------------------------------------------


def swept(rig: Rig, elapsed_ms: float = SWEEP_INTERVAL_MS) -> None:
    """Let time pass in steps of a sweep."""
    while elapsed_ms > 0:
        step_ms = min(elapsed_ms, SWEEP_INTERVAL_MS)
        rig.clock.advance(step_ms)
        rig.loop.run()
        elapsed_ms -= step_ms


@pytest.mark.parametrize("idle_ms", [5_000, -1])
def test_idle_connections_end_when_it_is_their_turn(idle_ms: int) -> None:
    rig = Rig(ServerLimits(connections_max_idle_ms=idle_ms))
    rig.group.start_sweeping()
    idle, busy = rig.connection(), rig.connection()
    receive(busy, frame(1))
    swept(rig, 5_000)
    assert not idle.is_closed
    swept(rig, 1_000)
    assert idle.is_closed is (idle_ms > 0)
    assert not busy.is_closed
    answer(rig.handled[0])
    rig.loop.run()
    swept(rig, 1_000)
    assert busy.is_closed is (idle_ms > 0)


def test_with_no_time_to_be_idle_a_connection_ends_with_the_next_sweep() -> None:
    rig = Rig(ServerLimits(connections_max_idle_ms=0))
    rig.group.start_sweeping()
    connection = rig.connection()
    swept(rig)
    assert connection.is_closed


def test_a_client_owes_its_login_for_so_long(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(ServerLimits(authentication_ms=3_000.0))
    rig.group.start_sweeping()
    owes, done = rig.connection(), rig.connection()
    owes.gate = SimpleNamespace(waits_since_ms=lambda opened_ms: opened_ms)  # type: ignore[assignment]
    done.gate = SimpleNamespace(waits_since_ms=lambda opened_ms: None)  # type: ignore[assignment]
    swept(rig, 3_000)
    assert not owes.is_closed
    with caplog.at_level(logging.WARNING):
        swept(rig)
    assert owes.is_closed
    assert not done.is_closed
    assert "failed authentication from host = 10.0.0.9 on listener = L" in caplog.text


def test_how_far_a_frame_is_behind_its_time() -> None:
    rig = Rig()
    rig.group.start_sweeping()
    connection = rig.connection()
    assert connection.lag_ms == -FRAME_MS
    whole = frame(1, bytes(1_000 - len(frame(1)) + 4))
    receive(connection, whole[:504])
    assert connection.lag_ms == -FRAME_MS / 2
    swept(rig, 3 * SWEEP_INTERVAL_MS)
    assert connection.lag_ms == 3 * SWEEP_INTERVAL_MS - FRAME_MS / 2
    receive(connection, whole[504:])
    assert connection.lag_ms == -FRAME_MS
    receive(connection, whole[:504])
    assert connection.lag_ms == -FRAME_MS / 2, "each frame has its own time"
    connection.share.principal.held_bytes += 10**12
    assert connection.lag_ms == -OVER_SHARE_FRAME_MS / 2


def test_time_in_which_nothing_was_read_is_not_the_peer_s() -> None:
    rig = Rig()
    rig.group.start_sweeping()
    connection = rig.connection()
    receive(connection, frame(1, bytes(100))[:50])
    before = connection.lag_ms
    rig.clock.stand_still(SWEEP_INTERVAL_MS + LATE_SWEEP_MS + 5)
    rig.clock.advance(0)
    rig.loop.run()
    assert connection.lag_ms == before, "the loop was late"
    connection.suspend()
    connection.proceed()
    swept(rig)
    assert connection.lag_ms == before, "it was not read from"
    swept(rig)
    assert connection.lag_ms == before + SWEEP_INTERVAL_MS
    rig.clock.stand_still(SWEEP_INTERVAL_MS + LATE_SWEEP_MS)
    swept(rig, 5)
    assert connection.lag_ms == before + 2 * SWEEP_INTERVAL_MS + LATE_SWEEP_MS


def test_how_far_unread_answers_are_behind_their_time() -> None:
    unread = Unread()
    assert (unread.held_bytes, unread.read_part) == (0, 1.0)
    assert unread.update(100) == 100
    assert unread.read_part == 0.0
    unread.slow_ms = 5.0
    assert unread.update(60) == -40
    assert unread.read_part == pytest.approx(0.4)
    assert unread.update(110) == 50
    assert (unread.read_part, unread.slow_ms) == (pytest.approx(0.4), 5.0)
    assert unread.update(50) == -60
    assert (unread.read_part, unread.slow_ms) == (0.0, 0.0), "now the newer ones are due"
    assert unread.update(0) == -50
    assert unread.read_part == 1.0


async def test_a_group_ends_when_its_last_connection_has() -> None:
    rig = Rig()
    rig.group.start_sweeping()
    idle, busy = rig.connection(), rig.connection()
    receive(busy, frame(1))
    closing = asyncio.ensure_future(rig.group.close(60_000))
    await asyncio.sleep(0)
    assert transport_of(idle).closed == 1
    assert len(rig.group.timers) == 0
    idle.connection_lost(None)
    await asyncio.sleep(0)
    assert not closing.done()
    answer(rig.handled[0])
    rig.loop.run()
    assert transport_of(busy).closed == 1
    busy.connection_lost(None)
    await closing
    assert len(rig.group) == 0


async def test_work_that_fails_is_told_to_the_loop() -> None:
    rig = Rig()

    async def fail() -> None:
        raise KeyError("a fault of ours")

    async def end() -> None:
        """Well."""

    for work in (fail(), end()):
        rig.group.start_work(work)
    for _ in range(3):
        await asyncio.sleep(0)
    (failure,) = rig.loop.failures
    assert isinstance(failure["exception"], KeyError)
    assert not rig.group._work


def test_a_chunk_that_was_taken_in_vain_is_given_back() -> None:
    rig = Rig()
    rig.group.start_sweeping()
    connection = rig.connection()
    connection.get_buffer(-1)
    assert rig.memory.reserved_bytes == CHUNK_BYTES
    swept(rig)
    assert rig.memory.reserved_bytes == 0
