"""Async tests of the server's logic run on virtual time. Those marked `real` have real sockets, and
run on both loops that nodes may use.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.kit.server_harness import NODE_LOOPS, dual_stack, harness, written
from tests.virtual import machine
from tests.virtual.machine import the_machine_is_virtual, virtual_too

__all__ = ["dual_stack", "harness", "the_machine_is_virtual", "written"]


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops on which a test runs."""
    if item.get_closest_marker("real"):
        return {**NODE_LOOPS, **virtual_too(item)}
    return machine.pytest_asyncio_loop_factories(item)
