"""pyarrow, an optional library: importing `moldau.client.arrow` never imports it, the first call
that needs it does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from moldau.client.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

__all__ = ["ArrowMissing", "pa", "pc"]


class ArrowMissing(KafkaError, ImportError):
    """A call takes or returns Arrow data, and pyarrow is not installed."""


class _Library:
    """A module that is imported when something of it is used. Raises: ArrowMissing when it is not
    installed, or cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        try:
            value = getattr(import_module(self._name), attribute)
        except ImportError as error:
            raise ArrowMissing(
                f"send_arrow and poll_arrow need pyarrow: pip install 'moldau[arrow]' ({error})"
            ) from error
        setattr(self, attribute, value)
        return value


if not TYPE_CHECKING:
    pa, pc = _Library("pyarrow"), _Library("pyarrow.compute")
