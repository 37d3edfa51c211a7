"""`moldau pipeline sinks`: what a cluster's ledger knows of the writers of Spark.

Owns what is printed. Must not talk to a cluster except through `moldau.spark_connector`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from moldau.cli.client_properties import client_properties
from moldau.cli.cluster_options import AsJson, BootstrapServer, CommandConfig
from moldau.cli.output import fail, print_json, print_table

app = typer.Typer(
    help="The sinks of Spark's queries in a cluster: list, move, settle, forget.",
    no_args_is_help=True,
)

LedgerTopic = Annotated[
    str | None,
    typer.Option(
        help="Where the sinks keep their decisions.  [default: moldau-spark-ledger]",
        show_default=False,
    ),
]
SinkId = Annotated[str, typer.Argument(help="The sink's id, as `list` shows it.")]


@app.command("list")
def list_all(
    ledger_topic: LedgerTopic = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List the sinks with the newest batch of each."""
    options = _options(bootstrap_server, command_config, ledger_topic)
    with _told():
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
            for each in list_sinks(options)
        ]
    if as_json:
        print_json(rows)
        return
    columns = ("sink", "query", "batch", "state", "rows", "other queries")
    print_table(columns, (row.values() for row in rows))


@app.command("move")
def move(
    sink_id: SinkId,
    new_id: Annotated[str, typer.Argument(help="The id under which its query goes on.")],
    ledger_topic: LedgerTopic = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Take what is known of a sink to another id, after its query's checkpoint has moved.

    The query must not run. What it has left open is ended as by settle.
    """
    options = _options(bootstrap_server, command_config, ledger_topic)
    with _told():
        from moldau.spark_connector import move_sink

        move_sink({**options, "sinkId": sink_id}, new_id)
    typer.echo(f"{sink_id}: moved to {new_id}")


@app.command("settle")
def settle(
    sink_id: SinkId,
    ledger_topic: LedgerTopic = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Commit what a sink has decided to commit, and abort whatever else it has open.

    Each start of its query does the same; a query that runs fails.
    """
    options = _options(bootstrap_server, command_config, ledger_topic)
    with _told():
        from moldau.spark_connector import list_sinks, settle_sink

        if sink_id not in {each.sink_id for each in list_sinks(options)}:
            fail(f"there is no sink {sink_id}: `moldau pipeline sinks list` shows them")
        settle_sink({**options, "sinkId": sink_id})
    typer.echo(f"{sink_id}: settled")


@app.command("forget")
def forget(
    sink_id: SinkId,
    query: Annotated[
        str | None,
        typer.Option(
            help="Only this query, as `list` and errors name it.  [default: all of the sink]",
            show_default=False,
        ),
    ] = None,
    ledger_topic: LedgerTopic = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Forget what is known of a sink, which is settled first as far as that is possible.

    A batch of its that comes again is then written again, in full.
    """
    options = _options(bootstrap_server, command_config, ledger_topic)
    with _told():
        from moldau.spark_connector import forget_sink

        forget_sink({**options, "sinkId": sink_id}, query)
    what = sink_id if query is None else f"query {query} in {sink_id}"
    typer.echo(f"{what}: forgotten")


def _options(
    bootstrap_server: str | None, command_config: str | None, ledger_topic: str | None
) -> dict[str, str]:
    """The options of the connector; exits with status 2 when the file cannot be read."""
    properties = client_properties(bootstrap_server, command_config, None, defaults={}, options={})
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
