"""`moldau dev`: a broker on this machine for development, with one command.

Owns the defaults that make a node convenient instead of durable. As `server start`, the process
becomes the node.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.output import fail
from moldau.cli.server import become_node

DEV_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:0
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={host}:9093
log.dirs={data}
"""


def dev(
    controllers: Annotated[int, typer.Option(help="This release: 1.")] = 1,
    brokers: Annotated[int, typer.Option(help="This release: 1.")] = 1,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "localhost",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any free port.")] = 9092,
    data: Annotated[
        Path | None, typer.Option(help="Keep the data here; otherwise it goes when you stop.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="NAME:PARTITIONS[:RF] to create; may be repeated."),
    ] = None,
) -> None:
    """Run one combined node in the foreground; prints `ready: HOST:PORT` when it serves."""
    if controllers != 1 or brokers != 1:
        fail("this release runs one combined node: --controllers and --brokers must be 1", status=2)
    arguments = ["--format-if-needed", "--announce"]
    for text in topic or []:
        arguments += ["--create-topic", _checked(text)]
    if data is None:
        home = Path(tempfile.mkdtemp(prefix="moldau-dev-"))
        arguments += ["--remove-on-exit", str(home)]
    else:
        home = data.absolute()
        home.mkdir(parents=True, exist_ok=True)
    config = home / "server.properties"
    config.write_text(DEV_PROPERTIES.format(host=host, port=port, data=home / "data"))
    become_node([str(config), *arguments])


def _checked(text: str) -> str:
    """`NAME:PARTITIONS[:RF]`, or status 2."""
    parts = text.split(":")
    numbers = parts[1:]
    if not 1 <= len(parts) <= 3 or not parts[0] or not all(n.isdigit() for n in numbers):
        fail(f"--topic {text!r} is not NAME:PARTITIONS[:RF]", status=2)
    if any(int(number) < 1 for number in numbers):
        fail(f"--topic {text!r}: partitions and replication factor are at least 1", status=2)
    return text
