"""The `moldau` command: its entry point and the tree of its sub-commands.

Owns the mapping from exceptions to one clear line and an exit status (0 done, 1 failed, 2 wrong
usage). Must not do any work itself. Invariant: whatever happens, no traceback reaches a user who
made a mistake.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn, cast

import typer

from moldau.cli import (
    brokers,
    configs,
    consume,
    features,
    groups,
    local_nodes,
    log,
    metadata,
    pipeline,
    produce,
    quorum,
    storage,
    topics,
    transactions,
)
from moldau.cli.bench import commands as bench
from moldau.cli.output import fail, reader_is_gone

app = typer.Typer(
    name="moldau",
    help="A Kafka-compatible streaming cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(topics.app, name="topics")
app.add_typer(configs.app, name="configs")
app.add_typer(brokers.app, name="brokers")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(quorum.app, name="quorum")
app.add_typer(features.app, name="features")
app.add_typer(storage.app, name="storage")
app.add_typer(local_nodes.server_app, name="server")
app.add_typer(log.app, name="log")
app.add_typer(metadata.app, name="metadata")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(bench.app, name="bench")
app.command("dev")(local_nodes.dev)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
#: The base of everything typer raises about wrong usage, found this way because typer brings its
#: own copy of click or uses the installed one, depending on its release.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    import moldau
    from moldau.protocol.records import IMPLEMENTATION

    typer.echo(f"moldau {moldau.__version__} (record codec: {IMPLEMENTATION})")
    if IMPLEMENTATION != "native":
        typer.echo(
            "WARNING: the native record codec is not built (no C compiler at installation); "
            "everything works, record by record it is many times slower",
            err=True,
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
    """A Kafka-compatible streaming cluster."""


def main() -> None:
    try:
        status = app(standalone_mode=False)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except _UsageError as problem:
        _refuse_usage(problem)
    except (typer.Abort, KeyboardInterrupt):
        fail("interrupted", status=130)
    except BrokenPipeError:
        reader_is_gone()
    # Outside of its standalone mode the framework hands an exit code back as the result.
    sys.exit(status if isinstance(status, int) else 0)


def _refuse_usage(problem: Exception) -> NoReturn:
    context = getattr(problem, "ctx", None)
    command = context.command_path if context is not None else "moldau"
    format_message = getattr(problem, "format_message", None)
    text = format_message() if callable(format_message) else str(problem)
    if type(problem).__name__ == "NoArgsIsHelpError":
        print(text, file=sys.stderr)
        sys.exit(2)
    fail(f"{text} (see `{command} --help`)", status=2)


if __name__ == "__main__":
    main()
