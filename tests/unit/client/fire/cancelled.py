"""Tasks of one asyncio producer and consumer, cancelled at any await.

Owns what the tasks do. Must not judge (`account` does).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Final

from moldau.client import Consumer, Producer, TopicPartition
from moldau.client.errors import BufferFull, ClientClosed, KafkaError
from tests.fake_broker import FakeCluster
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
from tests.unit.client.fire.blocking import (
    BUFFER_BYTES,
    CALL_LIMIT_S,
    INTERRUPTED,
    LONGEST_BURST,
    PARTITION_COUNT,
    TOPIC,
)

TASK_COUNT: Final = 8
MOST_TURNS: Final = 40


class Canceller:
    """Awaits things, and cancels some of them after some turns of the loop."""

    def __init__(self, account: Account, random: Random) -> None:
        self._account = account
        self._random = random

    async def call(self, what: str, work: Coroutine[Any, Any, Any], chance: float = 0.3) -> Any:
        """Its result, or INTERRUPTED."""
        with self._account.timed(what, CALL_LIMIT_S):
            task = asyncio.ensure_future(work)
            if self._random.random() < chance:
                for _ in range(self._random.randrange(MOST_TURNS)):
                    await asyncio.sleep(0)
                task.cancel()
            try:
                return await task
            except asyncio.CancelledError:
                self._account.count("cancellations")
                return INTERRUPTED


class Sender:
    """One task's work."""

    def __init__(
        self, number: int, producer: Producer, account: Account, random: Random, record_count: int
    ) -> None:
        self._number = number
        self._producer = producer
        self._account = account
        self._random = random
        self._canceller = Canceller(account, random)
        self._left = record_count
        self._next = 0
        self._unsettled: list[Any] = []

    async def run(self) -> None:
        """Everything, unless the producer is closed before."""
        try:
            while self._left > 0:
                await self.step()
        except ClientClosed:
            self._account.count("ended by close")
        except Exception as error:  # noqa: BLE001 - reported at the end
            self._account.wrong(f"sender {self._number}: {error!r}")

    async def step(self) -> None:
        """A burst of records, or another call."""
        chance = self._random.random()
        if chance < 0.6:
            for _ in range(min(self._left, self._random.randint(1, LONGEST_BURST))):
                await self._send_nowait()
        elif chance < 0.9:
            await self._send()
        else:
            await self._flush()

    def _new(self) -> tuple[Name, Sent]:
        name = self._number, self._next
        self._next += 1
        self._left -= 1
        return name, self._account.new(*name, self._random.randrange(PARTITION_COUNT))

    async def _send_nowait(self) -> None:
        name, sent = self._new()
        callback = sent.tell_and_raise if self._random.random() < 0.05 else sent.tell
        while True:
            try:
                delivery = self._producer.send_nowait(
                    TOPIC, value_of(name), partition=sent.partition, on_delivery=callback
                )
            except BufferFull:
                try:
                    await self._canceller.call("wait_for_room", self._producer.wait_for_room())
                except KafkaError as error:  # no transaction is open any more, or it is the end
                    sent.is_refused = True
                    if isinstance(error, ClientClosed):
                        raise
                    return
            except KafkaError as error:
                sent.is_refused = True
                if isinstance(error, ClientClosed):
                    raise
                return
            else:
                sent.is_sure = True
                self._unsettled.append(delivery)
                return

    async def _send(self) -> None:
        name, sent = self._new()
        sent.has_callback = False
        try:
            metadata = await self._canceller.call(
                "send", self._producer.send(TOPIC, value_of(name), partition=sent.partition)
            )
        except KafkaError as error:
            sent.outcomes.append(error)
            if isinstance(error, ClientClosed):
                raise
        else:
            if metadata is not INTERRUPTED:
                sent.outcomes.append(metadata)

    async def _flush(self) -> None:
        before = list(self._unsettled)
        if await self._canceller.call("flush", self._producer.flush()) is INTERRUPTED:
            return
        open_count = sum(not delivery.done() for delivery in before)
        if open_count:
            self._account.wrong(f"flush returned before {open_count} records were settled")
        self._account.count("flushes")
        self._unsettled.clear()


class Transactor(Sender):
    """Sends within transactions."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.blocks: list[tuple[list[Name], bool | None]] = []

    async def step(self) -> None:
        names: list[Name] = []
        is_to_fail = self._random.random() < 0.2
        expected: bool | None = None
        try:
            outcome = await self._canceller.call("transaction", self._block(names, is_to_fail))
            if outcome is not INTERRUPTED:
                expected = True
                self._account.count("commits")
        except LookupError:
            expected = False
            self._account.count("aborts")
        self.blocks.append((names, expected))

    async def _block(self, names: list[Name], is_to_fail: bool) -> None:
        async with self._producer.transaction():
            for _ in range(self._random.randint(0, 3)):
                for _ in range(self._random.randint(1, LONGEST_BURST)):
                    name, sent = self._new()
                    sent.has_callback = False
                    while True:
                        try:
                            self._producer.send_nowait(
                                TOPIC, value_of(name), partition=sent.partition
                            )
                        except BufferFull:
                            await self._producer.wait_for_room()
                        else:
                            break
                    names.append(name)
                await asyncio.sleep(0)
            if is_to_fail:
                raise LookupError("the application's")


async def produce(seed: int, record_count: int, *, is_transactional: bool) -> Account:
    """One round: a producer, its tasks, a consumer beside them; what was wrong."""
    random = Random(f"cancelled {seed} {is_transactional}")
    account = Account()
    settings: dict[str, Any] = {**PRODUCER, "buffer_memory": BUFFER_BYTES}
    if is_transactional:
        settings["transactional_id"] = "fire"
    async with FakeCluster(2, topics={TOPIC: PARTITION_COUNT}) as cluster:
        producer = Producer(cluster.bootstrap_servers, **settings)
        each = record_count // TASK_COUNT
        kind = Transactor if is_transactional else Sender
        senders = [kind(0, producer, account, Random(random.random()), each)] + [
            Sender(number, producer, account, Random(random.random()), each)
            for number in range(1, TASK_COUNT)
        ]
        is_closed_early = not is_transactional and random.random() < 0.5
        reader = Reader(cluster, account, Random(random.random()))
        reading = asyncio.ensure_future(reader.run())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sender.run()) for sender in senders]
            if is_closed_early:
                while len(account.sent) < record_count * 0.9:
                    await asyncio.sleep(0)
                    if all(task.done() for task in tasks):
                        break
                with account.timed("close", CALL_LIMIT_S):
                    await producer.close()
                account.count("early closes")
        with account.timed("close", CALL_LIMIT_S):
            await producer.close()
        stored = stored_in(cluster, TOPIC)
        account.check(stored, is_transactional=is_transactional)
        visible = stored_in(cluster, TOPIC, committed_only=True)
        if is_transactional:
            committed = {name_of(value) for records in visible.values() for _, value in records}
            assert isinstance(senders[0], Transactor)
            for names, expected in senders[0].blocks:
                check_block(account, names, committed, expected)
        reader.wanted_count = sum(map(len, visible.values()))
        with account.timed("reading to the end", CALL_LIMIT_S):
            await reading
        for partition, records in visible.items():
            got = reader.got[partition]
            if got != records:
                account.wrong(
                    f"the consumer had {len(got)} of {len(records)} records of partition "
                    f"{partition}, or others"
                )
    return account


class Reader:
    """Polls of one consumer, cancelled at random."""

    def __init__(self, cluster: FakeCluster, account: Account, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._canceller = Canceller(account, random)
        self.got: dict[int, list[tuple[int, bytes]]] = {n: [] for n in range(PARTITION_COUNT)}
        self.wanted_count: int | None = None
        """How many there are, once that is known."""

    async def run(self) -> None:
        """Run until everything has come that there is."""
        async with Consumer(
            self._cluster.bootstrap_servers, isolation_level="read_committed", **CONSUMER
        ) as consumer:
            consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITION_COUNT)])
            while sum(map(len, self.got.values())) != self.wanted_count:
                limit = self._random.randint(1, 500)
                polled = await self._canceller.call(
                    "getmany", consumer.getmany(limit, timeout_ms=100), chance=0.5
                )
                if polled is INTERRUPTED:
                    continue
                for name, records in polled.items():
                    self.got[name.partition] += [(each.offset, each.value) for each in records]
