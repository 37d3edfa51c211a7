"""`moldau produce`: records from the standard input or files into a topic.

Invariants: it ends with status 0 only when every record was acknowledged (with a transactional id:
when every transaction was committed); otherwise it first waits until it is known what is written,
then says that and where to go on; no more than the producer's buffer and one read of input are in
memory.
"""

from __future__ import annotations

import asyncio
import os
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

from moldau.cli.client_settings import unused_settings_told
from moldau.cli.completion import complete_topics
from moldau.cli.options import (
    DEFAULT_TIMEOUT_MS,
    ClientOptions,
    Properties,
    unknown_topic,
)
from moldau.cli.output import INTERRUPTED, RateLine, fail, print_json, rate_line, refusing
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
    KeyFormat,
    RegistryUrl,
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


class InputFormat(StrEnum):
    """How records are separated in the input."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """The options that say what records are in the input."""

    input_format: Annotated[
        InputFormat,
        "--format",
        "text: a value per line; json: an object per line with value, key, headers, "
        "partition, timestamp; raw: each file is one value.",
    ] = InputFormat.TEXT
    key_format: KeyFormat = None
    value_format: WriteFormat = None
    key_schema: Annotated[str | None, "Of avro, …; see --value-schema."] = None
    value_schema: Annotated[
        str | None,
        "Of avro, protobuf, json-schema: a FILE, which is registered; id:N; latest. With "
        "#MESSAGE behind it for another message than the file's first.  [default: latest]",
    ] = None
    schema_registry: RegistryUrl = None
    key: Annotated[
        str | None, "--key -k", "The key of each record for which the input has none."
    ] = None
    key_separator: Annotated[
        str | None, "Text: what divides key and value (\\t is a tab); without it, no keys."
    ] = None
    null_value: Annotated[str | None, "Text: what stands for a null key or value (tombstone)."] = (
        None
    )
    delimiter: Annotated[
        str | None,
        "Text and json: what ends a record (\\0 for find -print0). Without it a \\r in front "
        "of the \\n is left out, too.  [default: \\n]",
    ] = None
    header: Annotated[list[str] | None, "NAME=VALUE, added to every record; may be repeated."] = (
        None
    )
    partition: Annotated[
        int | None, Within(0), "Write to this partition, whatever the input says."
    ] = None
    ignore_partition: Annotated[bool, "Json: choose the partitions again."] = False
    skip_lines: Annotated[
        int, Within(0), "Begin behind so many lines (raw: files) of the whole input."
    ] = 0


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
    topic: Annotated[str, complete_topics, "The topic."],
    files: Annotated[
        list[str] | None, "[FILE]…", "Read these; - or none: the standard input."
    ] = None,
    *,
    reading: InputOptions,
    create: Annotated[bool, "Create a topic that is not there, as brokers default to."] = False,
    transactional_id: Annotated[str | None, "Write in transactions: all or nothing."] = None,
    transaction_records: Annotated[
        int | None, Within(1), "Records per transaction; without it, all in one."
    ] = None,
    properties: Properties = None,
    client: ClientOptions,
    as_json: Annotated[bool, "--json", "At the end print counts and seconds as JSON."] = False,
) -> None:
    """Write records into a topic."""
    options = {"transactional.id": transactional_id}
    settings = client.properties(properties, DEFAULTS, options)
    if transaction_records is not None and not settings.get("transactional.id"):
        fail("--transaction-records is for transactions: give --transactional-id", status=2)
    is_text = reading.input_format is InputFormat.TEXT
    if not is_text and (reading.key_separator or reading.null_value is not None):
        fail("--key-separator and --null-value are for --format text", status=2)
    with refusing(InputProblem):
        reader = _Reader(reading, topic, settings)
    named = files or [STANDARD_INPUT]
    typed = STANDARD_INPUT in named and sys.stdin.isatty()
    with rate_line(topic, beside_terminal=typed) as line:
        begin = time.perf_counter()
        sending = _run(topic, settings, create, line, reader, named, transaction_records)
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
    files: list[str],
    transaction_records: int | None,
) -> _Sending:
    from moldau.client.sync import Producer

    records = reader.records(files)
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


class _Reader:
    """Reads records of one format from inputs, and says where a bad one is.

    `line` counts over all of them together. Raises: InputProblem, for an option that cannot be
    """

    def __init__(self, options: InputOptions, topic: str, settings: dict[str, object]) -> None:
        """`settings`: the client's; those of the schema registry are taken out of them."""
        self.line = 0
        self._options = options
        separator, null_value = options.key_separator, options.null_value
        between = None if separator is None else unescaped(separator, "--key-separator")
        formats = typed_formats(
            (options.key_format, options.value_format),
            options.schema_registry,
            settings,
            topic=topic,
            schemas=(options.key_schema, options.value_schema),
        )
        largest = str(settings.get("max.request.size", ""))
        self._limit_bytes = int(largest) if largest.isdigit() else DEFAULT_MAX_REQUEST_BYTES
        self._parser: TextFormat | JsonFormat
        if options.input_format is InputFormat.JSON:
            self._parser = JsonFormat(*parts_of(formats, lambda each: each.encode))
            # Base64 and escapes take more in JSON; the client measures what comes out.
            self._limit_bytes *= 2
        else:
            self._parser = TextFormat(
                between,
                None if null_value is None else null_value.encode(),
                *parts_of(formats, lambda each: each.encode_text),
            )
        self._delimiter = None
        if options.delimiter is not None:
            self._delimiter = unescaped(options.delimiter, "--delimiter")
        self._headers = [_header(each) for each in options.header or []]
        encode_key, _ = parts_of(formats, lambda each: each.encode_text)
        self._key = None if options.key is None else os.fsencode(options.key)
        if self._key is not None and encode_key is not None:
            self._key = encode_key(self._key)

    def records(self, names: list[str]) -> Iterator[InputRecord]:
        """The records as the options change them."""
        partition, ignores = self._options.partition, self._options.ignore_partition
        for record in self._read(names):
            if self._headers or partition is not None or ignores or self._key is not None:
                where = None if ignores else record.partition
                record = record._replace(
                    key=self._key if record.key is None else record.key,
                    headers=[*record.headers, *self._headers],
                    partition=where if partition is None else partition,
                )
            yield record

    def _read(self, names: list[str]) -> Iterator[InputRecord]:
        skip_count = self._options.skip_lines
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
        if self.line < skip_count:
            raise InputProblem(f"--skip-lines {skip_count}: there are only {self.line}")

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
                if self.line > self._options.skip_lines:
                    record = self._parser.record(piece)
            except InputProblem as problem:
                where = "" if self._is_whole else f", line {number}"
                raise InputProblem(f"{shown}{where}: {problem}") from None
            if record is not None:
                yield record

    @property
    def _is_whole(self) -> bool:
        return self._options.input_format is InputFormat.RAW

    def _pieces(self, source: BufferedIOBase) -> Iterator[bytes]:
        if self._is_whole:
            yield whole(source, self._limit_bytes)
        else:
            yield from lines(source, self._delimiter, self._limit_bytes)


def _header(pair: str) -> tuple[str, bytes | None]:
    name, found, value = pair.partition("=")
    if not found or not name:
        raise InputProblem(f"--header {pair!r} is not NAME=VALUE")
    return name, value.encode()
