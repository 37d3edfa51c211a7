"""Nodes on this machine: `moldau server start`, `moldau quorum bootstrap`, `moldau dev`.

Owns the commands, their supervision, and the defaults that make a development cluster convenient
instead of durable. Must not know what nodes do. A single node takes this process over (`exec`, with
the same process id and signals): the command line's libraries would cost a serving node memory.
Invariant: `bootstrap` leaves a directory that holds anything as it is.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from moldau.cli.options import key_values
from moldau.cli.output import fail
from moldau.config import ConfigError, NodeConfig
from moldau.testing.layout import (
    FIRST_BROKER_ID,
    HIGHEST_PORT,
    MOST_BROKERS,
    MOST_CONTROLLERS,
    PROPERTIES,
    ClusterLayout,
    LayoutError,
    NextPort,
    NodeSpec,
    NoFreePort,
    PortHolder,
    counting_from,
)

server_app = typer.Typer()
#: Controllers listen this far above the first broker.
CONTROLLER_PORTS = 100
Controllers = Annotated[int, typer.Option(min=1, max=MOST_CONTROLLERS, help="How many vote.")]
Brokers = Annotated[int, typer.Option(min=1, max=MOST_BROKERS, help="How many serve clients.")]


@server_app.callback()
def server() -> None:
    """Run a node."""


@server_app.command("start")
def start(
    config: Annotated[str, typer.Argument(help="The node's server.properties.")],
    override: Annotated[list[str] | None, typer.Option(help="KEY=VALUE; may be repeated.")] = None,
) -> None:
    """Run one node until SIGTERM or Ctrl-C."""
    arguments = [config]
    for key, value in key_values(override or [], "--override").items():
        arguments += ["--override", f"{key}={value}"]
    become_node(arguments)


def become_node(arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "moldau.broker", *arguments])


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
            min=1, max=HIGHEST_PORT, help="The first broker's port; controllers are 100 above."
        ),
    ] = 9092,
    start: Annotated[
        bool, typer.Option("--start", help="Run all nodes until Ctrl-C or SIGTERM.")
    ] = False,
) -> None:
    """Lay out and format a cluster: one directory per node, one cluster id, one voter set."""
    layout = _planned(directory.absolute(), controllers, brokers, host, base_port, "--base-port")
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
        # Events are not results: they go to stderr.
        say = partial(print, file=sys.stderr, flush=True)
        return Supervisor([brokers, controllers], say=say).run(lambda: on_ready(layout))
    finally:
        watchdog.close()


def dev(
    controllers: Controllers = 1,
    brokers: Brokers = 1,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "localhost",
    port: Annotated[
        int, typer.Option(min=0, max=HIGHEST_PORT, help="The first broker's; 0: any free ports.")
    ] = 9092,
    data: Annotated[
        Path | None, typer.Option(help="Keep the data here; otherwise it goes when you stop.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="NAME:PARTITIONS[:RF] to create; may be repeated.")
    ] = None,
) -> None:
    """Run a cluster in the foreground; prints `ready: HOST:PORT` when it serves.

    One controller and one broker are a single node.
    """
    topics = [_checked(text) for text in topic or []]
    if controllers == brokers == 1:
        _one_node(host, port, data, topics)
    elif data is not None:
        raise typer.Exit(_many_nodes(data.absolute(), controllers, brokers, host, port, topics))
    else:
        home = Path(tempfile.mkdtemp(prefix="moldau-dev-"))
        try:
            status = _many_nodes(home, controllers, brokers, host, port, topics)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        raise typer.Exit(status)


def _one_node(host: str, port: int, data: Path | None, topics: list[str]) -> None:
    arguments = ["--format-if-needed", "--announce"]
    for text in topics:
        arguments += ["--create-topic", text]
    if data is None:
        home = Path(tempfile.mkdtemp(prefix="moldau-dev-"))
        arguments += ["--remove-on-exit", str(home)]
    else:
        home = data.absolute()
    config = home / PROPERTIES
    node = NodeSpec(FIRST_BROKER_ID, home, port, _controller_port(config, host))
    ClusterLayout(host, (node,)).write_configs()
    become_node([str(config), *arguments])


def _controller_port(config: Path, host: str) -> int:
    """The port of an earlier run, which its metadata log names, else a free one."""
    if config.exists():
        try:
            [endpoint] = NodeConfig.load(str(config)).controller_listeners
        except (ConfigError, ValueError):
            pass  # the file is written again
        else:
            if endpoint.port:
                return endpoint.port
    with closing(PortHolder(host)) as ports:
        return _taken(ports)


def _taken(ports: PortHolder) -> int:
    try:
        return ports.take()[0]
    except NoFreePort as error:
        fail(str(error))


def _many_nodes(
    home: Path, controllers: int, brokers: int, host: str, port: int, topics: list[str]
) -> int:
    """Make the nodes, or take over those that are there, and run them; the exit status."""

    def on_ready(layout: ClusterLayout) -> None:
        _create_topics(layout.bootstrap_server, topics)
        announce(layout)

    with closing(PortHolder(host)) as ports:
        if home.exists() and any(home.iterdir()):
            try:  # the cluster of an earlier run, on the addresses it had then
                layout = ClusterLayout.found(home)
                layout.refuse_other_size(home, (controllers, brokers))
            except ValueError as error:
                fail(str(error))
        else:
            layout = _planned(
                *(home, controllers, brokers, host, port, "--port"),
                free_port=None if port else lambda: _taken(ports),
            )
            make_cluster(home, layout)
        return run_cluster(layout, on_ready)


def _planned(
    home: Path,
    controllers: int,
    brokers: int,
    host: str,
    port: int,
    option: str,
    free_port: NextPort | None = None,
) -> ClusterLayout:
    """A cluster on free ports, or on those from the option's on."""
    if port + CONTROLLER_PORTS + controllers - 1 > HIGHEST_PORT:
        fail(f"{option} {port} leaves no ports for {controllers} controllers", status=2)
    return ClusterLayout.plan(
        home,
        controllers=controllers,
        brokers=brokers,
        host=host,
        broker_port=free_port or counting_from(port),
        controller_port=free_port or counting_from(port + CONTROLLER_PORTS),
    )


def _create_topics(bootstrap_server: str, topics: list[str]) -> None:
    """Create the topics that are not there; the cluster runs on when one cannot be made."""
    import asyncio

    from moldau.client import Admin, KafkaError, NewTopic, TopicAlreadyExists

    async def create(text: str) -> None:
        name, partitions, factor, *_ = [*text.split(":"), "-1", "-1"]
        async with Admin(bootstrap_server) as admin:
            await admin.create_topics([NewTopic(name, int(partitions), int(factor))])

    for text in topics:
        try:
            asyncio.run(create(text))
        except TopicAlreadyExists:
            continue
        except KafkaError as error:
            typer.echo(f"moldau: topic {text}: {error}", err=True)


def _checked(text: str) -> str:
    """`NAME:PARTITIONS[:RF]`, or status 2."""
    parts = text.split(":")
    numbers = parts[1:]
    if not 1 <= len(parts) <= 3 or not parts[0] or not all(n.isdigit() for n in numbers):
        fail(f"--topic {text!r} is not NAME:PARTITIONS[:RF]", status=2)
    if any(int(number) < 1 for number in numbers):
        fail(f"--topic {text!r}: partitions and replication factor are at least 1", status=2)
    return text
