"""From a template's text to a tree: actions, blocks, pipelines.

Owns the grammar. Invariant: every action is understood whole, or TemplateError names it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any


class TemplateError(Exception):
    """A template that is wrong, or uses what this renderer does not know."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number or boolean of the template itself."""

    value: Any


@dataclass(frozen=True, slots=True)
class Path:
    """`.a.b`, `$x.a`, `(pipeline).a`: where to begin ("." or a variable's name), and the fields."""

    base: str | Pipeline
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments."""

    name: str
    arguments: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each of which gets the value of the one before as its last argument."""

    commands: tuple[Operand | Call, ...]


Operand = Literal | Path


@dataclass(slots=True)
class Text:
    """Copied to the output."""

    text: str


@dataclass(slots=True)
class Action:
    """A pipeline whose value is shown, or given to a variable (`declares`: a new one)."""

    pipeline: Pipeline
    variable: str | None = None
    declares: bool = False


@dataclass(slots=True)
class Block:
    """`if`, `with`, `range` or `define`, with what comes when the condition does not hold."""

    kind: str
    pipeline: Pipeline | None
    variables: tuple[str, ...] = ()
    name: str = ""
    body: list[Node] = field(default_factory=list)
    otherwise: list[Node] = field(default_factory=list)


Node = Text | Action | Block

_ACTION = re.compile(
    r"\{\{(-(?=\s))?\s*(/\*.*?\*/|(?:\"(?:\\.|[^\"])*\"|`[^`]*`|[^\"`])*?)\s*((?<=\s)-)?\}\}", re.S
)
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:\\.|[^"\\])*") | (?P<raw>`[^`]*`) | (?P<number>-?\d+(?:\.\d+)?)
    | (?P<variable>\$\w*(?:\.\w+)*) | (?P<field>(?:\.\w+)+|\.) | (?P<word>\w+)
    | (?P<sign>:=|=|\(|\)|\||,)
    )""",
    re.X,
)


def parse(text: str) -> list[Node]:
    """The nodes of a template, definitions among them."""
    pieces = list(_pieces(text))
    nodes, rest = _parse_nodes(pieces, 0, ())
    assert rest == len(pieces)
    return nodes


def _pieces(text: str) -> list[tuple[bool, str]]:
    """(is an action, its content) in order; white space is trimmed as the dashes say."""
    pieces: list[tuple[bool, str]] = []
    position, trim = 0, False
    for match in _ACTION.finditer(text):
        before = text[position : match.start()]
        if trim:
            before = before.lstrip()
        if match[1]:
            before = before.rstrip()
        pieces += [(False, before), (True, match[2])]
        position, trim = match.end(), match[3] is not None
    rest = text[position:]
    if "{{" in rest:
        raise TemplateError(f"an action does not end: {rest[rest.index('{{') :][:60]!r}")
    pieces.append((False, rest.lstrip() if trim else rest))
    return [(is_action, piece) for is_action, piece in pieces if piece or is_action]


def _parse_nodes(
    pieces: list[tuple[bool, str]], index: int, ends: tuple[str, ...]
) -> tuple[list[Node], int]:
    """Nodes up to one of the words in `ends`, whose index is returned."""
    nodes: list[Node] = []
    while index < len(pieces):
        is_action, content = pieces[index]
        word = content.split(None, 1)[0] if is_action and content else ""
        if is_action and word in ends:
            return nodes, index
        if not is_action:
            nodes.append(Text(content))
            index += 1
        elif content.startswith("/*"):
            index += 1
        elif word in ("if", "with", "range", "define"):
            block, index = _parse_block(pieces, index, content)
            nodes.append(block)
        else:
            nodes.append(_parse_action(content))
            index += 1
    if ends:
        raise TemplateError(f"{' or '.join(ends)} is missing")
    return nodes, index


def _parse_block(pieces: list[tuple[bool, str]], index: int, content: str) -> tuple[Block, int]:
    kind, _, rest = content.partition(" ")
    if kind == "define":
        block = Block(kind, None, name=ast.literal_eval(rest.strip()))
    else:
        action = _parse_action(rest)
        names = tuple((action.variable or "").split(",")) if action.variable else ()
        block = Block(kind, action.pipeline, names)
    block.body, index = _parse_nodes(pieces, index + 1, ("else", "end"))
    while pieces[index][1].startswith("else"):
        condition = pieces[index][1].removeprefix("else").strip()
        if condition:  # `else if …` is a separate block, which this one's end closes too
            nested, index = _parse_block(pieces, index, condition)
            block.otherwise = [nested]
            return block, index
        block.otherwise, index = _parse_nodes(pieces, index + 1, ("end",))
    return block, index + 1


def _parse_action(content: str) -> Action:
    tokens = _tokens(content)
    variable, declares = None, False
    for sign in (":=", "="):
        if ("sign", sign) in tokens:
            at = tokens.index(("sign", sign))
            variable = ",".join(value for kind, value in tokens[:at] if kind == "variable")
            tokens, declares = tokens[at + 1 :], sign == ":="
            break
    pipeline, rest = _parse_pipeline(tokens, 0)
    if rest != len(tokens):
        raise TemplateError(f"not understood: {content!r}")
    return Action(pipeline, variable, declares)


def _tokens(content: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    while position < len(content.rstrip()):
        match = _TOKEN.match(content, position)
        if match is None or match.lastgroup is None:
            raise TemplateError(f"not understood: {content[position:]!r}")
        kind, value = match.lastgroup, match[match.lastgroup]
        if kind == "field" and value != "." and content[:position].endswith(")"):
            kind = "access" if match[0] == value else kind  # `(x).a`, and not `(x) .a`
        tokens.append((kind, value))
        position = match.end()
    return tokens


def _parse_pipeline(tokens: list[tuple[str, str]], index: int) -> tuple[Pipeline, int]:
    commands: list[Operand | Call] = []
    while True:
        command, index = _parse_command(tokens, index)
        commands.append(command)
        if index < len(tokens) and tokens[index] == ("sign", "|"):
            index += 1
            continue
        return Pipeline(tuple(commands)), index


def _parse_command(tokens: list[tuple[str, str]], index: int) -> tuple[Operand | Call, int]:
    if index >= len(tokens):
        raise TemplateError("an empty command")
    kind, value = tokens[index]
    if kind != "word" or value in ("true", "false", "nil"):
        return _parse_operand(tokens, index)
    arguments: list[Operand] = []
    index += 1
    while index < len(tokens) and tokens[index] not in (("sign", "|"), ("sign", ")")):
        operand, index = _parse_operand(tokens, index)
        arguments.append(operand)
    return Call(value, tuple(arguments)), index


def _parse_operand(tokens: list[tuple[str, str]], index: int) -> tuple[Operand, int]:
    kind, value = tokens[index]
    if kind == "string":
        return Literal(ast.literal_eval(value)), index + 1
    if kind == "raw":
        return Literal(value[1:-1]), index + 1
    if kind == "number":
        return Literal(float(value) if "." in value else int(value)), index + 1
    if kind == "variable":
        name, *fields = value.split(".")
        return Path(name, tuple(fields)), index + 1
    if kind == "field":
        return Path(".", tuple(filter(None, value.split(".")))), index + 1
    if kind == "word" and value in ("true", "false", "nil"):
        return Literal({"true": True, "false": False, "nil": None}[value]), index + 1
    if (kind, value) == ("sign", "("):
        pipeline, index = _parse_pipeline(tokens, index + 1)
        if index >= len(tokens) or tokens[index] != ("sign", ")"):
            raise TemplateError("a parenthesis is not closed")
        index += 1
        if index < len(tokens) and tokens[index][0] == "access":
            return Path(pipeline, tuple(filter(None, tokens[index][1].split(".")))), index + 1
        return Path(pipeline, ()), index
    raise TemplateError(f"not understood: {value!r}")
