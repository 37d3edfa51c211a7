"""Fixtures of the broker's unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.broker.harness import DataPath


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    """A data path on a real directory, without topics."""
    async with DataPath(tmp_path) as data_path:
        yield data_path
