"""Whether a cluster is well, in a sentence, and what is wrong, from what was seen of it.

Must not ask anything. Invariant: what was not seen is neither well nor wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.client import (
    ClusterDescription,
    KafkaError,
    PartitionDescription,
    TopicDescription,
    TopicPartition,
)
from moldau.console.own.gathering import (
    Certificate,
    Controller,
    Directories,
    broker_names,
    has_answered,
)

HEALTHY, DEGRADED, CRITICAL = "healthy", "degraded", "critical"
LEAST_FREE_PERCENT: Final = 5
MOST_NAMED: Final = 3
DAY_MS: Final = 86_400_000
URGENT_DAYS: Final = 3
"""So long before a certificate ends it is a problem; the page shows it a month before."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is not as it should be; `link` leads to a view of the page."""

    severity: str
    text: str
    link: str

    def document(self) -> dict[str, str]:
        return {"severity": self.severity, "text": self.text, "link": self.link}


@dataclass(frozen=True, slots=True)
class PartitionStates:
    """Partitions that lack something, and how many there are of all."""

    total: int
    offline: tuple[TopicPartition, ...]
    under_min_isr: tuple[TopicPartition, ...]
    under_replicated: tuple[TopicPartition, ...]

    @classmethod
    def of(
        cls, topics: Mapping[str, TopicDescription], min_isr: Mapping[str, int]
    ) -> PartitionStates:
        """Those of topics; a topic's min.insync.replicas counts where it is known."""
        found = [
            (TopicPartition(name, each.partition), each, min_isr.get(name, 0))
            for name, topic in sorted(topics.items())
            for each in topic.partitions
        ]
        return cls(
            len(found),
            tuple(at for at, each, _ in found if is_offline(each)),
            tuple(at for at, each, least in found if is_below(each, least)),
            tuple(at for at, each, _ in found if is_under_replicated(each)),
        )


def is_offline(partition: PartitionDescription) -> bool:
    """Whether no replica leads it."""
    return partition.leader < 0


def is_under_replicated(partition: PartitionDescription) -> bool:
    """Whether a replica is out of the ISR."""
    return len(partition.isr) < len(partition.replicas)


def is_below(partition: PartitionDescription, min_isr: int) -> bool:
    """Whether its leader refuses acks=all; brokers ask for no more replicas than there are."""
    return not is_offline(partition) and len(partition.isr) < min(min_isr, len(partition.replicas))


def troubles_of(
    cluster: ClusterDescription,
    directories: Directories,
    states: PartitionStates,
    controller: Controller,
    certificates: Iterable[Certificate] = (),
    now_ms: int = 0,
) -> list[Trouble]:
    """What is wrong, the worst first."""
    found = [
        *_of_controllers(controller),
        *_of_partitions(states),
        *_of_brokers(cluster, directories),
        *_of_disks(directories),
        *_of_certificates(certificates, now_ms),
    ]
    return sorted(found, key=lambda each: each.severity != CRITICAL)


def health_document(
    troubles: Sequence[Trouble], broker_count: int, states: PartitionStates
) -> dict[str, Any]:
    """The state in a word and in a sentence, and the troubles."""
    if any(each.severity == CRITICAL for each in troubles):
        status = CRITICAL
    else:
        status = DEGRADED if troubles else HEALTHY
    if troubles:
        more = len(troubles) - 1
        beside = "" if not more else f", and {counted(more, 'other problem')}"
        sentence = f"{troubles[0].text}{beside}."
    elif not states.total:
        sentence = f"{_serve(broker_count)}; there are no partitions that you may describe."
    else:
        partitions = counted(states.total, "partition")
        sentence = f"{_serve(broker_count)}, and all replicas of {partitions} are in sync."
    return {
        "status": status,
        "sentence": sentence,
        "problems": [each.document() for each in troubles],
    }


def counted(count: int, what: str) -> str:
    """`1 partition`, `1,000 partitions`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _serve(broker_count: int) -> str:
    if broker_count == 1:
        return "The broker serves"
    return f"All {broker_count} brokers serve"


def _of_controllers(controller: Controller) -> Iterator[Trouble]:
    if controller.is_missing:
        text = "No controller is active: nothing can be changed, and no other leader is elected"
        yield Trouble(CRITICAL, text, "/quorum")


def _of_partitions(states: PartitionStates) -> Iterator[Trouble]:
    of_all = f"of {counted(states.total, 'partition')}"
    for found, severity, what, field in (
        (states.offline, CRITICAL, "without a leader", "offline"),
        (
            states.under_min_isr,
            CRITICAL,
            "below min.insync.replicas, where acks=all is refused",
            "under_replicated",
        ),
        (states.under_replicated, DEGRADED, "under-replicated", "under_replicated"),
    ):
        if found:
            some = _few(map(str, found), len(found))
            link = f"/topics?sort={field}&order=desc"
            yield Trouble(severity, f"{len(found):,} {of_all} {what} ({some})", link)


def _of_brokers(cluster: ClusterDescription, directories: Directories) -> Iterator[Trouble]:
    fenced = sorted(each.node_id for each in cluster.brokers if each.fenced)
    silent = sorted(
        broker_id for broker_id, found in directories.items() if not has_answered(found)
    )
    for ids, one, several in (
        (fenced, "is fenced", "are fenced"),
        (silent, "does not answer", "do not answer"),
    ):
        if ids:
            link = f"/brokers/{ids[0]}" if len(ids) == 1 else "/brokers"
            text = f"{broker_names(ids).capitalize()} {one if len(ids) == 1 else several}"
            yield Trouble(DEGRADED, text, link)


def _of_disks(directories: Directories) -> Iterator[Trouble]:
    for broker_id, found in sorted(directories.items()):
        if isinstance(found, KafkaError):
            continue
        for each in found:
            where = f"Log directory {each.directory} of broker {broker_id}"
            link = f"/brokers/{broker_id}/disks"
            if each.error is not None:
                yield Trouble(CRITICAL, f"{where} is offline", link)
            elif each.total_bytes > 0 and 0 <= each.usable_bytes < (
                each.total_bytes * LEAST_FREE_PERCENT / 100
            ):
                percent = 100 * each.usable_bytes / each.total_bytes
                yield Trouble(DEGRADED, f"{where} has {percent:.1f} % of its disk left", link)


def _of_certificates(certificates: Iterable[Certificate], now_ms: int) -> Iterator[Trouble]:
    for each in certificates:
        left_ms = each.expires_at_ms - now_ms
        if left_ms < URGENT_DAYS * DAY_MS:
            severity = CRITICAL if left_ms < 0 else DEGRADED
            ends = "has ended" if left_ms < 0 else f"ends within {URGENT_DAYS} days"
            yield Trouble(severity, f"The certificate of {each.listener} {ends}", "/brokers")


def _few(names: Iterable[str], count: int) -> str:
    """The first ones, and how many there are beside them."""
    named = ", ".join(name for name, _ in zip(names, range(MOST_NAMED), strict=False))
    return f"{named} and {count - MOST_NAMED:,} more" if count > MOST_NAMED else named
