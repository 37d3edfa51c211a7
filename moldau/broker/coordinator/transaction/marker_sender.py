"""Takes the markers that end transactions to the partitions' leaders, until each has said done.

Owns which marker waits for which broker, the requests under way, and the repetition. Must not know
the state of transactions, nor write markers itself. Invariants: a marker is with exactly one
destination, pauses after a failure, or waits for its partition to have a leader; nothing is sent
for a transaction that is complete or whose coordinator has lost the partition
(`SendMarkers.is_cancelled`): a late marker might end the producer's next transaction; a partition
that is gone counts as done.

A marker whose answer was lost is sent again: leaders recognise the second one (by the epoch from
transaction version 2 on; below, a repeated marker ends nothing that is open).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.messages import p27_write_txn_markers as p27
from moldau.protocol.types import TopicPartition, by_topic
from moldau.runtime.fault_words import words_of
from moldau.runtime.leader_link import LINK_ERRORS, LeaderAddress, LeaderLink

if TYPE_CHECKING:
    from moldau.broker.coordinator.other_brokers import OtherBrokers
    from moldau.broker.coordinator.ports import RuntimePorts
    from moldau.broker.coordinator.transaction.core.state import SendMarkers
    from moldau.metadata.image import MetadataImage

logger = logging.getLogger(__name__)

RETRY_MS: Final = 100
MAX_RETRY_MS: Final = 1_000
"""The pause before a marker that was not written is sent again doubles from the first to this."""

MAX_IN_FLIGHT: Final = 4
"""Requests under way to one broker, so that one slow partition does not hold up all."""

MAX_PARTITIONS_PER_REQUEST: Final = 5_000

FENCED_ERRORS: Final = frozenset(
    {ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
)
"""The partition knows a newer coordinator or producer: this transaction is not ours to end."""

DONE_ERRORS: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)
"""Nothing more can be done at that partition."""


class Marker(NamedTuple):
    """One marker for one partition."""

    coordinator_partition: int
    command: SendMarkers
    partition: TopicPartition


Pauses: TypeAlias = dict[Marker, int]
"""Markers, and how long each pauses, in milliseconds, if it is not written this time."""

WriteMarkers = Callable[
    [p27.WriteTxnMarkersRequest, Callable[[p27.WriteTxnMarkersResponse], None]], None
]


@dataclass(slots=True, eq=False)
class _Destination:
    """The markers for one broker: they wait in a queue, or are in a request under way."""

    broker_id: int
    link: LeaderLink | None
    queue: Pauses = field(default_factory=dict)
    in_flight: int = 0


@dataclass(slots=True, eq=False)
class MarkerSender:
    """Belongs to the data loop. Nothing is sent within a call: the next turn of the loop does.

    Args:
        _coordinator_epoch: of a partition of `__transaction_state`, -1 when it is not led here.
        _write_here: writes the markers of partitions that this broker leads.
        _written: called with the partitions of a command that are done.
    """

    _ports: RuntimePorts
    _brokers: OtherBrokers
    _coordinator_epoch: Callable[[int], int]
    _write_here: WriteMarkers
    _written: Callable[[int, SendMarkers, list[TopicPartition]], None]
    _destinations: dict[int, _Destination] = field(default_factory=dict)
    _leaderless: Pauses = field(default_factory=dict)
    _pausing: dict[Marker, tuple[int, int]] = field(default_factory=dict)
    """The broker that did not write each marker, and how long it pauses next."""
    _is_due: bool = False
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._ports.registry.gauge(
            "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,"
            "name=UnknownDestinationQueueSize",
            lambda: len(self._leaderless),
        )

    def send(self, coordinator_partition: int, command: SendMarkers) -> None:
        self._route(
            {
                Marker(coordinator_partition, command, partition): RETRY_MS
                for partition in sorted(command.remaining)
            }
        )

    def on_metadata_update(self) -> None:
        """Leaders may have changed: route the markers that wait for one, or have a new one."""
        waiting, self._leaderless = self._leaderless, {}
        image = self._brokers.image()
        for marker, (tried, _) in list(self._pausing.items()):
            if _leader(image, marker.partition) != tried:
                del self._pausing[marker]
                waiting[marker] = RETRY_MS
        if waiting:
            self._route(waiting)

    async def close(self) -> None:
        """Send no more; requests under way may still be served."""
        self._is_closed = True
        self._leaderless.clear()
        self._pausing.clear()
        for destination in self._destinations.values():
            destination.queue.clear()
            if destination.link is not None:
                await destination.link.close()

    def _route(self, markers: Pauses) -> None:
        """Put each into the queue of its partition's leader."""
        if self._is_closed:
            return
        image = self._brokers.image()
        gone: list[Marker] = []
        for marker, pause_ms in markers.items():
            if marker.command.is_cancelled or marker.partition not in marker.command.remaining:
                continue
            leader = _leader(image, marker.partition)
            if leader is None:
                gone.append(marker)
            elif leader != self._ports.broker_id and self._brokers.address(leader) is None:
                self._leaderless[marker] = pause_ms
            else:
                self._destination(leader).queue[marker] = pause_ms
        for marker in gone:
            logger.info(
                "%s is gone: the transaction of %r ends without it",
                marker.partition,
                marker.command.transaction.transactional_id,
            )
        self._send_soon()
        self._tell_written(gone)

    def _destination(self, broker_id: int) -> _Destination:
        destination = self._destinations.get(broker_id)
        if destination is None:
            link = None
            if broker_id != self._ports.broker_id:
                link = self._brokers.link(f"broker-{self._ports.broker_id}-txn-marker-sender")
            destination = self._destinations[broker_id] = _Destination(broker_id, link)
        return destination

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        self._is_due = False
        for destination in list(self._destinations.values()):
            while destination.queue and destination.in_flight < MAX_IN_FLIGHT:
                self._send_to(destination)

    def _send_to(self, destination: _Destination) -> None:
        """One request with the markers that still have to go to that broker, if there are any."""
        image = self._brokers.image()
        taken: Pauses = {}
        elsewhere: Pauses = {}
        while destination.queue and len(taken) < MAX_PARTITIONS_PER_REQUEST:
            marker = next(iter(destination.queue))
            pause_ms = destination.queue.pop(marker)
            if _leader(image, marker.partition) != destination.broker_id:
                elsewhere[marker] = pause_ms
            elif (
                not marker.command.is_cancelled
                and self._coordinator_epoch(marker.coordinator_partition) >= 0
            ):
                taken[marker] = pause_ms
        if elsewhere:
            self._route(elsewhere)
        if not taken:
            return
        request = self._request(taken)
        destination.in_flight += 1
        if destination.link is None:
            self._write_here(request, lambda response: self._answered(destination, taken, response))
            return
        address = self._brokers.address(destination.broker_id)
        if address is None:
            self._answered(destination, taken, None)
            return
        self._ports.start(
            self._send_request(destination, destination.link, address, request, taken),
            f"markers for broker {destination.broker_id}",
        )

    def _request(self, markers: Iterable[Marker]) -> p27.WriteTxnMarkersRequest:
        return p27.WriteTxnMarkersRequest(
            markers=[
                p27.WritableTxnMarker(
                    producer_id=command.transaction.producer.producer_id,
                    producer_epoch=command.transaction.producer.producer_epoch,
                    transaction_result=command.is_commit,
                    topics=[
                        p27.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                        for topic, indexes in by_topic(partitions).items()
                    ],
                    coordinator_epoch=self._coordinator_epoch(coordinator_partition),
                    transaction_version=command.transaction.client_version,
                )
                for (coordinator_partition, command), partitions in _by_command(markers).items()
            ]
        )

    async def _send_request(
        self,
        destination: _Destination,
        link: LeaderLink,
        address: LeaderAddress,
        request: p27.WriteTxnMarkersRequest,
        markers: Pauses,
    ) -> None:
        response = None
        try:
            response = await link.send(
                address, request, timeout_ms=self._brokers.request_timeout_ms
            )
        except LINK_ERRORS as problem:
            logger.debug("no answer about markers from %s: %s", address, words_of(problem))
        except LocalProtocolError as problem:
            logger.warning("%s cannot be sent markers: %s", address, problem)
        finally:
            self._answered(destination, markers, response)

    def _answered(
        self,
        destination: _Destination,
        markers: Pauses,
        response: p27.WriteTxnMarkersResponse | None,
    ) -> None:
        """Sort the markers of a request by their outcome; without a response it is unknown."""
        destination.in_flight -= 1
        errors: dict[tuple[int, TopicPartition], ErrorCode] = {}
        if response is not None:
            for result in response.markers:
                for topic in result.topics:
                    for partition in topic.partitions:
                        name = TopicPartition(topic.name, partition.partition_index)
                        errors[result.producer_id, name] = ErrorCode.of(partition.error_code)
        done: list[Marker] = []
        again: dict[int, list[Marker]] = {}
        for marker, pause_ms in markers.items():
            key = (marker.command.transaction.producer.producer_id, marker.partition)
            error = errors.get(key, ErrorCode.NETWORK_EXCEPTION)
            if error in DONE_ERRORS:
                done.append(marker)
            elif error in FENCED_ERRORS:
                if not marker.command.is_cancelled:
                    marker.command.is_cancelled = True
                    logger.error(
                        "the end of the transaction of %r is not taken any more: %s says %s",
                        marker.command.transaction.transactional_id,
                        marker.partition,
                        error.name,
                    )
            else:
                again.setdefault(pause_ms, []).append(marker)
        if not self._is_closed:
            for pause_ms, pausing in again.items():
                next_ms = min(2 * pause_ms, MAX_RETRY_MS)
                self._pausing.update(dict.fromkeys(pausing, (destination.broker_id, next_ms)))
                self._ports.timers.call_later(pause_ms, self._end_pause, pausing)
        if destination.queue:
            self._send_soon()
        self._tell_written(done)

    def _end_pause(self, markers: Iterable[Marker]) -> None:
        """Those that a new leader has got already pause no more, or again."""
        over = {each: self._pausing.pop(each) for each in markers if each in self._pausing}
        self._route({marker: pause_ms for marker, (_, pause_ms) in over.items()})

    def _tell_written(self, markers: Iterable[Marker]) -> None:
        """Called last: an exception holds up neither the sending nor the other commands."""
        with ExitStack() as calls:
            for command, partitions in reversed(_by_command(markers).items()):
                calls.callback(self._written, *command, partitions)


def _by_command(markers: Iterable[Marker]) -> dict[tuple[int, SendMarkers], list[TopicPartition]]:
    """The partitions of each partition of the coordinator's topic and command."""
    found: dict[tuple[int, SendMarkers], list[TopicPartition]] = {}
    for coordinator_partition, command, partition in markers:
        found.setdefault((coordinator_partition, command), []).append(partition)
    return found


def _leader(image: MetadataImage, name: TopicPartition) -> int | None:
    """The leader of a partition: -1 without one, None for a partition that is gone."""
    topic = image.topics.topics_by_name.get(name.topic)
    registration = None if topic is None else topic.partitions.get(name.partition)
    return None if registration is None else registration.leader
