"""The syntax trees of the whole repository live as long as the tests that look at them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.tidy.sources import tree_of


@pytest.fixture(scope="package", autouse=True)
def parsed_files() -> Iterator[None]:
    """Half a gigabyte without a cycle: a collection of garbage would look at it in vain."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()
