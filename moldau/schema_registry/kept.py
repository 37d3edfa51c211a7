"""What was learnt for ever, as far as there is room for it.

Owns the values and their limit. Usable from several threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class Kept:
    """Values by key; the one that was used longest ago goes when there are more than `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value, which is made when it is not there. Raises what `make` raises"""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                known: Value = self._values[key]
                return known
        value = make()
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._limit:
                self._values.popitem(last=False)
        return value
