"""The jobs that ship: what each is for, and which parts of a file it takes.

Owns the table alone, so that a file can be read and `moldau pipeline list` answer without Spark.
Invariant: every name here has a builder in `jobs`, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job.

    `keeps_records`: keys and values go on byte for byte. `keeps_order`: records of one partition
    must stay with one task. `keeps_topic`: the topic's name may be the record's own.
    """

    job: str
    summary: str
    reads_archive: bool = False
    writes: Literal["topic", "parquet", "either"] = "topic"
    transforms: bool = False
    keeps_records: bool = False
    keeps_order: bool = False
    keeps_topic: bool = False
    one_topic: bool = False


JOBS: Final[dict[str, JobKind]] = {
    each.job: each
    for each in (
        JobKind(
            "archive",
            "topics into Parquet files: whole records, or what a transform makes of them",
            writes="parquet",
            transforms=True,
        ),
        JobKind(
            "replay",
            "an archive back into topics, in the order of each partition",
            reads_archive=True,
            keeps_records=True,
            keeps_order=True,
            keeps_topic=True,
        ),
        JobKind(
            "transform",
            "topics into a topic (or Parquet), through SQL or a Python function",
            writes="either",
            transforms=True,
        ),
        JobKind(
            "aggregate",
            "windows of event time, by keys, into a topic (or Parquet)",
            writes="either",
            transforms=True,
        ),
        JobKind(
            "mirror",
            "topics into another cluster: records, partitions and timestamps as they are",
            keeps_records=True,
            keeps_order=True,
            keeps_topic=True,
        ),
        JobKind(
            "repartition",
            "a topic into one with fewer (or more) partitions, in the order of each key",
            keeps_records=True,
            keeps_order=True,
            one_topic=True,
        ),
    )
}
