"""The options of the source: those of Spark's own Kafka source, with its names and defaults.

Owns what each option means and which exclude each other. Must not connect to anything. Invariant:
options that exist are usable as they are, but for what only the cluster can know; what Spark's
source refuses is refused here too, with the reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from moldau.protocol.types import TopicPartition
from moldau.spark_connector.core.offsets import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    AtTimes,
    Place,
    Selection,
    Wanted,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
    parse_topic_ids,
)
from moldau.spark_connector.core.ranges import (
    DEFAULT_MAX_TRIGGER_DELAY_MS,
    MAX_INPUT_PARTITIONS,
    AdmissionLimits,
)
from moldau.spark_connector.errors import InvalidOption
from moldau.spark_connector.options import (
    KAFKA_PREFIX,
    MAX_INT,
    ONLY_READ,
    OptionReader,
    whole_number_of,
)

_log: Final = logging.getLogger(__name__)

Value = TypeVar("Value")

TOPIC_ID_COLUMN: Final = "topicId"
"""What `includeTopicId` adds: the id of the record's topic in Kafka's text, null where the brokers
have no ids (before 2.8)."""

DEFAULT_POLL_TIMEOUT_MS: Final = 120_000
DEFAULT_RETRY_COUNT: Final = 3
DEFAULT_RETRY_INTERVAL_MS: Final = 1_000

STRATEGIES: Final = ("assign", "subscribe", "subscribePattern")
OPTIONS: Final = (
    *ONLY_READ,
    "includeHeaders",
    "includeTopicId",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
ONLY_BATCH: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
ONLY_STREAM: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")

_OF_THE_SINK: Final = "it belongs to the sink; give it to write or writeStream"
ELSEWHERE: Final[Mapping[str, str]] = {
    "topic": "topics to read are named with subscribe, subscribePattern or assign",
    "path": "load() takes no path; topics are named with subscribe",
    "semantics": _OF_THE_SINK,
    "sinkId": _OF_THE_SINK,
    "txnId": _OF_THE_SINK,
    "ledgerTopic": _OF_THE_SINK,
    "checkpointLocation": "it belongs to writeStream",
    "queryName": "it belongs to writeStream",
}
REFUSED_KAFKA: Final[Mapping[str, str]] = {
    "auto.offset.reset": (
        "Spark keeps account of what was read. startingOffsets says where a new query begins; "
        "a query that is continued begins where it ended, and new partitions at their earliest "
        "offset"
    ),
    "enable.auto.commit": "offsets are kept in Spark's checkpoint and committed nowhere else",
    "interceptor.classes": "Java classes cannot be loaded here, and might change the records",
    "key.deserializer": "keys come as binary; DataFrame operations make of them what you need",
    "value.deserializer": "values come as binary; DataFrame operations make of them what you need",
}


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is read, by one of the three options that say it.

    Attributes:
        partitions: of `assign`.
        names: of topics, of `subscribe`.
        pattern: of `subscribePattern`, a regular expression that the whole name matches.
    """

    partitions: tuple[TopicPartition, ...] = ()
    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of one read.

    Attributes:
        kafka: the client's settings by Kafka's names, without the prefix.
        starting, ending: None where nothing was said.
        poll_timeout_ms: how long a task waits for records that exist.
        retry_count, retry_interval_ms: how often the cluster is asked again when an offset is
            smaller than one that it has reported before, and how long after.
    """

    kafka: Mapping[str, str] = field(repr=False)  # passwords may be in it
    subscription: Subscription
    starting: Wanted | None
    ending: Wanted | None
    limits: AdmissionLimits
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    include_topic_id: bool
    poll_timeout_ms: int
    retry_count: int
    retry_interval_ms: int
    given: frozenset[str]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """What Spark hands over, checked. Raises: InvalidOption: an option is unknown, missing,
        excluded by another, or has a value that it cannot have
        """
        reader = OptionReader(
            given, known=OPTIONS, elsewhere=ELSEWHERE, refused_kafka=REFUSED_KAFKA, what="source"
        )
        subscription = _subscription(reader)
        limits = _limits(reader)
        retry_count = reader.whole_number("fetchOffset.numRetries", lowest=1, highest=MAX_INT)
        retry_ms = reader.whole_number("fetchOffset.retryIntervalMs", lowest=0, highest=MAX_INT)
        poll_ms = reader.whole_number("kafkaConsumer.pollTimeoutMs", lowest=1, highest=MAX_INT)
        return cls(
            kafka=_kafka_settings(reader),
            subscription=subscription,
            starting=_place(reader, "starting"),
            ending=_place(reader, "ending"),
            limits=limits,
            min_partitions=reader.whole_number(
                "minPartitions", lowest=1, highest=MAX_INPUT_PARTITIONS
            ),
            max_records_per_partition=reader.whole_number("maxRecordsPerPartition", lowest=1),
            fail_on_data_loss=reader.boolean("failOnDataLoss", True),
            include_headers=reader.boolean("includeHeaders", False),
            include_topic_id=reader.boolean("includeTopicId", False),
            poll_timeout_ms=DEFAULT_POLL_TIMEOUT_MS if poll_ms is None else poll_ms,
            retry_count=DEFAULT_RETRY_COUNT if retry_count is None else retry_count,
            retry_interval_ms=DEFAULT_RETRY_INTERVAL_MS if retry_ms is None else retry_ms,
            given=frozenset(name for name in OPTIONS if reader.has(name)),
        )

    @property
    def read_committed(self) -> bool:
        return self.kafka.get("isolation.level") == "read_committed"

    def check_stream(self) -> Wanted:
        """Where a new stream starts. Raises: InvalidOption: an option is for batches only"""
        for name in ONLY_BATCH:
            if name in self.given:
                raise InvalidOption(
                    f"{name}: a streaming query has no end; stop it, or use "
                    "trigger(availableNow=True) to end it at what is there now"
                )
        return self.starting or Wanted(Place.LATEST, "startingOffsets")

    def check_batch(self) -> tuple[Wanted, Wanted]:
        """Where a batch starts and ends. Raises: InvalidOption: no batch lies between them"""
        for name in ONLY_STREAM:
            if name in self.given:
                _log.warning("%s has no effect in batch queries", name)
        starting = self.starting or Wanted(Place.EARLIEST, "startingOffsets")
        ending = self.ending or Wanted(Place.LATEST, "endingOffsets")
        if starting.selection is Place.LATEST:
            raise InvalidOption(
                "startingOffsets=latest: a batch that starts at the end has nothing to read; that "
                "is for streaming queries"
            )
        if ending.selection is Place.EARLIEST:
            raise InvalidOption("endingOffsets=earliest: a batch that ends there reads nothing")
        _check_offsets(starting, LATEST_OFFSET, "-1 (latest) is for streaming queries")
        _check_offsets(ending, EARLIEST_OFFSET, "-2 (earliest) cannot be an end")
        _check_order(starting, ending)
        return starting, ending


def _check_offsets(wanted: Wanted, refused: int, reason: str) -> None:
    if isinstance(wanted.selection, AtOffsets):
        for partition, number in sorted(wanted.selection.offsets.items()):
            if number == refused:
                raise InvalidOption(f"{wanted.option}: {partition}: {reason}")


def _check_order(starting: Wanted, ending: Wanted) -> None:
    """Refuse a start behind its end, as far as that can be seen without the cluster."""
    first, last = starting.selection, ending.selection
    if isinstance(first, AtOffsets) and isinstance(last, AtOffsets):
        starts, ends = first.offsets, last.offsets
    elif isinstance(first, AtTimes) and isinstance(last, AtTimes):
        starts, ends = first.timestamps_ms, last.timestamps_ms
    else:
        return
    if starts.keys() != ends.keys():
        names = ", ".join(map(str, sorted(starts.keys() ^ ends.keys())))
        raise InvalidOption(
            f"{starting.option} and {ending.option} must name the same partitions: {names} is in "
            "one of them only"
        )
    for partition in sorted(starts):
        if ends[partition] >= 0 and starts[partition] > ends[partition]:
            raise InvalidOption(
                f"{partition}: {starting.option} says {starts[partition]}, which is behind the "
                f"{ends[partition]} of {ending.option}"
            )


def _subscription(reader: OptionReader) -> Subscription:
    given = [name for name in STRATEGIES if reader.has(name)]
    if len(given) != 1:
        names = ", ".join(STRATEGIES)
        problem = "are given" if given else "is missing"
        what = " and ".join(given) if given else "what to read"
        raise InvalidOption(f"{what} {problem}: exactly one of {names} says what is read")
    name = given[0]
    text = (reader.text(name) or "").strip()
    if name == "assign":
        return Subscription(partitions=_parsed(name, text, parse_partitions))
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise InvalidOption(f"subscribe={text!r}: topics, with commas between them")
        return Subscription(names=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(f"subscribePattern={text!r}: no regular expression: {error}") from None
    if not text:
        raise InvalidOption("subscribePattern='': an expression that matches topics' whole names")
    return Subscription(pattern=text)


def _place(reader: OptionReader, which: str) -> Wanted | None:
    """The place, from the first option that is given: one time, times, offsets."""
    # Where there is no record that young, an end is the log's end anyway.
    strategy = reader.choice("startingOffsetsByTimestampStrategy", "error", "error", "latest")
    goes_on = which == "ending" or strategy == "latest"
    option = f"{which}Timestamp"
    text = reader.text(option)
    if text is not None:
        timestamp_ms = whole_number_of(text)
        if timestamp_ms is None or timestamp_ms < 0:
            raise InvalidOption(f"{option}={text!r}: milliseconds since 1970 UTC, at least 0")
        return Wanted(AtTime(timestamp_ms), option, goes_on)
    option = f"{which}OffsetsByTimestamp"
    text = reader.text(option)
    if text is not None:
        return Wanted(AtTimes(_parsed(option, text, parse_timestamps)), option, goes_on)
    option = f"{which}Offsets"
    text = reader.text(option)
    if text is None:
        return None
    word = text.strip().lower()
    selection: Selection
    if word in (Place.EARLIEST.value, Place.LATEST.value):
        selection = Place(word)
    else:
        offsets = _parsed(option, text, parse_offsets)
        selection = AtOffsets(offsets, _parsed(option, text, parse_topic_ids))
    return Wanted(selection, option)


def _limits(reader: OptionReader) -> AdmissionLimits:
    most = reader.whole_number("maxOffsetsPerTrigger", lowest=1)
    least = reader.whole_number("minOffsetsPerTrigger", lowest=1)
    if most is not None and least is not None and least > most:
        raise InvalidOption(
            f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}"
        )
    delay_ms = reader.duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS)
    return AdmissionLimits(most, least, delay_ms)


def _kafka_settings(reader: OptionReader) -> dict[str, str]:
    from moldau.client import ConfigurationError, ConsumerConfig

    settings = reader.kafka_settings()
    try:
        ConsumerConfig.from_properties(settings)
    except ConfigurationError as error:
        raise InvalidOption(f"{KAFKA_PREFIX}{error}") from None
    return settings


def _parsed(option: str, text: str, parse: Callable[[str], Value]) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        shown = text if len(text) <= 200 else f"{text[:200]}…"
        raise InvalidOption(f"{option}={shown!r}: {error}") from None
