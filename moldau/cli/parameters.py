"""The short form of a command's parameters, and what the framework takes in its place.

    names: Annotated[list[str], "TOPIC…", complete_topics, "The topics to delete."],
    owner: Annotated[str | None, "--owner User:NAME", "For this user; by default your own."] = None,
    watch: Annotated[bool, "--watch -w", "Show it again and again, until Ctrl-C."] = False,
    interval: Annotated[float, Within(0.1), "Seconds between two updates of --watch."] = 2.0,

Behind the type comes how usage shows it: an option's names and what its value is like, or what an
argument is like; then bounds, a function that completes its words, and its help. What is left out
follows from the parameter: an option has its name, a flag has no form that begins with `--no-`, and
what has no default is an argument.

In place of a parameter that is a dataclass come its fields that are annotated in this way, which
several commands may take. Those of a command's first parameter come behind its own options, before
`--json`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer


class Within(NamedTuple):
    """The least and the greatest value of a number."""

    min: float
    max: float | None = None


def spell_out(tree: typer.Typer) -> None:
    """Have the framework's form of all parameters in a tree of commands."""
    for each in tree.registered_commands:
        if each.callback is not None:
            command = each.callback = _taking_fields(each.callback)
            short = signature(command, eval_str=True)
            vars(command)["__signature__"] = short.replace(
                parameters=[_spelled_out(parameter) for parameter in short.parameters.values()]
            )
    for group in tree.registered_groups:
        if group.typer_instance is not None:
            spell_out(group.typer_instance)


def _taking_fields(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with the fields of its dataclasses as parameters."""
    own = list(signature(command, eval_str=True).parameters.values())
    groups: dict[str, Any] = {
        each.name: each.annotation for each in own if is_dataclass(each.annotation)
    }
    if not groups:
        return command

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            taken = {each.name for each in fields(group)} & given.keys()
            given[name] = group(**{each: given.pop(each) for each in taken})
        command(**given)

    end = len(own) - (own[-1].name == "as_json")
    if own[0].name in groups:
        own = [*own[1:end], own[0], *own[end:]]
    parameters: list[Parameter] = []
    for each in own:
        if each.name in groups:
            parameters += _fields_of(groups[each.name])
        else:
            parameters.append(each.replace(kind=Parameter.KEYWORD_ONLY))
    vars(run)["__signature__"] = Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _fields_of(group: type) -> list[Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            each.name,
            Parameter.KEYWORD_ONLY,
            annotation=kinds[each.name],
            default=Parameter.empty if each.default is MISSING else each.default,
        )
        for each in fields(group)
        if get_origin(kinds[each.name]) is Annotated
    ]


def _spelled_out(parameter: Parameter) -> Parameter:
    if get_origin(parameter.annotation) is not Annotated:
        return parameter
    kind, *facts = get_args(parameter.annotation)
    texts = [fact for fact in facts if isinstance(fact, str)]
    if not texts:
        return parameter
    *usage, said = texts
    words = usage[0].split() if usage else []
    names = [word for word in words if word.startswith("-")]
    more: dict[str, Any] = {"help": said, "metavar": " ".join(words[len(names) :]) or None}
    for fact in facts:
        if isinstance(fact, Within):
            more |= fact._asdict()
        elif callable(fact):
            more["autocompletion"] = fact
    if not names and (words or parameter.default is Parameter.empty):
        return parameter.replace(annotation=Annotated[kind, typer.Argument(**more)])
    names = names or [f"--{parameter.name.replace('_', '-')}"]
    return parameter.replace(annotation=Annotated[kind, typer.Option(*names, **more)])
