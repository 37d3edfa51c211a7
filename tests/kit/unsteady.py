"""The list of tests that were seen unsteady: `tests/unsteady.toml`.

Owns: its form. Must not: decide what a run is (`rerun` does). Invariant: what is read is whole; a
row that says something else, or less, ends the run with a line that names it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

FILE = Path("tests/unsteady.toml")
MOST_DAYS = 14
"""Older rows are a debt: `make long` fails."""

NEEDED = {"test": str, "date": date, "cause": str}
OPTIONAL = {"seed": str, "mend": str}


@dataclass(frozen=True, slots=True)
class Row:
    """One of the tests."""

    test: str
    """Its id; without parameters in brackets it stands for all of them."""
    date: date
    """When it was seen."""
    cause: str
    """Empty while it is not known."""
    seed: str = ""
    mend: str = ""
    """What was done about it; empty while nothing was."""

    def is_about(self, test: str) -> bool:
        return self.test in (test, test.partition("[")[0])


def read(path: Path) -> list[Row]:
    """The list; empty without the file. Raises: ValueError: the file is not of its form"""
    if not path.exists():
        return []
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    if not found.keys() <= {"unsteady"}:
        raise ValueError(f"{path}: only [[unsteady]] is known, not {sorted(found)}")
    return [_row(number, row) for number, row in enumerate(found.get("unsteady", []), start=1)]


def without_cause(rows: Iterable[Row], test: str) -> bool:
    """The test is listed, and its cause is not known."""
    return any(row.is_about(test) and not row.cause for row in rows)


def overdue(rows: Iterable[Row], today: date) -> list[Row]:
    """Those that stand there for too long."""
    return [row for row in rows if row.date < today - timedelta(days=MOST_DAYS)]


def entry(test: str, today: date, seed: str) -> str:
    """What to add to the file."""
    rows = ["[[unsteady]]", f"test = {_text(test)}", f"date = {today.isoformat()}"]
    rows += [f"seed = {_text(seed)}"] if seed else []
    return "\n".join([*rows, 'cause = ""'])


def _row(number: int, row: Mapping[str, object]) -> Row:
    known = {**NEEDED, **OPTIONAL}
    wrong = [name for name, value in row.items() if type(value) is not known.get(name)]
    wrong += [f"{name} (missing)" for name in NEEDED if name not in row]
    if wrong:
        raise ValueError(f"{FILE}: row {number}: {', '.join(wrong)}; known are {', '.join(known)}")
    return Row(**row)  # type: ignore[arg-type]


def _text(text: str) -> str:
    """As a TOML string."""
    escaped = (
        f"\\{each}" if each in '"\\' else each if each.isprintable() else f"\\U{ord(each):08x}"
        for each in text
    )
    return f'"{"".join(escaped)}"'
