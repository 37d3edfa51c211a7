"""pyarrow, an optional library: importing `moldau.client.arrow` never imports it, the first call
that needs it does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from moldau.client.errors import KafkaError


class ArrowMissing(KafkaError, ImportError):
    """A call takes or returns Arrow data, and pyarrow is not installed."""


def pyarrow() -> ModuleType:
    """The library. Raises: ArrowMissing when it is not installed, or cannot be loaded."""
    return _load("pyarrow")


def pyarrow_compute() -> ModuleType:
    return _load("pyarrow.compute")


def _load(name: str) -> ModuleType:
    found = sys.modules.get(name)
    if found is not None:
        return found
    try:
        return import_module(name)
    except ImportError as error:
        raise ArrowMissing(
            f"send_arrow and poll_arrow need pyarrow: pip install 'moldau[arrow]' ({error})"
        ) from error
