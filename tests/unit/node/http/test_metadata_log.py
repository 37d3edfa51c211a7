"""What a node shows of its metadata log: leaders and committed records, in parts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.node.http import metadata_log
from moldau.node.http.metadata_log import LogHistory, records_of
from moldau.raft import QuorumLog
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.unit.raft.fixtures import (
    Listener,
    append,
    format_directory,
    open_log,
    settled,
    snapshot_of,
)


def no_topic(_topic_id: UUID) -> str | None:
    return None


async def test_every_leader_that_the_log_has(monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = SimulatedFilesystem()
    format_directory(filesystem)
    for _ in range(3):
        log = await open_log(filesystem)
        append(log, "a")
        await log.close()
    log = await open_log(filesystem)
    history = LogHistory()
    found = await history.elections(log, filesystem)
    assert [each["epoch"] for each in found] == [1, 2, 3, 4]
    assert {each["leader_id"] for each in found} == {1}
    assert await history.elections(log, filesystem) == found
    monkeypatch.setattr(metadata_log, "MAX_ELECTIONS", 2)
    newest = await history.elections(log, filesystem)
    assert [each["epoch"] for each in newest] == [3, 4]
    await log.close()


async def rows_from(
    log: QuorumLog, filesystem: SimulatedFilesystem, start: int | None, limit: int
) -> dict[str, Any]:
    return await records_of(log, filesystem, from_offset=start, limit=limit, name_of=no_topic)


async def test_records_go_on_where_the_page_before_ended() -> None:
    filesystem = SimulatedFilesystem()
    format_directory(filesystem)
    log = await open_log(filesystem)
    listener = Listener()
    log.add_listener(listener)
    for name in ("x", "y", "z"):
        append(log, name, name * 2)
    await settled(log, listener)
    end = log.high_watermark
    seen: list[int] = []
    at: int | None = 0
    while at is not None:
        page = await rows_from(log, filesystem, at, 2)
        assert len(page["records"]) <= 2
        seen += [each["offset"] for each in page["records"]]
        at = page["next"]
    assert seen == [*range(end)]
    newest = await rows_from(log, filesystem, None, 2)
    assert [each["fields"]["name"] for each in newest["records"]] == ["z", "zz"]
    assert (newest["next"], newest["end_offset"]) == (None, end)
    behind = await rows_from(log, filesystem, end + 5, 2)
    assert (behind["records"], behind["next"]) == ([], None)
    await log.close()


async def test_records_that_a_snapshot_has_replaced_are_skipped() -> None:
    filesystem = SimulatedFilesystem()
    format_directory(filesystem)
    log = await open_log(filesystem, segment_bytes=256, retention_bytes=1)
    listener = Listener()
    log.add_listener(listener)
    for round_number in range(3):
        for index in range(8):
            append(log, f"a-{round_number}-{index}")
        await settled(log, listener)
        await snapshot_of(log, listener)
    append(log, "kept")
    await settled(log, listener)
    page = await rows_from(log, filesystem, 0, 5)
    assert page["start_offset"] > 0
    [kept] = page["records"]
    assert (kept["offset"], kept["fields"]["name"]) == (page["start_offset"], "kept")
    await log.close()
