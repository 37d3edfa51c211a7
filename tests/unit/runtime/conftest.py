"""Everything here runs on both loops that nodes may use, with real sockets. What is marked
`virtual_too` runs on the virtual machine as well, for the gate.
"""

import asyncio
from collections.abc import Callable

import pytest

from tests.kit.server_harness import NODE_LOOPS, harness, written
from tests.virtual.machine import the_machine_is_virtual, virtual_too

__all__ = ["harness", "the_machine_is_virtual", "written"]


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops on which a test runs."""
    return {**NODE_LOOPS, **virtual_too(item)}
