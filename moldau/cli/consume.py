"""`moldau consume`: records of topics to the standard output or a file.

Invariant: a group's offsets are committed only behind records that have been written out, flushed,
so that a broken pipe or a full disk loses none; no more than the consumer's buffers and one poll's
records are in memory.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, NamedTuple

from moldau.cli.client_settings import unused_settings_told
from moldau.cli.completion import complete_groups, complete_topics
from moldau.cli.options import (
    DEFAULT_TIMEOUT_MS,
    ClientOptions,
    Properties,
    unknown_topic,
)
from moldau.cli.output import (
    INTERRUPTED,
    RateLine,
    byte_output,
    fail,
    file_errors,
    rate_line,
    refusing,
    safe_bytes,
    warn,
)
from moldau.cli.parameters import Within
from moldau.cli.record_choice import RecordChoice
from moldau.cli.record_formats import (
    OUTPUT_FIELDS,
    PLACEHOLDERS,
    Decoders,
    Formatter,
    InputProblem,
    json_formatter,
    template_formatter,
    text_formatter,
    unescaped,
)
from moldau.cli.streams import check_reader
from moldau.cli.typed_formats import (
    Formats,
    KeyFormat,
    ReadFormat,
    RegistryUrl,
    parts_of,
    typed_formats,
)
from moldau.client import (
    ConfigurationError,
    ConsumerConfig,
    ConsumerRecord,
    KafkaError,
    OffsetAndMetadata,
    RequestTimeout,
    TopicPartition,
    UnknownTopicOrPartition,
)
from moldau.moments import parse_datetime
from moldau.protocol.types import is_legal_topic_name

if TYPE_CHECKING:
    from moldau.client.sync import Consumer
    from moldau.record_filter import RecordFilter

POLL_MS: Final = 1_000
END_POLL_MS: Final = 100
DEFAULT_POLL_RECORDS: Final = 5_000
COMMIT_INTERVAL_S: Final = 5.0
DEFAULTS: Final = {
    "client.id": "moldau-consume",
    "default.api.timeout.ms": str(DEFAULT_TIMEOUT_MS),
    "allow.auto.create.topics": "false",
}
TOPIC_LOOK_MS: Final = 1_000
NO_END: Final = 2**63
MOST_NAMED: Final = 3
#: What `-o` is in kcat, and what says it here; beside these a number, counted back with a minus.
KCAT_OFFSETS: Final = {
    "beginning": "--from-beginning",
    "earliest": "--from-beginning",
    "end": "--offset latest",
    "latest": "--offset latest",
    "stored": "--group",
}
#: Where `auto.offset.reset` leads to.
PLACES: Final = {"earliest": "the beginning", "latest": "the end"}
UNITS_MS: Final = dict(ms=1, s=1_000, m=60_000, h=3_600_000, d=86_400_000, w=604_800_000)
_PLACEHOLDERS: Final = ", ".join(f"%{sign} {what}" for sign, what in PLACEHOLDERS.items())
TERMINATED: Final = 128 + signal.SIGTERM


class Isolation(StrEnum):
    """Which records of transactions are read."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Start(NamedTuple):
    """Where to begin: one of these, in all partitions that are read."""

    partitions: tuple[int, ...] = ()
    from_beginning: bool = False
    offset: int | None = None
    back_count: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options that say which records are read, and when that ends."""

    from_beginning: Annotated[
        bool, "From the log's start; with a group, where it has committed nothing yet."
    ] = False
    timestamp: Annotated[
        str | None,
        "From the first record of then: 10m (ago), ISO 8601 (UTC unless it names a zone; a "
        "date is its midnight), ms of 1970.",
    ] = None
    partition: Annotated[
        list[int] | None,
        "--partition -p",
        Within(0),
        "Only this one of each topic; may be repeated.",
    ] = None
    from_offset: Annotated[
        str | None, "--offset", "From this offset; -N: N before the end; earliest; latest."
    ] = None
    end_offset: Annotated[str | None, "Stop before this offset; -N: N before the end of now."] = (
        None
    )
    end_timestamp: Annotated[
        str | None, "Stop before the first record of then; as --timestamp."
    ] = None
    isolation: Annotated[Isolation | None, "Whether records of open and aborted transactions."] = (
        None
    )
    max_messages: Annotated[
        int | None, Within(1), "--max-messages -n", "Stop after so many records that are printed."
    ] = None
    timeout_ms: Annotated[int | None, Within(1), "Stop when no record has come for so long."] = None
    until_end: Annotated[
        bool, "--until-end -e", "Stop at the end that the log has at the start."
    ] = False

    def start(self) -> Start:
        """Where to begin. Raises: InputProblem: two places, or a value that is no place"""
        named = tuple(sorted(set(self.partition or ())))
        places = {"--from-beginning": self.from_beginning or None, "--offset": self.from_offset}
        places["--timestamp"] = self.timestamp
        given = [option for option, place in places.items() if place is not None]
        if len(given) > 1:
            raise InputProblem(f"{' and '.join(given)} exclude each other")
        if self.timestamp is not None:
            return Start(named, timestamp_ms=milliseconds(self.timestamp, "--timestamp"))
        if self.from_offset is None or self.from_offset == "latest":
            return Start(named, self.from_beginning)
        if self.from_offset == "earliest":
            return Start(named, from_beginning=True)
        offset, back_count = _offset(self.from_offset, "--offset", ", earliest or latest")
        return Start(named, offset=offset, back_count=back_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """The options that say how records are written."""

    output_format: Annotated[
        str,
        "--format -f",
        "text: a line each; json: an object each; raw: bare values; or a format string of "
        f"{_PLACEHOLDERS}, %%, \\n, \\xHH.",
    ] = "text"
    as_json: Annotated[bool, "--json", "The same as --format json."] = False
    key_format: KeyFormat = None
    value_format: ReadFormat = None
    schema_registry: RegistryUrl = None
    fields: Annotated[
        str | None, f"Text: what a line has, in order, of {', '.join(OUTPUT_FIELDS)}."
    ] = None
    key_separator: Annotated[
        str | None, "Text: what divides fields (\\t is a tab); alone: key and value."
    ] = None
    null_value: Annotated[
        str | None, "How a null is shown.  [default: null; nothing in a format string]"
    ] = None
    delimiter: Annotated[str | None, "Text: what ends a record.  [default: \\n]"] = None
    always_base64: Annotated[bool, "--base64", "Json: keys, values, headers all as base64."] = False
    json_values: Annotated[bool, "Json: values that are JSON appear as such."] = False

    @property
    def name(self) -> str:
        return "json" if self.as_json else self.output_format

    def typed(self, settings: dict[str, object]) -> Formats:
        """What keys and values are; the schema registry's settings are taken out of the client's.
        Exits with status 2 for options that do not fit.
        """
        return typed_formats((self.key_format, self.value_format), self.schema_registry, settings)

    def formatter(self, typed: Formats) -> Formatter:
        """What writes a record. Raises: InputProblem: an option of another format, or a field that
        there is not
        """
        is_template = "%" in self.name
        if not is_template and self.name not in ("text", "json", "raw"):
            raise InputProblem(
                f"--format {self.name!r}: text, json, raw or a format string, as '%t %o %k %v\\n'"
            )
        if self.name != "text" and (
            self.fields or self.key_separator or self.delimiter is not None
        ):
            raise InputProblem("--fields, --key-separator and --delimiter are for --format text")
        if self.name != "json" and (self.always_base64 or self.json_values):
            raise InputProblem("--base64 and --json-values are for --format json")
        if (self.always_base64 and any(typed)) or (self.json_values and typed[1]):
            raise InputProblem(
                "--base64 and --json-values are for keys and values without a format"
            )
        if self.name == "json":
            return json_formatter(
                always_base64=self.always_base64,
                json_values=self.json_values,
                decoders=Decoders(*parts_of(typed, lambda each: each.decode)),
            )
        decoders = Decoders(*parts_of(typed, lambda each: each.decode_text))
        if self.name == "raw":
            return text_formatter(("value",), b"", b"", b"", decoders)
        if is_template:
            return template_formatter(self.name, (self.null_value or "").encode(), decoders)
        names = (self.fields or ("key,value" if self.key_separator else "value")).split(",")
        for name in names:
            if name not in OUTPUT_FIELDS:
                raise InputProblem(f"--fields: {name!r} is none of {', '.join(OUTPUT_FIELDS)}")
        between, end = b"\t", b"\n"
        if self.key_separator is not None:
            between = unescaped(self.key_separator, "--key-separator")
        if self.delimiter is not None:
            end = unescaped(self.delimiter, "--delimiter")
        mark = "null" if self.null_value is None else self.null_value
        return text_formatter(names, between, end, mark.encode(), decoders)


def _offset(text: str, option: str, others: str = "") -> tuple[int | None, int | None]:
    """An offset, or how many before the end."""
    try:
        number = int(text)
    except ValueError:
        raise InputProblem(
            f"{option} {text!r}: a number, or -N for N before the end{others}"
        ) from None
    return (number, None) if number >= 0 else (None, -number)


def milliseconds(text: str, option: str, others: str = "") -> int:
    """A time in ms since 1970. Raises: InputProblem: what is none, or one of the `others`"""
    if text.isascii() and text.isdigit():
        return int(text)
    if re.fullmatch(r"-?(\d+(ms|[smhdw]))+", text, re.ASCII):
        parts = re.findall(r"(\d+)(ms|[smhdw])", text)
        ago_ms = sum(int(number) * UNITS_MS[unit] for number, unit in parts)
        return max(0, round(time.time() * 1_000) - ago_ms)
    try:
        return parse_datetime(text)
    except ValueError as error:
        raise InputProblem(
            f"{option} {text!r}: {others}10m or 1h30m (ago; ms, s, m, h, d, w), ISO 8601 "
            f"(2026-07-01 or 2026-07-01T12:00:00Z) or milliseconds since 1970: {error}"
        ) from None


def pattern_of(names: Sequence[str], regex: bool) -> str | None:
    """What whole names have to match; None when all of them could be topics' names, and with
    `regex` not even then. Raises: InputProblem: no regular expression
    """
    plain = [name for name in names if is_legal_topic_name(name) and not regex]
    if len(plain) == len(names):
        return None
    parts = [f"^{re.escape(name)}$" if name in plain else f"(?:{name})" for name in names]
    try:
        return re.compile(f".*(?:{'|'.join(parts)}).*").pattern
    except re.error as error:
        raise InputProblem(f"{' '.join(names)}: no regular expression: {error}") from None


class _Ends:
    """Where partitions end, at the first of several places; found when each is first assigned."""

    def __init__(self, options: ReadOptions) -> None:
        offset = back = self._time_ms = None
        if options.end_offset is not None:
            offset, back = _offset(options.end_offset, "--end-offset")
        self._offset = NO_END if offset is None else offset
        self._back_count = (back or 0) if options.until_end else back
        if options.end_timestamp is not None:
            self._time_ms = milliseconds(options.end_timestamp, "--end-timestamp")
        self._ends: dict[TopicPartition, int] = {}
        self._open: set[TopicPartition] = set()
        self._done: set[TopicPartition] = set()

    def reached(self, consumer: Consumer) -> bool:
        """Whether all partitions are at their ends; one that is, is not fetched any more."""
        assignment = consumer.assignment()
        self._find(consumer, assignment)
        at = consumer.positions()
        done = {each for each in assignment & at.keys() if at[each].offset >= self._ends[each]}
        if done - self._done:
            consumer.pause(*done)
        self._done = done
        return bool(assignment) and done == assignment

    def cut(
        self, consumer: Consumer, name: TopicPartition, records: list[ConsumerRecord]
    ) -> list[ConsumerRecord]:
        """The records before the partition's end."""
        self._find(consumer, [name])
        end, time_ms = self._ends[name], self._time_ms
        if time_ms is not None and name in self._open:
            late = (each.offset for each in records if each.timestamp_ms >= time_ms)
            end = self._ends[name] = min(end, next(late, NO_END))
        return records if records[-1].offset < end else [r for r in records if r.offset < end]

    def _find(self, consumer: Consumer, partitions: Collection[TopicPartition]) -> None:
        time_ms = self._time_ms
        is_over = time_ms is not None and time_ms <= time.time() * 1_000
        new = [p for p in partitions if p not in self._ends or (is_over and p in self._open)]
        times = dict.fromkeys(new, time_ms) if time_ms is not None else {}
        found = consumer.offsets_for_times(times) if times else {}
        for name, log_end in consumer.end_offsets(new).items() if new else ():
            first = found.get(name)
            by_time = NO_END if first is None else first.offset
            if is_over:
                by_time = min(by_time, log_end)
                self._open.discard(name)
            elif first is None:
                self._open.add(name)  # before the time is over, such a record may still come
            by_count = NO_END if self._back_count is None else log_end - self._back_count
            before = self._ends.get(name, self._offset)
            self._ends[name] = min(before, by_count, by_time)


@dataclass
class _Consuming:
    """The loop that polls, writes and commits."""

    consumer: Consumer
    out: BinaryIO
    formatter: Formatter
    line: RateLine
    commits: bool
    ends: _Ends | None
    is_wanted: RecordFilter | None
    read_count: int = 0
    record_count: int = 0
    byte_count: int = 0
    _committed_at: float = field(default_factory=time.monotonic)
    _uncommitted: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)

    def run(self, limits: ReadOptions) -> bool:
        """Consume until a limit is reached; False when that came before `max_messages`."""
        idle_since = time.monotonic()
        while limits.max_messages is None or self.record_count < limits.max_messages:
            if self.out is byte_output():
                check_reader()  # no record may come for long
            if self.ends is not None and self.ends.reached(self.consumer):
                return limits.max_messages is None
            now = time.monotonic()
            wait_ms = POLL_MS if self.ends is None else END_POLL_MS
            if limits.timeout_ms is not None:
                left_ms = limits.timeout_ms - (now - idle_since) * 1_000
                if left_ms <= 0:
                    return limits.max_messages is None
                wait_ms = min(wait_ms, max(1, round(left_ms)))
            count = DEFAULT_POLL_RECORDS
            left = None
            if limits.max_messages is not None:
                left = limits.max_messages - self.record_count
                count = min(count, left) if self.is_wanted is None else count
            polled = self.consumer.getmany(max_records=count, timeout_ms=wait_ms)
            if polled:
                self._write(polled, left)
                idle_since = time.monotonic()
            if self._uncommitted and time.monotonic() - self._committed_at >= COMMIT_INTERVAL_S:
                self.commit()
        return True

    def commit(self) -> None:
        """Commit what has been written, if anything is new. Raises: KafkaError"""
        if self._uncommitted:
            self.consumer.commit(self._uncommitted)
            self._uncommitted = {}
        self._committed_at = time.monotonic()

    def _write(
        self, polled: Mapping[TopicPartition, list[ConsumerRecord]], most: int | None
    ) -> None:
        formatter = self.formatter
        for partition, records in polled.items():
            if self.ends is not None:
                records = self.ends.cut(self.consumer, partition, records)
                if not records:
                    continue
            chosen, next_offset, problem = self._chosen(records, most)
            lines: list[bytes] = []
            try:
                for record in chosen:
                    lines.append(formatter(record))
            except (InputProblem, KafkaError) as error:
                next_offset, problem = chosen[len(lines)].offset, error
            data = b"".join(lines)
            self.out.write(data)
            self.out.flush()
            most = None if most is None else most - len(lines)
            self.record_count += len(lines)
            self.byte_count += len(data)
            if self.commits and next_offset > records[0].offset:
                self._uncommitted[partition] = OffsetAndMetadata(next_offset)
            if problem is not None:
                self.commit()
                where = f"{partition.topic}, partition {partition.partition}, offset {next_offset}"
                raise KafkaError(f"{where}: {problem}")
            if most == 0:
                break
        self.line.update(self.read_count, self.byte_count)

    def _chosen(
        self, records: list[ConsumerRecord], most: int | None
    ) -> tuple[list[ConsumerRecord], int, Exception | None]:
        """The records that are wanted, `most` of them, and behind which offset that was decided:
        the last one's, or where a record could not be decoded.
        """
        is_wanted = self.is_wanted
        chosen, read_count, next_offset = records, len(records), records[-1].offset + 1
        if is_wanted is not None:
            chosen, read_count = [], 0
            for record in records:
                read_count += 1
                try:
                    if is_wanted(record):
                        chosen.append(record)
                except (InputProblem, KafkaError) as error:
                    return chosen, record.offset, error
                if len(chosen) == most:
                    next_offset = record.offset + 1
                    break
        self.read_count += read_count
        return chosen, next_offset, None


def consume(
    topics: Annotated[
        list[str],
        "TOPIC…",
        complete_topics,
        "Topics; what cannot be a name, such as '^a', is a regular expression.",
    ],
    *,
    regex: Annotated[bool, "--regex -r", "Take every TOPIC for an expression."] = False,
    group: Annotated[
        str | None,
        "--group -g",
        complete_groups,
        "Share partitions with the group's members; commit what is read.",
    ] = None,
    reading: ReadOptions,
    choice: RecordChoice,
    output: Annotated[
        str | None, "--output -o", "Write to this file; an existing one is replaced."
    ] = None,
    writing: FormatOptions,
    properties: Properties = None,
    client: ClientOptions,
) -> None:
    """Print the records of topics as they come."""
    meant = _offset_of_kcat(output)
    if meant is not None:
        fail(
            f"-o {output} would write to a file of that name; {meant} is where to begin here "
            f"(./{output} for the file)",
            status=2,
        )
    settings = client.properties(
        properties,
        DEFAULTS,
        {
            "group.id": group,
            "isolation.level": reading.isolation and reading.isolation.value,
            "auto.offset.reset": "earliest" if reading.from_beginning else None,
            "enable.auto.commit": "false",
        },
    )
    group = group or str(settings.get("group.id") or "") or None
    with refusing(InputProblem):
        pattern, start = pattern_of(topics, regex), reading.start()
        is_open = (reading.end_offset, reading.end_timestamp) == (None, None)
        ends = None if is_open and not reading.until_end else _Ends(reading)
        typed = writing.typed(settings)
        formatter, is_wanted = writing.formatter(typed), choice.filter(typed)
    if group is not None and (
        reading.partition or reading.from_offset is not None or reading.timestamp is not None
    ):
        fail(
            "--partition, --offset and --timestamp are for reading without a group: its start is "
            "what it has committed (`moldau groups reset-offsets` moves that)",
            status=2,
        )
    if output is None and sys.stdout.isatty():
        formatter = for_terminal(formatter, as_json=writing.name == "json")
    with _ended_by_sigterm():
        _run(topics, pattern, group, settings, start, reading, ends, is_wanted, formatter, output)


def _run(
    topics: list[str],
    pattern: str | None,
    group: str | None,
    settings: dict[str, object],
    start: Start,
    limits: ReadOptions,
    ends: _Ends | None,
    is_wanted: RecordFilter | None,
    formatter: Formatter,
    output: str | None,
) -> None:
    from moldau.client.sync import Consumer

    consuming: _Consuming | None = None
    with ExitStack() as stack:
        out = _opened(stack, output)
        line = stack.enter_context(
            rate_line(", ".join(topics), beside_terminal=output is None and sys.stdout.isatty())
        )
        try:
            with unused_settings_told():
                config = ConsumerConfig.resolve((), settings, {})
            consumer = stack.enter_context(Consumer(config=config))
            existing = _existing(consumer, config, topics, pattern)
            if group is None:
                _begin(consumer, existing, start)
                _tell_out_of_range(config, existing, start)
            elif pattern is None:
                consumer.subscribe(topics)
            else:
                consumer.subscribe(pattern=pattern)
            commits = group is not None
            consuming = _Consuming(consumer, out, formatter, line, commits, ends, is_wanted)
            complete = consuming.run(limits)
            consuming.commit()
        except KafkaError as error:
            line.end()
            fail(str(error), status=2 if isinstance(error, ConfigurationError) else 1)
        except OSError as error:
            line.end()
            fail(f"{output or 'consume'}: {error.strerror or error}")
        except KeyboardInterrupt:
            line.end()
            if consuming is None:
                raise
            try:
                consuming.commit()
            except KafkaError as error:
                text = f"interrupted; what was written last is not committed: {error}"
                fail(text, status=INTERRUPTED)
            fail(f"interrupted after {consuming.record_count} records", status=INTERRUPTED)
        line.finish(consuming.read_count, consuming.byte_count)
    count, read_count = consuming.record_count, consuming.read_count
    among = "" if is_wanted is None else f" among {read_count:,}"
    if not complete:
        fail(f"{count} of {limits.max_messages} records were there{among}")
    if is_wanted is not None and read_count and not count:
        warn(f"none of {read_count:,} records matched")


def for_terminal(formatter: Formatter, *, as_json: bool) -> Formatter:
    """The same without what a terminal would act on."""
    return lambda record: safe_bytes(formatter(record), as_json=as_json)


def _existing(
    consumer: Consumer, config: ConsumerConfig, topics: list[str], pattern: str | None
) -> dict[str, list[int]]:
    """The partitions of each topic. Raises: KafkaError, for what does not exist"""
    if pattern is None:
        with suppress(UnknownTopicOrPartition, RequestTimeout):
            look_ms = TOPIC_LOOK_MS
            return {each: consumer.partitions_for(each, timeout_ms=look_ms) for each in topics}
    from moldau.client.sync import Admin

    with Admin(config=config) as admin:
        known = admin.list_topics(include_internal=pattern is None)
    if pattern is not None:
        what, topics = " or ".join(topics), [each for each in known if re.fullmatch(pattern, each)]
        if not topics:
            raise UnknownTopicOrPartition(f"no topic's name matches {what}")
    for missing in set(topics).difference(known):
        raise unknown_topic(missing, known)
    return {each: consumer.partitions_for(each) for each in topics}


def _begin(consumer: Consumer, existing: Mapping[str, list[int]], start: Start) -> None:
    """Assign the partitions, each at its start. Raises: KafkaError, also for one that is missing"""
    partitions = []
    for topic, indexes in existing.items():
        wanted = start.partitions or tuple(indexes)
        missing = [each for each in wanted if each not in indexes]
        if missing:
            raise UnknownTopicOrPartition(
                f"{topic} has partitions {_ranges(indexes)}, not {_ranges(missing)}"
            )
        partitions += [TopicPartition(topic, each) for each in wanted]
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


def _tell_out_of_range(
    config: ConsumerConfig, existing: Mapping[str, list[int]], start: Start
) -> None:
    """Print a line about the partitions that have no such offset, where reading goes on elsewhere.
    Raises: KafkaError
    """
    reset, wanted = config.auto_offset_reset, start.offset
    if wanted is None or reset == "none":
        return
    from moldau.client import OffsetSpec
    from moldau.client.sync import Admin

    partitions = [
        TopicPartition(topic, each)
        for topic, indexes in existing.items()
        for each in start.partitions or indexes
    ]
    with Admin(config=config) as admin:  # a consumer only knows the last stable offset
        first = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        end = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    found = []
    for each in partitions:
        name = f"partition {each.partition}" + (f" of {each.topic}" if len(existing) > 1 else "")
        if wanted > end[each].offset:
            found.append(f"{name} ends at {end[each].offset}")
        elif wanted < first[each].offset:
            found.append(f"{name} begins at {first[each].offset}")
    if found:
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        warn(
            f"{', '.join(found[:MOST_NAMED])}{more}: {wanted} is out of range; "
            f"reading from {PLACES.get(reset, reset)} (auto.offset.reset)"
        )


def _ranges(numbers: list[int]) -> str:
    if numbers and numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _offset_of_kcat(output: str | None) -> str | None:
    """What says it here, where a name of a file is one of kcat's offsets."""
    if output is None:
        return None
    is_number = re.fullmatch(r"[+-]?[0-9]+", output) is not None
    return f"--offset {output.removeprefix('+')}" if is_number else KCAT_OFFSETS.get(output)


def _opened(stack: ExitStack, output: str | None) -> BinaryIO:
    if output is None:
        return byte_output()
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
