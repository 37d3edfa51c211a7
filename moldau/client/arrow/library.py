"""Where pyarrow comes from: an optional library, imported when it is first needed.

Owns the one import, through which the whole package goes, and the error of its absence. Invariant:
importing `moldau.client.arrow` never imports pyarrow.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from moldau.client.errors import KafkaError


class ArrowMissing(KafkaError, ImportError):
    """A call takes or returns Arrow data, and pyarrow is not installed."""


def pyarrow() -> Any:
    """The library.

    Raises:
        ArrowMissing: it is not installed, or cannot be loaded.
    """
    return _load("pyarrow")


def pyarrow_compute() -> Any:
    """Its compute functions. Raises: ArrowMissing."""
    return _load("pyarrow.compute")


def _load(name: str) -> Any:
    found = sys.modules.get(name)
    if found is not None:
        return found
    try:
        return import_module(name)
    except ImportError as error:
        raise ArrowMissing(
            f"send_arrow and poll_arrow need pyarrow: pip install 'moldau[arrow]' ({error})"
        ) from error
