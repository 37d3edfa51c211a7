"""The short form of a command's options, and what the framework takes in its place.

    watch: Annotated[bool, "--watch -w", "Show it again and again, until Ctrl-C."] = False,
    interval: Annotated[float, Within(0.1), "Seconds between two updates of --watch."] = 2.0,

Behind the type come the option's names, its bounds and its help. Without names it has that of its
parameter, and a flag has no form that begins with `--no-`.
"""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer


class Within(NamedTuple):
    """The least and the greatest value of a number."""

    min: float
    max: float | None = None


def spell_out(tree: typer.Typer) -> None:
    """Have the framework's form of all options in a tree of commands."""
    for each in tree.registered_commands:
        if (command := each.callback) is not None:
            short = signature(command, eval_str=True)
            vars(command)["__signature__"] = short.replace(
                parameters=[_spelled_out(parameter) for parameter in short.parameters.values()]
            )
    for group in tree.registered_groups:
        if group.typer_instance is not None:
            spell_out(group.typer_instance)


def _spelled_out(parameter: Parameter) -> Parameter:
    if get_origin(parameter.annotation) is not Annotated:
        return parameter
    kind, *facts = get_args(parameter.annotation)
    words = [fact for fact in facts if isinstance(fact, str)]
    if not words:
        return parameter
    *names, text = words
    bounds: dict[str, Any] = {}
    for fact in facts:
        if isinstance(fact, Within):
            bounds = fact._asdict()
    decls = names[0].split() if names else [f"--{parameter.name.replace('_', '-')}"]
    option = typer.Option(*decls, help=text, **bounds)
    return parameter.replace(annotation=Annotated[kind, option])
