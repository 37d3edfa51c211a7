"""In which steps an archive is replayed, and how far a replay has come.

Owns the cutting of an archive into chunks by offset, and the two small files beside the checkpoint
that say which archive it was and which chunks are done. Must not read records. Invariant: the plan
is made once; a later run of the same replay goes by it, so that chunk n is the same records always,
also when the archive has grown meanwhile.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from moldau.spark_connector.pipelines.errors import PipelineFailed
from moldau.spark_connector.pipelines.model import ArchiveSource, Pipeline
from moldau.spark_connector.pipelines.small_files import SmallFiles

PLAN_FILE: Final = "replay-plan.json"
DONE_FILE: Final = "replay-done.json"
FORMAT_VERSION: Final = 2
NAMED_BY_PLAN: Final = 1
"""The version of earlier releases: it does not know the sink's topic, and names chunks by the plan,
so that another plan wrote everything again."""
MAX_CELLS: Final = 100_000
"""Into how many pieces an archive is cut at most before they are put together to chunks."""


class ArchivedRange(NamedTuple):
    """The records of one partition in one file of an archive; `last_offset` is in it."""

    file: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int


class Chunk(NamedTuple):
    """Offsets from `first_offset` up to `end_offset` (exclusive) of all partitions together."""

    first_offset: int
    end_offset: int
    row_count: int


class Cells(NamedTuple):
    """How offsets are counted before they become chunks: cell n begins at first + n × size."""

    first_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Which records are replayed, and in which steps.

    `ends` is the last offset of each partition, plus one, as it was when the plan was made: by
    topic, then by partition (as text, as in JSON). Chunks are whole cells, follow one another by
    their offsets, and have records. `target` is the sink's topic, as the file says it.
    """

    path: str
    topics: tuple[str, ...]
    from_ms: int | None
    until_ms: int | None
    ends: Mapping[str, Mapping[str, int]]
    cells: Cells
    chunks: tuple[Chunk, ...]
    target: str = ""
    version: int = FORMAT_VERSION

    def chunk_name(self, pipeline: str, number: int) -> str:
        """The name of a chunk's batch write.

        The same for every plan of a pipeline with this target: the sink refuses chunk n of another
        plan when it holds other records than the one that was written.
        """
        text = f"{pipeline} {self.target}"
        if self.version == NAMED_BY_PLAN:
            shown = asdict(self)
            del shown["target"], shown["version"]
            text = json.dumps(shown, sort_keys=True)
        return f"replay-{hashlib.sha256(text.encode()).hexdigest()[:16]}-{number}"

    def counted_otherwise(self, counts: Mapping[int, int], done_count: int) -> str | None:
        """The first chunk still to be done that has more or fewer records now; None: all fit.

        Args:
            counts: how many records each cell has, of those that the plan is about.
        """
        found = [0] * len(self.chunks)
        begins = [each.first_offset for each in self.chunks]
        for cell, count in counts.items():
            number = bisect_right(begins, self.cells.first_offset + cell * self.cells.size) - 1
            found[max(0, number)] += count
        for number in range(done_count, len(self.chunks)):
            wanted = self.chunks[number]
            if found[number] != wanted.row_count:
                return (
                    f"offsets {wanted.first_offset} to {wanted.end_offset - 1}: there were "
                    f"{wanted.row_count:,} records, and now there are {found[number]:,}"
                )
        return None

    def rows_after(self, chunk: int) -> int:
        """How many records come after a chunk."""
        return sum(each.row_count for each in self.chunks[chunk + 1 :])

    def is_for(self, source: ArchiveSource, target: str) -> bool:
        """Whether the plan was made for such a source and target."""
        mine = (self.path, self.topics, self.from_ms, self.until_ms)
        is_target = self.version == NAMED_BY_PLAN or self.target == target
        return is_target and mine == (source.path, source.topics, source.from_ms, source.until_ms)


def cells_of(ranges: Sequence[ArchivedRange], records_per_chunk: int) -> Cells:
    """In which steps to count the records, so that chunks can be made of the counts.

    A cell takes as many offsets of each partition as make up a chunk together, so no cell holds
    more than a chunk may (unless offsets reach so far that there would be too many cells).
    """
    if not ranges:
        return Cells(0, 1)
    first = min(each.first_offset for each in ranges)
    span = max(each.last_offset for each in ranges) + 1 - first
    partition_count = len({(each.topic, each.partition) for each in ranges})
    return Cells(first, max(1, records_per_chunk // partition_count, -(-span // MAX_CELLS)))


def make_plan(
    source: ArchiveSource,
    ranges: Iterable[ArchivedRange],
    cells: Cells,
    counts: Mapping[int, int],
    target: str,
) -> ReplayPlan:
    """A plan for what is in the archive.

    Args:
        ranges: what is to be replayed.
        target: the sink's topic.
        counts: how many records of it each cell has; cells without any may be left out.
    """
    ends: dict[str, dict[str, int]] = {}
    for each in ranges:
        of_topic = ends.setdefault(each.topic, {})
        number = str(each.partition)
        of_topic[number] = max(of_topic.get(number, 0), each.last_offset + 1)
    chunks: list[Chunk] = []
    for cell in sorted(cell for cell, count in counts.items() if count):
        first = cells.first_offset + cell * cells.size
        end, count = first + cells.size, counts[cell]
        if chunks and chunks[-1].row_count + count <= source.records_per_chunk:
            last = chunks.pop()
            first, count = last.first_offset, last.row_count + count
        chunks.append(Chunk(first, end, count))
    return ReplayPlan(
        source.path,
        source.topics,
        source.from_ms,
        source.until_ms,
        ends,
        cells,
        tuple(chunks),
        target,
    )


class ReplayBook:
    """The plan and the number of chunks done, kept in the pipeline's checkpoint directory.

    The chunks' transactions make sure that a chunk is written once; this only saves the reading.
    """

    def __init__(self, pipeline: Pipeline, files: SmallFiles) -> None:
        self._name = pipeline.name
        self._files = files

    def plan(self, source: ArchiveSource, target: str) -> ReplayPlan | None:
        """The plan of an earlier run; None when there was none.

        Raises:
            PipelineFailed: it was for something else, or cannot be read.
        """
        document = self._read(PLAN_FILE)
        if document is None:
            return None
        if document.get("version") not in (NAMED_BY_PLAN, FORMAT_VERSION):
            raise PipelineFailed(
                f"{self._name}: {self._files.place(PLAN_FILE)} is of another version"
            )
        try:
            document["topics"] = tuple(document["topics"])
            document["chunks"] = tuple(Chunk(*map(int, each)) for each in document["chunks"])
            document["cells"] = Cells(*map(int, document["cells"]))
            plan = ReplayPlan(**document)
        except (KeyError, TypeError, ValueError) as error:
            raise self._unreadable(PLAN_FILE, error) from error
        if not plan.is_for(source, target):
            raise PipelineFailed(
                f"{self._name}: the checkpoint {self._files.directory} is that of a replay of "
                f"{plan.path} with other topics or times, or into another topic: give this one a "
                "checkpoint of its own"
            )
        return plan

    def keep_plan(self, plan: ReplayPlan) -> None:
        """Write the plan down, before its first chunk."""
        self._write(PLAN_FILE, asdict(plan))

    def done_count(self) -> int:
        """How many chunks are known to be done."""
        document = self._read(DONE_FILE)
        if document is None:
            return 0
        try:
            return int(document["chunks"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._unreadable(DONE_FILE, error) from error

    def keep_done_count(self, count: int) -> None:
        """So many chunks are done."""
        self._write(DONE_FILE, {"chunks": count})

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content = self._files.read(name)
            if content is None:
                return None
            document = json.loads(content)
            if not isinstance(document, dict):
                raise ValueError("not a JSON object")
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from error
        return document

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        try:
            self._files.write(name, json.dumps(document).encode())
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: Exception) -> PipelineFailed:
        return PipelineFailed(f"{self._name}: {self._files.place(name)}: {error}")
