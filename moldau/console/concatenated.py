"""JSON objects one after the other, in a body that comes in parts: where each ends.

Must not parse them. Invariant: no more than `max_bytes` of an object that has not ended are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_OUTSIDE: Final = re.compile(rb'["{}]')
_INSIDE: Final = re.compile(rb'[\\"]')
_SPACE: Final = b" \t\r\n"
_BETWEEN: Final = b" \t\r\n,"
"""What may stand between two objects; commas, too, as some writers have them."""


class NotObjects(ValueError):
    """The body is none of objects one after the other; what came before is good."""


class JsonObjects:
    """Splits a body into its objects.

    Args:
        max_bytes: of one object.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._position = 0
        self._depth = 0
        self._is_in_text = False

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The objects that end in this part. Raises: NotObjects."""
        data = self._rest + part
        start = 0
        while True:
            if self._depth == 0:
                start, self._position = _begin(data, start)
                if start == len(data):
                    break
            end = self._end(data)
            if end is None:
                break
            yield data[start:end]
            start = end
        self._rest = data[start:]
        self._position -= start
        if len(self._rest) > self._max_bytes:
            raise NotObjects(f"an object of more than {self._max_bytes} bytes")

    def end(self) -> None:
        """Nothing more comes. Raises: NotObjects: an object has not ended."""
        if self._depth or self._rest.strip(_BETWEEN):
            raise NotObjects("the body ends within an object")

    def _end(self, data: bytes) -> int | None:
        """Where the object ends that has begun; None: not yet. Goes on where it was."""
        while True:
            if self._is_in_text:
                found = _INSIDE.search(data, self._position)
                if found is None:
                    self._position = len(data)
                    return None
                if found[0] == b"\\":
                    if found.end() == len(data):  # what is escaped has not come
                        self._position = found.start()
                        return None
                    self._position = found.end() + 1
                else:
                    self._position = found.end()
                    self._is_in_text = False
                continue
            found = _OUTSIDE.search(data, self._position)
            if found is None:
                self._position = len(data)
                return None
            self._position = found.end()
            if found[0] == b'"':
                self._is_in_text = True
            elif found[0] == b"{":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return self._position


def _begin(data: bytes, start: int) -> tuple[int, int]:
    """Where the next object begins, and where its end is looked for from. Raises: NotObjects."""
    while start < len(data) and data[start] in _BETWEEN:
        start += 1
    if start < len(data) and data[start : start + 1] != b"{":
        raise NotObjects("the body has something else than JSON objects")
    return start, start
