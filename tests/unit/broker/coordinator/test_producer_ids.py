"""A producer id at hand, and those who wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from moldau.broker.coordinator.producer_ids import (
    ProducerIds,
    ProducerIdSource,
    ProducerIdsUnavailable,
)


class Controller:
    """Blocks of two ids."""

    def __init__(self) -> None:
        self.next_id = 10
        self.is_available = True
        self.call_count = 0

    async def allocate_block(self) -> range:
        self.call_count += 1
        await asyncio.sleep(0)
        if not self.is_available:
            raise ProducerIdsUnavailable("nobody there")
        self.next_id += 2
        return range(self.next_id - 2, self.next_id)


class Source:
    def __init__(self) -> None:
        self.controller = Controller()
        self.tasks: list[asyncio.Task[None]] = []
        self.producer_ids = ProducerIds(self.controller.allocate_block)
        self.source = ProducerIdSource(self.producer_ids, self._start)
        self.used: list[int] = []

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def take(self) -> None:
        spare = self.source.spare
        self.used.append(spare)
        if spare != -1:
            self.source.use()

    async def settle(self) -> None:
        while any(not task.done() for task in self.tasks):
            await asyncio.wait(self.tasks)


@pytest.fixture
async def source() -> Any:
    made = Source()
    yield made
    made.source.close()
    await made.settle()
    await made.producer_ids.close()


async def test_everybody_gets_an_id_of_their_own_in_order(source: Source) -> None:
    for _ in range(5):
        source.source.when_ready(source.take)
    assert source.used == []
    await source.settle()
    assert source.used == [10, 11, 12, 13, 14]


async def test_with_an_id_at_hand_nobody_waits(source: Source) -> None:
    assert source.source.spare == -1
    await source.settle()
    source.source.when_ready(source.take)
    assert source.used == [10]


async def test_ids_of_a_block_are_at_hand_one_after_the_other(source: Source) -> None:
    """Several timers fire in one turn of the loop: the first leaves ids to the others."""
    source.source.when_ready(lambda: None)
    await source.settle()
    for _ in range(3):
        source.take()
    assert source.used == [10, 11, 12]


async def test_who_does_not_use_it_leaves_it_for_the_next(source: Source) -> None:
    seen: list[int] = []
    for _ in range(3):
        source.source.when_ready(lambda: seen.append(source.source.spare))
    await source.settle()
    assert seen == [10, 10, 10]


async def test_without_a_controller_everybody_is_called_without_an_id(source: Source) -> None:
    source.controller.is_available = False
    for _ in range(3):
        source.source.when_ready(source.take)
    await asyncio.wait_for(source.settle(), 20)
    assert source.used[:3] == [-1, -1, -1]
    source.controller.is_available = True
    source.source.when_ready(source.take)
    await source.settle()
    assert source.used[-1] == 10


async def test_the_end_leaves_nobody_waiting(source: Source) -> None:
    source.source.when_ready(source.take)
    source.source.close()
    assert source.used == [-1]
    source.source.when_ready(source.take)
    assert len(source.used) == 2
