"""What goes in, and what must come out: computed from the CSV, without Moldau and without Spark.

Owns the flights in the order of their hours, the transactions they are sent in, and the expected
delays. Must not know a cluster. Invariant: everything here is the same in every run.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from demo.flights_data import flights

FLIGHTS: Final = "flights"
AUDIT: Final = "audit"
DELAYS: Final = "delays"
PER_TRANSACTION: Final = 2_000
CLOSING_NUMBER: Final = -1
#: Far behind the last flight: what the watermark needs to see to give out the last hours.
CLOSING_TIME: Final = "2014-06-01T00:00:00Z"

Measures = tuple[int, int, int | None, int, int | None]
"""flights, departed, departure_delay, arrived, arrival_delay; a sum of nothing is None."""


class Flight(NamedTuple):
    """One record to be sent."""

    number: int
    key: bytes
    value: bytes


def flights_by_hour(count: int | None = None) -> list[Flight]:
    """The flights in the order in which they were to leave; the CSV has them by month, as text."""
    found = []
    for number, (key, value) in enumerate(flights()):
        found.append((orjson.loads(value)["time_hour"], Flight(number, key, value)))
    found.sort(key=lambda each: each[0])
    return [flight for _, flight in found[:count]]


def transactions(records: Sequence[Flight]) -> Iterator[tuple[int, Sequence[Flight]]]:
    """Number and flights of each transaction."""
    for number, first in enumerate(range(0, len(records), PER_TRANSACTION)):
        yield number, records[first : first + PER_TRANSACTION]


def audit_of(number: int, sent: Sequence[Flight]) -> tuple[bytes, bytes]:
    """Key and value of what `audit` says about a transaction."""
    checksum = 0
    for flight in sent:
        checksum = zlib.crc32(flight.value, checksum)
    value = {"transaction": number, "flights": len(sent), "crc32": checksum}
    return b"%d" % number, orjson.dumps(value)


def closing_flight() -> Flight:
    """Belongs to no hour that is looked at; after it every real hour is over."""
    value = {"n": CLOSING_NUMBER, "carrier": "--", "time_hour": CLOSING_TIME}
    return Flight(CLOSING_NUMBER, b"--", orjson.dumps(value))


def expected_delays(records: Sequence[Flight]) -> dict[tuple[str, str], Measures]:
    """The measures of each carrier and hour."""
    made: dict[tuple[str, str], list[int]] = {}
    for flight in records:
        row: dict[str, Any] = orjson.loads(flight.value)
        sums = made.setdefault((row["carrier"], row["time_hour"]), [0, 0, 0, 0, 0])
        sums[0] += 1
        for place, name in ((1, "dep_delay"), (3, "arr_delay")):
            if row[name] is not None:
                sums[place] += 1
                sums[place + 1] += row[name]
    return {key: _measures(sums) for key, sums in made.items()}


def _measures(sums: list[int]) -> Measures:
    flown, departed, departure_delay, arrived, arrival_delay = sums
    return (
        flown,
        departed,
        departure_delay if departed else None,
        arrived,
        arrival_delay if arrived else None,
    )


def measures_in(value: bytes) -> tuple[tuple[str, str], Measures]:
    """Carrier and hour, and the measures, of one record of `delays`."""
    row: dict[str, Any] = orjson.loads(value)
    hour = datetime.fromisoformat(row["window_start"]).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (row["carrier"], hour), (
        row["flights"],
        row["departed"],
        row.get("departure_delay"),
        row["arrived"],
        row.get("arrival_delay"),
    )
