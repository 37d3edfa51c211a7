"""`moldau pipeline check` and `list`, and what `run` refuses before it starts Spark."""

from __future__ import annotations

import asyncio
import io
import logging
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from moldau.cli import client_settings
from moldau.cli.main import app

FILE = """\
name: copy
job: mirror
source: {bootstrap.servers: "here:9092", topic: flights}
sink: {bootstrap.servers: "there:9092"}
checkpoint: state
"""


def moldau(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["pipeline", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "copy.yaml"
    made.write_text(FILE)
    return made


def test_check_shows_what_a_file_means(file: Path):
    status, out, _ = moldau("check", str(file), "--json")
    assert status == 0
    [pipeline] = orjson.loads(out)["pipelines"]
    assert pipeline == {
        "pipeline": "copy",
        "job": "mirror",
        "from": "flights at here:9092",
        "to": "{topic} at there:9092, exactly-once",
        "trigger": "every 1000 ms",
        "checkpoint": str(file.parent / "state"),
    }
    assert "flights at here:9092" in moldau("check", str(file))[1]


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_wrong_file_is_reported_line_by_line_with_status_2(command: str, file: Path):
    file.write_text(FILE.replace("mirror", "miror").replace("checkpoint: state\n", ""))
    status, out, err = moldau(command, str(file))
    assert (status, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(f"moldau: {file}:2: job: 'miror' is none of archive")


def test_check_looks_for_the_python_function(file: Path):
    pytest.importorskip("pyspark")
    text = FILE.replace("job: mirror", "job: transform\ntransform: {python: 'own_step:go'}")
    file.write_text(text.replace('"there:9092"', '"there:9092", topic: out'))
    status, _, err = moldau("check", str(file))
    assert status == 2
    assert f"own_step: neither installed nor in {file.parent}" in err
    (file.parent / "own_step.py").write_text("def other(frame):\n    return frame\n")
    assert "own_step has no function go" in moldau("check", str(file))[2]


def test_run_takes_settings_of_spark_only(file: Path):
    status, _, err = moldau("run", str(file), "--conf", "driver.memory=2g")
    assert status == 2
    assert "--conf driver.memory: Spark's settings begin with spark." in err
    assert moldau("run", str(file), "--conf", "spark.x")[0] == 2


def test_list_names_every_job_and_the_script_for_spark_submit():
    from moldau.spark_connector.pipelines.jobs import STARTS

    status, out, _ = moldau("list", "--json")
    listed = orjson.loads(out)
    assert status == 0
    assert [each["job"] for each in listed["jobs"]] == list(STARTS)
    assert Path(listed["submit_script"]).exists()
    assert "spark-submit" in moldau("list")[1]


@pytest.mark.real
def test_checking_a_file_needs_no_spark(file: Path):
    """It runs in its own process: others have imported Spark here."""
    code = (
        "import sys; from moldau.spark_connector.pipelines import load_pipelines; "
        f"load_pipelines({str(file)!r}); assert 'pyspark' not in sys.modules"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.stderr == ""
    assert finished.returncode == 0


@pytest.mark.real
def test_sinks_of_a_cluster_that_does_not_answer_are_one_line(tmp_path: Path):
    """What the commands do with a cluster: tests/spark/sink/test_without_spark.py."""
    pytest.importorskip("pyarrow")
    config = tmp_path / "client.properties"
    config.write_text("default.api.timeout.ms=300\n")
    there = ("-b", "127.0.0.1:1", "--command-config", str(config))
    listing, looking = "listing the sinks of moldau-spark-ledger", "looking for sink 'a'"
    for what, *command in (
        (listing, "list"),
        (looking, "move", "a", "b"),
        (listing, "settle", "a"),
        (listing, "forget", "a"),
    ):
        status, out, err = moldau("sinks", *command, *there)
        assert (status, out) == (1, "")
        # Where the limit comes late, the client has warned before.
        warning = "moldau: no broker can be reached: "
        [line] = [each for each in err.splitlines() if not each.startswith(warning)]
        assert line.startswith(f"moldau: {what}: ")
    config.write_text("request.timeout.ms=soon\n")
    status, _, err = moldau("sinks", "list", *there)
    assert (status, "kafka.request.timeout.ms" in err) == (2, True)


def test_a_late_warning_goes_to_the_stream_of_its_own_command(monkeypatch: pytest.MonkeyPatch):
    """Blocking clients of one process share a loop, which outlives the command."""
    logger = logging.getLogger("moldau.client.cluster")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(client_settings, "HELD_S", 0.0)
    streams = io.StringIO(), io.StringIO()
    loop = asyncio.new_event_loop()
    for stream in streams:
        monkeypatch.setattr(sys, "stderr", stream)
        client_settings._tell_warnings()
        assert len(logger.handlers) == 1
        loop.call_soon(logger.handlers[0].emit, logging.makeLogRecord({"msg": "x", "levelno": 30}))
    loop.call_later(0.001, loop.stop)
    loop.run_forever()
    loop.close()
    assert [stream.getvalue() for stream in streams] == ["moldau: x\n"] * 2
