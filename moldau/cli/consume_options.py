"""The options of `moldau consume`, and what they mean: where to begin, how to write.

Owns their texts and the checks that need no cluster. Must not talk to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from moldau.cli.group_offset_plans import parse_datetime
from moldau.cli.record_input import InputProblem, unescaped
from moldau.cli.record_output import (
    FIELDS,
    Formatter,
    json_formatter,
    raw_value,
    text_formatter,
)


class OutputFormat(StrEnum):
    """How records are written."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


class Isolation(StrEnum):
    """Which records of transactions are read."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: one of these, in all partitions that are read."""

    partitions: tuple[int, ...] = ()
    from_beginning: bool = False
    offset: int | None = None
    back_count: int | None = None
    timestamp_ms: int | None = None


Topic = Annotated[str, typer.Argument(help="The topic.")]
Group = Annotated[
    str | None,
    typer.Option(help="Share the partitions with the group's members; commit what is read."),
]
FromBeginning = Annotated[
    bool,
    typer.Option(
        "--from-beginning",
        help="From the log's start; with a group, where it has committed nothing yet.",
    ),
]
Timestamp = Annotated[
    str | None,
    typer.Option(help="From the first record of then or later: ISO 8601, or ms since 1970."),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", min=0, help="Only this one; may be repeated."),
]
FromOffset = Annotated[
    str | None,
    typer.Option("--offset", help="From this offset; -N: N before the end; earliest; latest."),
]
IsolationLevel = Annotated[
    Isolation | None, typer.Option(help="Whether records of open and aborted transactions.")
]
MaxMessages = Annotated[int | None, typer.Option(min=1, help="Stop after so many records.")]
IdleTimeoutMs = Annotated[
    int | None,
    typer.Option("--timeout-ms", min=1, help="Stop when no record has come for so long."),
]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", help="Stop at the end that the log has at the start.")
]
Output = Annotated[
    str | None, typer.Option("--output", "-o", help="Write to this file, which is made anew.")
]
Format = Annotated[
    OutputFormat,
    typer.Option("--format", help="text: a line each; json: an object each; raw: bare values."),
]
AsJsonLines = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Fields = Annotated[
    str | None, typer.Option(help=f"Text: what a line has, in order, of {','.join(FIELDS)}.")
]
KeySeparator = Annotated[
    str | None,
    typer.Option(help="Text: what divides fields (\\t is a tab); alone: key and value."),
]
NullValue = Annotated[str, typer.Option(help="Text: how a null key or value is shown.")]
Delimiter = Annotated[str, typer.Option(help="Text: what ends a record.")]
AlwaysBase64 = Annotated[
    bool, typer.Option("--base64", help="Json: keys, values, headers all as base64.")
]
JsonValues = Annotated[
    bool, typer.Option("--json-values", help="Json: values that are JSON appear as such.")
]


def start_of(
    partitions: list[int] | None,
    from_beginning: bool,
    from_offset: str | None,
    timestamp: str | None,
) -> Start:
    """Where to begin. Raises: InputProblem: two places at once, or what is none"""
    named = tuple(sorted(set(partitions or ())))
    given = [
        option
        for option, is_given in (
            ("--from-beginning", from_beginning),
            ("--offset", from_offset is not None),
            ("--timestamp", timestamp is not None),
        )
        if is_given
    ]
    if len(given) > 1:
        raise InputProblem(f"{' and '.join(given)} exclude each other")
    if timestamp is not None:
        return Start(named, timestamp_ms=_milliseconds(timestamp))
    if from_offset is None or from_offset == "latest":
        return Start(named, from_beginning)
    if from_offset == "earliest":
        return Start(named, from_beginning=True)
    try:
        number = int(from_offset)
    except ValueError:
        raise InputProblem(
            f"--offset {from_offset!r}: a number, -N for N before the end, earliest or latest"
        ) from None
    return Start(named, offset=number) if number >= 0 else Start(named, back_count=-number)


def _milliseconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return parse_datetime(text)
    except ValueError as error:
        raise InputProblem(
            f"--timestamp {text!r}: ISO 8601 (2026-07-01T12:00:00Z) or milliseconds since 1970: "
            f"{error}"
        ) from None


def formatter_of(
    output_format: OutputFormat,
    text: tuple[str | None, str | None, str, str],
    *,
    always_base64: bool,
    json_values: bool,
) -> Formatter:
    """How records are written.

    Args:
        text: fields, separator, mark of null, delimiter; as given.

    Raises:
        InputProblem: an option of another format, or a field that there is not.
    """
    fields, separator, null_value, delimiter = text
    if output_format is not OutputFormat.TEXT and (fields or separator):
        raise InputProblem("--fields and --key-separator are for --format text")
    if output_format is not OutputFormat.JSON and (always_base64 or json_values):
        raise InputProblem("--base64 and --json-values are for --format json")
    if output_format is OutputFormat.JSON:
        return json_formatter(always_base64=always_base64, json_values=json_values)
    if output_format is OutputFormat.RAW:
        return raw_value
    names = (fields or ("key,value" if separator else "value")).split(",")
    for name in names:
        if name not in FIELDS:
            raise InputProblem(f"--fields: {name!r} is none of {', '.join(FIELDS)}")
    between = unescaped(separator, "--key-separator") if separator is not None else b"\t"
    return text_formatter(names, between, unescaped(delimiter, "--delimiter"), null_value.encode())
