"""The regular work on all logs: how it gives way, and what it measures."""

from __future__ import annotations

import asyncio

import pytest

from moldau.storage import log_jobs
from moldau.storage.log import Log
from tests.storage.storage_fixtures import topic_id, tp
from tests.storage.test_log_manager import Node, fill, settle


async def test_others_get_their_turn_between_two_logs_and_the_next_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_jobs, "MAX_LOGS_PER_VISIT", 2)
    node = Node(retention_check_interval_ms=100_000, initial_delay_ms=0)
    manager = await node.start()
    for number in range(5):
        manager.get_or_create(tp(f"a-{number}"), topic_id(1))
    await settle()
    seen: list[str] = []
    monkeypatch.setattr(Log, "apply_retention", lambda log, _now_ms: seen.append(log.name))
    is_over = False

    async def other() -> None:
        while not is_over:
            seen.append("other")
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    await node.advance(100_000)
    is_over = True
    await task
    first = seen.index("a-0")
    last = seen.index("a-4")
    assert seen[first : last + 1] == ["a-0", "a-1", "other", "a-2", "a-3", "other", "a-4"]
    await manager.shutdown(1)


async def test_each_flush_is_measured() -> None:
    node = Node()
    manager = await node.start()
    log = manager.get_or_create(tp("a-0"), topic_id(1))
    await settle()
    took_ms: list[float] = []
    manager.jobs.on_flushed = took_ms.append
    gate = node.filesystem.offload_gate = asyncio.Event()
    fill(log, 1)
    flush = asyncio.ensure_future(manager.jobs.flush(log))
    await settle()
    node.clock.stand_still(250)
    gate.set()
    assert await flush
    assert took_ms == [250]
    assert await manager.jobs.flush(log)
    assert took_ms == [250], "there was nothing to flush"
    await manager.shutdown(1)


async def test_new_partitions_are_logged_by_topic_and_directory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    node = Node()
    manager = await node.start()
    for name in ("a-0", "a-1", "a-2", "b-0"):
        manager.get_or_create(tp(name), topic_id(1 if name < "b" else 2))
    await settle()
    told = [each.getMessage() for each in caplog.records if each.getMessage().startswith("made ")]
    assert sorted(told) == ["made /data/b-0", "made 3 partitions of a in /data"]
    await manager.shutdown(1)
