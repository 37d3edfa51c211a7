"""When a rebalance is over, and that a partition with two owners is found."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from moldau.cli.bench.groups import GroupBook
from moldau.client import KafkaError


@pytest.fixture
def book() -> GroupBook:
    return GroupBook("t", uuid.UUID(int=1), partition_count=4, heartbeat_interval_s=1)


async def is_settled(book: GroupBook, after: int, members: int) -> bool:
    waiting = asyncio.create_task(book.settled_after(after, members))
    await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    return done


async def test_over_is_when_all_are_in_one_round_and_own_all_evenly(book: GroupBook):
    book.own(0, range(4), 1)
    assert await is_settled(book, 0, 1)
    assert not await is_settled(book, 1, 1), "a later round was asked for"
    book.own(1, (), 1)
    assert not await is_settled(book, 0, 2), "the first one has everything"
    book.own(0, (0, 1), 2)
    assert not await is_settled(book, 0, 2), "two partitions are nobody's"
    book.own(1, (2, 3), 3)
    assert not await is_settled(book, 0, 2), "one is a round behind"
    book.own(0, (0, 1), 3)
    assert await is_settled(book, 2, 2)
    book.leave(1)
    assert not await is_settled(book, 2, 1)
    assert book.owned_count == 2


async def test_a_caller_that_waits_is_woken(book: GroupBook):
    waiting = asyncio.create_task(book.settled_after(0, 1))
    await asyncio.sleep(0)
    book.own(0, range(3), 1)
    await asyncio.sleep(0)
    assert not waiting.done()
    book.own(0, range(4), 1)
    await asyncio.wait_for(waiting, 5)


def test_two_owners_are_an_error(book: GroupBook):
    book.own(0, (0, 1), 1)
    with pytest.raises(KafkaError, match="partition 1 is owned by 0 and 1"):
        book.own(1, (1,), 1)
