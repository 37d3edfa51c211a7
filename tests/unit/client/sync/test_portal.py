"""The thread and loop behind blocking clients: calls, interruptions, listeners, forks, exits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from moldau.client.errors import ClientClosed, InvalidState, KafkaError
from moldau.client.sync.portal import Call, Callers, Kept, ThreadPortal, thread_portal

pytestmark = pytest.mark.real

DEADLINE_S = 10.0


@pytest.fixture
def callers() -> Callers:
    """The callers of one client."""
    return Callers()


@pytest.fixture
def loop() -> ThreadPortal:
    """The process's one."""
    return thread_portal()


async def _thread_of_work() -> int:
    return threading.get_ident()


async def _fail(error: BaseException) -> None:
    raise error


def _interrupt_main_thread() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_work_runs_in_one_other_thread_for_all_callers(loop: ThreadPortal):
    def ask() -> None:
        idents.append(loop.call(_thread_of_work))

    idents: list[int] = []
    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(idents) == 5
    assert len({*idents, loop.call(_thread_of_work)}) == 1
    assert threading.get_ident() not in idents
    assert thread_portal() is loop


async def test_it_works_while_a_loop_runs_in_the_calling_thread(loop: ThreadPortal):
    assert loop.call(_thread_of_work) != threading.get_ident()


def test_an_error_of_the_work_is_the_callers(loop: ThreadPortal):
    error = ValueError("wrong")
    with pytest.raises(ValueError, match="wrong") as raised:
        loop.call(_fail, error)
    assert raised.value is error


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_nothing_that_work_raises_ends_the_loop(loop: ThreadPortal, kind: type[BaseException]):
    with pytest.raises(kind):
        loop.call(_fail, kind("from the work"))
    assert loop.call(_thread_of_work)


def test_work_that_is_cancelled_from_inside_is_a_closed_client(loop: ThreadPortal):
    with pytest.raises(ClientClosed):
        loop.call(_fail, asyncio.CancelledError())


def test_an_interruption_cancels_the_work_and_waits_for_its_end(loop: ThreadPortal):
    events: list[str] = []

    async def work() -> None:
        try:
            _interrupt_main_thread()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            events.append("cleaned up")
            raise

    with pytest.raises(KeyboardInterrupt):
        loop.call(work)
    assert events == ["cleaned up"]
    assert loop.call(_thread_of_work)


def test_an_interruption_before_the_works_first_step_ends_the_wait(loop: ThreadPortal):
    """The task is made and cancelled in one turn of the loop: its body never runs."""
    posted: list[Callable[..., object]] = []
    call = Call(_thread_of_work, (), {})

    def post(callback: Callable[..., object], *arguments: object) -> None:
        posted.append(callback)
        if len(posted) == 1:
            raise KeyboardInterrupt

        def both() -> None:
            posted[0]()
            callback(*arguments)

        loop.post(both)

    with pytest.raises(KeyboardInterrupt):
        call.run(post)
    assert len(posted) == 2


def test_a_result_that_crosses_an_interruption_is_taken_back(loop: ThreadPortal):
    taken_back: list[str] = []

    async def work() -> str:
        try:
            _interrupt_main_thread()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "records"
        return "not reached"

    kept = Kept(work, taken_back.append, loop.call)
    with pytest.raises(KeyboardInterrupt):
        loop.call(kept.run)
    kept.give_back()
    assert taken_back == ["records"]


def test_a_result_that_comes_after_it_was_given_up_is_taken_back(loop: ThreadPortal):
    """As after a second Ctrl-C, while the first one waited for the work's end."""
    taken_back: list[str] = []

    async def work() -> str:
        await asyncio.to_thread(kept.give_back)
        assert not taken_back
        return "records"

    kept = Kept(work, taken_back.append, loop.call)
    loop.call(kept.run)
    assert taken_back == ["records"]


def test_an_interruption_while_the_last_errand_runs_ends_the_call(
    loop: ThreadPortal, callers: Callers
):
    """The result has come already: the work ended while the thread was busy with the errand."""
    errands: list[asyncio.Task[object]] = []

    async def work() -> str:
        errands.append(asyncio.create_task(callers.run(_interrupt_main_thread)))
        await asyncio.sleep(0)
        return "records"

    with pytest.raises(KeyboardInterrupt):
        loop.call(work, callers=callers)

    async def read_error() -> BaseException | None:
        return (await asyncio.gather(errands[0], return_exceptions=True))[0]

    assert isinstance(loop.call(read_error), InvalidState)


def test_listeners_run_in_the_calling_thread_and_may_call(loop: ThreadPortal, callers: Callers):
    def listener(number: int) -> tuple[int, int]:
        return threading.get_ident() + 0 * loop.call(_thread_of_work), number

    assert loop.call(callers.run, listener, 3, callers=callers) == (threading.get_ident(), 3)


def test_a_listeners_error_is_the_works(loop: ThreadPortal, callers: Callers):
    def listener() -> None:
        raise ValueError("in the listener")

    async def work() -> str:
        try:
            await callers.run(listener)
        except ValueError as error:
            return str(error)
        return "no error"

    assert loop.call(work, callers=callers) == "in the listener"


def test_an_async_listener_is_refused(loop: ThreadPortal, callers: Callers):
    async def listener() -> None:
        raise AssertionError("never run")

    with pytest.raises(TypeError, match="is async"):
        loop.call(callers.run, listener, callers=callers)


def test_an_interrupted_listener_ends_with_an_error(loop: ThreadPortal, callers: Callers):
    """As the consumer does it, the listener is called in a task that outlives the poll."""
    steps: list[asyncio.Task[object]] = []

    def listener() -> None:
        raise KeyboardInterrupt

    async def poll() -> None:
        steps.append(asyncio.create_task(callers.run(listener)))
        await asyncio.wait(steps)

    async def next_poll() -> None:
        await steps[0]

    with pytest.raises(KeyboardInterrupt):
        loop.call(poll, callers=callers)
    with pytest.raises(InvalidState, match="interrupted by KeyboardInterrupt"):
        loop.call(next_poll, callers=callers)


def test_a_listener_that_an_interrupted_call_did_not_run_is_run_by_the_next(
    loop: ThreadPortal, callers: Callers
):
    steps: list[asyncio.Task[object]] = []

    async def poll() -> None:
        try:
            _interrupt_main_thread()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            steps.append(asyncio.create_task(callers.run(threading.get_ident)))
            raise

    async def next_poll() -> object:
        return await steps[0]

    with pytest.raises(KeyboardInterrupt):
        loop.call(poll, callers=callers)
    assert loop.call(next_poll, callers=callers) == threading.get_ident()


def test_a_listener_that_waits_for_an_interrupted_thread_is_run_by_the_next_call(
    loop: ThreadPortal, callers: Callers
):
    """It was handed to the call before its thread heard of the interruption."""
    steps: list[asyncio.Task[object]] = []

    async def poll() -> None:
        _interrupt_main_thread()
        steps.append(asyncio.create_task(callers.run(threading.get_ident)))
        await asyncio.Event().wait()

    async def next_poll() -> object:
        return await asyncio.wait_for(steps[0], DEADLINE_S)

    with pytest.raises(KeyboardInterrupt):
        loop.call(poll, callers=callers)
    assert loop.call(next_poll, callers=callers) == threading.get_ident()


def test_a_thread_that_waits_for_its_call_takes_no_processor_time(loop: ThreadPortal):
    async def work() -> None:
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, over.set)
        await over.wait()

    before_s = time.thread_time()
    loop.call(work)
    assert time.thread_time() - before_s < 0.03


def test_a_blocking_call_on_the_loops_own_thread_is_refused(loop: ThreadPortal):
    async def work() -> None:
        loop.call(_thread_of_work)

    with pytest.raises(KafkaError, match="would wait for itself"):
        loop.call(work)


def _in_a_fork(check: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_gets_a_clear_error_and_its_own_loop(loop: ThreadPortal):
    loop.call(_thread_of_work)

    def check() -> bool:
        try:
            loop.call(_thread_of_work)
        except KafkaError as error:
            refused = "before a fork" in str(error)
        else:
            refused = False
        own = thread_portal()
        return refused and own is not loop and own.call(_thread_of_work) > 0

    assert _in_a_fork(check)
    assert loop.call(_thread_of_work)


def test_a_stop_closes_what_is_open_and_cancels_what_is_left():
    events: list[str] = []

    class Client:
        def __init__(self, name: str) -> None:
            self.name = name

        async def close(self) -> None:
            await asyncio.sleep(0)
            events.append(f"{self.name} closed")

    async def begin() -> None:
        loop.adopt(Client("open"))
        loop.adopt(released)
        loop.release(released)
        tasks.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            events.append("cancelled")

    loop, released = ThreadPortal(), Client("released")
    tasks: list[asyncio.Task[None]] = []
    loop.call(begin)
    loop.stop()
    assert events == ["open closed", "cancelled"]
    with pytest.raises(ClientClosed):
        loop.call(_thread_of_work)
    loop.stop()


EXITING = """
import sys, threading
from moldau.client.sync.portal import thread_portal

class Client:
    async def close(self):
        import asyncio
        await asyncio.sleep(0)
        print("closed", flush=True)

loop = thread_portal()
client = Client()

async def adopt():
    loop.adopt(client)

async def forever():
    import asyncio
    await asyncio.Event().wait()

loop.call(adopt)
if "{how}" == "abandoned":
    class Owner: pass
    owner = Owner()
    finalizer = loop.finalizer(owner, client)
    del owner
if "{how}" == "waiting":
    def wait():
        try:
            loop.call(forever)
        except Exception as error:
            print(type(error).__name__, flush=True)
    threading.Thread(target=wait, daemon=True).start()
if "{how}" == "error":
    raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("how", "status"), [("plain", 0), ("error", 3), ("abandoned", 0), ("waiting", 0)]
)
def test_the_interpreters_exit_closes_what_is_open(how: str, status: int):
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", EXITING.replace("{how}", how)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.split().count("closed") == 1
