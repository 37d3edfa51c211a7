"""Command lines of documents and deployment files, and whether the real `moldau` takes them.

Owns finding them and having them parsed. Must not run any: the commands are parsed by the command
line's own parser, with nothing behind them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer.main

from moldau.cli.main import app

_INLINE: Final = re.compile(r"`(moldau(?: [^`]+)?)`")
_BLOCK: Final = re.compile(r"^(?: {4,}|\t)(.*)$")
#: Where a command begins in a line: after a prompt, in a shell of another machine, or at once.
_BEGIN: Final = re.compile(
    r"(?:^|\$ |-- |sudo -u moldau |/opt/moldau/bin/|&& |\$\()(moldau(?!-) .*)$"
)
_END: Final = re.compile(r"\s+#\s.*$|\s+\|\s.*$|\s+[<>]\s.*$|\s+&&\s.*$|\)\s*$")

_QUOTED: Final = re.compile(r""" '[^']*'| "[^"]*\"""", re.VERBOSE)


class CommandLine(NamedTuple):
    """One command, where it stands, and whether it may be a mere name (`moldau topics alter`)."""

    where: str
    words: tuple[str, ...]
    may_be_a_name: bool


class NotTaken(Exception):
    """The command line refuses it, for the reason given."""


def in_markdown(path: Path) -> Iterator[CommandLine]:
    """Commands in inline code, indented blocks and fenced blocks."""
    fenced, carried = False, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"{path.name}:{number}"
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        block = line if fenced else (_BLOCK.match(line) or [None, None])[1]
        if block is None:
            for span in _INLINE.findall(line):
                yield CommandLine(where, _words(span), may_be_a_name=True)
            continue
        if carried:
            block, carried = f"{carried} {block.strip()}", ""
        if block.endswith("\\"):
            carried = block[:-1].rstrip()
            continue
        yield from in_shell(where, block)


def in_shell(where: str, line: str) -> Iterator[CommandLine]:
    """The command of a line of shell, without what comes after it."""
    found = _BEGIN.search(line.strip())
    if found is not None:
        unquoted = _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), found[1])
        end = _END.search(unquoted)
        command = found[1] if end is None else found[1][: end.start()]
        yield CommandLine(where, _words(command), may_be_a_name=False)


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text.replace("…", "x"))[1:])


def check(command: CommandLine) -> None:
    """Have it parsed. Raises: NotTaken."""
    root = _command_line()
    if command.may_be_a_name and _is_name(root, command.words):
        return
    try:
        root.main(args=list(command.words), prog_name="moldau", standalone_mode=False)
    except typer.Exit:
        return  # --help, --version
    except Exception as error:
        if not _is_usage_error(error):
            raise
        raise NotTaken(f"{command.where}: moldau {shlex.join(command.words)}: {error}") from None


@cache
def _command_line() -> Any:
    """The tree of all commands, made for us alone, with nothing behind them."""
    root: Any = typer.main.get_command(app)
    root.load_all()
    for leaf in _leaves(root):
        leaf.callback = _nothing
    return root


def _is_name(root: Any, words: tuple[str, ...]) -> bool:
    command = root
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return False
    return True


def _leaves(command: Any) -> Iterator[Any]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield command
        return
    for each in inner.values():
        yield from _leaves(each)


def _nothing(*_args: object, **_options: object) -> None:
    """What a parsed command does here."""


def _is_usage_error(error: Exception) -> bool:
    return any(each.__name__ == "UsageError" for each in type(error).__mro__)
