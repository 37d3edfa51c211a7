"""The thread and loop behind blocking clients: calls, interruptions, listeners, forks, exits."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from moldau.client.errors import ClientClosed, InvalidState, KafkaError
from moldau.client.sync.portal import Call, Callers, Errand, Kept, ThreadPortal, thread_portal
from tests.kit.loop_reports import heard_reports

DEADLINE_S = 120.0


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


@pytest.fixture(autouse=True)
def no_collection_by_itself() -> Iterator[None]:
    """An interruption that comes while one calls back for a weak reference to a task is lost."""
    gc.disable()
    yield
    gc.enable()


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
    begun: list[bool] = []

    async def work() -> None:
        begun.append(True)

    call = Call(work, (), {})

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
    loop.call(_thread_of_work)
    assert begun == []


def test_an_interruption_before_the_work_was_handed_over_ends_the_wait(loop: ThreadPortal):
    posted: list[Callable[..., object]] = []

    def post(callback: Callable[..., object], *arguments: object) -> None:
        posted.append(callback)
        if len(posted) == 1:
            raise KeyboardInterrupt
        loop.post(callback, *arguments)

    with pytest.raises(KeyboardInterrupt):
        Call(_thread_of_work, (), {}).run(post)
    assert len(posted) == 2


def test_a_listener_that_comes_between_two_calls_is_run_by_the_second(
    loop: ThreadPortal, callers: Callers
):
    steps: list[asyncio.Task[object]] = []

    async def poll() -> str:
        return "records"

    async def between() -> None:
        steps.append(asyncio.create_task(callers.run(threading.get_ident)))
        await asyncio.sleep(0)

    async def next_poll() -> object:
        return await asyncio.wait_for(steps[0], DEADLINE_S)

    assert loop.call(poll, callers=callers) == "records"
    loop.call(between)
    assert loop.call(next_poll, callers=callers) == threading.get_ident()


@pytest.mark.parametrize("client_count", [0, 1])
def test_no_thread_is_left_behind(client_count: int):
    before = set(threading.enumerate())
    portal = ThreadPortal()
    adopted(portal, *(Client() for _ in range(client_count)))
    assert len(set(threading.enumerate()) - before) == 1
    portal.stop()
    assert set(threading.enumerate()) <= before


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


@pytest.mark.real
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


@pytest.mark.real
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


class Client:
    """Notes when it is closed; may take its time, or fail."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.closed = 0
        self.error = error

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1
        if self.error is not None:
            raise self.error


def adopted(portal: ThreadPortal, *clients: Client) -> None:
    async def adopt() -> None:
        for each in clients:
            portal.adopt(each)

    portal.call(adopt)


@pytest.fixture
def portal() -> Iterator[ThreadPortal]:
    """One for this test alone."""
    made = ThreadPortal()
    yield made
    made.forked = False
    made.stop()


@pytest.mark.parametrize(
    "error", [None, KafkaError("late"), OSError("gone"), asyncio.CancelledError()]
)
def test_the_end_closes_every_client_whatever_becomes_of_the_others(
    portal: ThreadPortal, error: BaseException | None
):
    clients = [Client(error), Client(), Client(error)]
    adopted(portal, *clients)
    portal.stop()
    assert [each.closed for each in clients] == [1, 1, 1]
    portal.stop()
    assert [each.closed for each in clients] == [1, 1, 1]


def test_the_end_waits_for_a_client_that_is_being_closed(portal: ThreadPortal):
    closing, released = Client(), Client()

    async def begin() -> None:
        for each in (closing, released):
            portal.adopt(each)
            portal.closing(each, asyncio.ensure_future(each.close()))
        portal.release(released)
        portal.release(released)

    portal.call(begin)
    portal.stop()
    assert (closing.closed, released.closed) == (1, 1), "neither is closed again"


def test_a_client_whose_owner_is_gone_is_closed_once(portal: ThreadPortal):
    class Owner:
        pass

    kept, released = Client(), Client()
    adopted(portal, kept, released)
    owners = [Owner(), Owner()]
    finalizers = [
        portal.finalizer(owner, client)
        for owner, client in zip(owners, (kept, released), strict=True)
    ]
    assert not any(each.atexit for each in finalizers), "the end of the portal does that"
    portal.post(portal.release, released)
    owners.clear()
    gc.collect()
    assert not any(each.alive for each in finalizers)
    for _ in range(5):
        portal.call(asyncio.sleep, 0)
    assert (kept.closed, released.closed) == (1, 0), "at once, and not at the end"
    portal.stop()
    assert (kept.closed, released.closed) == (1, 0)


@pytest.mark.parametrize("reason", ["forked", "ended"])
def test_a_portal_that_is_no_use_any_more_leaves_its_clients_alone(
    portal: ThreadPortal, reason: str
):
    class Owner:
        pass

    client = Client()
    adopted(portal, client)
    owner = Owner()
    portal.finalizer(owner, client)
    setattr(portal, reason, True)
    del owner
    gc.collect()
    portal.stop()
    setattr(portal, reason, False)
    portal.call(_thread_of_work)
    assert client.closed == 0


def test_a_loop_that_ends_between_the_check_and_the_call_is_a_closed_client(portal: ThreadPortal):
    client = Client()
    adopted(portal, client)
    portal.stop()
    portal.ended = False
    for call in (lambda: portal.post(print), lambda: portal.call(_thread_of_work)):
        with pytest.raises(ClientClosed, match="interpreter is ending"):
            call()
    portal._abandon(client)
    portal.ended = True


@pytest.mark.parametrize(
    ("reason", "kind", "text"),
    [("forked", InvalidState, "before a fork"), ("ended", ClientClosed, "interpreter is ending")],
)
def test_why_a_portal_serves_no_more(
    portal: ThreadPortal, reason: str, kind: type[KafkaError], text: str
):
    portal.check()
    setattr(portal, reason, True)
    for call in (
        portal.check,
        lambda: portal.post(print),
        lambda: portal.call(_thread_of_work),
    ):
        with pytest.raises(kind, match=text):
            call()
    kept = Kept(_thread_of_work, lambda _: None, portal.call)
    kept.give_back()
    setattr(portal, reason, False)


def test_after_its_end_the_process_gets_another_portal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(f"{ThreadPortal.__module__}._shared", None)
    first = thread_portal()
    assert thread_portal() is first
    first.stop()
    second = thread_portal()
    assert second is not first
    assert second.call(_thread_of_work) != threading.get_ident()
    second.stop()


def test_work_gets_its_arguments(loop: ThreadPortal):
    async def work(*arguments: object, **keywords: object) -> tuple[object, object]:
        return arguments, keywords

    assert loop.call(work, 1, 2, name="x") == ((1, 2), {"name": "x"})


def test_an_error_that_was_raised_is_not_held_by_its_call(loop: ThreadPortal):
    """Not even until the next collection: it may hold a client's records."""

    class Mine(Exception):
        pass

    async def work() -> None:
        raise Mine

    gc.collect()
    gc.disable()
    try:
        try:
            loop.call(work)
        except Mine as error:
            reference = weakref.ref(error)
        loop.call(_thread_of_work)
        assert reference() is None
    finally:
        gc.enable()


# -- errands, on virtual time ------------------------------------------------------------------


class Waiting:
    """A call, as far as errands know it."""

    def __init__(self) -> None:
        self.errands: list[Errand | None] = []

    def send(self, errand: Errand | None) -> None:
        self.errands.append(errand)


async def test_errands_go_to_the_latest_call_or_to_the_next_one():
    callers = Callers()
    errands = [Errand(lambda: None) for _ in range(6)]
    first, second, third = (Waiting() for _ in range(3))
    for each in errands[:2]:
        callers.put_back(each)
    callers.entered(first)  # type: ignore[arg-type]
    assert first.errands == errands[:2]
    callers.entered(second)  # type: ignore[arg-type]
    assert second.errands == []
    callers.put_back(errands[2])
    assert second.errands == errands[2:3]
    callers.left(second)  # type: ignore[arg-type]
    callers.put_back(errands[3])
    assert first.errands == [*errands[:2], errands[3]]
    for _ in range(2):
        callers.left(first)  # type: ignore[arg-type]
    callers.put_back(errands[4])
    callers.entered(third)  # type: ignore[arg-type]
    assert third.errands == errands[4:5]


async def test_an_errand_brings_what_its_function_returns_or_raises():
    errand = Errand(lambda: 5)
    assert not errand.begun
    errand()
    assert errand.begun
    assert await errand == 5

    def fail() -> None:
        raise ValueError("mine")

    errand = Errand(fail)
    errand()
    with pytest.raises(ValueError, match="mine"):
        await errand


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_an_interruption_ends_the_errand_and_goes_on(kind: type[BaseException]):
    def interrupted() -> None:
        raise kind

    errand = Errand(interrupted)
    with pytest.raises(kind):
        errand()
    with pytest.raises(InvalidState, match=f"a listener was interrupted by {kind.__name__}"):
        await errand


@pytest.mark.parametrize("fails", [False, True])
async def test_an_errand_that_is_not_waited_for_any_more_ends_quietly(fails: bool):
    errand = Errand((lambda: 1 / 0) if fails else (lambda: 5))
    waiting = asyncio.ensure_future(_result_of(errand))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with heard_reports() as reports:
        errand()
        await asyncio.sleep(0)
    assert reports == []


async def _result_of(errand: Errand) -> object:
    return await errand


async def test_what_a_caller_runs_gets_its_arguments():
    callers = Callers()
    running = asyncio.ensure_future(callers.run(max, 3, 7))
    await asyncio.sleep(0)
    call = Waiting()
    callers.entered(call)  # type: ignore[arg-type]
    (errand,) = call.errands
    assert errand is not None
    errand()
    assert await running == 7


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


@pytest.mark.real
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
