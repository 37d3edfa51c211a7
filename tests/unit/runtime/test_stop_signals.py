"""Stop signals: remembered before a loop runs, delivered while it does, ignored at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
import uvloop

from moldau.runtime.stop_signals import STOP_SIGNALS, StopSignals

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
DEADLINE_S = 20.0


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    """Installed; what the test process had is put back."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    stopping = StopSignals()
    stopping.install()
    yield stopping
    for number, handler in before.items():
        signal.signal(number, handler)


def run_until_stopped(
    signals: StopSignals,
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
    send: Callable[[], object],
) -> None:
    async def serve() -> None:
        stop = asyncio.Event()
        with signals.waking(asyncio.get_running_loop(), stop.set):
            asyncio.get_running_loop().call_soon(send)
            await asyncio.wait_for(stop.wait(), DEADLINE_S)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())


@pytest.mark.parametrize("new_event_loop", LOOPS)
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_to_the_process_stops_the_loop(
    signals: StopSignals,
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
    number: signal.Signals,
) -> None:
    run_until_stopped(signals, new_event_loop, lambda: os.kill(os.getpid(), number))
    assert signals.is_requested


@pytest.mark.parametrize("new_event_loop", LOOPS)
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_that_another_thread_gets_wakes_the_loop(
    signals: StopSignals,
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
    number: signal.Signals,
) -> None:
    asleep = threading.Event()

    def strike() -> None:
        assert asleep.wait(DEADLINE_S)
        signal.pthread_kill(threading.get_ident(), number)

    thread = threading.Thread(target=strike)
    thread.start()
    run_until_stopped(signals, new_event_loop, asleep.set)
    thread.join()


@pytest.mark.parametrize("new_event_loop", LOOPS)
def test_a_signal_from_before_the_loop_stops_it_at_once(
    signals: StopSignals, new_event_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    assert not signals.is_requested
    signal.raise_signal(signal.SIGINT)
    assert signals.is_requested
    run_until_stopped(signals, new_event_loop, lambda: None)


@pytest.mark.parametrize("new_event_loop", LOOPS)
def test_signals_during_and_after_the_loops_end_do_nothing(
    signals: StopSignals, new_event_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    run_until_stopped(signals, new_event_loop, lambda: signal.raise_signal(signal.SIGTERM))
    # The loop has closed; a default handler would raise KeyboardInterrupt or end the process.
    for number in STOP_SIGNALS:
        signal.raise_signal(number)
    signals.ignore()
    for number in STOP_SIGNALS:
        assert signal.getsignal(number) is signal.SIG_IGN
        signal.raise_signal(number)
    assert signal.set_wakeup_fd(-1) == -1
