"""What the `moldau` command makes of a line that the console has written."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

import typer.main

from moldau.cli.main import app


class Parsed(NamedTuple):
    """A line: the command's words, and the values that were given for its parameters."""

    words: str
    given: dict[str, Any]


def parsed(line: str) -> Parsed:
    """Parse a line as the shell and then the command do; usage errors are raised."""
    first, *words = shlex.split(line)
    assert first == "moldau"
    command: Any = typer.main.get_command(app)
    command.load_all()
    path: list[str] = []
    while hasattr(command, "commands"):
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    context = command.make_context(path[-1], words)
    source = context.get_parameter_source
    given = {
        name: value for name, value in context.params.items() if source(name).name == "COMMANDLINE"
    }
    return Parsed(" ".join(path), given)
