"""What Spark says about a batch, and about a failure, in our words."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from moldau.cli.output import table_lines
from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.output_claims import claim
from moldau.spark_connector.pipelines.running import (
    BatchProgress,
    RunningQuery,
    batch_progress,
    failure_line,
    lag_of,
    progress_line,
    progress_view,
)
from moldau.spark_connector.pipelines.small_files import LocalFiles


def said(batch_id: int = 3, rows: int = 1_500, **source: Any) -> dict[str, Any]:
    return {
        "batchId": batch_id,
        "timestamp": f"2026-07-01T12:00:{batch_id:02}.000Z",
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 500, "addBatch": 300},
        "sources": [
            {
                "endOffset": '{"in": {"0": 10, "1": 7}, "in:Zc2Gvi7kQ5GS1Dyo3jTAnw": {}}',
                "latestOffset": '{"in": {"0": 15, "1": 7, "2": 4}}',
                **source,
            }
        ],
    }


def test_rows_rate_and_lag_of_a_batch():
    progress = batch_progress("p", said())
    assert progress == BatchProgress("p", 3, 1_500, 500, 3_000.0, 9, {"in": {"0": 10, "1": 7}})
    assert progress_line(progress) == "p: batch 3: 1,500 rows in 500 ms (3,000 rows/s), lag 9"
    assert progress.as_json()["event"] == "batch"


@pytest.mark.parametrize("latest", [None, "null", "", 52, "52"])
def test_a_source_without_kafka_s_offsets_has_no_lag(latest: object):
    progress = batch_progress("p", said(endOffset=45, latestOffset=latest))
    assert (progress.lag, progress.end_offsets) == (None, {})
    assert "lag" not in progress_line(progress)


def test_away_from_a_terminal_each_batch_with_rows_is_a_line():
    written = io.StringIO()
    with progress_view(Console(file=written, force_terminal=False)) as view:
        view.batch_done(batch_progress("p", said(rows=0)))
        view.batch_done(batch_progress("p", said()))
        view.say("[bold]stopping")
    assert written.getvalue().splitlines() == [
        "p: batch 3: 1,500 rows in 500 ms (3,000 rows/s), lag 9",
        "[bold]stopping",
    ]


def test_on_a_terminal_there_is_a_table_with_the_sum():
    written = io.StringIO()
    with progress_view(Console(file=written, force_terminal=True, width=120)) as view:
        for number in range(3):
            view.batch_done(batch_progress("delays", said(number)))
    columns = ("pipeline", "batch", "rows", "ms", "rows/s", "lag", "rows in all")
    row = ("delays", 2, "1,500", 500, "3,000", 9, "4,500")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", written.getvalue()).splitlines()
    drawn = [line.rstrip() for line in shown if line.strip()]
    assert drawn[-3:] == table_lines(columns, [row]), "as every other table of the command"


class FakeQuery:
    """What a streaming query reports."""

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []
        self.isActive = True
        self.stop_error: Exception | None = None

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def stop(self) -> None:
        if self.stop_error is not None:
            raise self.stop_error


def test_a_query_keeps_its_claim_until_it_has_ended(tmp_path: Path):
    query = FakeQuery()
    checkpoint, output = LocalFiles(str(tmp_path / "one")), LocalFiles(str(tmp_path / "files"))
    running = RunningQuery("p", query, claim(checkpoint, output, "p"))  # type: ignore[arg-type]
    assert not running.is_over()
    query.stop_error = TimeoutError("still at work")
    with pytest.raises(TimeoutError):
        running.stop_now()
    with pytest.raises(PipelineFailed, match="another pipeline writes"):
        claim(checkpoint, output, "p")
    query.stop_error = None
    running.stop_now()
    claim(checkpoint, output, "p").release()


def test_each_batch_is_reported_once():
    query = FakeQuery()
    running = RunningQuery("p", query)  # type: ignore[arg-type]
    assert running.new_progress() == []
    query.recentProgress = [said(0), said(1)]
    assert [each.batch_id for each in running.new_progress()] == [0, 1]
    query.recentProgress.append({**said(1, rows=0), "timestamp": "2026-07-01T12:00:59.000Z"})
    query.recentProgress.append(said(2, rows=0))
    assert [each.batch_id for each in running.new_progress()] == [2]
    assert running.new_progress() == []


def test_the_whole_list_is_asked_for_only_when_a_batch_was_missed(
    monkeypatch: pytest.MonkeyPatch,
):
    query = FakeQuery()
    running = RunningQuery("p", query)  # type: ignore[arg-type]
    latest: list[dict[str, Any]] = []
    monkeypatch.setattr(FakeQuery, "lastProgress", property(lambda _: latest[-1]))
    del query.recentProgress
    for number in range(3):
        latest.append(said(number))
        assert [each.batch_id for each in running.new_progress()] == [number]
        assert running.new_progress() == []
    query.recentProgress = [said(number) for number in range(6)]
    latest.append(said(5))
    assert [each.batch_id for each in running.new_progress()] == [3, 4, 5]


OURS = """\
[STREAM_FAILED] Query [id = x] terminated with exception: Job aborted due to stage failure: Task 0
in stage 3.0 failed 1 times: org.apache.spark.api.python.PythonException: Traceback:
  File "x.py", line 1, in read
moldau.spark_connector.errors.DataLoss: in-0: offsets 5 to 9 are gone; wanted
5, available 10
\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OURS, "DataLoss: in-0: offsets 5 to 9 are gone; wanted 5, available 10"),
        ("[X] no such column\n\nJVM stacktrace:\norg.x", "[X] no such column"),
        ("[X] it\n\tat org.apache", "[X] it"),
    ],
)
def test_a_failure_is_one_line_with_its_cause(text: str, line: str):
    assert failure_line(text) == line


def test_a_long_failure_is_cut():
    assert len(failure_line("x" * 5_000)) < 1_100


def test_the_lag_counts_new_partitions_and_nothing_backwards():
    ends = {"t": {"0": 5, "1": 9}}
    assert lag_of(ends, {"t": {"0": 7, "1": 4, "2": 3}}) == 2 + 0 + 3
