"""`moldau consume`: records of a topic to the standard output or a file.

Must not talk to a cluster except through `moldau.client`. Invariant: a group's offsets are
committed only behind records that have been written out, flushed, so that a broken pipe or a full
disk loses none; no more than the consumer's buffers and one poll's records are in memory.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from moldau.cli.client_properties import Properties, client_properties
from moldau.cli.cluster_options import BootstrapServer, CommandConfig
from moldau.cli.group_offset_plans import parse_datetime
from moldau.cli.output import fail
from moldau.cli.rate_line import RateLine, rate_line
from moldau.cli.record_input import InputProblem, unescaped
from moldau.cli.record_output import (
    FIELDS,
    Formatter,
    json_formatter,
    raw_value,
    text_formatter,
)
from moldau.client.errors import ConfigurationError, KafkaError

if TYPE_CHECKING:
    from moldau.client.records import ConsumerRecord
    from moldau.client.sync import Consumer
    from moldau.protocol.types import TopicPartition

POLL_MS: Final = 1_000
END_POLL_MS: Final = 100
DEFAULT_POLL_RECORDS: Final = 5_000
COMMIT_INTERVAL_S: Final = 5.0
DEFAULTS: Final = {"client.id": "moldau-consume"}
TERMINATED: Final = 128 + signal.SIGTERM


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
class _Start:
    """Where to begin: one of these, in all partitions that are read."""

    partitions: tuple[int, ...] = ()
    from_beginning: bool = False
    offset: int | None = None
    back_count: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Limits:
    """When to stop."""

    max_messages: int | None
    timeout_ms: int | None
    until_end: bool


class _Consuming:
    """Polls, writes, commits."""

    def __init__(
        self,
        consumer: Consumer,
        out: BinaryIO,
        formatter: Formatter,
        line: RateLine,
        *,
        commits: bool,
    ) -> None:
        self._consumer = consumer
        self._out = out
        self._formatter = formatter
        self._line = line
        self._commits = commits
        self._committed_at = time.monotonic()
        self._uncommitted: dict[TopicPartition, Any] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.record_count = 0
        self.byte_count = 0

    def run(self, limits: _Limits) -> bool:
        """Until a limit is reached; False when the time was over before the count."""
        idle_since = time.monotonic()
        while limits.max_messages is None or self.record_count < limits.max_messages:
            now = time.monotonic()
            wait_ms = END_POLL_MS if limits.until_end else POLL_MS
            if limits.timeout_ms is not None:
                left_ms = limits.timeout_ms - (now - idle_since) * 1_000
                if left_ms <= 0:
                    return limits.max_messages is None
                wait_ms = min(wait_ms, max(1, round(left_ms)))
            count = DEFAULT_POLL_RECORDS
            if limits.max_messages is not None:
                count = min(count, limits.max_messages - self.record_count)
            polled = self._consumer.getmany(max_records=count, timeout_ms=wait_ms)
            if polled:
                self._write(polled)
                idle_since = time.monotonic()
            elif limits.until_end and self._is_at_end():
                return limits.max_messages is None
            self._commit_when_due()
        return True

    def commit(self) -> None:
        """Commit what has been written, if anything is new. Raises: KafkaError"""
        if self._uncommitted:
            self._consumer.commit(self._uncommitted)
            self._uncommitted = {}
        self._committed_at = time.monotonic()

    def _write(self, polled: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        from moldau.client.records import OffsetAndMetadata

        formatter = self._formatter
        for partition, records in polled.items():
            data = b"".join([formatter(record) for record in records])
            self._out.write(data)
            self._out.flush()
            self.record_count += len(records)
            self.byte_count += len(data)
            if self._commits:
                self._uncommitted[partition] = OffsetAndMetadata(records[-1].offset + 1)
        self._line.update(self.record_count, self.byte_count)

    def _commit_when_due(self) -> None:
        if self._uncommitted and time.monotonic() - self._committed_at >= COMMIT_INTERVAL_S:
            self.commit()

    def _is_at_end(self) -> bool:
        """Whether all that was there when a partition was first looked at has been read."""
        assignment = self._consumer.assignment()
        unknown = [each for each in assignment if each not in self._ends]
        if unknown:
            self._ends.update(self._consumer.end_offsets(unknown))
        return bool(assignment) and all(
            self._consumer.position(each) >= self._ends[each] for each in assignment
        )


def consume(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    group: Annotated[
        str | None,
        typer.Option(help="Share the partitions with the group's members; commit what is read."),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="From the log's start; with a group, where it has committed nothing yet.",
        ),
    ] = False,
    timestamp: Annotated[
        str | None,
        typer.Option(help="From the first record of then or later: ISO 8601, or ms since 1970."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="Only this one; may be repeated."),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(help="From this offset; -N: N records before the end; earliest; latest."),
    ] = None,
    isolation: Annotated[
        Isolation | None, typer.Option(help="Whether records of open and aborted transactions.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many records.")
    ] = None,
    timeout_ms: Annotated[
        int | None,
        typer.Option("--timeout-ms", min=1, help="Stop when no record has come for so long."),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the end that the log has at the start.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write to this file, which is made anew.")
    ] = None,
    output_format: Annotated[
        OutputFormat,
        typer.Option("--format", help="text: a line each; json: an object each; raw: bare values."),
    ] = OutputFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    fields: Annotated[
        str | None, typer.Option(help=f"Text: what a line has, in order, of {','.join(FIELDS)}.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(help="Text: what divides fields (\\t is a tab); alone: key and value."),
    ] = None,
    null_value: Annotated[str, typer.Option(help="Text: how a null key or value is shown.")] = (
        "null"
    ),
    delimiter: Annotated[str, typer.Option(help="Text: what ends a record.")] = "\\n",
    always_base64: Annotated[
        bool, typer.Option("--base64", help="Json: keys, values, headers all as base64.")
    ] = False,
    json_values: Annotated[
        bool, typer.Option("--json-values", help="Json: values that are JSON appear as such.")
    ] = False,
    properties: Properties = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
) -> None:
    """Print the records of a topic as they come."""
    output_format = OutputFormat.JSON if as_json else output_format
    settings = client_properties(
        bootstrap_server,
        command_config,
        properties,
        defaults=DEFAULTS,
        options={
            "group.id": group,
            "isolation.level": None if isolation is None else isolation.value,
            "auto.offset.reset": "earliest" if from_beginning else None,
            "enable.auto.commit": "false",
        },
    )
    group = group or str(settings.get("group.id") or "") or None
    try:
        start = _start(partition, from_beginning, offset, timestamp)
        formatter = _formatter(
            output_format,
            (fields, key_separator, null_value, delimiter),
            always_base64=always_base64,
            json_values=json_values,
        )
    except InputProblem as problem:
        fail(str(problem), status=2)
    if group is not None and (partition or offset is not None or timestamp is not None):
        fail(
            "--partition, --offset and --timestamp are for reading without a group: its start is "
            "what it has committed (`moldau groups reset-offsets` moves that)",
            status=2,
        )
    limits = _Limits(max_messages, timeout_ms, until_end)
    with _ended_by_sigterm():
        _run(topic, group, settings, start, limits, formatter, output)


def _run(
    topic: str,
    group: str | None,
    settings: dict[str, object],
    start: _Start,
    limits: _Limits,
    formatter: Formatter,
    output: str | None,
) -> None:
    from moldau.client.sync import Consumer

    consuming: _Consuming | None = None
    with ExitStack() as stack:
        out = _opened(stack, output)
        line = stack.enter_context(
            rate_line(topic, beside_terminal=output is None and sys.stdout.isatty())
        )
        try:
            consumer = stack.enter_context(Consumer(config=settings))
            if group is None:
                _begin(consumer, topic, start)
            else:
                consumer.subscribe([topic])
            consuming = _Consuming(consumer, out, formatter, line, commits=group is not None)
            complete = consuming.run(limits)
            consuming.commit()
        except ConfigurationError as error:
            line.end()
            fail(str(error), status=2)
        except KafkaError as error:
            line.end()
            fail(str(error))
        except BrokenPipeError:
            raise  # whoever reads has enough; nothing more is committed
        except OSError as error:
            line.end()
            fail(f"{output or 'standard output'}: {error.strerror}")
        except KeyboardInterrupt:
            line.end()
            if consuming is None:
                raise
            _commit_at_interruption(consuming)
            fail(f"interrupted after {consuming.record_count} records", status=130)
        line.finish(consuming.record_count, consuming.byte_count)
    if not complete:
        fail(f"{consuming.record_count} of {limits.max_messages} records were there")


def _commit_at_interruption(consuming: _Consuming) -> None:
    try:
        consuming.commit()
    except KafkaError as error:
        fail(f"interrupted; what was written last is not committed: {error}", status=130)


def _begin(consumer: Consumer, topic: str, start: _Start) -> None:
    """Assign the partitions, each at its start. Raises: KafkaError, also for one that is missing"""
    from moldau.client.errors import UnknownTopicOrPartition
    from moldau.client.records import TopicPartition

    existing = sorted(each.partition for each in consumer.partitions_for(topic))
    wanted = start.partitions or tuple(existing)
    missing = [each for each in wanted if each not in existing]
    if missing:
        raise UnknownTopicOrPartition(
            f"{topic} has partitions {_ranges(existing)}, not {_ranges(missing)}"
        )
    partitions = [TopicPartition(topic, each) for each in wanted]
    consumer.assign(partitions)
    if start.from_beginning:
        consumer.seek_to_beginning(*partitions)
    elif start.timestamp_ms is not None:
        consumer.seek_to_time(dict.fromkeys(partitions, start.timestamp_ms))
    elif start.offset is not None:
        for each in partitions:
            consumer.seek(each, start.offset)
    elif start.back_count is not None:
        first = consumer.beginning_offsets(partitions)
        end = consumer.end_offsets(partitions)
        for each in partitions:
            consumer.seek(each, max(first[each], end[each] - start.back_count))
    else:
        # Now, not at the first fetch: what is written from here on shall be seen.
        consumer.seek_to_end(*partitions)
        for each in partitions:
            consumer.position(each)


def _ranges(numbers: list[int]) -> str:
    if numbers and numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _start(
    partitions: list[int] | None, from_beginning: bool, offset: str | None, timestamp: str | None
) -> _Start:
    named = tuple(sorted(set(partitions or ())))
    given = [
        option
        for option, is_given in (
            ("--from-beginning", from_beginning),
            ("--offset", offset is not None),
            ("--timestamp", timestamp is not None),
        )
        if is_given
    ]
    if len(given) > 1:
        raise InputProblem(f"{' and '.join(given)} exclude each other")
    if timestamp is not None:
        return _Start(named, timestamp_ms=_milliseconds(timestamp))
    if offset is None or offset == "latest":
        return _Start(named, from_beginning)
    if offset == "earliest":
        return _Start(named, from_beginning=True)
    try:
        number = int(offset)
    except ValueError:
        raise InputProblem(
            f"--offset {offset!r}: a number, -N for N before the end, earliest or latest"
        ) from None
    return _Start(named, offset=number) if number >= 0 else _Start(named, back_count=-number)


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


def _formatter(
    output_format: OutputFormat,
    text: tuple[str | None, str | None, str, str],
    *,
    always_base64: bool,
    json_values: bool,
) -> Formatter:
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


def _opened(stack: ExitStack, output: str | None) -> BinaryIO:
    if output is None:
        return sys.stdout.buffer
    try:
        return stack.enter_context(open(output, "wb"))
    except OSError as error:
        fail(f"{output}: {error.strerror}")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends it as cleanly as Ctrl-C: the group hears of it at once."""

    def end(number: int, frame: object) -> None:
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
