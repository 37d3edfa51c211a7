"""`moldau pipeline`: run, check, settle, list; and `moldau pipeline sinks` for a cluster's ledger.

Owns what is printed. Must not import Spark except to run, nor talk to a cluster except through
`moldau.spark_connector`. Invariant: a file that is wrong is refused with every problem, one line
each, before Spark is started, and with status 2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.asking import Yes, ask_first, refuse_unknown
from moldau.cli.client_settings import key_values
from moldau.cli.options import AsJson, ClientOptions
from moldau.cli.output import (
    error_console,
    fail,
    print_json,
    print_rows,
    print_table,
    refusing,
    say,
    warn,
)
from moldau.schema_registry.settings import take_registry_settings

if TYPE_CHECKING:
    from moldau.spark_connector.pipelines.model import Pipeline, PipelineFile
    from moldau.spark_connector.pipelines.runner import RunOptions
    from moldau.spark_connector.pipelines.running import BatchProgress

app = typer.Typer()

File = Annotated[Path, "The pipelines, in YAML (docs/spark.md)."]
sinks = typer.Typer(
    help="List, move, settle and forget the sinks of Spark's queries.", no_args_is_help=True
)
app.add_typer(sinks, name="sinks")
LedgerTopic = Annotated[
    str | None, "Where the sinks keep their decisions.  [default: moldau-spark-ledger]"
]
SinkId = Annotated[str, "The sink's id, as `list` shows it."]


@app.command("run")
def run(
    file: File,
    master: Annotated[
        str | None, "Where Spark runs, as spark-submit's --master.  [default: local[*]]"
    ] = None,
    conf: Annotated[list[str] | None, "KEY=VALUE, a setting of Spark; may be repeated."] = None,
    available_now: Annotated[
        bool, "Read only the records that exist now, whatever the file says."
    ] = False,
    as_json: Annotated[bool, "--json", "Print a JSON line per batch on stdout."] = False,
) -> None:
    """Run the pipelines of a file.

    They run until they are done, or until Ctrl-C or SIGTERM. Both end each pipeline after the batch
    it is at; the second time at once.
    """
    from moldau.spark_connector.errors import SparkConnectorError
    from moldau.spark_connector.pipelines.runner import RunOptions

    pipelines = _loaded(file)
    if available_now:
        ending = tuple(replace(each, every_ms=None) for each in pipelines.pipelines)
        pipelines = replace(pipelines, pipelines=ending)
    options = RunOptions(master, key_values(conf or [], "--conf"))
    for key in options.settings:
        if not key.startswith("spark."):
            fail(f"--conf {key}: Spark's settings begin with spark.", status=2)
    with refusing(SparkConnectorError, status=1):
        _run_and_show(pipelines, options, as_json=as_json)


@app.command("check")
def check(file: File, as_json: AsJson = False) -> None:
    """Check a file, without Spark and the cluster."""
    from moldau.spark_connector.errors import PipelineError
    from moldau.spark_connector.pipelines.jobs.streams import load_function

    pipelines = _loaded(file)
    with refusing(PipelineError, of=file):
        for each in pipelines.pipelines:
            if each.transform is not None and each.transform.python is not None:
                load_function(each.transform.python, each.directory)
    rows = [_described(each) for each in pipelines.pipelines]
    if as_json:
        print_json({"file": str(file), "pipelines": rows, "spark": dict(pipelines.spark)})
        return
    print_table(list(rows[0]), (row.values() for row in rows))


@app.command("settle")
def settle(file: File) -> None:
    """End what pipelines have left open in their sinks.

    It is for pipelines that will not be started again. Each start does the same. Transactions that
    are decided are committed, others aborted; until then they hold back readers of committed
    records.
    """
    from moldau.spark_connector.errors import SparkConnectorError
    from moldau.spark_connector.pipelines.topics import settle_pipeline

    for each in _loaded(file).pipelines:
        with refusing(SparkConnectorError, of=each.name, status=1):
            is_settled = settle_pipeline(each)
        say(f"{each.name}: {'settled' if is_settled else 'has nothing to settle'}")


@app.command("list")
def list_jobs(as_json: AsJson = False) -> None:
    """List the built-in jobs, and the script for spark-submit."""
    from moldau.spark_connector.pipelines.model import JOBS

    found = find_spec("moldau.spark_connector.pipelines.submit")
    script = None if found is None else found.origin
    if as_json:
        jobs = [{"job": kind.job, "summary": kind.summary} for kind in JOBS.values()]
        print_json({"jobs": jobs, "submit_script": script})
        return
    print_table(("job", "does"), ((kind.job, kind.summary) for kind in JOBS.values()))
    say(f"spark-submit {script} FILE")


def _loaded(file: Path) -> PipelineFile:
    """The file's pipelines; exits with status 2 when it is wrong."""
    from moldau.spark_connector.errors import PipelineFileError

    with _told():
        from moldau.spark_connector.pipelines.pipeline_file import load_pipelines

        try:
            return load_pipelines(file)
        except PipelineFileError as error:
            for problem in error.problems:
                warn(problem)
            sys.exit(2)


def _run_and_show(file: PipelineFile, options: RunOptions, *, as_json: bool) -> None:
    from moldau.spark_connector.pipelines.runner import run_pipelines
    from moldau.spark_connector.pipelines.running import progress_view

    if as_json:

        def on_batch(progress: BatchProgress) -> None:
            print_json(progress.as_json(), is_row=True)
            sys.stdout.flush()

        options.observer = on_batch
        options.say = warn
        run_pipelines(file, options)
        return
    with progress_view(error_console()) as view:
        options.observer, options.say = view.batch_done, view.say
        run_pipelines(file, options)


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


def _ledger(client: ClientOptions, ledger_topic: str | None) -> dict[str, str]:
    """The options of the connector; exits with status 2 when the file cannot be read."""
    properties = client.properties()
    take_registry_settings(properties)
    options = {f"kafka.{key}": str(value) for key, value in properties.items()}
    if ledger_topic is not None:
        options["ledgerTopic"] = ledger_topic
    return options


@contextmanager
def _told() -> Iterator[None]:
    """An error is one line: status 2 for options, 1 for everything else."""
    try:
        from moldau.spark_connector.errors import InvalidOption, SparkConnectorError

        yield
    except ImportError as error:
        fail(f"{error.name} is not installed: pip install 'moldau[spark]'")
    except InvalidOption as error:
        fail(str(error), status=2)
    except SparkConnectorError as error:
        fail(str(error))


@sinks.command("list")
@_told()
def list_all(
    client: ClientOptions, ledger_topic: LedgerTopic = None, as_json: AsJson = False
) -> None:
    """List the sinks with the newest batch of each."""
    from moldau.spark_connector import list_sinks

    rows = [
        {
            "sink": each.sink_id,
            "query": each.batch and each.batch.query_id,
            "batch": each.batch and each.batch.batch_id,
            "state": each.batch and each.batch.state.value,
            "rows": each.batch and each.batch.rows,
            "other_queries": each.other_queries,
        }
        for each in list_sinks(_ledger(client, ledger_topic))
    ]
    columns = ("sink", "query", "batch", "state", "rows", "other queries")
    print_rows(columns, rows, as_json=as_json)


@sinks.command("move")
@_told()
def move_one(
    client: ClientOptions,
    sink_id: SinkId,
    new_id: Annotated[str, "The id under which its query goes on."],
    ledger_topic: LedgerTopic = None,
) -> None:
    """Give a sink another id.

    It is for a query whose checkpoint has moved. The query must not run. What it has left open is
    ended as by settle.
    """
    from moldau.spark_connector import move_sink

    move_sink({**_ledger(client, ledger_topic), "sinkId": sink_id}, new_id)
    say(f"{sink_id}: moved to {new_id}")


@sinks.command("settle")
@_told()
def settle_one(client: ClientOptions, sink_id: SinkId, ledger_topic: LedgerTopic = None) -> None:
    """Commit what a sink has decided, and abort the rest.

    Each start of its query does the same; a query that runs fails.
    """
    from moldau.spark_connector import list_sinks, settle_sink

    options = _ledger(client, ledger_topic)
    refuse_unknown("sink", [sink_id], (each.sink_id for each in list_sinks(options)))
    settle_sink({**options, "sinkId": sink_id})
    say(f"{sink_id}: settled")


@sinks.command("forget")
@_told()
def forget_one(
    client: ClientOptions,
    sink_id: SinkId,
    query: Annotated[
        str | None, "Only this query, as `list` and errors name it.  [default: all of the sink]"
    ] = None,
    ledger_topic: LedgerTopic = None,
    yes: Yes = False,
) -> None:
    """Settle a sink, and forget what is known of it.

    A batch of its that comes again is then written again, in full.
    """
    from moldau.spark_connector import forget_sink, list_sinks

    options = _ledger(client, ledger_topic)
    known = list_sinks(options)
    refuse_unknown("sink", [sink_id], (each.sink_id for each in known))
    what = sink_id if query is None else f"query {query} in {sink_id}"
    ask_first(f"forget {what}: a batch that comes again is written again, in full", yes=yes)
    forget_sink({**options, "sinkId": sink_id}, query)
    say(f"{what}: forgotten")
