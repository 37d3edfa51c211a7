"""Records from many threads to one loop: order, room, wake-ups, what becomes of each."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from moldau.client.errors import BufferFull, ClientClosed, DeliveryTimeout, KafkaError
from moldau.client.sync.handover import RECORD_OVERHEAD_BYTES, Delivery, Handover, size_of
from moldau.client.sync.portal import ThreadPortal, thread_portal
from tests.unit.client.sync.interruptions import interrupted_at
from tests.virtual.machine import pass_time

DEADLINE_S = 120.0
VALUE_BYTES = 36
SIZE_BYTES = RECORD_OVERHEAD_BYTES + VALUE_BYTES


class FakeDelivery:
    """Done when the test says so."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcome: int | Exception | None = None
        self.changed = asyncio.Event()

    def done(self) -> bool:
        return self.outcome is not None

    def exception(self) -> Exception | None:
        return self.outcome if isinstance(self.outcome, Exception) else None

    def result(self) -> int | None:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def call_when_done(self, callback: Callable[..., object]) -> None:
        self.callback = callback

    def settle(self, outcome: int | Exception) -> None:
        self.outcome = outcome
        self.changed.set()

    def __await__(self) -> Any:
        yield from self.changed.wait().__await__()
        return self.result()


class Payload:
    """Any value, of the usual size."""

    def __init__(self, what: Any, size_bytes: int = VALUE_BYTES) -> None:
        self.what = what
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes


class FakeProducer:
    """Takes `room` records, then raises BufferFull until there is more."""

    def __init__(self) -> None:
        self.room = 1_000_000
        self.taken: list[tuple[str, Any]] = []
        self.deliveries: list[FakeDelivery] = []
        self.closed: KafkaError | None = None
        self.refuse: Callable[[Any], Exception | None] = lambda value: None
        self.room_error: KafkaError | None = None
        self.lost: list[Exception] = []
        self._more = asyncio.Event()

    @property
    def _appender(self) -> FakeProducer:
        return self

    def _check(self) -> None:
        if self.closed is not None:
            raise self.closed

    def append(self, topic: str, value: Payload, *rest: Any) -> FakeDelivery | None:
        error = self.refuse(value.what)
        if error is not None:
            raise error
        if not self.room:
            return None
        self.room -= 1
        self.taken.append((topic, value.what))
        self.deliveries.append(FakeDelivery(len(self.deliveries)))
        return self.deliveries[-1]

    def refused(self, error: Exception) -> None:
        self.lost.append(error)

    async def wait_for_room(self) -> None:
        while not self.room:
            if self.room_error is not None:
                raise self.room_error
            self._more.clear()
            await self._more.wait()

    def give_room(self, count: int) -> None:
        self.room += count
        self._more.set()

    def close(self) -> None:
        self.closed = self.room_error = ClientClosed("closed")
        self._more.set()


class Setting:
    """A handover on the real background loop, before a fake producer."""

    def __init__(self, **changed: Any) -> None:
        self.loop: ThreadPortal = thread_portal()

        async def make() -> tuple[FakeProducer, Handover]:
            producer = FakeProducer()
            settings = {
                "limit_bytes": 100 * SIZE_BYTES,
                "max_block_ms": DEADLINE_S * 1000,
                "delivery_timeout_ms": DEADLINE_S * 1000,
                **changed,
            }
            return producer, Handover(self.loop, producer, **settings)  # type: ignore[arg-type]

        self.producer, self.handover = self.loop.call(make)

    def put(self, value: Any, on_delivery: Any = None) -> Delivery:
        record = ("t", Payload(value), None, (), None, 0, on_delivery)
        assert size_of(record) == SIZE_BYTES
        return self.handover.put(record, SIZE_BYTES)

    def on_loop(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async def run() -> Any:
            return function(*arguments)

        return self.loop.call(run)

    def settled(self) -> None:
        """Whatever was posted before has been done."""
        self.on_loop(lambda: None)

    def emptied(self) -> None:
        self.loop.call(self.handover.emptied)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_records_of_each_thread_arrive_in_its_order(setting: Setting):
    def send(name: int) -> None:
        for number in range(2_000):
            while True:
                try:
                    setting.put((name, number))
                    break
                except BufferFull:
                    setting.loop.call(setting.handover.room)

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    setting.emptied()
    numbers: dict[int, list[int]] = defaultdict(list)
    for _, (name, number) in setting.producer.taken:
        numbers[name].append(number)
    assert numbers == {name: list(range(2_000)) for name in range(4)}


def test_many_records_cost_one_wake_up(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    """While the loop is busy with something else, a hundred records wake it once."""
    wake_ups = []
    post = setting.loop.post
    busy, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        go_on.wait(DEADLINE_S)

    setting.loop.post(hold)
    assert busy.wait(DEADLINE_S)

    def counting(callback: Any, *arguments: Any) -> None:
        wake_ups.append(callback)
        post(callback, *arguments)

    monkeypatch.setattr(setting.loop, "post", counting)
    for number in range(100):
        setting.put(number)
    monkeypatch.undo()
    go_on.set()
    setting.settled()
    assert len(setting.producer.taken) == 100
    assert len(wake_ups) == 1


def test_a_result_waits_for_the_acknowledgement(setting: Setting):
    delivery = setting.put("value")
    setting.settled()
    assert not delivery.done()
    setting.loop.post(setting.producer.deliveries[0].settle, 42)
    assert delivery.result() == 42
    assert delivery.done()
    assert delivery.exception() is None


def test_a_failed_delivery_raises_and_is_reported(setting: Setting):
    delivery = setting.put("value")
    setting.settled()
    error = DeliveryTimeout("too late")
    setting.loop.post(setting.producer.deliveries[0].settle, error)
    assert delivery.exception() is error
    with pytest.raises(DeliveryTimeout):
        delivery.result()


def test_a_record_that_the_producer_refuses_fails_alone(setting: Setting):
    told: list[Any] = []
    error = KafkaError("refused")
    setting.on_loop(
        setattr, setting.producer, "refuse", lambda value: error if value == 1 else None
    )
    deliveries = [setting.put(number, lambda *outcome: told.append(outcome)) for number in range(3)]
    setting.emptied()
    assert [value for _, value in setting.producer.taken] == [0, 2]
    assert deliveries[1].exception() is error
    assert told == [(None, error)]
    assert not deliveries[2].done()
    assert setting.producer.lost == [error]


def test_without_room_records_wait_and_then_threads_do(setting: Setting):
    setting.on_loop(setattr, setting.producer, "room", 5)
    for number in range(100):
        setting.put(number)
    setting.settled()
    # Five have left: there is room for as many again, after the loop has looked.
    for number in range(100, 105):
        setting.put(number)
    with pytest.raises(BufferFull):
        setting.put(105)
    assert not setting.handover.has_room
    assert [value for _, value in setting.producer.taken] == list(range(5))
    setting.on_loop(setting.producer.give_room, 200)
    setting.loop.call(setting.handover.room)
    setting.put(105)
    setting.emptied()
    assert [value for _, value in setting.producer.taken] == list(range(106))


def test_who_has_waited_for_room_has_some(setting: Setting):
    """However many threads wait, each of them may hand one record over."""
    setting.on_loop(setattr, setting.producer, "room", 0)
    for number in range(100):
        setting.put(number)
    setting.handover.grant()
    setting.put(100)
    with pytest.raises(BufferFull):
        setting.put(101)


def test_what_is_handed_over_after_the_end_fails(setting: Setting):
    setting.on_loop(setting.producer.close)
    told: list[Any] = []
    delivery = setting.put("value", lambda *outcome: told.append(outcome))
    assert isinstance(delivery.exception(), ClientClosed)
    assert [type(error) for _, error in told] == [ClientClosed]


@pytest.mark.parametrize(
    ("key", "value", "headers", "more_bytes"),
    [
        (None, None, (), 0),
        (b"key", b"value", (), 8),
        (None, None, (("name", None), ("n", b"data")), 2 * RECORD_OVERHEAD_BYTES + 9),
    ],
)
def test_what_a_record_counts(key: Any, value: Any, headers: Any, more_bytes: int):
    record = ("t", value, key, headers, None, 0, None)
    assert size_of(record) == RECORD_OVERHEAD_BYTES + more_bytes


def test_a_handover_has_all_its_room_from_the_beginning(setting: Setting):
    assert has_all_room(setting)


def test_one_record_larger_than_the_bound_is_taken(setting: Setting):
    record = ("t", Payload(1, 10**9), None, (), None, 0, None)
    delivery = setting.handover.put(record, size_of(record))
    setting.emptied()
    assert setting.handover.has_room
    assert not delivery.done()


def test_room_that_never_comes_is_one_error():
    setting = Setting(max_block_ms=10)
    setting.on_loop(setattr, setting.producer, "room", 0)
    for number in range(100):
        setting.put(number)
    with pytest.raises(BufferFull, match=r"max\.block\.ms"):
        setting.loop.call(setting.handover.room)


def test_records_that_get_no_room_in_time_fail():
    setting = Setting(delivery_timeout_ms=10)
    setting.on_loop(setattr, setting.producer, "room", 1)
    deliveries = [setting.put(number) for number in range(3)]
    assert isinstance(deliveries[2].exception(), DeliveryTimeout)
    assert isinstance(deliveries[1].exception(), DeliveryTimeout)
    assert not deliveries[0].done()
    assert setting.handover.has_room
    assert setting.producer.lost == [deliveries[1].exception()]


def test_a_closed_producer_fails_what_still_waits(setting: Setting):
    setting.on_loop(setattr, setting.producer, "room", 0)
    deliveries = [setting.put(number) for number in range(3)]
    setting.settled()
    setting.on_loop(setting.producer.close)
    assert [type(each.exception()) for each in deliveries] == [ClientClosed] * 3


def test_what_is_withdrawn_in_time_is_not_sent(setting: Setting):
    setting.on_loop(setattr, setting.producer, "room", 0)
    kept, withdrawn = setting.put("kept"), setting.put("withdrawn")
    setting.settled()
    setting.handover.withdraw(withdrawn)
    setting.on_loop(setting.producer.give_room, 10)
    setting.emptied()
    assert setting.producer.taken == [("t", "kept")]
    assert withdrawn.done()
    with pytest.raises(KafkaError, match="interrupted before it was sent"):
        withdrawn.result()
    setting.handover.withdraw(kept)
    assert not kept.done()
    assert setting.handover.has_room


def test_a_call_takes_records_whose_wake_up_is_still_to_come(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
):
    """Another thread has said that it wakes the loop, and has not got so far."""
    monkeypatch.setattr(setting.loop, "post", lambda *_: None)
    setting.put("first")
    setting.put("second")
    monkeypatch.undo()
    setting.emptied()
    assert [value for _, value in setting.producer.taken] == ["first", "second"]


@pytest.mark.parametrize("failing", ["appended", "refused", "stalled"])
def test_a_callback_that_raises_costs_no_other_record(setting: Setting, failing: str):
    def raising(*_: object) -> None:
        raise ValueError("the application's")

    producer = setting.producer
    if failing == "refused":
        producer.refuse = lambda value: KafkaError("refused") if value == 1 else None
    elif failing == "stalled":
        producer.room = 0
    else:
        producer.refuse = lambda value: KafkaError("refused") if value in (0, 1) else None
    deliveries = [setting.put(each, raising if each == 1 else None) for each in range(4)]
    if failing == "stalled":
        setting.settled()
        setting.on_loop(setting.handover.fail_all, ClientClosed("closed"))
        assert all(isinstance(each.exception(), ClientClosed) for each in deliveries)
    else:
        setting.emptied()
        assert [value for _, value in producer.taken] == [
            each for each in range(4) if producer.refuse(each) is None
        ]
    assert has_all_room(setting)


def has_all_room(setting: Setting) -> bool:
    """Whether nothing counts any more: there is room beside a record of all bytes but one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setting.loop, "post", lambda *_: None)
        record = ("t", Payload("large", 100 * SIZE_BYTES - 1), None, (), None, 0, None)
        setting.handover.put(record, 100 * SIZE_BYTES - 1)
    return setting.handover.has_room


def test_an_interruption_at_any_place_of_put_leaves_the_handover_usable():
    """The records before and after it arrive, in their order, and all room comes back."""
    place = 0
    while True:
        place += 1
        setting = Setting()
        setting.put("before")
        setting.settled()  # the next record is to wake the loop itself
        was_interrupted = False
        with interrupted_at(place, ("put", "__init__", "post", "check")) as passed:
            try:
                setting.put("interrupted")
            except KeyboardInterrupt:
                was_interrupted = True
        setting.put("after")
        setting.settled()
        taken = [value for _, value in setting.producer.taken]
        assert taken in (["before", "after"], ["before", "interrupted", "after"]), passed[-1]
        assert has_all_room(setting), passed[-1]
        if not was_interrupted:
            break
    assert place > 8


def put_of(setting: Setting, size_bytes: int) -> Delivery:
    record = ("t", Payload("x", size_bytes - RECORD_OVERHEAD_BYTES), None, (), None, 0, None)
    return setting.handover.put(record, size_bytes)


def test_room_is_counted_to_the_last_byte(setting: Setting, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(setting.loop, "post", lambda *_: None)
    put_of(setting, 99 * SIZE_BYTES)
    put_of(setting, SIZE_BYTES - 1)
    assert setting.handover.has_room
    put_of(setting, SIZE_BYTES)
    assert not setting.handover.has_room
    with pytest.raises(BufferFull, match="wait_for_room"):
        put_of(setting, SIZE_BYTES)
    monkeypatch.undo()
    setting.emptied()
    assert len(setting.producer.taken) == 3
    assert has_all_room(setting)


def test_what_is_stalled_counts_with_what_comes_after_it(setting: Setting):
    setting.on_loop(setattr, setting.producer, "room", 0)
    for _ in range(3):
        put_of(setting, 30 * SIZE_BYTES)
        setting.settled()
    put_of(setting, 10 * SIZE_BYTES - 1)
    setting.settled()
    assert setting.handover.has_room
    put_of(setting, 1 + RECORD_OVERHEAD_BYTES)
    assert not setting.handover.has_room
    setting.on_loop(setting.producer.give_room, 5)
    setting.emptied()
    assert has_all_room(setting)


def test_room_is_granted_to_the_thread_that_waited_for_it(setting: Setting):
    setting.on_loop(setattr, setting.producer, "room", 0)
    put_of(setting, 100 * SIZE_BYTES)
    granting = threading.Thread(target=setting.handover.grant)
    granting.start()
    granting.join(DEADLINE_S)
    with pytest.raises(BufferFull):
        setting.put("another thread's")
    setting.handover.grant()
    setting.put("mine")
    with pytest.raises(BufferFull):
        setting.put("one for one")


def test_a_record_that_is_withdrawn_counts_until_the_loop_has_seen_it(setting: Setting):
    setting.on_loop(setattr, setting.producer, "room", 0)
    deliveries = [put_of(setting, 50 * SIZE_BYTES) for _ in range(2)]
    setting.settled()
    for each in deliveries:
        assert not each.done()
        assert each.size_bytes == 50 * SIZE_BYTES
        setting.handover.withdraw(each)
        assert each.size_bytes == 50 * SIZE_BYTES
        assert isinstance(each.exception(), KafkaError)
    setting.emptied()  # there is no record that it would wait for
    setting.on_loop(setting.producer.give_room, 5)
    setting.settled()
    setting.on_loop(setting.handover.fail_all, ClientClosed("closed"))
    assert has_all_room(setting)
    assert setting.producer.taken == []
    with pytest.raises(KafkaError, match="interrupted before it was sent"):
        deliveries[0].result()


# -- on virtual time ---------------------------------------------------------------------------


class OneLoop:
    """A portal to the loop that runs here."""

    def __init__(self) -> None:
        self.posts = 0

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        self.posts += 1
        asyncio.get_running_loop().call_soon(callback, *arguments)


class Timed:
    """A handover of one hundred records before a fake producer without room."""

    def __init__(self, producer: FakeProducer | None = None) -> None:
        self.portal = OneLoop()
        self.producer = producer or FakeProducer()
        self.producer.room = 0
        self.handover = Handover(
            self.portal,  # type: ignore[arg-type]
            self.producer,  # type: ignore[arg-type]
            limit_bytes=100 * SIZE_BYTES,
            max_block_ms=200,
            delivery_timeout_ms=100,
        )
        self.heard: list[tuple[Any, Exception | None]] = []

    def put(self, value: Any) -> Delivery:
        def heard(metadata: object, error: Exception | None) -> None:
            assert metadata is None
            self.heard.append((value, error))

        return self.handover.put(("t", Payload(value), None, (), None, 0, heard), SIZE_BYTES)

    @property
    def taken(self) -> list[Any]:
        return [value for _, value in self.producer.taken]


async def test_records_wait_for_room_as_long_as_a_delivery_may_take():
    timed = Timed()
    deliveries = [timed.put(each) for each in range(2)]
    await pass_time(99.95)
    assert not any(each.done() for each in deliveries)
    await pass_time(0.1)
    errors = [each.exception() for each in deliveries]
    assert all(isinstance(each, DeliveryTimeout) for each in errors)
    assert errors[0] is errors[1]
    assert timed.heard == [(0, errors[0]), (1, errors[0])]
    assert timed.producer.lost == errors[:1], "the transaction hears of it once"
    timed.producer.give_room(5)
    timed.put(2)
    await pass_time(1)
    assert timed.taken == [2]


async def test_each_record_that_is_taken_gives_the_rest_its_whole_time():
    timed = Timed()
    deliveries = [timed.put(each) for each in range(3)]
    for count in (1, 2):
        await pass_time(90)
        timed.producer.give_room(1)
        await pass_time(1)
        assert timed.taken == list(range(count))
    await pass_time(90)
    assert not deliveries[2].done()
    await pass_time(15)
    assert isinstance(deliveries[2].exception(), DeliveryTimeout)
    assert timed.heard == [(2, deliveries[2].exception())]


async def test_room_that_is_too_little_is_asked_for_again_in_a_while():
    class Choosy(FakeProducer):
        asked = 0

        def append(self, topic: str, value: Payload, *rest: Any) -> FakeDelivery | None:
            self.asked += 1
            return (
                None
                if value.what == "large" and self.asked < 5
                else super().append(topic, value, *rest)
            )

    producer = Choosy()
    timed = Timed(producer)
    producer.room = 5
    timed.put("large")
    await pass_time(12)
    assert (producer.asked, timed.taken) == (4, [])
    await pass_time(5)
    assert timed.taken == ["large"]


async def test_room_that_is_not_there_in_time_is_waited_for_again():
    """The limit here is the delivery's, not the one of `wait_for_room`."""

    class Impatient(FakeProducer):
        async def wait_for_room(self) -> None:
            try:
                async with asyncio.timeout(0.02):
                    await super().wait_for_room()
            except TimeoutError:
                raise BufferFull("max.block.ms") from None

    timed = Timed(Impatient())
    delivery = timed.put("patient")
    await pass_time(70)
    assert not delivery.done()
    timed.producer.give_room(1)
    await pass_time(1)
    assert timed.taken == ["patient"]


async def test_what_came_during_a_stall_goes_when_it_is_over_without_a_wake_up():
    timed = Timed()
    timed.put(0)
    await pass_time(1)
    assert timed.portal.posts == 1
    for number in (1, 2):
        timed.put(number)
        await pass_time(1)
    assert timed.portal.posts == 1
    timed.producer.give_room(10)
    await pass_time(1)
    assert timed.taken == [0, 1, 2]
    timed.put(3)
    assert timed.portal.posts == 2
    await pass_time(1)
    assert timed.taken == [0, 1, 2, 3]
    assert timed.handover.has_room


async def test_a_call_waits_for_the_records_before_it_and_no_others():
    timed = Timed()
    timed.put(0)
    timed.put(1)
    calling = asyncio.ensure_future(timed.handover.emptied())
    await pass_time(1)
    timed.put(2)
    timed.producer.give_room(1)
    await pass_time(1)
    assert not calling.done()
    timed.producer.give_room(1)
    await pass_time(1)
    assert calling.done()
    assert timed.taken == [0, 1]
    timed.handover.fail_all(ClientClosed("closed"))


async def test_a_call_behind_records_that_fail_goes_on():
    timed = Timed()
    timed.put(0)
    calling = asyncio.ensure_future(timed.handover.emptied())
    await pass_time(1)
    error = ClientClosed("closed")
    timed.handover.fail_all(error)
    await pass_time(1)
    assert calling.done()
    assert timed.heard == [(0, error)]
    assert timed.handover.has_room


@pytest.mark.parametrize("comes", [False, True])
async def test_room_is_waited_for_as_long_as_a_call_may_block(comes: bool):
    timed = Timed()
    timed.handover._delivery_timeout_s = 1_000.0
    for number in range(100):
        timed.put(number)
    waiting = asyncio.ensure_future(timed.handover.room())
    await pass_time(199.9)
    assert not waiting.done()
    if comes:
        timed.producer.give_room(1)
        await pass_time(0.01)
        assert waiting.done()
        await waiting
        await timed.handover.room()
    else:
        await pass_time(0.2)
        with pytest.raises(BufferFull, match=r"within 200 ms \(max\.block\.ms\)"):
            await waiting
    timed.handover.fail_all(ClientClosed("closed"))
    await pass_time(1)


async def test_a_producer_that_is_of_no_use_fails_what_waits_and_what_comes():
    timed = Timed()
    first = timed.put(0)
    await pass_time(1)
    timed.producer.close()
    await pass_time(1)
    second = timed.put(1)
    await pass_time(1)
    assert first.exception() is second.exception() is timed.producer.closed
    assert [value for value, _ in timed.heard] == [0, 1]
    assert timed.producer.lost == [], "it knows"
    assert timed.handover.has_room
