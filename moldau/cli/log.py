"""`moldau log`: offline tools on segments, indexes, snapshots and whole log directories.

Must not change a file; the engines are `storage.dump` and `storage.verify`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.nearby import directory_errors
from moldau.cli.output import (
    ProgressBar,
    fail,
    print_json,
    progress_bar,
    say,
    size_text,
)
from moldau.cli.parameters import Within

if TYPE_CHECKING:
    from moldau.storage.dump import DumpOptions, Row

app = typer.Typer()


class Decode(StrEnum):
    """What the records of a log file are."""

    AUTO = "auto"
    METADATA = "metadata"
    NONE = "none"


@app.command("dump")
def dump(
    files: Annotated[
        list[str], "Log files, indexes, snapshots, checkpoints, or directories of these."
    ],
    deep: Annotated[bool, "Print each record, not only batches."] = False,
    print_data: Annotated[bool, "Print keys, values and headers (implies --deep)."] = False,
    decode: Annotated[Decode, "What the records are."] = Decode.AUTO,
    max_bytes: Annotated[
        int | None, Within(1), "Stop after so many bytes of each log file."
    ] = None,
    as_json: Annotated[bool, "--json", "One JSON object a line."] = False,
) -> None:
    """Print log files, indexes, snapshots and checkpoints."""
    from moldau.storage.dump import DumpOptions

    options = DumpOptions(
        deep=deep or print_data, print_data=print_data, decode=decode.value, max_bytes=max_bytes
    )
    error_count = 0
    # On a terminal the rows themselves show how far it is.
    for path in files:
        _check_dumped(path)
    total = 0 if sys.stdout.isatty() else sum(_log_bytes(path) for path in files)
    with progress_bar("dumping", total, in_bytes=True) as bar:
        for path in files:
            error_count += _dump_one(path, options, as_json, bar)
    if error_count:
        fail(f"{error_count} error{'s' if error_count > 1 else ''} in these files")


def _check_dumped(path: str) -> None:
    """Exits with status 1 for a path with nothing to show, before the first line of another."""
    from moldau.runtime.filesystem import OsFilesystem
    from moldau.storage.dump import dump_path

    with directory_errors(path, _has_files):
        next(dump_path(OsFilesystem(), path))


def _has_files(path: str) -> bool:
    from moldau.runtime.filesystem import OsFilesystem
    from moldau.storage.dump import shown_files

    return any(shown_files(OsFilesystem(), path))


def _can_verify(path: str) -> bool:
    from moldau.runtime.filesystem import OsFilesystem
    from moldau.storage.log_directory import is_log_directory, partition_of

    filesystem = OsFilesystem()
    return is_log_directory(filesystem, path) or partition_of(filesystem, path) is not None


def _dump_one(path: str, options: DumpOptions, as_json: bool, bar: ProgressBar) -> int:
    """Print the rows of one path; returns how many of them are errors."""
    from moldau.runtime.filesystem import OsFilesystem
    from moldau.storage.dump import dump_path

    error_count = 0
    ends_at = start = bar.done
    with directory_errors(path, _has_files):
        for row in dump_path(OsFilesystem(), path, options):
            kind = row["row"]
            if kind == "file":
                start, ends_at = ends_at, ends_at + _counted_bytes(row["file"], row["size"])
                bar.move_to(start)
            elif kind == "batch":
                bar.move_to(start + row["position"] + row["size"])
            error_count += kind == "error"
            _print_row(row, as_json)
    bar.move_to(ends_at)
    return error_count


@app.command("verify")
def verify(
    directory: Annotated[str, "A log directory, or one partition's."],
    deep: Annotated[bool, "Unpack every batch and check its records too."] = False,
    as_json: Annotated[bool, "--json", "Print JSON."] = False,
) -> None:
    """Check every batch, index and checkpoint.

    The exit status is 1 when something that was flushed is wrong, and when there is nothing to
    check.
    """
    from moldau.runtime.filesystem import OsFilesystem
    from moldau.storage.verify import Severity, Verification

    findings: list[dict[str, object]] = []
    with progress_bar("checking", _log_bytes(directory), in_bytes=True) as bar:
        verification = Verification(OsFilesystem(), deep=deep, on_progress=bar.advance)
        with directory_errors(directory, _can_verify):
            for finding in verification.findings(directory):
                findings.append({**asdict(finding), "severity": finding.severity.name})
                if not as_json:
                    say(str(finding))
    summary = {
        "partitions": verification.partition_count,
        "segments": verification.segment_count,
        "batches": verification.batch_count,
        "records": verification.record_count,
        "bytes": verification.checked_bytes,
        **{severity.name.lower(): verification.counts[severity] for severity in Severity},
    }
    if as_json:
        print_json({"findings": findings, "summary": summary})
    else:
        counts = ", ".join(
            f"{verification.counts[severity]} {severity.name.lower()}" for severity in Severity
        )
        if not verification.segment_count:
            say("there are no segments yet: only the files beside them were checked")
        say(
            f"{verification.partition_count} partitions, {verification.segment_count} segments, "
            f"{verification.batch_count} batches, {size_text(verification.checked_bytes)}: {counts}"
        )
    if verification.is_damaged:
        raise typer.Exit(1)


def _print_row(row: Row, as_json: bool) -> None:
    if as_json:
        print_json(row, is_row=True)
    else:
        from moldau.storage.dump import format_row

        say(format_row(row))


def _log_bytes(path: str) -> int:
    """The size of the log files below a path, roughly."""
    if not os.path.isdir(path):
        return _counted_bytes(path, os.path.getsize(path)) if os.path.exists(path) else 0
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                file = os.path.join(directory, name)
                total += _counted_bytes(file, os.path.getsize(file))
            except OSError:
                continue  # a running node may have removed it
    return total


def _counted_bytes(path: str, size_bytes: int) -> int:
    """The bytes of a file that take time: indexes are read in one go."""
    return size_bytes if path.endswith((".log", ".checkpoint")) else 0
