"""A broker for the pages; async tests run on virtual time, except those marked `real`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.broker.harness import DataPath
from tests.unit.node.http.site import config
from tests.virtual.machine import pytest_asyncio_loop_factories, the_machine_is_virtual

__all__ = ["pytest_asyncio_loop_factories", "the_machine_is_virtual"]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[DataPath]:
    """A data path on a real directory, without topics, of a node that knows its controller."""
    async with DataPath(tmp_path) as data_path:
        data_path.services.node_config = config()
        yield data_path
