"""The window of batches that are appended and not committed."""

from __future__ import annotations

import pytest

from moldau.metadata.log import CommittedBatch
from moldau.raft import delivery
from moldau.raft.delivery import RecentBatches


def batch(offset: int, size_bytes: int = 10) -> CommittedBatch:
    return CommittedBatch(offset, offset, 1, 0, size_bytes, ())


@pytest.mark.parametrize(("count", "size_bytes"), [(3, 10**6), (10**6, 30)])
def test_the_window_is_bounded(
    monkeypatch: pytest.MonkeyPatch, count: int, size_bytes: int
) -> None:
    """A leader without a majority appends on: what is not here is read from the disk."""
    monkeypatch.setattr(delivery, "MAX_RECENT_BATCHES", count)
    monkeypatch.setattr(delivery, "MAX_RECENT_BYTES", size_bytes)
    recent = RecentBatches()
    for offset in range(50):
        recent.add(batch(offset))
        assert len(recent._batches) <= 3
    assert [each.base_offset for each in recent.take_below(50)] == [48, 49]
