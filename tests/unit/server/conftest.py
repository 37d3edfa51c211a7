"""Async tests of the server's logic run on virtual time, except those marked `real`."""

from tests.virtual.machine import pytest_asyncio_loop_factories, the_machine_is_virtual

__all__ = ["pytest_asyncio_loop_factories", "the_machine_is_virtual"]
