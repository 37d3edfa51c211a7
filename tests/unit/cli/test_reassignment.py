"""What moves are made of, without a cluster: files, throttles, estimates, lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.cli.output import Block, LiveView
from moldau.cli.reassignment import (
    Estimate,
    Move,
    ReplicaProgress,
    assignment_document,
    duration_text,
    parse_assignment,
    progress_block,
    read_assignment,
    throttled_brokers,
    topic_throttles,
    write_assignment,
)
from moldau.client import Reassignment, TopicPartition

names = st.text(alphabet="abc._-", min_size=1, max_size=8)
ids = st.integers(0, 2**31 - 1)
assignments = st.dictionaries(
    st.builds(TopicPartition, names, ids),
    st.lists(ids, min_size=1, max_size=5, unique=True),
    min_size=1,
    max_size=8,
)


@given(assignments)
def test_a_file_says_what_was_written(assignment: dict[TopicPartition, list[int]]):
    document = json.loads(json.dumps(assignment_document(assignment)))
    assert parse_assignment(document) == assignment
    assert document["version"] == 1
    for each in document["partitions"]:
        assert each["log_dirs"] == ["any"] * len(each["replicas"])


def entry(**changed: Any) -> dict[str, Any]:
    values = {"topic": "t", "partition": 0, "replicas": [1, 2], **changed}
    return {key: value for key, value in values.items() if value is not ...}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "not of the form"),
        ({"version": 1}, "not of the form"),
        ({"version": 2, "partitions": [entry()]}, "version 2; only 1 is known"),
        ({"partitions": []}, "no partitions are named"),
        ({"partitions": [7]}, "7 has not the form"),
        ({"partitions": [entry(replicas=...)]}, "has not the form"),
        ({"partitions": [entry(topic="")]}, 'the topic "" is not a name'),
        ({"partitions": [entry(partition="0")]}, 't: the partition "0" is not a number'),
        ({"partitions": [entry(partition=-1)]}, "the partition -1 is not a number"),
        ({"partitions": [entry(replicas=[])]}, "t-0: replicas [] is not a list of broker ids"),
        ({"partitions": [entry(replicas=[True])]}, "t-0: replicas [true] is not a list"),
        ({"partitions": [entry(replicas=[1, 2, 1])]}, "t-0: replicas [1, 2, 1] names a broker tw"),
        ({"partitions": [entry(), entry()]}, "t-0 is named twice"),
        ({"partitions": [entry(log_dirs=["any"])]}, "t-0: log_dirs needs one entry for each"),
        ({"partitions": [entry(log_dirs=["any", "/d"])]}, 't-0: log_dirs can only be "any"'),
    ],
)
def test_files_that_make_no_sense(document: Any, said: str):
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_assignment(document)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), (b"{", "not JSON"), (b"\xff", "not JSON")]
)
def test_a_file_that_cannot_be_read_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
):
    path = tmp_path / "moves.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        read_assignment(path)
    assert caught.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"moldau: {path}: ")
    assert said in line


def test_a_file_is_written_and_read(tmp_path: Path):
    path = tmp_path / "moves.json"
    write_assignment(path, {TopicPartition("t", 1): (3, 1)})
    assert read_assignment(path) == {TopicPartition("t", 1): [3, 1]}


def test_throttles_name_who_sends_and_who_receives():
    moves = {
        TopicPartition("t", 0): Move((1, 2), (2, 3)),
        TopicPartition("t", 1): Move((2, 1), (1, 4, 5)),
        TopicPartition("u", 0): Move((1, 2, 7), (2, 1)),
    }
    assert topic_throttles(moves) == {
        "t": {
            "leader.replication.throttled.replicas": "0:1,0:2,1:2,1:1",
            "follower.replication.throttled.replicas": "0:3,1:4,1:5",
        }
    }
    assert throttled_brokers(moves) == [1, 2, 3, 4, 5]


def progress(size: int | None, end: int | None = 5, **changed: Any) -> ReplicaProgress:
    values = {"leader_end_offset": 10, "leader_size_bytes": 1000, "in_sync": False, **changed}
    return ReplicaProgress(TopicPartition("t", 0), 3, log_end_offset=end, size_bytes=size, **values)


def test_what_a_replica_lacks():
    assert (progress(400).behind_records, progress(400).missing_bytes) == (5, 600)
    level = progress(400, end=10)
    assert (level.behind_records, level.missing_bytes) == (0, 0), "sizes differ a little"
    assert progress(2000).missing_bytes == 0
    unknown = progress(None, end=None)
    assert (unknown.behind_records, unknown.missing_bytes) == (None, None)


def test_an_estimate_is_made_of_what_was_seen():
    estimate = Estimate()
    assert estimate.text() == "- to copy, -/s, - left"
    estimate.add(10.0, [progress(0)])
    assert (estimate.missing_bytes, estimate.bytes_per_second) == (1000, None)
    estimate.add(12.0, [progress(200), progress(None)])
    assert estimate.missing_bytes == 1000, "nothing is learned from a look that lacks a figure"
    estimate.add(14.0, [progress(400)])
    assert (estimate.missing_bytes, estimate.bytes_per_second, estimate.remaining_s) == (
        600,
        100,
        6,
    )
    assert estimate.text() == "600 B to copy, 100 B/s, 6 s left"
    stuck = Estimate()
    for second in (1.0, 2.0):
        stuck.add(second, [progress(0)])
    assert stuck.text() == "1000 B to copy, -/s, - left"
    assert [duration_text(s) for s in (59.4, 61, 7260)] == ["59 s", "1 min 1 s", "2 h 1 min"]


def test_lines_are_written_when_something_changed(capsys: pytest.CaptureFixture[str]):
    view = LiveView(None)

    def lines() -> list[str]:
        return [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]

    moves = {TopicPartition("t", 0): Reassignment((1, 3), (3,), ())}
    view.show([progress_block(moves, [progress(400)], "600 B to copy")])
    assert lines() == ["t-0 replica 3: 5 records behind, 600 B to copy", "600 B to copy"]
    view.show([progress_block(moves, [progress(400)], "600 B to copy")])
    assert lines() == []
    view.show([progress_block(moves, [progress(400, in_sync=True)], "600 B to copy")])
    assert lines() == ["t-0 replica 3: in sync"]
    view.show([progress_block({}, [], "")], gone="is done")
    assert lines() == ["t-0 replica 3 is done"]
    only_removing = {TopicPartition("t", 0): Reassignment((1, 3), (), (3,))}
    view.show([progress_block(only_removing, [], "0 B to copy")])
    assert lines() == ["t-0 needs no copies", "0 B to copy"]


def test_a_fault_is_said_once_as_long_as_it_lasts(capsys: pytest.CaptureFixture[str]):
    view = LiveView(None)
    for _ in range(2):
        view.say("no broker\ncan be reached")
    assert capsys.readouterr().err == "moldau: no broker can be reached\n"
    view.show([Block("", (), ())])
    view.say("no broker can be reached")
    assert capsys.readouterr().err == "moldau: no broker can be reached\n"
