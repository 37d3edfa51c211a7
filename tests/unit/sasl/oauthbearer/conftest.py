"""Async tests of bearer tokens run on a real loop; what is marked `virtual_too` runs on the virtual
machine as well, for the gate.
"""

import asyncio
from collections.abc import Callable

import pytest

from tests.virtual.machine import the_machine_is_virtual, virtual_too

__all__ = ["the_machine_is_virtual"]


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that a test runs on."""
    return {"real": asyncio.new_event_loop, **virtual_too(item)}
