"""In which steps an archive is replayed, and how far a replay has come.

Owns the cutting of an archive into chunks by offset, and the two small files beside the checkpoint
that say which archive it was and which chunks are done. Must not read records. Invariant: the plan
is made once; a later run of the same replay goes by it, so that chunk n is the same records always,
also when the archive has grown meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from moldau.spark_connector.pipelines.errors import PipelineFailed
from moldau.spark_connector.pipelines.model import ArchiveSource, Pipeline, is_remote

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

PLAN_FILE: Final = "replay-plan.json"
DONE_FILE: Final = "replay-done.json"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Which records are replayed, and in which steps.

    `ends` is the last offset of each partition, plus one, as it was when the plan was made: by
    topic, then by partition (as text, as in JSON). Chunk n holds the offsets from
    `first_offset` + n × `stride` to the next chunk's, of all partitions together. `row_counts` says
    how many records that are, by the chunk's number (as text); chunks without any are not in it.
    """

    path: str
    topics: tuple[str, ...]
    from_ms: int | None
    until_ms: int | None
    stride: int
    first_offset: int
    ends: Mapping[str, Mapping[str, int]]
    row_counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def chunk_count(self) -> int:
        """How many chunks there are; some may hold nothing."""
        highest = max((end for each in self.ends.values() for end in each.values()), default=0)
        return max(0, -(-(highest - self.first_offset) // self.stride))

    def offsets_of(self, chunk: int) -> tuple[int, int]:
        """The chunk's first offset, and the one after its last."""
        first = self.first_offset + chunk * self.stride
        return first, first + self.stride

    def rows_in(self, chunk: int) -> int:
        """How many records a chunk has."""
        return self.row_counts.get(str(chunk), 0)

    def rows_after(self, chunk: int) -> int:
        """How many records come after a chunk."""
        return sum(count for number, count in self.row_counts.items() if int(number) > chunk)

    def is_for(self, source: ArchiveSource) -> bool:
        """Whether the plan was made for such a source."""
        mine = (self.path, self.topics, self.from_ms, self.until_ms)
        return mine == (source.path, source.topics, source.from_ms, source.until_ms)


def make_plan(source: ArchiveSource, ranges: Iterator[tuple[str, int, int, int]]) -> ReplayPlan:
    """A plan for what is in the archive.

    Args:
        ranges: topic, partition, lowest and highest offset of what is to be replayed.
    """
    ends: dict[str, dict[str, int]] = {}
    lowest: int | None = None
    partition_count = 0
    for topic, partition, first, last in ranges:
        ends.setdefault(topic, {})[str(partition)] = last + 1
        lowest = first if lowest is None else min(lowest, first)
        partition_count += 1
    # A chunk takes as many offsets of each partition as make up the records of a batch together.
    stride = max(1, source.records_per_chunk // max(1, partition_count))
    return ReplayPlan(
        source.path, source.topics, source.from_ms, source.until_ms, stride, lowest or 0, ends
    )


class ReplayBook:
    """The plan and the number of chunks done, kept in the pipeline's checkpoint directory.

    The chunks' transactions make sure that a chunk is written once; this only saves the reading.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        from pyarrow import fs

        self._name = pipeline.name
        where = pipeline.checkpoint
        found: tuple[FileSystem, str] = fs.FileSystem.from_uri(
            where if is_remote(where) else f"file://{where}"
        )
        self._files, self._directory = found

    def plan(self, source: ArchiveSource) -> ReplayPlan | None:
        """The plan of an earlier run; None when there was none.

        Raises:
            PipelineFailed: it was for something else, or cannot be read.
        """
        document = self._read(PLAN_FILE)
        if document is None:
            return None
        if document.pop("version", None) != FORMAT_VERSION:
            raise PipelineFailed(f"{self._name}: {self._place(PLAN_FILE)} is of another version")
        document["topics"] = tuple(document["topics"])
        plan = ReplayPlan(**document)
        if not plan.is_for(source):
            raise PipelineFailed(
                f"{self._name}: the checkpoint {self._directory} is that of a replay of "
                f"{plan.path} with other topics or times: give this one a checkpoint of its own"
            )
        return plan

    def keep_plan(self, plan: ReplayPlan) -> None:
        """Write the plan down, before its first chunk."""
        self._write(PLAN_FILE, {"version": FORMAT_VERSION, **asdict(plan)})

    def done_count(self) -> int:
        """How many chunks are known to be done."""
        document = self._read(DONE_FILE)
        return 0 if document is None else int(document["chunks"])

    def keep_done_count(self, count: int) -> None:
        """So many chunks are done."""
        self._write(DONE_FILE, {"chunks": count})

    def _place(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with self._files.open_input_stream(self._place(name)) as opened:
                document: dict[str, Any] = json.loads(opened.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise PipelineFailed(f"{self._name}: {self._place(name)}: {error}") from error
        return document

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        """A whole new file in the old one's place: a reader finds one of the two."""
        draft = self._place(f"{name}.new")
        try:
            self._files.create_dir(self._directory, recursive=True)
            with self._files.open_output_stream(draft) as opened:
                opened.write(json.dumps(document).encode())
            self._files.move(draft, self._place(name))
        except OSError as error:
            raise PipelineFailed(f"{self._name}: {self._place(name)}: {error}") from error
