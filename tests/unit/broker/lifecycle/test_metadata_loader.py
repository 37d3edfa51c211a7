"""The broker's copy of the metadata: images in log order, snapshots, transactions, waiters."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from moldau.broker.lifecycle import metadata_loader
from moldau.broker.lifecycle.metadata_loader import MetadataLoader, TooManyWaiters
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.protocol.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    RemoveTopicRecord,
    TopicRecord,
)


def topic(name: str, number: int) -> TopicRecord:
    return TopicRecord(name=name, topic_id=uuid.UUID(int=number))


class Recorder:
    """A publisher that keeps what it was given."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.names.append(sorted(image.topics.topics_by_name))


def test_publishers_see_every_image_in_order() -> None:
    loader, recorder = MetadataLoader(1), Recorder()
    loader.add_publisher(recorder)
    loader.handle_commit([topic("a", 10)], Provenance(0, 1, 5))
    loader.handle_commit([topic("b", 11)], Provenance(1, 1, 6))
    loader.handle_commit([RemoveTopicRecord(topic_id=uuid.UUID(int=10))], Provenance(2, 1, 7))
    assert recorder.names == [["a"], ["a", "b"], ["b"]]
    assert loader.last_applied_offset == 2


def test_a_late_publisher_hears_of_everything_at_once() -> None:
    loader, recorder = MetadataLoader(1), Recorder()
    loader.handle_commit([topic("a", 10), topic("b", 11)], Provenance(1, 1, 5))
    loader.add_publisher(recorder)
    assert recorder.names == [["a", "b"]]


def test_a_snapshot_replaces_everything() -> None:
    loader, recorder = MetadataLoader(1), Recorder()
    loader.add_publisher(recorder)
    loader.handle_commit([topic("old", 10)], Provenance(0, 1, 5))
    loader.handle_snapshot([topic("new", 11)], Provenance(9, 2, 6))
    assert recorder.names[-1] == ["new"]
    assert loader.last_applied_offset == 9


def test_a_transaction_is_seen_whole_or_not_at_all() -> None:
    loader, recorder = MetadataLoader(1), Recorder()
    loader.add_publisher(recorder)
    loader.handle_commit([BeginTransactionRecord(name="x"), topic("a", 10)], Provenance(1, 1, 5))
    loader.handle_commit([topic("b", 11)], Provenance(2, 1, 5))
    assert recorder.names[-1] == []
    loader.handle_commit([EndTransactionRecord()], Provenance(3, 1, 5))
    assert recorder.names[-1] == ["a", "b"]
    loader.handle_commit([BeginTransactionRecord(name="y"), topic("c", 12)], Provenance(5, 1, 5))
    loader.handle_commit([AbortTransactionRecord(reason="no")], Provenance(6, 1, 5))
    assert recorder.names[-1] == ["a", "b"]


async def test_waiting_for_a_topic() -> None:
    loader = MetadataLoader(1)
    waiting = asyncio.create_task(
        loader.wait_until(lambda image: "b" in image.topics.topics_by_name)
    )
    await asyncio.sleep(0)
    loader.handle_commit([topic("a", 10)], Provenance(0, 1, 5))
    await asyncio.sleep(0)
    assert not waiting.done()
    loader.handle_commit([topic("b", 11)], Provenance(1, 1, 5))
    await asyncio.wait_for(waiting, 5)


async def test_waiters_are_limited_and_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_loader, "MAX_WAITERS", 1)
    loader = MetadataLoader(1)
    first = asyncio.create_task(loader.wait_until(lambda _: False))
    await asyncio.sleep(0)
    with pytest.raises(TooManyWaiters):
        await loader.wait_until(lambda _: False)
    first.cancel()
    await asyncio.wait({first})
    second = asyncio.create_task(loader.wait_until(lambda _: False))
    await asyncio.sleep(0)
    assert not second.done()
    second.cancel()
    await asyncio.wait({second})


async def test_a_publisher_that_fails_keeps_no_other_from_the_news() -> None:
    class Failing:
        def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
            raise ZeroDivisionError("the test says so")

    loader, recorder = MetadataLoader(1), Recorder()
    loader.add_publisher(Failing())
    loader.add_publisher(recorder)
    waiting = asyncio.ensure_future(
        loader.wait_until(lambda image: "a" in image.topics.topics_by_name)
    )
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        loader.handle_commit([topic("a", 10)], Provenance(0, 1, 5))
    assert recorder.names == [["a"]]
    await waiting
