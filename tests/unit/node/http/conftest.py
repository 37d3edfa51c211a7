"""A broker for the pages; async tests run on virtual time, except those marked `real`."""

from tests.unit.broker.conftest import (
    broker,
    pytest_asyncio_loop_factories,
    the_machine_is_virtual,
)

__all__ = ["broker", "pytest_asyncio_loop_factories", "the_machine_is_virtual"]
