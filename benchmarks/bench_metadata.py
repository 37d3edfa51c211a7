"""Very many partitions: loading the image, a change on its way to every broker, failover, creation.

What is measured and how is `moldau bench metadata`'s own (`moldau.cli.bench.metadata`); here is
only what is made of its figures. Three controllers and three brokers; the partitions are on a
phantom broker that only the controllers know.
"""

from __future__ import annotations

from typing import Final

from benchmarks.figures import Effort, Report, Spread, Table, Target
from moldau.cli.bench.metadata import NOTE, Row, measure
from moldau.cli.bench.plans import MetadataPlan

PARTITION_COUNT: Final = 100_000
LEAST_PARTITIONS: Final = 100
SAMPLE_COUNT: Final = 50
KILL_COUNT: Final = 10
DIGITS: Final = 2


def run(effort: Effort) -> Report:
    """Everything once; what is repeated is repeated inside."""
    plan = MetadataPlan(
        partitions=effort.count(PARTITION_COUNT, least=LEAST_PARTITIONS),
        samples=effort.count(SAMPLE_COUNT, least=3),
        kills=effort.count(KILL_COUNT),
        repeats=effort.rounds,
    )
    figures = measure(plan)
    assert figures.creation is not None, "created"
    report = Report(f"Metadata of {figures.creation.partition_count:,} partitions")
    table = Table(("what", "times", "minimum / median / maximum"))
    for row in figures.rows():
        spread = Spread.of(row.values)
        table.add(row.what, str(len(row.values)), spread.text(DIGITS))
        if row.limit is not None:
            report.targets.append(Target(_asked(row), spread, row.is_met, DIGITS))
    report.tables.append(table)
    loads = " ".join(f"{each:.2f}" for each in figures.load_averages)
    report.notes.append(f"{NOTE[0].upper()}{NOTE[1:]}. Load averages meanwhile: {loads}.")
    return report


def _asked(row: Row) -> str:
    what, _, unit = row.what.rpartition(", ")
    if not what:
        what, _, unit = row.what.rpartition(" ")
    return f"{what} ≤ {row.limit:g} {unit}"
