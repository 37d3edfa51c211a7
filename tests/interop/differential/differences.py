"""The reviewed list of differences (`differences.toml`), and which of its rows were needed.

Owns the matching. Invariant: a row excuses only what its patterns name, and a pattern that excused
nothing in a whole run fails it, so that the list stays true.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from tests.interop.differential.comparing import Divergence

FILE: Final = Path(__file__).with_name("differences.toml")


@dataclass(frozen=True)
class Difference:
    """One row. Patterns are shell patterns; in `fields` a slash is an ordinary character.

    Attributes:
        api: the API's name.
        fields: the places in the answer.
        reason: why it is so, for docs/compatibility.md.
        cases: names of cases.
        ours, kafka: the two values' texts.
        excuses_answer: whether the rest of that answer cannot be compared.
        ends: whether what follows it in a sequence of requests cannot be compared either.
        is_chance: whether a run may pass without it.
    """

    api: str
    fields: tuple[str, ...]
    reason: str
    cases: tuple[str, ...] = ("*",)
    ours: str = "*"
    kafka: str = "*"
    excuses_answer: bool = False
    ends: bool = False
    is_chance: bool = False

    def patterns_for(self, api: str, case: str, found: Divergence) -> list[str]:
        """The patterns by which this row is about that divergence; empty when it is not."""
        if not (
            fnmatchcase(api, self.api)
            and fnmatchcase(found.ours, self.ours)
            and fnmatchcase(found.kafka, self.kafka)
        ):
            return []
        fields = [each for each in self.fields if fnmatchcase(found.path, each)]
        cases = [each for each in self.cases if fnmatchcase(case, each)]
        return [*fields, *cases] if fields and cases else []


@dataclass
class DifferenceList:
    """The rows, and which of their patterns were needed."""

    rows: list[Difference]
    used: set[tuple[Difference, str]] = field(default_factory=set)

    @classmethod
    def load(cls, path: Path = FILE) -> DifferenceList:
        """Raises: TypeError: a row has an unknown field, or lacks one."""
        tables: list[dict[str, Any]] = tomllib.loads(path.read_text())["difference"]
        lists = ("fields", "cases")
        return cls(
            [
                Difference(
                    **{
                        name: tuple(value) if name in lists else value
                        for name, value in table.items()
                    }
                )
                for table in tables
            ]
        )

    def unexplained(self, api: str, case: str, found: Iterable[Divergence]) -> list[Divergence]:
        """Those of an answer that no row excuses."""
        left = []
        is_excused = False
        for each in found:
            matches = [
                (row, pattern) for row in self.rows for pattern in row.patterns_for(api, case, each)
            ]
            self.used.update(matches)
            if not matches:
                left.append(each)
            is_excused = is_excused or any(row.excuses_answer for row, _ in matches)
        return [] if is_excused else left

    def end(self, api: str, case: str, found: Iterable[Divergence]) -> str:
        """The reason of a row that excuses one of them and says that nothing else can be compared;
        empty when there is none.
        """
        matches = [
            (row, pattern)
            for row in self.rows
            if row.ends
            for each in found
            for pattern in row.patterns_for(api, case, each)
        ]
        self.used.update(matches)
        return matches[0][0].reason if matches else ""

    @property
    def unused(self) -> list[str]:
        """Patterns that excused nothing, with their rows."""
        return [
            f"{row.api}: {pattern} ({row.reason})"
            for row in self.rows
            if not row.is_chance
            for pattern in (*row.fields, *row.cases)
            if (row, pattern) not in self.used
        ]
