"""Cutting an archive into chunks, and keeping count beside the checkpoint."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from moldau.spark_connector.pipelines.errors import PipelineFailed
from moldau.spark_connector.pipelines.model import ArchiveSource, Pipeline, TopicSink
from moldau.spark_connector.pipelines.replay_plan import ReplayBook, make_plan

SOURCE = ArchiveSource("/archive", ("in",), None, 5, records_per_chunk=100)


def book(tmp_path: Path) -> ReplayBook:
    sink = TopicSink({}, "{topic}", "back")
    return ReplayBook(Pipeline("back", "replay", SOURCE, sink, str(tmp_path / "ck"), None))


def test_chunks_cover_each_offset_once():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(200):
        ranges = []
        for partition in range(dice.randrange(1, 6)):
            first = dice.randrange(0, 1_000)
            ranges.append(("in", partition, first, first + dice.randrange(0, 500)))
        source = replace(SOURCE, records_per_chunk=dice.randrange(1, 400))
        plan = make_plan(source, iter(ranges))
        offsets = [
            number for chunk in range(plan.chunk_count) for number in range(*plan.offsets_of(chunk))
        ]
        assert offsets == sorted(set(offsets))
        for _, partition, first, last in ranges:
            assert plan.ends["in"][str(partition)] == last + 1
            assert offsets[0] <= first
            assert last <= offsets[-1]
        assert plan.stride * len(ranges) <= max(source.records_per_chunk, len(ranges))


def test_an_empty_archive_has_no_chunks():
    assert make_plan(SOURCE, iter(())).chunk_count == 0


def test_plan_and_count_are_kept(tmp_path: Path):
    plan = make_plan(SOURCE, iter([("in", 0, 3, 250), ("in", 1, 0, 99)]))
    plan = replace(plan, row_counts={"0": 97, "2": 50, "10": 3})
    assert [plan.rows_in(chunk) for chunk in range(3)] == [97, 0, 50]
    assert [plan.rows_after(chunk) for chunk in (0, 2, 10)] == [53, 3, 0]
    first = book(tmp_path)
    assert first.plan(SOURCE) is None
    assert first.done_count() == 0
    first.keep_plan(plan)
    first.keep_done_count(2)
    again = book(tmp_path)
    assert again.plan(SOURCE) == plan
    assert again.done_count() == 2
    assert sorted(each.name for each in (tmp_path / "ck").iterdir()) == [
        "replay-done.json",
        "replay-plan.json",
    ]


@pytest.mark.parametrize("other", [{"path": "/b"}, {"topics": ()}, {"until_ms": 6}])
def test_a_checkpoint_of_another_replay_is_refused(tmp_path: Path, other: dict[str, object]):
    mine = book(tmp_path)
    mine.keep_plan(make_plan(SOURCE, iter([("in", 0, 0, 9)])))
    with pytest.raises(PipelineFailed, match="give this one a checkpoint of its own"):
        mine.plan(replace(SOURCE, **other))  # type: ignore[arg-type]


def test_a_broken_file_is_told_by_its_name(tmp_path: Path):
    mine = book(tmp_path)
    mine.keep_done_count(1)
    (tmp_path / "ck" / "replay-done.json").write_text("{")
    with pytest.raises(PipelineFailed, match=r"replay-done\.json"):
        mine.done_count()
