"""`moldau log`: offline tools on segments, indexes, snapshots and whole log directories.

Must not change a file; the engines are `storage.dump` and `storage.verify`.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import orjson
import typer

from moldau.cli.output import fail, print_json, size_text
from moldau.runtime.filesystem import OsFilesystem
from moldau.storage.dump import DumpOptions, Row, dump_path, format_row
from moldau.storage.verify import Severity, Verification

app = typer.Typer(help="Look into log files, offline.", no_args_is_help=True)


class Decode(StrEnum):
    """What the records of a log file are."""

    AUTO = "auto"
    METADATA = "metadata"
    NONE = "none"


@app.command("dump")
def dump(
    files: Annotated[
        list[str],
        typer.Argument(help="Log files, indexes, snapshots, checkpoints, or directories of these."),
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Show each record, not only batches.")
    ] = False,
    print_data: Annotated[
        bool, typer.Option("--print-data", help="Show keys, values and headers (implies --deep).")
    ] = False,
    decode: Annotated[Decode, typer.Option(help="What the records are.")] = Decode.AUTO,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many bytes of each log file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show what is in log files, indexes, snapshots and checkpoints."""
    options = DumpOptions(
        deep=deep or print_data, print_data=print_data, decode=decode.value, max_bytes=max_bytes
    )
    filesystem = OsFilesystem()
    error_count = 0
    for path in files:
        try:
            for row in dump_path(filesystem, path, options):
                error_count += row["row"] == "error"
                _print_row(row, as_json)
        except OSError as error:
            fail(f"{path}: {error.strerror or error}")
    if error_count:
        fail(f"{error_count} errors in these files")


@app.command("verify")
def verify(
    directory: Annotated[str, typer.Argument(help="A log directory, or one partition's.")],
    deep: Annotated[
        bool, typer.Option("--deep", help="Unpack every batch and check its records too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every batch, index and checkpoint; status 1 when something flushed is wrong."""
    verification = Verification(OsFilesystem(), deep=deep)
    findings = []
    try:
        for finding in verification.findings(directory):
            findings.append(
                {
                    "severity": finding.severity.name,
                    "file": finding.file,
                    "position": finding.position,
                    "reason": finding.reason,
                }
            )
            if not as_json:
                typer.echo(str(finding))
    except OSError as error:
        fail(f"{directory}: {error.strerror or error}")
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
        typer.echo(
            f"{verification.partition_count} partitions, {verification.segment_count} segments, "
            f"{verification.batch_count} batches, {size_text(verification.checked_bytes)}: {counts}"
        )
    if verification.is_damaged:
        raise typer.Exit(1)


def _print_row(row: Row, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(row, default=str) + b"\n")
    else:
        typer.echo(format_row(row))
