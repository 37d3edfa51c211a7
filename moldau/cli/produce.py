"""`moldau produce`: records from the standard input or files into a topic.

Invariant: it ends with status 0 only when every record was acknowledged (with a transactional id:
when every transaction was committed); no more than the producer's buffer and one read of input are
in memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from io import BufferedIOBase
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from moldau.cli.options import (
    BootstrapServer,
    CommandConfig,
    Properties,
    client_properties,
    unused_settings_told,
)
from moldau.cli.output import RateLine, fail, print_json, rate_line
from moldau.cli.record_formats import (
    InputProblem,
    InputRecord,
    JsonFormat,
    TextFormat,
    lines,
    unescaped,
    whole,
)
from moldau.client import ConfigurationError, KafkaError, RecordMetadata

if TYPE_CHECKING:
    from moldau.client.sync import Producer

STANDARD_INPUT: Final = "-"
DEFAULT_MAX_REQUEST_BYTES: Final = 1_048_576
LOOK_EVERY_COUNT: Final = 1_024
DEFAULTS: Final = {"client.id": "moldau-produce"}
Topic = Annotated[str, typer.Argument(help="The topic.")]
Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE]…", help="Read these; - or none: the standard input."),
]
KeySeparator = Annotated[
    str | None,
    typer.Option(help="Text: what divides key and value (\\t is a tab); without it, no keys."),
]
NullValue = Annotated[
    str | None, typer.Option(help="Text: what stands for a null key or value (tombstone).")
]
Delimiter = Annotated[
    str, typer.Option(help="Text and json: what ends a record (\\0 for find -print0).")
]
ExtraHeaders = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE, added to every record; may be repeated.")
]
Partition = Annotated[
    int | None, typer.Option(min=0, help="Write to this partition, whatever the input says.")
]
IgnorePartition = Annotated[
    bool, typer.Option("--ignore-partition", help="Json: choose the partitions anew.")
]
TransactionalId = Annotated[str | None, typer.Option(help="Write in transactions: all or nothing.")]
TransactionRecords = Annotated[
    int | None, typer.Option(min=1, help="Records per transaction; without it, all in one.")
]
AsJsonSummary = Annotated[
    bool, typer.Option("--json", help="At the end print counts and seconds as JSON.")
]


class InputFormat(StrEnum):
    """How records are told apart in the input."""

    TEXT = "text"
    JSON = "json"
    RAW = "raw"


Format = Annotated[
    InputFormat,
    typer.Option(
        "--format",
        help="text: a value per line; json: an object per line with value, key, headers, "
        "partition, timestamp; raw: each file is one value.",
    ),
]


class _Sending:
    """Sends records, counts what became of them. Counters of outcomes belong to the callback."""

    def __init__(self, producer: Producer, topic: str, line: RateLine) -> None:
        self._producer = producer
        self._topic = topic
        self._line = line
        self.sent_count = 0
        self.sent_bytes = 0
        self.delivered_count = 0
        self.failed_count = 0
        self.first_error: Exception | None = None

    def send(self, record: InputRecord) -> None:
        """Hand one record over, when there is room. Raises: KafkaError, also of an earlier one"""
        if self.first_error is not None:
            raise self.first_error
        self._producer.wait_for_room()
        self._producer.send_nowait(
            self._topic,
            record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp_ms=record.timestamp_ms,
            on_delivery=self._delivered,
        )
        self.sent_count += 1
        self.sent_bytes += len(record.value or b"") + len(record.key or b"")
        if self.sent_count % LOOK_EVERY_COUNT == 0:
            self._line.update(self.sent_count, self.sent_bytes)

    def finish(self) -> None:
        self._producer.flush()
        if self.first_error is not None:
            raise self.first_error

    def _delivered(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        if error is None:
            self.delivered_count += 1
            return
        self.failed_count += 1
        if self.first_error is None:
            self.first_error = error


def produce(
    topic: Topic,
    files: Files = None,
    input_format: Format = InputFormat.TEXT,
    key_separator: KeySeparator = None,
    null_value: NullValue = None,
    delimiter: Delimiter = "\\n",
    header: ExtraHeaders = None,
    partition: Partition = None,
    ignore_partition: IgnorePartition = False,
    transactional_id: TransactionalId = None,
    transaction_records: TransactionRecords = None,
    properties: Properties = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    as_json: AsJsonSummary = False,
) -> None:
    """Write records into a topic."""
    settings = client_properties(
        bootstrap_server,
        command_config,
        properties,
        defaults=DEFAULTS,
        options={"transactional.id": transactional_id},
    )
    if transaction_records is not None and not settings.get("transactional.id"):
        fail("--transaction-records is for transactions: give --transactional-id", status=2)
    if input_format is not InputFormat.TEXT and (key_separator or null_value is not None):
        fail("--key-separator and --null-value are for --format text", status=2)
    try:
        reader = _reader(input_format, key_separator, null_value, delimiter, settings)
        extra = [_header(each) for each in header or []]
    except InputProblem as problem:
        fail(str(problem), status=2)
    named = files or [STANDARD_INPUT]

    def records() -> Iterator[InputRecord]:
        for record in reader.records(named):
            if extra or partition is not None or ignore_partition:
                where = None if ignore_partition else record.partition
                record = record._replace(
                    headers=[*record.headers, *extra],
                    partition=where if partition is None else partition,
                )
            yield record

    _run(topic, settings, records(), transaction_records, STANDARD_INPUT in named, as_json)


def _run(
    topic: str,
    settings: dict[str, object],
    records: Iterator[InputRecord],
    transaction_records: int | None,
    from_standard_input: bool,
    as_json: bool,
) -> None:
    from moldau.client.sync import Producer

    transactional = bool(settings.get("transactional.id"))
    rest = None if transaction_records is None else transaction_records - 1
    begin = time.perf_counter()
    sending: _Sending | None = None
    committed_count = 0
    with ExitStack() as stack:
        line = stack.enter_context(
            rate_line(topic, beside_terminal=from_standard_input and sys.stdin.isatty())
        )
        try:
            with unused_settings_told():
                producer = stack.enter_context(Producer(config=settings))
            sending = _Sending(producer, topic, line)
            if transactional:
                for first in records:
                    with producer.transaction():
                        sending.send(first)
                        for record in islice(records, rest):
                            sending.send(record)
                        sending.finish()
                    committed_count = sending.sent_count
            else:
                for record in records:
                    sending.send(record)
                sending.finish()
        except ConfigurationError as error:
            line.end()
            fail(str(error), status=2)
        except (InputProblem, KafkaError) as error:
            line.end()
            if sending is None or sending.sent_count == 0:
                fail(str(error))
            fail(_told(str(error), sending, committed_count, transactional))
        except KeyboardInterrupt:
            line.end()
            if sending is None:
                raise
            fail(_told("interrupted", sending, committed_count, transactional), status=130)
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


def _told(what: str, sending: _Sending, committed_count: int, transactional: bool) -> str:
    if transactional:
        return f"{what} ({committed_count} records are committed, the transaction was aborted)"
    return f"{what} ({sending.delivered_count} of {sending.sent_count} records were acknowledged)"


class _Reader:
    """Reads records of one format from inputs, and says where a bad one is."""

    def __init__(
        self, parser: TextFormat | JsonFormat | None, delimiter: bytes, limit_bytes: int
    ) -> None:
        self._parser = parser
        self._delimiter = delimiter
        self._limit_bytes = limit_bytes

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

    def _of(self, source: BufferedIOBase, shown: str) -> Iterator[InputRecord]:
        if self._parser is None:
            try:
                value = whole(source, self._limit_bytes)
            except InputProblem as problem:
                raise InputProblem(f"{shown}: {problem}") from None
            yield InputRecord(value)
            return
        number = 0
        pieces = lines(source, self._delimiter, self._limit_bytes)
        parse = self._parser.record
        while True:
            number += 1
            try:
                piece = next(pieces, None)
                record = None if piece is None else parse(piece)
            except InputProblem as problem:
                raise InputProblem(f"{shown}, line {number}: {problem}") from None
            if piece is None:
                return
            if record is not None:
                yield record


def _reader(
    input_format: InputFormat,
    key_separator: str | None,
    null_value: str | None,
    delimiter: str,
    settings: dict[str, object],
) -> _Reader:
    parser: TextFormat | JsonFormat | None = None
    if input_format is InputFormat.JSON:
        parser = JsonFormat()
    elif input_format is InputFormat.TEXT:
        separator = None if key_separator is None else unescaped(key_separator, "--key-separator")
        parser = TextFormat(separator, None if null_value is None else null_value.encode())
    largest = str(settings.get("max.request.size", ""))
    limit_bytes = int(largest) if largest.isdigit() else DEFAULT_MAX_REQUEST_BYTES
    if input_format is InputFormat.JSON:
        limit_bytes *= 2  # base64 and escapes; the client measures what comes out
    return _Reader(parser, unescaped(delimiter, "--delimiter"), limit_bytes)


def _header(pair: str) -> tuple[str, bytes | None]:
    name, found, value = pair.partition("=")
    if not found or not name:
        raise InputProblem(f"--header {pair!r} is not NAME=VALUE")
    return name, value.encode()
