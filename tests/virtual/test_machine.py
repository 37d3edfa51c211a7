"""The machine of a unit test: what hangs, spins, or is left open fails; nothing of it is real."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest

from moldau.runtime.ports import Ports
from tests.virtual.loop import Deadlock, EndlessLoop, UnhandledFailure
from tests.virtual.machine import HOST, LIMIT_S, MachineLoop, _of_machine, pass_time


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Ports, "of_machine", classmethod(_of_machine))
    made = MachineLoop(1)
    yield made
    if not made.is_closed():
        made.dispose()


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def test_what_waits_for_ever_is_a_deadlock_that_names_the_places(loop: MachineLoop):
    with pytest.raises(Deadlock, match=r"(?s)wait_for_it waits.* wait_for_it\n.* never"):
        loop.run_until_complete(wait_for_it())


async def wait_for_it() -> None:
    await never()


def test_what_waits_beside_a_timer_that_recurs_is_a_deadlock_in_the_end(loop: MachineLoop):
    async def beat() -> None:
        while not loop.is_closed():
            await pass_time(LIMIT_S * 100)

    async def hang() -> None:
        beating = asyncio.ensure_future(beat())
        await never()
        beating.cancel()

    with pytest.raises(Deadlock, match="never"):
        loop.run_until_complete(hang())


def test_what_is_left_of_a_delay_by_rounding_lets_time_pass(loop: MachineLoop):
    clock = loop.ports.clock
    loop.run_until_complete(loop.elapse(1_000_000))
    before_ms = clock.monotonic_ms()
    assert before_ms + 1e-11 == before_ms
    loop.run_until_complete(loop.elapse(1e-11))
    assert before_ms < clock.monotonic_ms() < before_ms + 0.01


def test_looking_again_and_again_without_a_pause_is_an_endless_loop(loop: MachineLoop):
    async def look() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(EndlessLoop, match="look waits"):
        loop.run_until_complete(look())


def test_threads_run_here_and_now_and_know_of_no_loop(loop: MachineLoop):
    def work() -> int:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return threading.get_ident()

    async def ask() -> int:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return await asyncio.to_thread(work)

    assert loop.run_until_complete(ask()) == threading.get_ident()


def test_a_callback_that_fails_fails_the_test_and_what_cleans_up_goes_on(loop: MachineLoop):
    loop.call_soon(lambda: 1 / 0)
    with pytest.raises(UnhandledFailure, match="ZeroDivisionError"):
        loop.run_until_complete(loop.elapse(1_000))
    loop.run_until_complete(loop.elapse(1_000))


class Mute(asyncio.Protocol):
    """Says nothing, and keeps its end open when the other one has ended."""

    def eof_received(self) -> bool:
        return True


async def connected() -> tuple[asyncio.BaseTransport, int]:
    network = Ports.of_machine().network
    first = await network.listen(Mute, HOST, 0)
    listener = await network.listen(Mute, HOST, 0)
    assert first.port != listener.port
    transport, _ = await network.connect(Mute, HOST, listener.port)
    return transport, listener.port


def test_a_transport_left_open_is_a_resource_warning(loop: MachineLoop):
    transport, port = loop.run_until_complete(connected())
    transport.abort()
    loop.run_until_complete(loop.elapse(1_000))
    assert loop.fabric.open_transports() == []
    loop.run_until_complete(connected())
    with pytest.warns(ResourceWarning, match="unclosed") as warned:
        loop.close()
    assert len(warned) == 2
    assert port > 0


def test_only_its_own_loop_has_the_virtual_machine(loop: MachineLoop):
    async def ports() -> Ports:
        return Ports.of_machine()

    assert loop.run_until_complete(ports()) is loop.ports
    assert Ports.of_machine().network is not loop.ports.network


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_gives_the_same_delays_and_choices(seed: int):
    def run(chosen: int) -> tuple[float, float]:
        loop = MachineLoop(chosen)

        async def connect() -> tuple[float, float]:
            network = loop.ports.network
            listener = await network.listen(Mute, HOST, 0)
            transport, _ = await network.connect(Mute, HOST, listener.port)
            transport.abort()
            seen = loop.time(), loop.ports.random.random()
            await pass_time(1_000)
            return seen

        try:
            return loop.run_until_complete(connect())
        finally:
            loop.dispose()

    assert run(seed) == run(seed) != run(seed + 1)
