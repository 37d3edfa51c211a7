"""`moldau server start`: one node in the foreground.

Must not stay in the way: the command line's libraries would cost a serving node memory, so the
process becomes the node (`exec`), with the same process id and signals.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from moldau.cli.cluster_options import key_values

app = typer.Typer(help="Run a node.", no_args_is_help=True)


@app.callback()
def server() -> None:
    """Run a node."""


@app.command("start")
def start(
    config: Annotated[str, typer.Argument(help="The node's server.properties.")],
    override: Annotated[
        list[str] | None, typer.Option("--override", help="KEY=VALUE; may be repeated.")
    ] = None,
) -> None:
    """Run one node until SIGTERM or Ctrl-C, then shut it down in an orderly way."""
    arguments = [config]
    for key, value in key_values(override or [], "--override").items():
        arguments += ["--override", f"{key}={value}"]
    become_node(arguments)


def become_node(arguments: list[str]) -> NoReturn:
    """Replace this process by a node; returns never."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "moldau.broker", *arguments])
