"""What the tests of all simulators share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """What the simulated nodes log is of no interest; a failure brings its own history."""
    logger = logging.getLogger("moldau")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)
