"""`moldau consume`: records of a topic to the standard output or a file.

Invariant: a group's offsets are committed only behind records that have been written out, flushed,
so that a broken pipe or a full disk loses none; no more than the consumer's buffers and one poll's
records are in memory.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from moldau.cli.options import (
    DEFAULT_TIMEOUT_MS,
    BootstrapServer,
    CommandConfig,
    Properties,
    client_properties,
    parse_datetime,
    unused_settings_told,
)
from moldau.cli.output import RateLine, fail, file_errors, rate_line, reader_is_gone
from moldau.cli.record_formats import (
    OUTPUT_FIELDS,
    Formatter,
    InputProblem,
    json_formatter,
    raw_value,
    text_formatter,
    unescaped,
)
from moldau.client import (
    ConfigurationError,
    ConsumerRecord,
    KafkaError,
    OffsetAndMetadata,
    TopicPartition,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from moldau.client.sync import Consumer

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
    list[int] | None, typer.Option(min=0, help="Only this one; may be repeated.")
]
FromOffset = Annotated[
    str | None,
    typer.Option("--offset", help="From this offset; -N: N before the end; earliest; latest."),
]
MaxMessages = Annotated[int | None, typer.Option(min=1, help="Stop after so many records.")]
IdleTimeoutMs = Annotated[
    int | None, typer.Option(min=1, help="Stop when no record has come for so long.")
]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", help="Stop at the end that the log has at the start.")
]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", help="Write to this file; an existing one is replaced."),
]
AsJsonLines = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Fields = Annotated[
    str | None, typer.Option(help=f"Text: what a line has, in order, of {','.join(OUTPUT_FIELDS)}.")
]
KeySeparator = Annotated[
    str | None, typer.Option(help="Text: what divides fields (\\t is a tab); alone: key and value.")
]
NullValue = Annotated[str, typer.Option(help="Text: how a null key or value is shown.")]
Delimiter = Annotated[str, typer.Option(help="Text: what ends a record.")]
AlwaysBase64 = Annotated[
    bool, typer.Option("--base64", help="Json: keys, values, headers all as base64.")
]
JsonValues = Annotated[
    bool, typer.Option("--json-values", help="Json: values that are JSON appear as such.")
]
POLL_MS: Final = 1_000
END_POLL_MS: Final = 100
DEFAULT_POLL_RECORDS: Final = 5_000
COMMIT_INTERVAL_S: Final = 5.0
DEFAULTS: Final = {"client.id": "moldau-consume", "default.api.timeout.ms": str(DEFAULT_TIMEOUT_MS)}
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
class Start:
    """Where to begin: one of these, in all partitions that are read."""

    partitions: tuple[int, ...] = ()
    from_beginning: bool = False
    offset: int | None = None
    back_count: int | None = None
    timestamp_ms: int | None = None


IsolationLevel = Annotated[
    Isolation | None, typer.Option(help="Whether records of open and aborted transactions.")
]
Format = Annotated[
    OutputFormat,
    typer.Option("--format", help="text: a line each; json: an object each; raw: bare values."),
]


def start_of(
    partitions: list[int] | None,
    from_beginning: bool,
    from_offset: str | None,
    timestamp: str | None,
) -> Start:
    """The options as a start. Raises: InputProblem: two places, or a value that is no place"""
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
    """How records are written; `text` is fields, separator, mark of null and delimiter, as given.
    Raises: InputProblem: an option of another format, or a field that there is not
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
        if name not in OUTPUT_FIELDS:
            raise InputProblem(f"--fields: {name!r} is none of {', '.join(OUTPUT_FIELDS)}")
    between = unescaped(separator, "--key-separator") if separator is not None else b"\t"
    return text_formatter(names, between, unescaped(delimiter, "--delimiter"), null_value.encode())


@dataclass(frozen=True, slots=True)
class _Limits:
    """The limits after which the command ends."""

    max_messages: int | None
    timeout_ms: int | None
    until_end: bool


class _Consuming:
    """The loop that polls, writes and commits."""

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
        self._uncommitted: dict[TopicPartition, OffsetAndMetadata] = {}
        self._ends: dict[TopicPartition, int] = {}
        self.record_count = 0
        self.byte_count = 0

    def run(self, limits: _Limits) -> bool:
        """Consume until a limit is reached; False when that came before `max_messages`."""
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
            if self._uncommitted and time.monotonic() - self._committed_at >= COMMIT_INTERVAL_S:
                self.commit()
        return True

    def commit(self) -> None:
        """Commit what has been written, if anything is new. Raises: KafkaError"""
        if self._uncommitted:
            self._consumer.commit(self._uncommitted)
            self._uncommitted = {}
        self._committed_at = time.monotonic()

    def _write(self, polled: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
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

    def _is_at_end(self) -> bool:
        assignment = self._consumer.assignment()
        unknown = [each for each in assignment if each not in self._ends]
        if unknown:
            self._ends.update(self._consumer.end_offsets(unknown))
        return bool(assignment) and all(
            self._consumer.position(each) >= self._ends[each] for each in assignment
        )


def consume(
    topic: Topic,
    group: Group = None,
    from_beginning: FromBeginning = False,
    timestamp: Timestamp = None,
    partition: Partitions = None,
    from_offset: FromOffset = None,
    isolation: IsolationLevel = None,
    max_messages: MaxMessages = None,
    timeout_ms: IdleTimeoutMs = None,
    until_end: UntilEnd = False,
    output: Output = None,
    output_format: Format = OutputFormat.TEXT,
    as_json: AsJsonLines = False,
    fields: Fields = None,
    key_separator: KeySeparator = None,
    null_value: NullValue = "null",
    delimiter: Delimiter = "\\n",
    always_base64: AlwaysBase64 = False,
    json_values: JsonValues = False,
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
        start = start_of(partition, from_beginning, from_offset, timestamp)
        formatter = formatter_of(
            output_format,
            (fields, key_separator, null_value, delimiter),
            always_base64=always_base64,
            json_values=json_values,
        )
    except InputProblem as problem:
        fail(str(problem), status=2)
    if group is not None and (partition or from_offset is not None or timestamp is not None):
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
    start: Start,
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
            with unused_settings_told():
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
            reader_is_gone()  # nothing more is committed
        except OSError as error:
            line.end()
            fail(f"{output or 'standard output'}: {error.strerror}")
        except KeyboardInterrupt:
            line.end()
            if consuming is None:
                raise
            try:
                consuming.commit()
            except KafkaError as error:
                text = f"interrupted; what was written last is not committed: {error}"
                fail(text, status=130)
            fail(f"interrupted after {consuming.record_count} records", status=130)
        line.finish(consuming.record_count, consuming.byte_count)
    if not complete:
        fail(f"{consuming.record_count} of {limits.max_messages} records were there")


def _begin(consumer: Consumer, topic: str, start: Start) -> None:
    """Assign the partitions, each at its start. Raises: KafkaError, also for one that is missing"""
    existing = consumer.partitions_for(topic)
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


def _opened(stack: ExitStack, output: str | None) -> BinaryIO:
    if output is None:
        return sys.stdout.buffer
    with file_errors(output):
        return stack.enter_context(open(output, "wb"))


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as cleanly as Ctrl-C: the consumer leaves its group at once."""

    def end(number: int, frame: object) -> None:
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
