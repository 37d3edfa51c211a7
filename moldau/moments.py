"""Moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_datetime(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 date, which means its midnight, or date and time; UTC
    by default. Raises: ValueError
    """
    if text.isdigit():  # a date without dashes could be a number of milliseconds
        raise ValueError("a date has dashes")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
