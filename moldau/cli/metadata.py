"""`moldau metadata`: offline tools on the metadata log and its snapshots.

Must not change a file (`metadata_files` reads them) or need a running node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.nearby import directory_errors
from moldau.cli.output import fail, print_json, refusing, say, warn
from moldau.text import one_line

if TYPE_CHECKING:
    from moldau.cli.metadata_shell import Shell
    from moldau.storage.dump import Row

app = typer.Typer()

Source = Annotated[
    str,
    "FILE-OR-DIR",
    "A segment (.log), a snapshot (.checkpoint), or a directory with a metadata log.",
]


@app.command("dump")
def dump(
    source: Source, as_json: Annotated[bool, "--json", "One JSON object a line."] = False
) -> None:
    """Print every record, with its offset and epoch."""
    from moldau.cli.metadata_files import metadata_log_files
    from moldau.runtime.filesystem import OsFilesystem
    from moldau.storage.dump import DumpOptions, dump_path

    filesystem, error_count = OsFilesystem(), 0
    options = DumpOptions(deep=True, print_data=True, decode="metadata")
    with directory_errors(source, _has_metadata):
        for path in metadata_log_files(filesystem, source):
            for row in _records(dump_path(filesystem, path, options)):
                error_count += row["row"] == "error"
                _print_row(row, as_json)
        sys.stdout.flush()
    if error_count:
        fail(f"{error_count} errors in these files")


def _has_metadata(path: str) -> bool:
    from moldau.cli.metadata_files import metadata_log_files
    from moldau.runtime.filesystem import OsFilesystem

    return bool(metadata_log_files(OsFilesystem(), path))


def _records(rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of files, records and errors; a record's row has the epoch of its batch."""
    leader_epoch = -1
    for row in rows:
        if row["row"] == "batch":
            leader_epoch = row["partitionLeaderEpoch"]
            if not row["isvalid"]:
                # The dump says so once more, with the position, when it gets to the records.
                continue
        elif row["row"] == "record":
            if "undecodable" in row:
                yield {"row": "error", "offset": row["offset"], "reason": row["undecodable"]}
                continue
            is_control = "controlType" in row
            yield {
                "row": "control" if is_control else "record",
                "offset": row["offset"],
                "leaderEpoch": leader_epoch,
                "timestamp": row.get("CreateTime", row.get("LogAppendTime")),
                "type": row["controlType"] if is_control else row["recordType"],
                "version": row.get("recordVersion", 0),
                "data": row.get("data", {}),
            }
        elif row["row"] != "note":
            yield row


def _print_row(row: Row, as_json: bool) -> None:
    import orjson

    if as_json:
        print_json(row, is_row=True)
        return
    if row["row"] == "file":
        text = f"{row['file']} ({row['size']} bytes)"
    elif row["row"] == "error":
        where = row.get("offset", row.get("position"))
        at = "" if where is None else f" at {'offset' if 'offset' in row else 'byte'} {where}"
        text = f"ERROR{at}: {row['reason']}"
    else:
        data = orjson.dumps(row["data"], default=str).decode()
        version = "" if row["row"] == "control" else f" v{row['version']}"
        text = f"{row['offset']} epoch {row['leaderEpoch']} {row['type']}{version} {data}"
    say(text)


@app.command("shell", context_settings={"ignore_unknown_options": True})
def shell(
    source: Source,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="A command to run; without one they are read from the input."),
    ] = None,
) -> None:
    """Browse the metadata as a tree of paths.

    The commands are ls, cd, cat, find, tree, man and exit.
    """
    from moldau.cli.metadata_files import read_metadata
    from moldau.cli.metadata_shell import Shell, ShellError, metadata_tree
    from moldau.metadata.image import InvalidMetadataRecord
    from moldau.raft import MetadataLogError
    from moldau.runtime.filesystem import OsFilesystem

    with (
        refusing(MetadataLogError, InvalidMetadataRecord, status=1),
        directory_errors(source, _has_metadata),
    ):
        files = read_metadata(OsFilesystem(), source)
    for damage in files.damage:
        warn(f"read up to here: {damage}")
    walk = Shell(metadata_tree(files), say)
    failed = False
    with refusing(ShellError, status=1):
        if command:
            walk.run_words(command)
        for line in [] if command else _lines(walk):
            try:
                walk.run(line)
            except ShellError as error:
                failed = not sys.stdin.isatty()
                warn(error)
            if walk.has_ended:
                break
    if failed:
        raise typer.Exit(1)


def _lines(walk: Shell) -> Iterator[str]:
    """The input's lines; with a prompt and completion for people."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    import readline

    def complete(text: str, state: int) -> str | None:
        line = readline.get_line_buffer()[: readline.get_begidx()] + text
        found = walk.complete(line)
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    while True:
        try:
            yield input(f"{one_line(walk.directory)} > ")
        except EOFError:
            say()
            return
