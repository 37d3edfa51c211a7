"""What connections share: places, rates, sweeps and the end, step by step."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from moldau.protocol.framing import CHUNK_BYTES
from moldau.server.connection_group import (
    LATE_SWEEP_MS,
    MAX_LAG_MS,
    SWEEP_INTERVAL_MS,
)
from moldau.server.connection_limits import ConnectionPlaces, ServerLimits
from moldau.server.memory_shares import PeerKind, Share
from moldau.server.quotas.core.connection_rates import ConnectionRates
from moldau.server.server_connection import (
    FRAME_MS,
    OVER_SHARE_FRAME_MS,
    ServerConnection,
    Unread,
)
from tests.unit.server.connection_rig import Rig, answer, frame, receive, transport_of
from tests.virtual.machine import pass_time

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
    assert (unread.held_bytes, unread.read_part, unread.slow_ms) == (0, 1.0, 0.0)
    unread.update(1)
    assert unread.read_part == 0.0
    unread.update(0)
    unread.update(0)
    unread.update(100)
    assert unread.read_part == 0.0
    unread.slow_ms = 5.0
    unread.update(60)
    assert unread.read_part == pytest.approx(0.4)
    unread.update(110)
    assert (unread.read_part, unread.slow_ms) == (pytest.approx(0.4), 5.0)
    unread.update(50)
    assert (unread.read_part, unread.slow_ms) == (0.0, 0.0), "now the newer ones are due"
    unread.update(0)
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


async def test_a_group_that_has_ended_waits_for_no_time() -> None:
    rates = ConnectionRates()
    rates.change({(("ip", "10.0.0.9"),): {"connection_creation_rate": 1.0}})
    rig = Rig(rates=rates)
    turns = [rig.group.begin_handshake("L", "10.0.0.9") for _ in range(11)]
    assert isinstance(turns[-1], asyncio.Future)
    rig.group.authentication_log.failed("L", "10.0.0.9", "guessed")
    rig.group._shares_log.took_too_much(rig.connection().share, "it waits")
    assert rig.clock.timer_count > 0
    for connection in rig.group:
        connection.close("the test ends it")
        rig.group.forget(connection)
    await rig.group.close(0)
    assert rig.clock.timer_count == 0


async def test_work_that_fails_is_reported_to_the_loop() -> None:
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


# -- making way for those that wait ---------------------------------------------------------------


class Waiter:
    """An owner that has no use for memory yet."""

    listener_name = "L"
    is_inside_large_frame = False
    is_lost = False

    def __init__(self) -> None:
        self.tries = 0
        self.closed: list[str] = []

    def memory_available(self) -> bool:
        self.tries += 1
        return False

    def end_if_peer_is_lost(self) -> None:
        if self.is_lost:
            self.close("lost")

    def close(self, reason: str) -> None:
        self.closed.append(reason)


def waiting(rig: Rig, user: str, *, held: int = 0, wanted: int = 0) -> tuple[Waiter, Share]:
    """One that waits for so much, and holds so much."""
    owner = Waiter()
    share = Share(rig.group.shares, owner, PeerKind.CLIENTS, user, user)
    share.charge(held)
    share.wanted_bytes = wanted
    rig.group.shares.wait(share)
    return owner, share


@pytest.fixture
def lags(monkeypatch: pytest.MonkeyPatch) -> dict[ServerConnection, float]:
    """How far connections are behind their time."""
    found: dict[ServerConnection, float] = {}
    monkeypatch.setattr(ServerConnection, "lag_ms", property(lambda each: found.get(each, 0.0)))
    return found


@pytest.mark.parametrize(
    ("wanted", "closed"),
    [
        (0, []),
        (1, ["slowest"]),
        (60, ["slowest"]),
        (61, ["slowest", "slow"]),
        (10**9, ["slowest", "slow"]),
    ],
)
def test_the_slowest_make_way_until_there_is_room(
    lags: dict[ServerConnection, float], wanted: int, closed: list[str]
) -> None:
    rig = Rig()
    rig.group.start_sweeping()
    behind = {"slow": MAX_LAG_MS + 1, "slowest": MAX_LAG_MS + 2, "in time": MAX_LAG_MS}
    connections = {}
    for number, (name, lag_ms) in enumerate(behind.items()):
        connections[name] = connection = rig.connection("L", (f"10.0.1.{number}", 1))
        connection.share.charge(60)
        lags[connection] = lag_ms
    waiting(rig, "w", wanted=wanted)
    swept(rig)
    assert sorted(name for name, each in connections.items() if each.is_closed) == sorted(closed)


def test_those_over_their_share_make_way_first(
    lags: dict[ServerConnection, float], caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.group.start_sweeping()
    slowest, greedy = rig.connection(), rig.connection("L", ("10.0.0.8", 1))
    lags[slowest], lags[greedy] = MAX_LAG_MS + 9, MAX_LAG_MS + 1
    slowest.share.charge(60)
    held_bytes = greedy.share.budget.share_bytes + 1
    greedy.share.charge(held_bytes)
    greedy.share.count_unread(7)
    waiting(rig, "w", wanted=1)
    swept(rig)
    assert (slowest.is_closed, greedy.is_closed) == (False, True)
    assert "a connection that makes no progress is closed" in caplog.text
    assert f"it holds {held_bytes + 7} bytes that others wait for" in caplog.text


def test_slow_readers_make_way_where_too_many_answers_are_not_read_though_nothing_waits(
    lags: dict[ServerConnection, float],
) -> None:
    rig = Rig()
    rig.group.start_sweeping()
    slow, quick = rig.connection(), rig.connection("L", ("10.0.0.8", 1))
    lags[slow] = MAX_LAG_MS + 1
    slow.share.count_unread(slow.share.budget.limit_bytes // 2)
    swept(rig)
    assert not slow.is_closed
    quick.share.count_unread(1)
    swept(rig)
    assert (slow.is_closed, quick.is_closed) == (True, False)


def test_the_slow_of_one_budget_make_way_for_that_budget_alone(
    lags: dict[ServerConnection, float],
) -> None:
    rig = Rig(ServerLimits(node_listeners=frozenset({"N"})))
    rig.group.start_sweeping()
    client, node = rig.connection(), rig.connection("N")
    for connection in (client, node):
        lags[connection] = MAX_LAG_MS + 1
        connection.share.charge(60)
    waiting(rig, "w", wanted=1)
    swept(rig)
    assert (client.is_closed, node.is_closed) == (True, False)


def test_where_nothing_moves_a_frame_is_let_through_and_then_one_given_up() -> None:
    rig = Rig()
    rig.group.start_sweeping()
    least, first = waiting(rig, "a", held=10, wanted=5)
    most, second = waiting(rig, "b", held=20, wanted=5)
    swept(rig)
    second.refund(1)
    swept(rig)
    assert (least.tries, most.tries) >= (1, 1)
    assert rig.group.shares.freed is None, "memory was given back"
    swept(rig)
    assert rig.group.shares.freed is first
    assert (least.closed, most.closed) == ([], [])
    swept(rig)
    assert (len(least.closed), len(most.closed)) == (0, 1)
    first.refund(10)
    rig.group.shares.leave_line(first)
    swept(rig)
    assert rig.group.shares.freed is not first
    assert second.is_waiting


def test_those_that_wait_are_ended_when_their_peers_have_gone() -> None:
    rig = Rig()
    rig.group.start_sweeping()
    owners = [waiting(rig, "a", held=10, wanted=5)[0] for _ in range(3)]
    owners[1].is_lost = owners[2].is_lost = True
    swept(rig)
    assert [each.closed for each in owners] == [[], ["lost"], ["lost"]]


def test_one_that_ends_with_another_is_not_looked_at_again() -> None:
    rig = Rig()
    rig.group.start_sweeping()
    first, _ = waiting(rig, "a", held=10, wanted=5)
    _, other = waiting(rig, "a", held=10, wanted=5)
    first.end_if_peer_is_lost = other.close  # type: ignore[method-assign]
    swept(rig)
    assert other.is_closed


def test_memory_that_comes_back_wakes_those_that_wait_once() -> None:
    rig = Rig()
    owner, _ = waiting(rig, "a", held=1, wanted=1)
    rig.group.on_memory_released()
    rig.group.on_memory_released()
    assert len(rig.loop.soon) == 1
    rig.loop.run()
    assert owner.tries == 1
    rig.group.on_memory_released()
    rig.loop.run()
    assert owner.tries == 2
    rig.group.update_limits(ServerLimits())
    rig.loop.run()
    assert owner.tries == 3
    other = Rig()
    other.group.on_memory_released()
    assert not other.loop.soon, "nothing waits"


def test_a_connection_that_waits_for_its_own_share_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    connection, other = rig.connection(), rig.connection()
    connection.authenticate("User:greedy")
    rig.group.wait_for_memory(connection)
    assert caplog.text == ""
    other.authenticate("User:greedy")
    other.share.barred = other.share.principal
    rig.group.wait_for_memory(other)
    assert "User:greedy" in caplog.text
    assert "its further requests wait" in caplog.text
    assert rig.group.shares.waiting_count == 2


# -- the end of a group ---------------------------------------------------------------------------


async def test_what_does_not_end_in_time_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    busy = rig.connection()
    receive(busy, frame(1))
    rates = rig.group.rates
    rates.change({(("ip", "10.0.0.7"),): {"connection_creation_rate": 1.0}})
    refused = [rig.connection("L", ("10.0.0.7", 1)) for _ in range(11)][-1]
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    closing = asyncio.ensure_future(rig.group.close(5_000))
    await asyncio.sleep(0)
    assert transport_of(refused).aborted == 1
    for connection in list(rig.group):
        if connection is not busy:
            connection.connection_lost(None)
    while not busy.is_closed:
        await pass_time(100)
    assert loop.time() - begun_s == pytest.approx(5.0, abs=0.1)
    assert "the server is shutting down" in caplog.text
    assert not closing.done()
    busy.connection_lost(None)
    await closing


def test_a_connection_is_turned_away_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(ServerLimits(max_connections_per_ip=1))
    first = rig.connection()
    assert rig.connection().is_closed
    assert "connection from 10.0.0.9 refused on listener L: max.connections.per.ip=1" in caplog.text
    first.close("the test ends it")
    assert "closing connection 10.0.0.1:9092-10.0.0.9:5000-1 of listener L" in caplog.text
    assert "(client unknown): the test ends it" in caplog.text
    first.connection_lost(None)
    assert not rig.connection().is_closed, "its place is free"


def test_a_handshake_that_fails_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for problem in (None, "no TLS"):
        assert rig.group.begin_handshake("L", "h")
        rig.group.end_handshake("L", "h", problem)
    assert len(caplog.records) == 1
    assert "from host = h on listener = L: no TLS" in caplog.text


async def test_a_handshake_above_the_rate_has_its_turn_or_its_end_later() -> None:
    rig = Rig(ServerLimits(max_connection_creation_rate=1, listen_backlog=1))
    turns = [rig.group.begin_handshake("L", "h") for _ in range(12)]
    assert turns[:10] == [True] * 10
    waits, refused = turns[10:]
    assert isinstance(waits, asyncio.Future)
    assert rig.group.rejected_count == 1
    rig.clock.advance(1_010)
    assert waits.result() is True
    if isinstance(refused, asyncio.Future):
        rig.clock.advance(2_000)
        assert refused.result() is False
    else:
        assert refused is False
    rates = ConnectionRates()
    rates.change({(("ip", "10.0.0.9"),): {"connection_creation_rate": 1.0}})
    other = Rig(rates=rates)
    for _ in range(10):
        assert other.group.begin_handshake("L", "10.0.0.9") is True
    ends = other.group.begin_handshake("L", "10.0.0.9")
    assert isinstance(ends, asyncio.Future)
    assert not ends.done()
    other.clock.advance(1_010)
    assert ends.result() is False
