"""The `moldau` command: its entry point and the tree of its sub-commands.

Owns the mapping from exceptions to one clear line and an exit status (0 done, 1 failed, 2 wrong
usage), and where each command is. Must not do any work itself. Invariants: whatever happens, no
traceback reaches a user who made a mistake; a command's module is imported only to run the command,
to show its help or to complete its words.
"""

from __future__ import annotations

import logging
import re
import sys
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn, cast

import typer
import typer.main
from typer.core import TyperGroup

from moldau.cli.output import INTERRUPTED, OneLine, fail, print_exception, print_own, say, warn
from moldau.cli.parameters import spell_out
from moldau.cli.streams import (
    ReaderHasGoneError,
    StandardInputError,
    StandardOutputError,
    discard_output,
    open_standard_streams,
)

#: By name, behind that of the tree that has it: the module below `moldau.cli`, what it holds (a
#: function or a tree of commands), and a line of help.
COMMANDS: Final = {
    "dev": ("local_nodes", "dev", "Run a whole cluster on this machine."),
    "produce": ("produce", "produce", "Write records to a topic."),
    "consume": ("consume", "consume", "Print the records of a topic as they come."),
    "health": ("health", "health", "Say whether the cluster is well, and what to do next."),
    "console": ("console", "console", "Look at a cluster in a browser; its API over HTTP."),
    "topics": ("topics", "app", "List, create, describe, alter, delete and move topics."),
    "topics reassign": ("reassign", "app", "Move replicas to other brokers."),
    "topics diff": ("cluster_plan", "diff", "Show how the cluster differs from a file."),
    "topics apply": ("cluster_plan", "apply", "Make the cluster what a file says."),
    "records": ("records", "app", "Delete the oldest records of partitions."),
    "groups": ("groups", "app", "List, describe and delete groups; move their offsets."),
    "transactions": ("transactions", "app", "List, describe and abort transactions."),
    "configs": ("configs", "app", "Describe and alter the configuration of topics and brokers."),
    "acls": ("acls", "app", "List, create, delete and check access control entries."),
    "quotas": ("quotas", "app", "Describe and alter how much clients may use."),
    "brokers": ("brokers", "app", "List, describe, empty and unregister brokers."),
    "users": ("users", "app", "Create, list and delete users that log in with SCRAM."),
    "certificates": ("certificates", "app", "Those of a cluster made with --secure."),
    "tokens": ("tokens", "app", "Create, list, renew and expire delegation tokens."),
    "profile": ("profiles", "app", "Name clusters and how to reach them; choose one."),
    "features": ("features", "app", "Describe, upgrade and downgrade feature levels."),
    "quorum": ("quorum", "app", "Set up a cluster of several nodes; change its voters."),
    "storage": ("storage", "app", "Format a node's directories, and describe them."),
    "server": ("local_nodes", "server_app", "Run one node."),
    "log": ("log", "app", "Print and check a topic's log files, without a cluster."),
    "metadata": ("metadata", "app", "Print and browse metadata logs, without a cluster."),
    "bench": ("bench.commands", "app", "Measure throughput and latency."),
    "pipeline": ("pipeline", "app", "Run, check and settle Spark pipelines."),
}


class CommandGroup(TyperGroup):
    """Commands whose names are taken in the singular and in the plural."""

    # The types of the overridden method are private to the framework (docs/adr/0022).
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        given = args[0]
        for name in (given, f"{given}s", given.removesuffix("s")):
            if name in self.commands:
                self.load(name)
                return super().resolve_command(ctx, [name, *args[1:]])
        return super().resolve_command(ctx, args)

    path: str = ""
    _is_whole = False

    def load(self, name: str) -> None:
        """Have the command itself in `commands`, where `COMMANDS` says where it is."""
        path = f"{self.path} {name}".strip()
        if path not in COMMANDS or self._is_whole:
            return
        module, attribute, line = COMMANDS[path]
        found = getattr(import_module(f"moldau.cli.{module}"), attribute)
        holder = typer.Typer(rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            _name_commands(found, path)
            holder.add_typer(found, name=name, help=line, cls=CommandGroup, no_args_is_help=True)
        else:
            holder.command(name)(found)
        spell_out(holder)
        loaded = typer.main.get_group(holder).commands[name]
        if isinstance(loaded, CommandGroup):
            loaded.path = path
        self.commands[name] = loaded

    def load_all(self) -> None:
        """Have every command in the tree, for good: for what reads the whole of it."""
        for name in [*self.commands]:
            self.load(name)
            if isinstance(inner := self.commands[name], CommandGroup):
                inner.load_all()
        self._is_whole = True


def _name_commands(group: typer.Typer, path: str) -> None:
    """Have the names and lines of help of `COMMANDS` below that path in a tree, but no command."""
    known = {each.name for each in group.registered_commands}
    for each, (_, _, line) in COMMANDS.items():
        above, _, name = each.rpartition(" ")
        if above == path and name not in known:
            group.command(name, help=line)(lambda: None)


app = typer.Typer(
    name="moldau",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_name_commands(app, "")
#: The base of everything typer raises about wrong usage, found this way because typer brings its
#: own copy of click or uses the installed one, depending on its release.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    import moldau
    from moldau.protocol.records import IMPLEMENTATION

    say(f"moldau {moldau.__version__} ({IMPLEMENTATION} record codec)")
    if IMPLEMENTATION != "native":
        warn(
            "WARNING: the native record codec is not built (no C compiler at installation); "
            "everything works, record by record it is many times slower"
        )
    raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version and which record codec is in use.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """A streaming cluster that speaks Kafka's protocol."""


def main() -> NoReturn:
    open_standard_streams()
    sys.excepthook = print_exception
    if logging.lastResort is not None:  # warnings of the client, where no handler is set
        logging.lastResort.setFormatter(OneLine())
    status: str | int | None = 0
    try:
        try:
            _run()
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
    except ReaderHasGoneError:
        discard_output()
    except StandardOutputError as error:
        discard_output()
        fail(str(error))
    except KeyboardInterrupt:  # while a slow reader is waited for
        discard_output()
        fail("interrupted", status=INTERRUPTED)
    sys.exit(status)


def _run() -> NoReturn:
    try:
        status = app(standalone_mode=False)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except _UsageError as problem:
        _refuse_usage(problem)
    except StandardInputError as error:
        fail(f"standard input: {error.strerror}")
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    # Outside of its standalone mode the framework hands an exit code back as the result.
    if status == INTERRUPTED:  # a Ctrl-C of which no command has said anything
        fail("interrupted", status=INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _refuse_usage(problem: Exception) -> NoReturn:
    context = getattr(problem, "ctx", None)
    command = context.command_path if context is not None else "moldau"
    format_message = getattr(problem, "format_message", None)
    text = format_message() if callable(format_message) else str(problem)
    if type(problem).__name__ == "NoArgsIsHelpError":
        print_own(text, to_stderr=True)
        sys.exit(2)
    from moldau.cli.habits import right_form

    program = "moldau" if context is None else context.find_root().info_name or ""
    path = command.removeprefix(program).strip()
    option = getattr(problem, "option_name", None) if hasattr(problem, "possibilities") else None
    form = right_form(path, sys.argv[1:], text, option)
    if form is not None:
        text = re.sub(r"\.? (\(Possible options: .*\)|Did you mean .*\?)$|\.$", "", text)
        text = f"{text}; here it is `moldau {form}`"
    fail(f"{text} (see `{command} --help`)", status=2)


if __name__ == "__main__":
    main()
