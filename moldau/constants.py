"""The bounds of whole numbers in Kafka's formats: one name each, for every room."""

from __future__ import annotations

from typing import Final

MIN_INT16: Final = -(2**15)
MAX_INT16: Final = 2**15 - 1
MIN_INT32: Final = -(2**31)
MAX_INT32: Final = 2**31 - 1
MAX_UINT32: Final = 2**32 - 1
MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1
MAX_UINT64: Final = 2**64 - 1
