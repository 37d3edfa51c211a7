"""How long to wait before the next try. Owns nothing; one formula for all of the client."""

from __future__ import annotations

import random
from typing import Final

JITTER: Final = 0.2
"""The share by which a pause may be longer or shorter, so that clients do not come in step."""


def backoff_ms(source: random.Random, failure_count: int, first_ms: int, most_ms: int) -> float:
    """Doubles with every failure up to `most_ms`, with jitter (KIP-144, KIP-580)."""
    base_ms = min(most_ms, first_ms << min(max(failure_count - 1, 0), 20))
    return base_ms * source.uniform(1 - JITTER, 1 + JITTER)
