"""Cutting an archive into chunks, and keeping count beside the checkpoint."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.jobs.replay import (
    ArchivedRange,
    Cells,
    Chunk,
    ReplayBook,
    ReplayPlan,
    cells_of,
    make_plan,
)
from moldau.spark_connector.pipelines.model import ArchiveSource, Pipeline, TopicSink
from moldau.spark_connector.pipelines.small_files import LocalFiles
from tests.kit.dice import drawn_seed

SOURCE = ArchiveSource("/archive", ("in",), None, 5, records_per_chunk=100)


def book(tmp_path: Path) -> ReplayBook:
    sink = TopicSink({}, "{topic}", "back")
    pipeline = Pipeline("back", "replay", SOURCE, sink, str(tmp_path / "ck"), None)
    return ReplayBook(pipeline, LocalFiles(pipeline.checkpoint))


def plan_of(source: ArchiveSource, offsets: dict[int, list[int]]) -> ReplayPlan:
    """A plan for an archive with these offsets by partition, each partition in one file."""
    ranges = [
        ArchivedRange(f"f{number}", "in", number, min(each), max(each))
        for number, each in offsets.items()
    ]
    cells = cells_of(ranges, source.records_per_chunk)
    return make_plan(source, ranges, cells, counted(cells, offsets), "out")


def counted(cells: Cells, offsets: dict[int, list[int]]) -> dict[int, int]:
    places = [(each - cells.first_offset) // cells.size for one in offsets.values() for each in one]
    return Counter(places)


def test_each_offset_is_in_one_chunk_and_no_chunk_is_too_big():
    seed = drawn_seed()
    dice = random.Random(seed)
    for _ in range(200):
        offsets: dict[int, list[int]] = {}
        for partition in range(dice.randrange(1, 6)):
            first = dice.randrange(0, 1_000)
            everything = range(first, first + dice.randrange(1, 500))
            offsets[partition] = [each for each in everything if dice.random() < 0.7] or [first]
        source = replace(SOURCE, records_per_chunk=dice.randrange(1, 400))
        plan = plan_of(source, offsets)
        assert plan.ends["in"] == {str(number): max(each) + 1 for number, each in offsets.items()}
        everything_once = sorted(each for one in offsets.values() for each in one)
        in_chunks: list[int] = []
        for chunk in plan.chunks:
            mine = [e for e in everything_once if chunk.first_offset <= e < chunk.end_offset]
            assert len(mine) == chunk.row_count > 0
            assert chunk.row_count <= max(source.records_per_chunk, len(offsets))
            in_chunks += mine
        assert in_chunks == everything_once
        assert plan.counted_otherwise(counted(plan.cells, offsets), 0) is None


def test_one_big_partition_among_many_small_ones_makes_no_tiny_chunks():
    offsets = {number: [0] for number in range(1, 50)}
    plan = plan_of(SOURCE, {0: list(range(10_000)), **offsets})
    assert len(plan.chunks) <= 10_049 // SOURCE.records_per_chunk + 2


def test_offsets_that_reach_far_are_counted_in_few_cells():
    plan = plan_of(SOURCE, {0: [0, 10**12]})
    assert plan.cells.size >= 10**7
    assert [each.row_count for each in plan.chunks] == [2]


def test_an_empty_archive_has_no_chunks():
    assert make_plan(SOURCE, (), cells_of((), 100), {}, "out").chunks == ()


@pytest.mark.promise("replay-plan")
def test_what_is_missing_or_new_in_chunks_still_to_be_done_is_found():
    plan = plan_of(SOURCE, {0: list(range(250)), 1: list(range(100))})
    assert plan.chunks == (
        Chunk(0, 50, 100),
        Chunk(50, 100, 100),
        Chunk(100, 200, 100),
        Chunk(200, 250, 50),
    )
    fewer = counted(plan.cells, {0: list(range(60, 250)), 1: list(range(100))})
    assert plan.counted_otherwise(fewer, 2) is None
    assert plan.counted_otherwise(fewer, 1) == (
        "offsets 50 to 99: there were 100 records, and now there are 90"
    )
    assert "offsets 0 to 49" in (plan.counted_otherwise(fewer, 0) or "")


def test_plan_and_count_are_kept(tmp_path: Path):
    plan = plan_of(SOURCE, {0: list(range(3, 250)), 1: list(range(100))})
    assert [plan.rows_after(number) for number in range(len(plan.chunks))][-1] == 0
    assert plan.rows_after(0) == 347 - plan.chunks[0].row_count
    first = book(tmp_path)
    assert first.plan(SOURCE, "out") is None
    assert first.done_count() == 0
    first.keep_plan(plan)
    first.keep_done_count(2)
    again = book(tmp_path)
    assert again.plan(SOURCE, "out") == plan
    assert again.done_count() == 2
    assert sorted(each.name for each in (tmp_path / "ck").iterdir()) == [
        "replay-done.json",
        "replay-plan.json",
    ]


@pytest.mark.parametrize("other", [{"path": "/b"}, {"topics": ()}, {"until_ms": 6}])
def test_a_checkpoint_of_another_replay_is_refused(tmp_path: Path, other: dict[str, object]):
    mine = book(tmp_path)
    mine.keep_plan(plan_of(SOURCE, {0: list(range(10))}))
    with pytest.raises(PipelineFailed, match="give this one a checkpoint of its own"):
        mine.plan(replace(SOURCE, **other), "out")  # type: ignore[arg-type]


@pytest.mark.promise("replay-target")
def test_a_checkpoint_of_a_replay_into_another_topic_is_refused(tmp_path: Path):
    """Its chunks are done, and the other topic would stay empty."""
    mine = book(tmp_path)
    mine.keep_plan(plan_of(SOURCE, {0: list(range(10))}))
    with pytest.raises(PipelineFailed, match="into another topic: give this one a checkpoint"):
        mine.plan(SOURCE, "elsewhere")


@pytest.mark.promise("replay-fresh")
def test_chunks_have_the_names_that_the_sink_knows_them_by():
    """The names are those of one pipeline and topic, whatever the archive holds: the sink compares
    the records.
    """
    plan, grown = (plan_of(SOURCE, {0: list(range(count))}) for count in (150, 400))
    names = [plan.chunk_name("back", number) for number in range(2)]
    assert names == [grown.chunk_name("back", number) for number in range(2)]
    assert len({*names, plan.chunk_name("other", 0)}) == 3
    assert replace(plan, target="elsewhere").chunk_name("back", 0) not in names


def test_a_replay_that_an_earlier_release_has_begun_keeps_its_names(tmp_path: Path):
    mine = book(tmp_path)
    mine.keep_plan(plan_of(SOURCE, {0: list(range(10))}))
    file = tmp_path / "ck" / "replay-plan.json"
    document = json.loads(file.read_text())
    assert document.pop("target") == "out"
    file.write_text(json.dumps({**document, "version": 1}))
    plan = book(tmp_path).plan(SOURCE, "anywhere")
    assert plan is not None
    assert plan.chunk_name("back", 3) == "replay-ba337c762db89ca1-3"


def test_a_broken_file_is_reported_by_its_name(tmp_path: Path):
    mine = book(tmp_path)
    mine.keep_done_count(1)
    for broken in ("{", "[]", "{}", '{"chunks": null}'):
        (tmp_path / "ck" / "replay-done.json").write_text(broken)
        with pytest.raises(PipelineFailed, match=r"replay-done\.json"):
            mine.done_count()
    for broken in ('{"version": 1}', '{"version": 1, "topics": [], "chunks": [[1]]}'):
        (tmp_path / "ck" / "replay-plan.json").write_text(broken)
        with pytest.raises(PipelineFailed, match=r"replay-plan\.json"):
            mine.plan(SOURCE, "out")
