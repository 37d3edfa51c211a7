"""`moldau pipeline`: run, check, settle, list; the sinks have a module of their own.

Owns what is printed. Must not import Spark except to run. Invariant: a file that is wrong is told
with every problem, one line each, before Spark is started, and ends with status 2.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from moldau.cli import pipeline_sinks
from moldau.cli.cluster_options import AsJson, key_values
from moldau.cli.output import fail, print_json, print_table

if TYPE_CHECKING:
    from moldau.spark_connector.pipelines.model import Pipeline, PipelineFile
    from moldau.spark_connector.pipelines.progress import BatchProgress
    from moldau.spark_connector.pipelines.runner import RunOptions

app = typer.Typer(
    help="Spark pipelines: run, check, settle, list the jobs and the sinks.", no_args_is_help=True
)
app.add_typer(pipeline_sinks.app, name="sinks")

File = Annotated[Path, typer.Argument(help="The pipelines, in YAML (docs/spark.md).")]


@app.command("run")
def run(
    file: File,
    master: Annotated[
        str | None,
        typer.Option(help="Where Spark runs, as spark-submit's --master.  [default: local[*]]"),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", help="KEY=VALUE, a setting of Spark; may be repeated."),
    ] = None,
    available_now: Annotated[
        bool,
        typer.Option("--available-now", help="Take what is there now, whatever the file says."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON line per batch on stdout.")
    ] = False,
) -> None:
    """Run the pipelines of a file until they are done, or Ctrl-C or SIGTERM.

    Both end each pipeline after the batch it is at; the second time at once.
    """
    from moldau.spark_connector.errors import SparkConnectorError
    from moldau.spark_connector.pipelines.runner import RunOptions

    pipelines = _loaded(file)
    if available_now:
        pipelines = _until_end(pipelines)
    options = RunOptions(master, key_values(conf or [], "--conf"))
    _refuse_foreign_settings(options)
    try:
        _run_and_show(pipelines, options, as_json=as_json)
    except SparkConnectorError as error:
        fail(str(error))


@app.command("check")
def check(file: File, as_json: AsJson = False) -> None:
    """Say whether a file is right, as far as that can be known without Spark and the cluster."""
    from moldau.spark_connector.pipelines.errors import PipelineError

    pipelines = _loaded(file)
    try:
        _check_functions(pipelines)
    except PipelineError as error:
        fail(f"{file}: {error}", status=2)
    rows = [_described(each) for each in pipelines.pipelines]
    if as_json:
        print_json({"file": str(file), "pipelines": rows, "spark": dict(pipelines.spark)})
        return
    print_table(list(rows[0]), (row.values() for row in rows))


@app.command("settle")
def settle(file: File) -> None:
    """End what pipelines that will not be started again have left open in their sinks.

    Each start does the same. Transactions that are decided are committed, others aborted; until
    then they hold back readers of committed records.
    """
    from moldau.spark_connector.errors import SparkConnectorError
    from moldau.spark_connector.pipelines.topics import settle_pipeline

    for each in _loaded(file).pipelines:
        try:
            is_settled = settle_pipeline(each)
        except SparkConnectorError as error:
            fail(f"{each.name}: {error}")
        typer.echo(f"{each.name}: {'settled' if is_settled else 'has nothing to settle'}")


@app.command("list")
def list_jobs(as_json: AsJson = False) -> None:
    """List the jobs that ship, and the script for spark-submit."""
    from moldau.spark_connector.pipelines.job_table import JOBS

    found = find_spec("moldau.spark_connector.pipelines.submit")
    script = None if found is None else found.origin
    if as_json:
        jobs = [{"job": kind.job, "summary": kind.summary} for kind in JOBS.values()]
        print_json({"jobs": jobs, "submit_script": script})
        return
    print_table(("job", "does"), ((kind.job, kind.summary) for kind in JOBS.values()))
    typer.echo(f"spark-submit {script} FILE")


def _loaded(file: Path) -> PipelineFile:
    """The file's pipelines; exits with status 2 when it is wrong."""
    from moldau.spark_connector.pipelines.errors import PipelineFileError

    try:
        from moldau.spark_connector.pipelines.model import load_pipelines

        return load_pipelines(file)
    except ImportError as error:
        fail(f"{error.name} is not installed: pip install 'moldau[spark]'")
    except PipelineFileError as error:
        _refuse(error)


def _refuse(error: Any) -> NoReturn:
    for problem in error.problems:
        print(f"moldau: {problem}", file=sys.stderr)
    sys.exit(2)


def _refuse_foreign_settings(options: RunOptions) -> None:
    for key in options.settings:
        if not key.startswith("spark."):
            fail(f"--conf {key}: Spark's settings begin with spark.", status=2)


def _until_end(file: PipelineFile) -> PipelineFile:
    from dataclasses import replace

    pipelines = tuple(replace(each, every_ms=None) for each in file.pipelines)
    return replace(file, pipelines=pipelines)


def _run_and_show(file: PipelineFile, options: RunOptions, *, as_json: bool) -> None:
    from rich.console import Console

    from moldau.spark_connector.pipelines.progress import progress_view
    from moldau.spark_connector.pipelines.runner import run_pipelines

    if as_json:

        def on_batch(progress: BatchProgress) -> None:
            print_json(progress.as_json(), one_line=True)

        options.observer = on_batch
        options.say = lambda text: print(f"moldau: {text}", file=sys.stderr)
        run_pipelines(file, options)
        return
    with progress_view(Console(stderr=True)) as view:
        options.observer, options.say = view.batch_done, view.say
        run_pipelines(file, options)


def _check_functions(file: PipelineFile) -> None:
    """Python transforms are there. Raises: PipelineFailed."""
    from moldau.spark_connector.pipelines.jobs.transforms import load_function

    for each in file.pipelines:
        if each.transform is not None and each.transform.python is not None:
            load_function(each.transform.python, each.directory)


def _described(pipeline: Pipeline) -> dict[str, str]:
    from moldau.spark_connector.pipelines.model import ArchiveSource, ParquetSink

    source, sink = pipeline.source, pipeline.sink
    if isinstance(source, ArchiveSource):
        read = source.path
    else:
        topics = source.options.get("subscribe") or source.options["subscribePattern"]
        read = f"{topics} at {source.bootstrap_servers}"
    if isinstance(sink, ParquetSink):
        written = sink.path
    else:
        written = f"{sink.topic} at {sink.bootstrap_servers}, {sink.semantics}"
    every = "what is there" if pipeline.every_ms is None else f"every {pipeline.every_ms} ms"
    return {
        "pipeline": pipeline.name,
        "job": pipeline.job,
        "from": read,
        "to": written,
        "trigger": every,
        "checkpoint": pipeline.checkpoint,
    }
