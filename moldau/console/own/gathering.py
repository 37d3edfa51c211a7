"""What several resources show of a cluster: its brokers, their log directories, topics, groups.

Invariants: a broker that does not answer delays an answer for a few seconds at most, and what it
alone knows is None; the number of requests grows with the brokers, and with what is shown, not with
the topics and the groups that there are.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections import defaultdict
from collections.abc import Awaitable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from moldau.client import (
    Admin,
    AuthorizationFailed,
    ClusterDescription,
    CommittedOffset,
    ConfigEntry,
    ConfigSource,
    GroupListing,
    KafkaError,
    LogDirectory,
    OffsetSpec,
    PartitionOffset,
    TopicDescription,
    TopicPartition,
    UnsupportedByBroker,
)
from moldau.console.clients import Clients
from moldau.console.schemas import BOOLEAN, STRING, array, named, nullable, record
from moldau.protocol.errors import LocalProtocolError
from moldau.x509 import end_of, subject_name

ANSWER_TIMEOUT_MS: Final = 2_500
"""For what is worth having while a broker does not answer."""
_TAG: Final = re.compile(r"</?[a-zA-Z][^<>]*>")
GROUPS_AT_ONCE: Final = 500
"""Groups that are asked about by one call; each coordinator answers for its own."""

Directories = Mapping[int, list[LogDirectory] | KafkaError]
"""What lies in each broker's log directories, or why that is not known."""
Committed = Mapping[TopicPartition, CommittedOffset]
Offsets = Mapping[TopicPartition, PartitionOffset | KafkaError]
Value = TypeVar("Value")

SYNONYM: Final = record({"name": STRING, "value": nullable(STRING), "source": STRING})
CONFIG: Final = named(
    "Config",
    record(
        {
            "name": STRING,
            "value": nullable(STRING),
            "is_default": BOOLEAN,
            "is_sensitive": BOOLEAN,
            "is_read_only": BOOLEAN,
            "source": STRING,
            "type": nullable(STRING),
            "documentation": nullable(STRING),
            "synonyms": array(SYNONYM),
        }
    ),
)


async def known(asking: Awaitable[Value]) -> Value | None:
    """What comes of a question; None where that is not allowed, not served, or not answered."""
    try:
        return await asking
    except (KafkaError, LocalProtocolError):
        return None


async def cluster_of(admin: Admin) -> ClusterDescription:
    """The brokers, fenced ones too where the cluster names them. Raises: KafkaError"""
    try:
        return await admin.describe_cluster(include_fenced_brokers=True)
    except (UnsupportedByBroker, LocalProtocolError):
        return await admin.describe_cluster()  # Apache Kafka before 4.0


class Controller(NamedTuple):
    """The active controller, if it is known; `is_missing`: the controllers have none."""

    node_id: int | None
    is_missing: bool = False


async def controller_of(admin: Admin) -> Controller:
    """The active controller. Ask last: without one, the broker that is asked answers nothing else
    on the same connection until the time is over.
    """
    try:
        quorum = await admin.describe_metadata_quorum(timeout_ms=ANSWER_TIMEOUT_MS)
    except (AuthorizationFailed, UnsupportedByBroker, LocalProtocolError):
        return Controller(None)
    except KafkaError:
        return Controller(None, is_missing=True)
    if quorum.leader_id < 0:
        return Controller(None, is_missing=True)
    return Controller(quorum.leader_id)


async def topics_of(clients: Clients) -> dict[str, TopicDescription]:
    """Every topic that the person may describe. Raises: KafkaError"""
    return await clients.looks.of("topics", clients.admin.describe_topics)


async def directories_of(clients: Clients, broker_ids: Iterable[int]) -> Directories:
    """The log directories of brokers, all asked at the same time."""
    asked = sorted(broker_ids)

    async def ask(some: list[int]) -> Directories:
        answers = await asyncio.gather(*(directories_on(clients.admin, each) for each in some))
        return dict(zip(some, answers, strict=True))

    kept = await clients.looks.of("log directories", lambda: ask(asked))
    newer = [each for each in asked if each not in kept]
    return {**{each: kept[each] for each in asked if each in kept}, **await ask(newer)}


async def directories_on(admin: Admin, broker_id: int) -> list[LogDirectory] | KafkaError:
    """The log directories of one broker, or why they are not known."""
    try:
        found = await admin.describe_log_directories([broker_id], timeout_ms=ANSWER_TIMEOUT_MS)
    except KafkaError as error:
        return error
    return found[broker_id]


def has_answered(found: list[LogDirectory] | KafkaError) -> bool:
    """Whether a broker answers, even if it does not say what it was asked for."""
    return not isinstance(found, KafkaError) or isinstance(
        found, AuthorizationFailed | UnsupportedByBroker
    )


class Certificate(NamedTuple):
    """A certificate that brokers have shown to this client.

    Attributes:
        listener: which brokers.
        expires_at_ms: since 1970.
    """

    listener: str
    subject: str
    expires_at_ms: int


async def certificates_of(admin: Admin, broker_ids: Iterable[int]) -> list[Certificate]:
    """What brokers have shown to this client, each certificate once; none without TLS."""
    brokers: defaultdict[bytes, list[int]] = defaultdict(list)

    async def ask(broker_id: int) -> None:
        asking = admin.describe_certificates([broker_id], timeout_ms=ANSWER_TIMEOUT_MS)
        for each, der in (await known(asking) or {}).items():
            if der is not None:
                brokers[der].append(each)

    await asyncio.gather(*map(ask, broker_ids))
    return sorted(_certificate(der, sorted(ids)) for der, ids in brokers.items())


def _certificate(der: bytes, broker_ids: list[int]) -> Certificate:
    expires_at_ms = int(end_of(der).timestamp() * 1000)
    return Certificate(broker_names(broker_ids), subject_name(der), expires_at_ms)


def broker_names(ids: Collection[int]) -> str:
    """`broker 1`, `brokers 1, 2`."""
    return f"broker{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"


def topic_sizes(directories: Directories) -> dict[str, int]:
    """The bytes of each topic on all disks that are known."""
    totals: defaultdict[str, int] = defaultdict(int)
    for partition, size_bytes in _replicas(directories):
        totals[partition.topic] += size_bytes
    return totals


def _replicas(directories: Directories) -> Iterable[tuple[TopicPartition, int]]:
    for found in directories.values():
        if not isinstance(found, KafkaError):
            for directory in found:
                yield from directory.partition_bytes.items()


async def groups_of(clients: Clients) -> list[GroupListing] | None:
    """Every group that the person may describe; None while a broker does not answer."""
    listing = clients.admin.list_groups(timeout_ms=ANSWER_TIMEOUT_MS)
    return await known(listing)


async def committed_by(
    clients: Clients, group_ids: Collection[str]
) -> dict[str, Committed | KafkaError]:
    """What groups have committed, in the topics that the person may describe."""
    names = [*group_ids]
    found: dict[str, Committed | KafkaError] = {}
    for first in range(0, len(names), GROUPS_AT_ONCE):
        some = names[first : first + GROUPS_AT_ONCE]
        found.update(await clients.admin.list_group_offsets(some, timeout_ms=ANSWER_TIMEOUT_MS))
    return found


async def ends_of(
    admin: Admin, partitions: Iterable[TopicPartition], timeout_ms: int = ANSWER_TIMEOUT_MS
) -> Offsets:
    """The high watermarks of partitions."""
    specs = dict.fromkeys(partitions, int(OffsetSpec.LATEST))
    return await admin.list_partition_offsets(specs, timeout_ms=timeout_ms)


def offset_in(offsets: Offsets, partition: TopicPartition) -> int | None:
    """A partition's offset, if it is known."""
    found = offsets.get(partition)
    return found.offset if isinstance(found, PartitionOffset) and found.offset >= 0 else None


def lag_of(committed: Committed, ends: Offsets, topic_name: str | None = None) -> int | None:
    """The records between what a group has committed and the ends; None where no end is known.

    Args:
        topic_name: only of this topic.
    """
    lags = [
        max(0, end - position.offset)
        for partition, position in committed.items()
        if topic_name in (None, partition.topic) and (end := offset_in(ends, partition)) is not None
    ]
    return sum(lags) if lags else None


def config_documents(entries: Mapping[str, ConfigEntry]) -> list[dict[str, Any]]:
    """Configuration entries as JSON has them, by name."""
    return [
        {
            "name": entry.name,
            "value": None if entry.sensitive else entry.value,
            "is_default": entry.source is ConfigSource.DEFAULT_CONFIG,
            "is_sensitive": entry.sensitive,
            "is_read_only": entry.read_only,
            "source": entry.source.name,
            "type": None,
            "documentation": _plain(entry.documentation),
            "synonyms": [
                {"name": name, "value": None if entry.sensitive else value, "source": source.name}
                for name, value, source in entry.synonyms
            ],
        }
        for _, entry in sorted(entries.items())
    ]


def _plain(text: str | None) -> str | None:
    """A key's documentation without the HTML that Apache Kafka's has."""
    return None if text is None else html.unescape(_TAG.sub("", text))
