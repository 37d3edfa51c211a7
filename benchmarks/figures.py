"""Figures of several runs, and the markdown tables that show them.

Owns what minimum, median, maximum and ratio mean here. Invariant: a ratio is taken between two
figures of the same round, then its spread over the rounds; never between two medians. Where one
round has too few values beyond a percentile, it is between those of all rounds together.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moldau.cli.bench.figures import percentile


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the rounds."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        assert values, "nothing was measured"
        return cls(tuple(values))

    @classmethod
    def of_percentile(cls, rounds: Sequence[Sequence[float]], percent: float) -> Spread:
        """The spread of each round's percentile."""
        return cls.of([percentile(sorted(each), percent) for each in rounds])

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    def per(self, peer: Spread) -> Spread:
        """This figure divided by the peer's, round by round."""
        return Spread(tuple(a / b for a, b in zip(self.values, peer.values, strict=True)))

    def text(self, digits: int = 2) -> str:
        """`minimum / median / maximum`."""
        low, high = min(self.values), max(self.values)
        return " / ".join(f"{value:,.{digits}f}" for value in (low, self.median, high))


def ratio_of_all(
    rounds: Sequence[Sequence[float]], peers: Sequence[Sequence[float]], percent: float
) -> Spread:
    """A percentile of all rounds' values divided by the peer's, with each round left out in turn.

    The states of a round take turns, so that a bad minute of the machine hits all of them.
    """
    kept = [[n for n in range(len(rounds)) if n != left_out] for left_out in range(len(rounds))]
    return Spread.of(
        [
            _of_all(rounds, numbers or [0], percent) / _of_all(peers, numbers or [0], percent)
            for numbers in kept
        ]
    )


def _of_all(rounds: Sequence[Sequence[float]], numbers: Sequence[int], percent: float) -> float:
    return percentile(sorted(value for number in numbers for value in rounds[number]), percent)


@dataclass(slots=True)
class Table:
    """A markdown table with a line above it."""

    columns: Sequence[str]
    title: str = ""
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """One more row."""
        assert len(cells) == len(self.columns), "a row has as many cells as the table"
        self.rows.append(cells)

    def markdown(self) -> str:
        """The table as text, without a final newline."""
        lines = [self.title, ""] if self.title else []
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines.extend("| " + " | ".join(row) + " |" for row in self.rows)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that is asked for, and what came out."""

    asked: str
    measured: Spread
    is_met: bool
    digits: int = 2

    def row(self) -> tuple[str, str, str]:
        """For the summary; the median decides."""
        return self.asked, self.measured.text(self.digits), "yes" if self.is_met else "**no**"


def at_least(asked: str, measured: Spread, limit: float, digits: int = 2) -> Target:
    """A target that the median reaches from below."""
    return Target(asked, measured, measured.median >= limit, digits)


def at_most(asked: str, measured: Spread, limit: float, digits: int = 2) -> Target:
    """A target that the median stays under."""
    return Target(asked, measured, measured.median <= limit, digits)


@dataclass(slots=True)
class Report:
    """What one benchmark has to say."""

    title: str
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """A section of docs/benchmarks.md."""
        parts = [f"### {self.title}"]
        parts.extend(table.markdown() for table in self.tables)
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a benchmark does: rounds, and a factor on the amount of data."""

    rounds: int = 5
    scale: float = 1.0
    with_kafka: bool = True

    def count(self, full: int, least: int = 1) -> int:
        """A count scaled, but not below `least`."""
        return max(least, int(full * self.scale))


Benchmark = Callable[[Effort], Report]
