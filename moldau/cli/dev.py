"""`moldau dev`: a cluster on this machine for development, with one command.

Owns the defaults that make nodes convenient instead of durable. A single node takes this process
over, as in `server start`; several are supervised.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.output import fail
from moldau.cli.quorum_bootstrap import (
    CONTROLLER_PORTS,
    HIGHEST_PORT,
    Brokers,
    Controllers,
    announce,
    make_cluster,
    run_cluster,
)
from moldau.cli.server import become_node
from moldau.config import ConfigError, NodeConfig
from moldau.testing.layout import (
    ClusterLayout,
    LayoutError,
    counting_from,
    internal_topic_properties,
)
from moldau.testing.ports import NoFreePort, PortHolder

DEV_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={host}:{controller_port}
log.dirs={data}
{internal_topics}
"""


def dev(
    controllers: Controllers = 1,
    brokers: Brokers = 1,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "localhost",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=HIGHEST_PORT,
            help="The first broker's; 0: any free ports.",
            show_default=True,
        ),
    ] = 9092,
    data: Annotated[
        Path | None, typer.Option(help="Keep the data here; otherwise it goes when you stop.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="NAME:PARTITIONS[:RF] to create; may be repeated."),
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
        home.mkdir(parents=True, exist_ok=True)
    config = home / "server.properties"
    text = DEV_PROPERTIES.format(
        host=host,
        port=port,
        controller_port=_controller_port(config, host),
        data=home / "data",
        internal_topics="\n".join(
            f"{key}={value}" for key, value in internal_topic_properties(1).items()
        ),
    )
    config.write_text(text)
    become_node([str(config), *arguments])


def _controller_port(config: Path, host: str) -> int:
    """The port of an earlier run, which its metadata log names, else a free one."""
    if config.exists():
        try:
            [endpoint] = NodeConfig.load(str(config)).controller_listeners
        except (ConfigError, ValueError):
            pass  # it is written anew
        else:
            if endpoint.port:
                return endpoint.port
    ports = PortHolder(host)
    try:
        return ports.take()[0]
    except NoFreePort as error:
        fail(str(error))
    finally:
        ports.close()


def _many_nodes(
    home: Path, controllers: int, brokers: int, host: str, port: int, topics: list[str]
) -> int:
    """Make the nodes, or take over those that are there, and run them; the exit status."""
    ports = PortHolder(host)
    try:
        if home.exists() and any(home.iterdir()):
            layout = _kept(home, controllers, brokers)
        else:
            layout = _planned(home, controllers, brokers, host, port, ports)
            make_cluster(home, layout)

        def on_ready(layout: ClusterLayout) -> None:
            _create_topics(layout.bootstrap_server, topics)
            announce(layout)

        return run_cluster(layout, on_ready)
    finally:
        ports.close()


def _planned(
    home: Path, controllers: int, brokers: int, host: str, port: int, ports: PortHolder
) -> ClusterLayout:
    def free_port() -> int:
        try:
            return ports.take()[0]
        except NoFreePort as error:
            fail(str(error))

    if port + CONTROLLER_PORTS + controllers - 1 > HIGHEST_PORT:
        fail(f"--port {port} leaves no ports for {controllers} controllers", status=2)
    return ClusterLayout.plan(
        home,
        controllers=controllers,
        brokers=brokers,
        host=host,
        broker_port=counting_from(port) if port else free_port,
        controller_port=counting_from(port + CONTROLLER_PORTS) if port else free_port,
    )


def _kept(home: Path, controllers: int, brokers: int) -> ClusterLayout:
    """The cluster of an earlier run, on the addresses it had then."""
    try:
        layout = ClusterLayout.found(home)
    except LayoutError as error:
        fail(str(error))
    counts = (len(layout.controllers), len(layout.brokers))
    if counts != (controllers, brokers):
        fail(
            f"{home} holds a cluster of {counts[0]} controllers and {counts[1]} brokers, "
            f"not {controllers} and {brokers}"
        )
    return layout


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
