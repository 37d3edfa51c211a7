"""The runtime over the real parts of a broker: partitions, their high watermarks, logs on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.coordinator.coordinators import replica_ports
from moldau.broker.coordinator.core.result import CoordinatorResult, Producer, TransactionEnd
from moldau.broker.coordinator.runtime import CoordinatorRuntime
from moldau.protocol.coordinator_records import CoordinatorLog, classic_groups
from moldau.protocol.errors import ErrorCode
from tests.kit.waiting import until_async
from tests.unit.broker.coordinator.harness import SETTINGS, Caller, running_data_path
from tests.unit.broker.coordinator.toy import ToyState, commit_record, read, wait_inside, write
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath

TOY_LOG = CoordinatorLog("toy", classic_groups.OffsetCommitKey(), classic_groups)
"""Offset commits in their own topic, which no other coordinator of the broker loads."""


class Toy:
    """A toy coordinator on a data path."""

    def __init__(self, broker: DataPath) -> None:
        self.broker = broker
        self.states: list[ToyState] = []
        self.runtime: CoordinatorRuntime[ToyState] = CoordinatorRuntime(
            TOY_LOG,
            self._make,
            lambda index, command: None,
            SETTINGS,
            replica_ports(broker.manager, broker.background, broker.timers, broker.registry),
        )

    def _make(self, partition_index: int) -> ToyState:
        self.states.append(ToyState(partition_index))
        return self.states[-1]

    @property
    def state(self) -> ToyState:
        return self.states[-1]

    def tell(self) -> None:
        """What the last change of metadata means to it (the data path knows the others)."""
        self.runtime.on_metadata_update(None, self.broker.metadata.image)  # type: ignore[arg-type]

    async def loaded(self) -> None:
        await until_async(lambda: any(True for _ in self.runtime.states()))

    def call(self, operation_of: Any, *args: Any, **options: Any) -> Caller:
        caller = Caller(str(args))
        assert self.runtime.call(0, operation_of(caller, *args, **options)) is ErrorCode.NONE
        return caller


@asynccontextmanager
async def running_toy(directory: Path, **topic: Any) -> AsyncIterator[Toy]:
    async with running_data_path(directory) as broker:
        toy = Toy(broker)
        broker.create_topic("toy", cleanup_policy="compact", **topic)
        toy.tell()
        try:
            yield toy
        finally:
            await toy.runtime.close()


async def test_written_here_and_loaded_by_the_next_one(tmp_path: Path) -> None:
    async with running_toy(tmp_path) as toy:
        await toy.loaded()
        assert toy.call(write, "g", 1).answer is ErrorCode.NONE
        toy.call(write, "g", 2, producer=Producer(5, 0))
        outcomes: list[ErrorCode] = []
        toy.runtime.complete_transaction(
            0, TransactionEnd(Producer(5, 0), True, 3, 0), outcomes.append
        )
        assert outcomes == [ErrorCode.NONE]
        assert toy.call(read, "g").answer == (2,)
        assert toy.call(write, "h", 3).answer is ErrorCode.NONE
        assert toy.broker.log("toy").last_stable_offset == 4
    async with running_toy(tmp_path) as toy:
        await toy.loaded()
        assert toy.state.offsets == {"g": 2, "h": 3}
        assert [offset for offset, _, _ in toy.state.replayed] == [0, 1, 3]


async def test_answers_wait_for_the_follower(tmp_path: Path) -> None:
    replicas = (BROKER_ID, OTHER_BROKER_ID)
    async with running_toy(tmp_path, replicas=replicas, min_insync_replicas="2") as toy:
        await toy.loaded()
        writer = toy.call(write, "g", 1)
        reader = toy.call(read, "g")
        toy.broker.follower_has("toy", OTHER_BROKER_ID, 0)
        assert not writer.is_answered
        toy.broker.follower_has("toy", OTHER_BROKER_ID, 1)
        await until_async(lambda: reader.is_answered)
        assert writer.answer is ErrorCode.NONE
        assert reader.answer == (1,)
        toy.broker.change_partition("toy", isr=[BROKER_ID])
        refused = toy.call(write, "g", 2)
        assert refused.answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert toy.call(read, "g").answer == (1,)


async def test_another_broker_becomes_leader(tmp_path: Path) -> None:
    async with running_toy(tmp_path, replicas=(BROKER_ID, OTHER_BROKER_ID)) as toy:
        await toy.loaded()
        writer = toy.call(write, "g", 1)
        inside = toy.call(wait_inside)
        toy.broker.change_partition("toy", leader=OTHER_BROKER_ID)
        assert toy.runtime.call(0, read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR, "at once"
        assert not writer.is_answered
        toy.tell()
        assert writer.answer is ErrorCode.NOT_COORDINATOR
        assert inside.answer is ErrorCode.NOT_COORDINATOR
        toy.broker.change_partition("toy", leader=BROKER_ID)
        toy.tell()
        await toy.loaded()
        assert toy.state.offsets == {"g": 1}
        assert toy.runtime.coordinator_epoch(0) == 2


async def test_the_same_leader_in_a_new_epoch(tmp_path: Path) -> None:
    async with running_toy(tmp_path, replicas=(BROKER_ID, OTHER_BROKER_ID)) as toy:
        await toy.loaded()
        writer = toy.call(write, "g", 1)
        toy.broker.change_partition("toy", leader=BROKER_ID)
        toy.tell()
        assert len(toy.states) == 1
        assert toy.runtime.coordinator_epoch(0) == 1
        toy.broker.follower_has("toy", OTHER_BROKER_ID, 1)
        await until_async(lambda: writer.is_answered)
        assert writer.answer is ErrorCode.NONE
        assert toy.runtime.call(0, write(Caller(), "g", 2)) is ErrorCode.NONE


async def test_a_topic_that_goes_away(tmp_path: Path) -> None:
    async with running_toy(tmp_path, replicas=(BROKER_ID, OTHER_BROKER_ID)) as toy:
        await toy.loaded()
        writer = toy.call(write, "g", 1)
        toy.broker.delete_topic("toy")
        toy.tell()
        assert writer.answer is ErrorCode.NOT_COORDINATOR
        assert toy.runtime.call(0, read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR


async def test_a_failed_log_is_not_led_any_more(tmp_path: Path) -> None:
    async with running_toy(tmp_path, replicas=(BROKER_ID, OTHER_BROKER_ID)) as toy:
        await toy.loaded()
        writer = toy.call(write, "g", 1)
        toy.broker.log("toy").take_offline("the test says so")
        assert toy.runtime.call(0, read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR
        await toy.runtime.close()
        assert writer.answer is ErrorCode.NOT_COORDINATOR


async def test_a_batch_larger_than_the_topic_takes(tmp_path: Path) -> None:
    async with running_toy(tmp_path, max_message_bytes="1000") as toy:
        await toy.loaded()
        caller = Caller()

        def operation(state: ToyState, now_ms: float) -> CoordinatorResult:
            return CoordinatorResult.reply_when_committed(
                caller,
                ErrorCode.NONE,
                on_error=lambda error: error,
                records=[commit_record("g", 1, "m" * 1_000)],
            )

        toy.runtime.call(0, operation)
        assert caller.answer is ErrorCode.MESSAGE_TOO_LARGE
        assert toy.state.replayed == []


def _as_it_is(result: CoordinatorResult, state: ToyState, now_ms: float) -> CoordinatorResult:
    return result


async def test_a_big_log_of_many_segments_and_transactions(tmp_path: Path) -> None:
    """Read again in a new process's eyes: nothing is verified yet, most of it is cold."""
    size = 8_000
    async with running_toy(tmp_path, segment_bytes=str(1024 * 1024)) as toy:
        await toy.loaded()
        done: list[ErrorCode] = []
        for number in range(0, size, 40):
            producer = Producer(number % 3, 0) if number % 80 else None
            records = [
                commit_record(f"g{n % 500}", n, "m" * 400) for n in range(number, number + 40)
            ]
            result = CoordinatorResult(records=records, producer=producer)
            toy.runtime.call(0, partial(_as_it_is, result))
            if producer is not None:
                toy.runtime.complete_transaction(
                    0, TransactionEnd(producer, number % 200 != 0, 0, 0), done.append
                )
        assert set(done) == {ErrorCode.NONE}
        assert len(toy.broker.log("toy").segments) > 3
        expected = dict(toy.state.offsets)
    async with running_toy(tmp_path) as toy:
        await toy.loaded()
        assert toy.state.offsets == expected
        assert len(toy.state.replayed) == size


async def test_closing_while_it_loads(tmp_path: Path) -> None:
    async with running_toy(tmp_path) as toy:
        await toy.loaded()
        for number in range(50):
            toy.call(write, "g", number)
    async with running_toy(tmp_path) as toy:
        refused = toy.runtime.call(0, read(Caller(), "g"))
        assert refused is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await toy.runtime.close()
        assert toy.runtime.call(0, read(Caller(), "g")) is ErrorCode.NOT_COORDINATOR
        assert not toy.state.is_loaded


@pytest.mark.parametrize("codec", [1, 4])
async def test_the_codec_of_the_batches(tmp_path: Path, codec: int) -> None:

    from moldau.protocol.records import Codec, iter_batches

    async with running_toy(tmp_path) as toy:
        await toy.loaded()
        toy.runtime._settings = SETTINGS._replace(codec=Codec(codec))
        toy.broker.change_partition("toy", leader=OTHER_BROKER_ID)
        toy.tell()
        toy.broker.change_partition("toy", leader=BROKER_ID)
        toy.tell()
        await toy.loaded()
        toy.call(write, "g", 1)
        result = toy.broker.log("toy").read(0, max_bytes=10_000)
        data = result.records.read()
        result.records.release()
        assert [header.codec for _, header in iter_batches(data)] == [Codec(codec)]
