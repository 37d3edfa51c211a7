"""Eight threads and real signals on one blocking producer; a blocking consumer beside it.

Owns what the threads do. Must not judge (`account` does). Invariant: the seed decides what is done,
the machine when.
"""

from __future__ import annotations

import _weakrefset
import contextlib
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from random import Random
from types import FrameType
from typing import Any, Final, TypeVar

from moldau.client.errors import BufferFull, ClientClosed, KafkaError
from moldau.client.records import RecordMetadata, TopicPartition
from moldau.client.sync import Consumer, Producer
from tests.fake_broker import FakeCluster, ThreadedCluster
from tests.unit.client.faults.harness import CONSUMER, PRODUCER
from tests.unit.client.fire.account import (
    Account,
    Name,
    Sent,
    check_block,
    name_of,
    stored_in,
    value_of,
)
from tests.unit.client.sync.interruptions import PRODUCT

Result = TypeVar("Result")

THREAD_COUNT: Final = 8
PARTITION_COUNT: Final = 4
SWITCH_INTERVAL_S: Final = 1e-6
CALL_LIMIT_S: Final = 60.0
"""Twice what the settings allow a call; what takes longer hangs."""
BUFFER_BYTES: Final = 64 * 1024
"""Little: senders often wait for room."""
LONGEST_BURST: Final = 40
LONGEST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_OF_TRANSACTIONS_S: Final = 0.2
TOPIC: Final = "t"
WEAK_FILES: Final = frozenset((weakref.__file__, _weakrefset.__file__))


class Interrupted(Exception):
    """A signal struck inside the call; it is unknown how far it had got."""


class Gun:
    """Sends SIGINT to the main thread; it strikes inside the product's calls only."""

    def __init__(
        self, account: Account, random: Random, longest_pause_s: float = LONGEST_PAUSE_S
    ) -> None:
        self._account = account
        self._random = random
        self._longest_pause_s = longest_pause_s
        self._is_armed = False
        self.has_struck = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._shoot, name="gun")
        self._main = threading.get_ident()

    def __enter__(self) -> Gun:
        self._before = signal.signal(signal.SIGINT, self._struck)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        signal.signal(signal.SIGINT, self._before)

    def _shoot(self) -> None:
        while not self._stop.wait(self._random.random() * self._longest_pause_s):
            signal.pthread_kill(self._main, signal.SIGINT)

    def _struck(self, number: int, frame: FrameType | None) -> None:
        if self._is_armed and _is_in_product(frame):
            self._is_armed = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def aimed(self) -> Iterator[None]:
        """A block that a signal may end. Raises: Interrupted"""
        try:
            self._is_armed = True
            yield
            self._is_armed = False
        except KeyboardInterrupt:
            self._account.count("interruptions")
            self.has_struck.set()
            raise Interrupted from None
        finally:
            self._is_armed = False


def _is_in_product(frame: FrameType | None) -> bool:
    """Not in `__del__`, nor in a callback of a weak reference or of the garbage collector: Python
    drops what they raise, Ctrl-C too.
    """
    dropping = {getattr(each, "__code__", None) for each in gc.callbacks}
    files = set()
    while frame is not None:
        if frame.f_code in dropping or frame.f_code.co_name == "__del__":
            return False
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return files.isdisjoint(WEAK_FILES) and any(each.startswith(PRODUCT) for each in files)


@contextlib.contextmanager
def _unaimed() -> Iterator[None]:
    yield


class Sender:
    """One thread's work: so many records, and calls between them."""

    def __init__(
        self,
        number: int,
        producer: Producer,
        account: Account,
        random: Random,
        record_count: int,
        gun: Gun | None,
    ) -> None:
        self._number = number
        self._producer = producer
        self._account = account
        self._random = random
        self._left = record_count
        self._next = 0
        self._gun = gun
        self._aimed: Callable[[], Any] = _unaimed if gun is None else gun.aimed
        self._unsettled: list[tuple[Sent, Any]] = []

    def run(self) -> None:
        """Everything, unless the producer is closed before; more until a signal has struck."""
        try:
            while self._left > 0 or not (self._gun is None or self._gun.has_struck.is_set()):
                self.step()
        except ClientClosed:
            self._account.count("ended by close")
        except Exception as error:  # noqa: BLE001 - reported at the end
            self._account.wrong(f"sender {self._number}: {error!r}")

    def step(self) -> None:
        """A burst of records, or another call."""
        chance = self._random.random()
        if chance < 0.8:
            self.send_some()
        elif chance < 0.87:
            self.flush()
        elif chance < 0.94:
            self._send()
        else:
            self._ask()

    def send_some(self) -> list[Name]:
        """Some records; those that were handed over for certain."""
        names = []
        for _ in range(min(self._left, self._random.randint(1, LONGEST_BURST))):
            name = self._send_nowait()
            if name is not None:
                names.append(name)
        return names

    def _new(self) -> tuple[Name, Sent]:
        name = self._number, self._next
        self._next += 1
        self._left -= 1
        return name, self._account.new(*name, self._random.randrange(PARTITION_COUNT))

    def _send_nowait(self) -> Name | None:
        name, sent = self._new()
        callback = sent.tell_and_raise if self._random.random() < 0.05 else sent.tell
        while True:
            try:
                with self._account.timed("send_nowait", CALL_LIMIT_S), self._aimed():
                    delivery = self._producer.send_nowait(
                        TOPIC, value_of(name), partition=sent.partition, on_delivery=callback
                    )
            except BufferFull:
                try:
                    self._call("wait_for_room", self._producer.wait_for_room)
                except ClientClosed:
                    sent.is_refused = True
                    raise
            except ClientClosed:
                sent.is_refused = True
                raise
            except Interrupted:
                return None
            else:
                sent.is_sure = True
                self._unsettled.append((sent, delivery))
                return name

    def _send(self) -> None:
        name, sent = self._new()
        sent.has_callback = False
        try:
            with self._account.timed("send", CALL_LIMIT_S), self._aimed():
                metadata = self._producer.send(TOPIC, value_of(name), partition=sent.partition)
        except Interrupted:
            return
        except KafkaError as error:
            sent.outcomes.append(error)
            if isinstance(error, ClientClosed):
                raise
        else:
            sent.outcomes.append(metadata)

    def _ask(self) -> None:
        """For the outcome of any record; the delivery says the same as the callback."""
        if not self._unsettled:
            return
        sent, delivery = self._unsettled[self._random.randrange(len(self._unsettled))]
        error = self._call("exception", delivery.exception)
        if error is not INTERRUPTED and delivery.done() and sent.outcomes:
            told = sent.outcomes[0]
            if error is not (None if isinstance(told, RecordMetadata) else told):
                self._account.wrong(f"the callback was told {told!r}, the delivery says {error!r}")

    def flush(self) -> None:
        """Everything that this thread has handed over is settled then."""
        if self._call("flush", self._producer.flush) is INTERRUPTED:
            return
        open_count = sum(not delivery.done() for _, delivery in self._unsettled)
        if open_count:
            self._account.wrong(f"flush returned before {open_count} records were settled")
        self._account.count("flushes")
        self._unsettled.clear()

    def _call(self, what: str, call: Callable[[], Result]) -> Result | Any:
        """The call's result, or INTERRUPTED."""
        try:
            with self._account.timed(what, CALL_LIMIT_S), self._aimed():
                return call()
        except Interrupted:
            return INTERRUPTED


INTERRUPTED: Final = object()


class Transactor(Sender):
    """Sends within transactions, which the other threads' records get into or not."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.blocks: list[tuple[list[Name], bool | None]] = []
        """The records of each block, and whether they are committed; None: unknown."""

    def step(self) -> None:
        names: list[Name] = []
        expected: bool | None = None
        is_to_fail = self._random.random() < 0.2
        try:
            with (
                self._account.timed("transaction", 2 * CALL_LIMIT_S),
                self._aimed(),
                self._producer.transaction(),
            ):
                for _ in range(self._random.randint(0, 3)):
                    self._send_in(names)
                if is_to_fail:
                    raise LookupError("the application's")
            expected = True
            self._account.count("commits")
        except LookupError:
            expected = False
            self._account.count("aborts")
        except Interrupted:
            self._account.count("interrupted transactions")
        self.blocks.append((names, expected))

    def _send_in(self, names: list[Name]) -> None:
        for _ in range(self._random.randint(1, LONGEST_BURST)):
            name, sent = self._new()
            while True:
                try:
                    self._producer.send_nowait(
                        TOPIC, value_of(name), partition=sent.partition, on_delivery=sent.tell
                    )
                except BufferFull:
                    self._producer.wait_for_room()
                else:
                    break
            sent.is_sure = True
            names.append(name)


def produce(seed: int, record_count: int, *, is_transactional: bool) -> Account:
    """One round: a producer, its threads, its end; what was wrong."""
    random = Random(f"blocking {seed} {is_transactional}")
    account = Account()
    settings: dict[str, Any] = {**PRODUCER, "buffer_memory": BUFFER_BYTES}
    if is_transactional:
        settings["transactional_id"] = "fire"
    interval_s = sys.getswitchinterval()
    with ThreadedCluster(lambda: FakeCluster(2, topics={TOPIC: PARTITION_COUNT})) as threaded:
        producer = Producer(threaded.cluster.bootstrap_servers, **settings)
        each = record_count // THREAD_COUNT
        closer = None if is_transactional or random.random() < 0.5 else random.randrange(1, 8)
        try:
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            pause_s = LONGEST_PAUSE_OF_TRANSACTIONS_S if is_transactional else LONGEST_PAUSE_S
            with Gun(account, Random(random.random()), pause_s) as gun:
                kind = Transactor if is_transactional else Sender
                senders: list[Sender] = [
                    kind(0, producer, account, Random(random.random()), each, gun)
                ]
                for number in range(1, THREAD_COUNT):
                    share = each // 2 if number == closer else each
                    senders.append(
                        Sender(number, producer, account, Random(random.random()), share, None)
                    )

                def run(sender: Sender, number: int) -> None:
                    sender.run()
                    if number == closer:
                        gun.has_struck.wait(CALL_LIMIT_S)
                        with account.timed("close", CALL_LIMIT_S):
                            producer.close()
                        account.count("early closes")

                threads = [
                    threading.Thread(target=run, args=(sender, number), name=f"sender {number}")
                    for number, sender in enumerate(senders)
                    if number
                ]
                for thread in threads:
                    thread.start()
                run(senders[0], 0)
                for thread in threads:
                    thread.join()
            with account.timed("close", CALL_LIMIT_S):
                producer.close()
        finally:
            sys.setswitchinterval(interval_s)
        stored = threaded.call(lambda cluster: stored_in(cluster, TOPIC))
        account.check(stored, is_transactional=is_transactional)
        if is_transactional:
            visible = threaded.call(lambda c: stored_in(c, TOPIC, committed_only=True))
            committed = {name_of(value) for records in visible.values() for _, value in records}
            assert isinstance(senders[0], Transactor)
            for names, expected in senders[0].blocks:
                check_block(account, names, committed, expected)
    return account


def consume(seed: int, record_count: int) -> Account:
    """Polls that signals strike: every record comes once, in order."""
    random = Random(f"consuming {seed}")
    account = Account()
    with ThreadedCluster(lambda: FakeCluster(2, topics={TOPIC: PARTITION_COUNT})) as threaded:
        each = record_count // PARTITION_COUNT
        for partition in range(PARTITION_COUNT):
            for first in range(0, each, 500):
                values = [value_of((partition, n)) for n in range(first, min(first + 500, each))]
                threaded.call(
                    lambda cluster, values=values, partition=partition: cluster.fill(
                        TOPIC, values, partition
                    )
                )
        next_numbers = dict.fromkeys(range(PARTITION_COUNT), 0)
        interval_s = sys.getswitchinterval()
        with Consumer(threaded.cluster.bootstrap_servers, **CONSUMER) as consumer:
            consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITION_COUNT)])
            try:
                sys.setswitchinterval(SWITCH_INTERVAL_S)
                with Gun(account, Random(random.random())) as gun:
                    # A poll that waits in vain is interrupted in the end, if none was before.
                    while (
                        any(number < each for number in next_numbers.values())
                        or not account.counts["interruptions"]
                    ):
                        for record in _polled(consumer, random, account, gun):
                            expected = next_numbers[record.partition]
                            if name_of(record.value) != (record.partition, expected):
                                account.wrong(f"{record.value} came instead of {expected}")
                                return account
                            next_numbers[record.partition] += 1
            finally:
                sys.setswitchinterval(interval_s)
    account.count("records", sum(next_numbers.values()))
    return account


def _polled(consumer: Consumer, random: Random, account: Account, gun: Gun) -> list[Any]:
    """What one poll gave. A signal behind the call ends the block, and `got` has the records."""
    got: Any = None
    is_one = random.random() < 0.5
    limit = random.randint(1, 200)
    with contextlib.suppress(Interrupted), account.timed("poll", CALL_LIMIT_S), gun.aimed():
        got = consumer.getone() if is_one else consumer.getmany(limit, timeout_ms=1_000)
    if got is None:
        return []
    return [got] if is_one else [record for records in got.values() for record in records]
