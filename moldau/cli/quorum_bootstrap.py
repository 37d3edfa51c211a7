"""`moldau quorum bootstrap`: a cluster of many nodes on this machine, laid out, formatted, and run.

Owns the command, and the supervision that `moldau dev` shares. Must not know what nodes do.
Invariant: a directory that holds anything is left as it is.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.output import fail
from moldau.testing.layout import (
    MOST_BROKERS,
    MOST_CONTROLLERS,
    ClusterLayout,
    LayoutError,
    counting_from,
)

#: Controllers listen this far above the first broker.
CONTROLLER_PORTS = 100
HIGHEST_PORT = 65_535

Controllers = Annotated[int, typer.Option(min=1, max=MOST_CONTROLLERS, help="How many vote.")]
Brokers = Annotated[int, typer.Option(min=1, max=MOST_BROKERS, help="How many serve clients.")]


def bootstrap(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new or empty directory for all nodes.")
    ],
    controllers: Controllers = 3,
    brokers: Brokers = 3,
    host: Annotated[
        str, typer.Option(help="The address that all of them listen on.")
    ] = "localhost",
    base_port: Annotated[
        int,
        typer.Option(
            min=1,
            max=HIGHEST_PORT,
            help="The first broker's port; controllers are 100 above.",
        ),
    ] = 9092,
    start: Annotated[
        bool, typer.Option("--start", help="Run all nodes until Ctrl-C or SIGTERM.")
    ] = False,
) -> None:
    """Lay out and format a cluster: one directory per node, one cluster id, one voter set."""
    if base_port + CONTROLLER_PORTS + controllers - 1 > HIGHEST_PORT:
        fail(f"--base-port {base_port} leaves no ports for {controllers} controllers", status=2)
    layout = ClusterLayout.plan(
        directory.absolute(),
        controllers=controllers,
        brokers=brokers,
        host=host,
        broker_port=counting_from(base_port),
        controller_port=counting_from(base_port + CONTROLLER_PORTS),
    )
    cluster_id = make_cluster(directory, layout)
    typer.echo(f"cluster {cluster_id}: {controllers} controllers, {brokers} brokers in {directory}")
    if start:
        raise typer.Exit(run_cluster(layout, announce))
    typer.echo("start each node with:")
    for node in (*layout.controllers, *layout.brokers):
        typer.echo(f"  moldau server start {shlex.quote(str(node.config_path))}")
    typer.echo(f"clients connect to {layout.bootstrap_server}")


def make_cluster(directory: Path, layout: ClusterLayout) -> str:
    """Write and format all nodes into a directory that is empty; returns the cluster id."""
    try:
        if directory.exists() and any(directory.iterdir()):
            fail(f"{directory} is not empty; it is left as it is")
        layout.write_configs()
        return layout.format()
    except LayoutError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or directory}: {error.strerror or error}")


def announce(layout: ClusterLayout) -> None:
    """Say on stdout that all brokers serve, and where."""
    print(f"ready: {layout.bootstrap_server}", flush=True)


def run_cluster(layout: ClusterLayout, on_ready: Callable[[ClusterLayout], None]) -> int:
    """Run all nodes in the foreground until a stop signal; returns the exit status."""
    from moldau.testing.node_process import NodeProcess
    from moldau.testing.supervisor import Supervisor
    from moldau.testing.watchdog import Watchdog

    watchdog = Watchdog(None)
    brokers, controllers = (
        {
            node.name: NodeProcess(node.config_path, node.log_path, watchdog=watchdog)
            for node in nodes
        }
        for nodes in (layout.brokers, layout.controllers)
    )
    try:
        supervisor = Supervisor([brokers, controllers], say=_say)
        return supervisor.run(lambda: on_ready(layout))
    finally:
        watchdog.close()


def _say(line: str) -> None:
    """Events are not results: they go to stderr."""
    print(line, file=sys.stderr, flush=True)
