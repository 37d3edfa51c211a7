"""`moldau produce`: records from the standard input or files into a topic.

Invariants: it ends with status 0 only when every record was acknowledged (with a transactional id:
when every transaction was committed); otherwise it first waits until it is known what is written,
then says that and where to go on; no more than the producer's buffer and one read of input are in
memory.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from io import BufferedIOBase
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, cast

from moldau.cli.client_settings import client_properties, unused_settings_told
from moldau.cli.completion import complete_topics
from moldau.cli.options import (
    DEFAULT_TIMEOUT_MS,
    BootstrapServer,
    CommandConfig,
    ProfileName,
    Properties,
    unknown_topic,
)
from moldau.cli.output import INTERRUPTED, RateLine, fail, print_json, rate_line
from moldau.cli.parameters import Within
from moldau.cli.record_formats import (
    InputProblem,
    InputRecord,
    JsonFormat,
    TextFormat,
    lines,
    unescaped,
    whole,
)
from moldau.cli.typed_formats import (
    Formats,
    KeyFormat,
    KeySchema,
    RegistryUrl,
    ValueSchema,
    WriteFormat,
    parts_of,
    typed_formats,
)
from moldau.client import (
    ConfigurationError,
    KafkaError,
    ProducerConfig,
    RecordMetadata,
    RequestTimeout,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from moldau.client.admin.topics import NewTopic, TopicCalls

if TYPE_CHECKING:
    from moldau.client.sync import Producer

STANDARD_INPUT: Final = "-"
DEFAULT_MAX_REQUEST_BYTES: Final = 1_048_576
LOOK_EVERY_COUNT: Final = 1_024
TOPIC_LOOK_S: Final = 0.5
"""After so long a topic is looked for again: not every broker may know one that is just created."""
DEFAULTS: Final = {"client.id": "moldau-produce"}
Topic = Annotated[str, complete_topics, "The topic."]
Files = Annotated[list[str] | None, "[FILE]…", "Read these; - or none: the standard input."]
KeySeparator = Annotated[
    str | None, "Text: what divides key and value (\\t is a tab); without it, no keys."
]
NullValue = Annotated[str | None, "Text: what stands for a null key or value (tombstone)."]
Delimiter = Annotated[
    str | None,
    "Text and json: what ends a record (\\0 for find -print0). Without it a \\r in front "
    "of the \\n is left out, too.  [default: \\n]",
]
ExtraHeaders = Annotated[list[str] | None, "NAME=VALUE, added to every record; may be repeated."]
Partition = Annotated[int | None, Within(0), "Write to this partition, whatever the input says."]
IgnorePartition = Annotated[bool, "--ignore-partition", "Json: choose the partitions again."]
SkipLines = Annotated[int, Within(0), "Begin behind so many lines (raw: files) of the whole input."]
Create = Annotated[bool, "--create", "Create a topic that is not there, as brokers default to."]
TransactionalId = Annotated[str | None, "Write in transactions: all or nothing."]
TransactionRecords = Annotated[
    int | None, Within(1), "Records per transaction; without it, all in one."
]
AsJsonSummary = Annotated[bool, "--json", "At the end print counts and seconds as JSON."]


class InputFormat(StrEnum):
    """How records are separated in the input."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


Format = Annotated[
    InputFormat,
    "--format",
    "text: a value per line; json: an object per line with value, key, headers, "
    "partition, timestamp; raw: each file is one value.",
]


@dataclass
class _Sending:
    """Sends records, and knows what became of them. Outcomes belong to the callback.

    A record's place is its number among those sent, from 1, and the number of its line.
    """

    producer: Producer
    topic: str
    line: RateLine
    reader: _Reader
    count_partitions: Callable[[], int | None]
    partition_count: int | None
    sent_bytes: int = 0
    _last: tuple[int, int] = (0, 0)
    _committed: tuple[int, int] = (0, 0)
    _is_committing: bool = False
    _delivered_count: int = 0
    _failed_count: int = 0
    _first_failed: tuple[int, int] | None = None
    _first_error: Exception | None = None

    @property
    def sent_count(self) -> int:
        return self._last[0]

    def send_all(self, records: Iterator[InputRecord]) -> None:
        """Return when all are acknowledged, raise when the outcome of each is known. After Ctrl-C
        while that is waited for, those without an acknowledgement count as not written.
        """
        try:
            for record in records:
                self._send(record)
        finally:
            try:
                self.producer.flush()
            except BaseException:  # Ctrl-C, or the producer can send nothing any more
                self.producer.close(timeout_ms=0)
                raise
        if self._first_error is not None:
            raise self._first_error

    def send_in_transactions(self, records: Iterator[InputRecord], count: int | None) -> None:
        """As `send_all`, with `count` records in each transaction, or all of them."""
        rest = None if count is None else count - 1
        for first in records:
            with self.producer.transaction():
                self._send(first)
                for record in islice(records, rest):
                    self._send(record)
                self.producer.flush()
                if self._first_error is not None:
                    raise self._first_error
                self._is_committing = True
            self._is_committing = False
            self._committed = self._last

    def _send(self, record: InputRecord) -> None:
        if self._first_error is not None:
            raise self._first_error
        if record.partition is not None:
            self._require_partition(record.partition)
        self.producer.wait_for_room()
        # Before it is handed over: a record that Ctrl-C keeps from that has no outcome.
        self._last = place = (self._last[0] + 1, self.reader.line)
        self.producer.send_nowait(
            self.topic,
            record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
            on_delivery=partial(self._delivered, place),
        )
        self.sent_bytes += len(record.value or b"") + len(record.key or b"")
        if place[0] % LOOK_EVERY_COUNT == 0:
            self.line.update(place[0], self.sent_bytes)

    def _require_partition(self, partition: int) -> None:
        """A producer would wait for a partition that is not there."""
        count = self.partition_count
        if count is None or partition < count:
            return
        count = self.partition_count = self.count_partitions()  # it may have got more
        if count is not None and partition >= count:
            last = f"partitions 0 to {count - 1}" if count > 1 else "partition 0 only"
            raise InputProblem(f"topic {self.topic} has {last}, not {partition}")

    def _delivered(
        self, place: tuple[int, int], metadata: RecordMetadata | None, error: Exception | None
    ) -> None:
        if error is None:
            self._delivered_count += 1
            return
        self._failed_count += 1
        self._first_failed = min(place, self._first_failed or place)
        self._first_error = self._first_error or error

    def outcome(self, error: BaseException, transactional_id: str | None) -> str:
        """What is written when `error` has ended it, and where to go on."""
        count, line = self._committed
        if self._is_committing and isinstance(error, RequestTimeout | KeyboardInterrupt):
            return (
                f"{count} records are committed; whether the last transaction is, lines "
                f"{line + 1} to {self._last[1]} of the input, is not known"
            )
        if transactional_id is not None and count:
            return f"{count} records are committed, the transaction was aborted{_go_on(line + 1)}"
        if transactional_id is not None:
            return "nothing is written, the transaction was aborted"
        count, first = self._delivered_count, self._first_failed
        if not count:
            return "nothing is written"
        if count + self._failed_count < self.sent_count:
            first = min(self._last, first or self._last)
        if first is None:
            return f"{count} records are written{_go_on(self._last[1] + 1)}"
        again_count = count - first[0] + 1
        again = f", which writes {again_count} of them again" if again_count else ""
        return f"{count} of {self.sent_count} records are written{_go_on(first[1])}{again}"


def _go_on(line: int) -> str:
    return f"; go on at line {line} of the input: --skip-lines {line - 1}"


def produce(
    topic: Topic,
    files: Files = None,
    input_format: Format = InputFormat.TEXT,
    key_format: KeyFormat = None,
    value_format: WriteFormat = None,
    key_schema: KeySchema = None,
    value_schema: ValueSchema = None,
    schema_registry: RegistryUrl = None,
    key_separator: KeySeparator = None,
    null_value: NullValue = None,
    delimiter: Delimiter = None,
    header: ExtraHeaders = None,
    partition: Partition = None,
    ignore_partition: IgnorePartition = False,
    skip_lines: SkipLines = 0,
    create: Create = False,
    transactional_id: TransactionalId = None,
    transaction_records: TransactionRecords = None,
    properties: Properties = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    profile: ProfileName = None,
    as_json: AsJsonSummary = False,
) -> None:
    """Write records into a topic."""
    settings = client_properties(
        bootstrap_server,
        command_config,
        properties,
        profile=profile,
        defaults=DEFAULTS,
        options={"transactional.id": transactional_id},
    )
    if transaction_records is not None and not settings.get("transactional.id"):
        fail("--transaction-records is for transactions: give --transactional-id", status=2)
    if input_format is not InputFormat.TEXT and (key_separator or null_value is not None):
        fail("--key-separator and --null-value are for --format text", status=2)
    try:
        separator = None if key_separator is None else unescaped(key_separator, "--key-separator")
        null_marker = None if null_value is None else null_value.encode()
        names, schemas = (key_format, value_format), (key_schema, value_schema)
        formats = typed_formats(names, schema_registry, settings, topic=topic, schemas=schemas)
        reader = _Reader(
            _parser(input_format, separator, null_marker, formats),
            input_format is InputFormat.RAW,
            None if delimiter is None else unescaped(delimiter, "--delimiter"),
            _limit_bytes(input_format, settings),
            skip_lines,
        )
        extra = [_header(each) for each in header or []]
    except InputProblem as problem:
        fail(str(problem), status=2)
    named = files or [STANDARD_INPUT]

    records = _records(reader.records(named), extra, partition, ignore_partition)
    typed = STANDARD_INPUT in named and sys.stdin.isatty()
    with rate_line(topic, beside_terminal=typed) as line:
        begin = time.perf_counter()
        sending = _run(topic, settings, create, line, reader, records, transaction_records)
        line.finish(sending.sent_count, sending.sent_bytes)
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": sending.sent_count,
                "bytes": sending.sent_bytes,
                "seconds": round(time.perf_counter() - begin, 3),
            }
        )


def _run(
    topic: str,
    settings: dict[str, object],
    create: bool,
    line: RateLine,
    reader: _Reader,
    records: Iterator[InputRecord],
    transaction_records: int | None,
) -> _Sending:
    from moldau.client.sync import Producer

    sending: _Sending | None = None
    with ExitStack() as stack:
        try:
            with unused_settings_told():
                config = ProducerConfig.resolve((), settings, {})
            count_partitions = partial(_partition_count, config, topic)
            partition_count = count_partitions(create)
            producer = stack.enter_context(Producer(config=config))
            sending = _Sending(producer, topic, line, reader, count_partitions, partition_count)
            if config.transactional_id is None:
                sending.send_all(records)
            else:
                sending.send_in_transactions(records, transaction_records)
        except (InputProblem, KafkaError, KeyboardInterrupt) as error:
            line.end()
            what, status = str(error), 2 if isinstance(error, ConfigurationError) else 1
            if isinstance(error, KeyboardInterrupt):
                what, status = "interrupted", INTERRUPTED
            if sending is not None:
                what += f" ({sending.outcome(error, config.transactional_id)})"
            fail(what, status=status)
    return sending


def _partition_count(config: ProducerConfig, topic: str, create: bool = False) -> int | None:
    """How many partitions the topic has; None for one that is just created.

    Raises: UnknownTopicOrPartition, KafkaError
    """
    return asyncio.run(_find_topic(config, topic, create))


async def _find_topic(config: ProducerConfig, topic: str, create: bool) -> int | None:
    timeout_ms = min(DEFAULT_TIMEOUT_MS, config.max_block_ms)
    async with TopicCalls(config=config, default_api_timeout_ms=timeout_ms) as admin:
        with suppress(UnknownTopicOrPartition):
            return len((await admin.describe_topics([topic]))[topic].partitions)
        if create:
            with suppress(TopicAlreadyExists):
                await admin.create_topics([NewTopic(topic)])
            return None
        await asyncio.sleep(TOPIC_LOOK_S)
        known = await admin.list_topics(include_internal=True)
    if topic not in known:
        raise unknown_topic(topic, known, "; --create creates it")
    return None


@dataclass
class _Reader:
    """Reads records of one format from inputs, and says where a bad one is.

    `line` counts over all of them together. With `is_whole` each input is one value.
    """

    parser: TextFormat | JsonFormat
    is_whole: bool
    delimiter: bytes | None
    limit_bytes: int
    skip_count: int
    line: int = 0

    def records(self, names: list[str]) -> Iterator[InputRecord]:
        for name in names:
            shown = "standard input" if name == STANDARD_INPUT else name
            try:
                if name == STANDARD_INPUT:
                    yield from self._of(cast("BufferedIOBase", sys.stdin.buffer), shown)
                else:
                    with open(name, "rb") as opened:
                        yield from self._of(opened, shown)
            except OSError as error:
                raise InputProblem(f"{shown}: {error.strerror}") from error
        if self.line < self.skip_count:
            raise InputProblem(f"--skip-lines {self.skip_count}: there are only {self.line}")

    def _of(self, source: BufferedIOBase, shown: str) -> Iterator[InputRecord]:
        number = 0
        pieces = self._pieces(source)
        while True:
            number += 1
            record = None
            try:
                piece = next(pieces, None)
                if piece is None:
                    return
                self.line += 1
                if self.line > self.skip_count:
                    record = self.parser.record(piece)
            except InputProblem as problem:
                where = "" if self.is_whole else f", line {number}"
                raise InputProblem(f"{shown}{where}: {problem}") from None
            if record is not None:
                yield record

    def _pieces(self, source: BufferedIOBase) -> Iterator[bytes]:
        if self.is_whole:
            yield whole(source, self.limit_bytes)
        else:
            yield from lines(source, self.delimiter, self.limit_bytes)


def _records(
    records: Iterator[InputRecord],
    extra: list[tuple[str, bytes | None]],
    partition: int | None,
    ignore_partition: bool,
) -> Iterator[InputRecord]:
    """The records as the options change them."""
    for record in records:
        if extra or partition is not None or ignore_partition:
            where = None if ignore_partition else record.partition
            record = record._replace(
                headers=[*record.headers, *extra],
                partition=where if partition is None else partition,
            )
        yield record


def _parser(
    input_format: InputFormat, separator: bytes | None, null_marker: bytes | None, formats: Formats
) -> TextFormat | JsonFormat:
    if input_format is InputFormat.JSON:
        return JsonFormat(*parts_of(formats, lambda each: each.encode))
    encoders = parts_of(formats, lambda each: each.encode_text)
    return TextFormat(separator, null_marker, *encoders)


def _limit_bytes(input_format: InputFormat, settings: dict[str, object]) -> int:
    largest = str(settings.get("max.request.size", ""))
    limit_bytes = int(largest) if largest.isdigit() else DEFAULT_MAX_REQUEST_BYTES
    # Base64 and escapes take more in JSON; the client measures what comes out.
    return limit_bytes * 2 if input_format is InputFormat.JSON else limit_bytes


def _header(pair: str) -> tuple[str, bytes | None]:
    name, found, value = pair.partition("=")
    if not found or not name:
        raise InputProblem(f"--header {pair!r} is not NAME=VALUE")
    return name, value.encode()
