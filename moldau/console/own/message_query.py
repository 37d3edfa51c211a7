"""What all readers of messages take: where to begin, which partitions, which records, how shown.

Owns these parameters, and the filter and the forms that they mean. Must not read records.
Invariant: a filter means what it means to `moldau consume`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moldau.client import ConsumerRecord, TopicPartition
from moldau.console.calls import Call
from moldau.console.clients import Clients
from moldau.console.own.lists import OWN
from moldau.console.own.message_forms import AUTO, PLAIN_FORMATS, Form, record_form
from moldau.console.problems import Problem
from moldau.console.reading import FROM, Budget, partitions_of
from moldau.console.routes import Parameter
from moldau.console.schemas import (
    BOOLEAN,
    INTEGER,
    STRING,
    array,
    named,
    nullable,
    one_of,
    record,
)

if TYPE_CHECKING:
    from moldau.record_filter import RecordFilter

MESSAGES: Final = f"{OWN}/topics/{{topic}}/messages"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
MAX_PARTITIONS: Final = 1_000
MAX_TEXT: Final = 4_096
MAX_LIMIT: Final = 1_000
SHOWN_BYTES: Final = 8 << 20
"""The keys and values of a page have so much together; each may have its share."""
MOST_SHOWN_BYTES, LEAST_SHOWN_BYTES = 64 << 10, 4 << 10

FILTER_PARAMETERS: Final = (
    Parameter("partition", "Only these, separated by commas.", array(STRING, most=MAX_PARTITIONS)),
    Parameter(
        "where",
        "Only records for which this condition is true (docs/filters.md).",
        {**STRING, "maxLength": MAX_TEXT},
    ),
    Parameter(
        "grep",
        "Only records with this text in the key, the value or a header.",
        {**STRING, "maxLength": MAX_TEXT},
    ),
    Parameter("key", "Only records with this key.", {**STRING, "maxLength": MAX_TEXT}),
    Parameter(
        "isolation",
        "Whether records of open and aborted transactions are left out.",
        one_of(COMMITTED, UNCOMMITTED),
        default=UNCOMMITTED,
    ),
)
FORMAT_PARAMETERS: Final = (
    Parameter("key_format", "What keys are shown as.", one_of(*PLAIN_FORMATS), default=AUTO),
    Parameter("value_format", "What values are shown as.", one_of(*PLAIN_FORMATS), default=AUTO),
)
BUDGET_PARAMETERS: Final = (
    Parameter("max_records", "Stop after so many records.", {**INTEGER, "minimum": 1}),
    Parameter("max_bytes", "Stop after so many bytes of records.", {**INTEGER, "minimum": 1}),
    Parameter("max_seconds", "Stop after so many seconds.", {**INTEGER, "minimum": 1}),
)


def from_parameter(default: str) -> Parameter:
    """Where to begin."""
    return Parameter(
        "from",
        "Where to begin: earliest, latest, offset:N or timestamp:MS; last:N: the newest N.",
        {"type": "string", "pattern": FROM},
        default=default,
    )


BYTES: Final = named(
    "Bytes",
    record(
        {
            "encoding": one_of("utf-8", "base64", "json", "avro", "protobuf", "record"),
            "text": STRING,
            "size_bytes": INTEGER,
            "is_truncated": BOOLEAN,
        },
        {"schema_id": nullable(INTEGER), "subject": nullable(STRING)},
    ),
)
MESSAGE: Final = named(
    "Message",
    record(
        {
            "partition": INTEGER,
            "offset": INTEGER,
            "timestamp_ms": nullable(INTEGER),
            "timestamp_type": one_of("create", "append"),
            "key": nullable(BYTES),
            "value": nullable(BYTES),
            "headers": array(record({"name": STRING, "value": nullable(BYTES)})),
            "header_count": INTEGER,
            "key_size": nullable(INTEGER),
            "value_size": nullable(INTEGER),
            "leader_epoch": INTEGER,
            "is_control": BOOLEAN,
        }
    ),
)
READ: Final = named(
    "ReadReport",
    record(
        {
            "records": INTEGER,
            "bytes": INTEGER,
            "seconds": {"type": "number"},
            "is_complete": BOOLEAN,
            "stopped_by": one_of("limit", "records", "bytes", "time", "end"),
        }
    ),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reader of messages wants.

    Attributes:
        partitions: by their numbers.
        is_wanted: None where all records are.
        form: a record as it is shown.
    """

    clients: Clients
    topic: str
    partitions: dict[int, TopicPartition]
    isolation: str
    is_wanted: RecordFilter | None
    form: Callable[[ConsumerRecord[bytes, bytes]], Form]

    @property
    def is_committed(self) -> bool:
        return self.isolation == COMMITTED


async def asked(call: Call, shown_bytes: int) -> Asked:
    """What a call wants, checked before anything is read.

    Args:
        shown_bytes: of a key, a value, a header.

    Raises:
        Problem: there is no such partition, or a filter cannot be used.
        KafkaError
    """
    query = call.query
    is_wanted = wanted(query)
    clients, topic = await call.clients(), call.path["topic"]
    partitions = await partitions_of(clients.admin, topic, query["partition"])
    if len(partitions) > MAX_PARTITIONS:
        raise Problem(422, f"choose at most {MAX_PARTITIONS} partitions")
    formats = query["key_format"], query["value_format"]
    return Asked(
        clients,
        topic,
        {each.partition: each for each in partitions},
        query["isolation"],
        is_wanted,
        lambda found: record_form(found, formats, shown_bytes),
    )


def wanted(query: Mapping[str, Any]) -> RecordFilter | None:
    """The records that `where`, `grep` and `key` all want; None for all. Raises: Problem."""
    from moldau.record_filter import FilterError, all_of, compile_filter, with_key, with_text

    filters: list[RecordFilter] = []
    if query["key"]:
        filters.append(with_key(query["key"].encode()))
    if query["grep"]:
        filters.append(with_text(query["grep"].encode()))
    if query["where"]:
        try:
            filters.append(compile_filter(query["where"]))
        except FilterError as error:
            raise Problem(422, f"where: {error}") from None
    return all_of(filters)


def shown_share(limit: int) -> int:
    """How much is shown of each part of so many records."""
    return min(max(SHOWN_BYTES // limit, LEAST_SHOWN_BYTES), MOST_SHOWN_BYTES)


def budget_of(call: Call) -> Budget:
    """What a call may take: what it says, within what the console allows."""
    limits, query = call.site.settings.limits, call.query
    return Budget(
        min(limits.records, query["max_records"] or limits.records),
        min(limits.size_bytes, query["max_bytes"] or limits.size_bytes),
        min(limits.seconds, query["max_seconds"] or limits.seconds),
        call.site.settings.now_s(),
    )
