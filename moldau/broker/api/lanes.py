"""The lanes of a broker's requests: one kind never takes the places of another."""

from __future__ import annotations

from typing import Final

from moldau.server.fair_shares import Lane

METADATA: Final = Lane("metadata", 16)
"""What the metadata image answers; more at once would only take turns on the loop."""

LOOKUPS: Final = Lane("offset look-ups", 64)
"""ListOffsets, which may read from logs."""

DESCRIPTIONS: Final = Lane("descriptions", 16)
"""Configurations, rules, quotas, users, tokens, log directories: rare, and of any size."""

FORWARDING: Final = Lane("forwarded requests", 64, ends_with_connection=True)
"""What the active controller decides: while none answers, each waits as long as it may."""

SEARCHES: Final = Lane("searches", 8, ends_with_connection=True)
"""ListTransactions, which may match many names with a costly expression."""
