"""The lag of consumer groups in `/metrics`, from the memory of the groups' coordinator.

Owns the names of these series, the way through the coordinator's memory in slices of the data loop,
and the end offsets of partitions that other brokers lead, with their connections. Must not hold the
data loop for longer than a slice, or ask a leader once for each group. Invariants: committed
offsets are read before end offsets, but for those that are kept from other leaders; a scrape sends
no more than one ListOffsets for each `PARTITIONS_PER_REQUEST` partitions of a leader; the number of
series is bounded, and what is left out is counted.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar, TypeVarTuple

from moldau.metadata.image import NO_LEADER
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.messages import p02_list_offsets as p02
from moldau.protocol.types import TopicPartition
from moldau.runtime.leader_link import LINK_ERRORS, LeaderLink
from moldau.runtime.loop_thread import run_on
from moldau.runtime.slices import LoopSlices

if TYPE_CHECKING:
    from moldau.broker.api.services import BrokerServices
    from moldau.broker.coordinator.group.core.state import GroupState
    from moldau.broker.coordinator.other_brokers import OtherBrokers
    from moldau.broker.coordinator.runtime import CoordinatorRuntime
    from moldau.broker.replica.replica_manager import ReplicaManager
    from moldau.metadata.image import MetadataImage
    from moldau.runtime.clock import Clock

logger = logging.getLogger(__name__)

MAX_GROUPS: Final = 100_000
"""Groups of one broker that have series; further ones are counted."""

PARTITIONS_PER_STEP: Final = 500
"""Committed offsets, or end offsets, that are copied between two looks at the clock."""

PARTITIONS_PER_REQUEST: Final = 500
LEADERS_TIMEOUT_MS: Final = 3_000
"""Leaders that have not answered by then leave the lag of their partitions unknown."""

ENDS_KEPT_MS: Final = 5_000
"""How long end offsets of other leaders serve further scrapes."""

_LATEST: Final = -1
_CONSUMER: Final = -1
_UNKNOWN: Final = -1
_NO_TOPIC: Final = ""
_LINES_PER_PIECE: Final = 2_000

_HELP: Final = {
    "kafka_consumergroup_lag": (
        "High watermark less the group's committed offset, as kafka-consumer-groups shows it"
    ),
    "kafka_consumergroup_current_offset": "The group's committed offset",
    "kafka_consumergroup_current_offset_sum": "The group's committed offsets of a topic, added up",
    "kafka_consumergroup_lag_sum": "Lag of a group in a topic, over the partitions whose is known",
    "kafka_consumergroup_members": "Members of a group",
    "kafka_consumergroup_lag_left_out": (
        "Groups (with all their series) and partitions (of groups) that have no series: too many"
    ),
    "kafka_consumergroup_lag_unknown": (
        "Partitions with committed offsets whose leader has not said where they end"
    ),
}

T = TypeVar("T")
Result = TypeVar("Result")
Ts = TypeVarTuple("Ts")


class OnDataLoop(Protocol):
    """Runs a short function on the data loop."""

    def __call__(self, function: Callable[[*Ts], Result], *arguments: *Ts) -> Awaitable[Result]: ...


class Committed(NamedTuple):
    """Some offsets of a group in one topic; one without a topic where the group has none at all."""

    group_id: str
    member_count: int
    topic: str
    offsets: tuple[tuple[int, int], ...]
    """Partition and offset."""


class CommittedWalk:
    """One pass over the groups that this broker coordinates, a slice of the data loop at a time.

    Groups that are gone when their turn comes are left out, as are those of a partition that
    another broker has taken over.
    """

    def __init__(self, runtime: CoordinatorRuntime[GroupState], clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._steps = self._walk()

    def next_slice(self) -> list[Committed]:
        """What one slice finds; nothing when all groups have been seen."""
        slices = LoopSlices(self._clock)
        found: list[Committed] = []
        for each in self._steps:
            found.append(each)
            if slices.is_over:
                break
        return found

    def _walk(self) -> Iterator[Committed]:
        runtime = self._runtime
        for index, state in list(runtime.states()):
            for group_id in list(state.groups):
                group = state.groups.get(group_id)
                if runtime.state(index) is not state:
                    break
                if group is None:
                    continue
                member_count = len(group.members)
                topics = state.offsets.topics(group_id)
                if not topics:
                    yield Committed(group_id, member_count, _NO_TOPIC, ())
                for topic, stored in list(topics.items()):
                    for some in _pieces(list(stored), PARTITIONS_PER_STEP):
                        offsets = tuple((n, stored[n].offset) for n in some if n in stored)
                        yield Committed(group_id, member_count, topic, offsets)


@dataclass(slots=True)
class Offsets:
    """What a pass has found, 16 bytes for each offset: `groups`, `partitions` and `committed` have
    an entry for each, in the order of the pass, so that those of a group and topic are neighbours.
    """

    group_ids: list[str] = field(default_factory=list)
    member_counts: list[int] = field(default_factory=list)
    places: dict[TopicPartition, int] = field(default_factory=dict)
    groups: array[int] = field(default_factory=lambda: array("I"))
    partitions: array[int] = field(default_factory=lambda: array("I"))
    committed: array[int] = field(default_factory=lambda: array("q"))
    left_out_groups: int = 0
    _last_left_out: str | None = None

    def add(self, found: Iterable[Committed], image: MetadataImage) -> None:
        """Note offsets of topics that exist; those of deleted ones are about to be removed."""
        topics = image.topics.topics_by_name
        for group_id, member_count, topic, offsets in found:
            if not self.group_ids or self.group_ids[-1] != group_id:
                if len(self.group_ids) >= MAX_GROUPS:
                    self.left_out_groups += group_id != self._last_left_out
                    self._last_left_out = group_id
                    continue
                self.group_ids.append(group_id)
                self.member_counts.append(member_count)
            known = topics.get(topic)
            if known is None:
                continue
            for index, offset in offsets:
                if index in known.partitions:
                    self.groups.append(len(self.group_ids) - 1)
                    place = self.places.setdefault(TopicPartition(topic, index), len(self.places))
                    self.partitions.append(place)
                    self.committed.append(offset)


def led_ends(manager: ReplicaManager, asked: Iterable[TopicPartition]) -> list[int]:
    """High watermarks of the partitions that this broker leads, -1 of others; on the data loop."""
    ends = []
    for topic, index in asked:
        partition = manager.get(topic, index)
        end = _UNKNOWN
        if partition is not None:
            core, log = partition.core, partition.log
            is_led = core.is_leader and log is not None and not log.offline
            # A new leader may know less than clients got from the one before it (KIP-207).
            if is_led and core.leader_epoch_start_offset <= core.high_watermark:
                end = core.high_watermark
        ends.append(end)
    return ends


class LeadersEnds:
    """End offsets of partitions that other brokers lead; belongs to the data loop."""

    def __init__(self) -> None:
        self._links: dict[int, LeaderLink] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._asked_ms = float("-inf")
        self._is_closed = False

    async def of(
        self, services: BrokerServices, asked: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """The ends that are known in time: kept ones, and what the leaders answer."""
        now_ms = services.clock.monotonic_ms()
        if now_ms - self._asked_ms >= ENDS_KEPT_MS:
            self._ends, self._asked_ms = {}, now_ms
            known = services.metadata.image.cluster.brokers
            for link in [self._links.pop(each) for each in self._links.keys() - known.keys()]:
                await link.close()
        by_leader: dict[int, list[TopicPartition]] = {}
        topics = services.metadata.image.topics.topics_by_name
        slices = LoopSlices(services.clock)
        for each in asked:
            topic = topics.get(each.topic)
            registration = None if topic is None else topic.partitions.get(each.partition)
            leader = NO_LEADER if registration is None else registration.leader
            if leader not in (NO_LEADER, services.broker_id) and each not in self._ends:
                by_leader.setdefault(leader, []).append(each)
            if slices.is_over:
                await slices.next()
        if by_leader:
            brokers = services.coordinators.brokers
            asking = [
                asyncio.create_task(self._ask(brokers, services.broker_id, leader, wanted))
                for leader, wanted in by_leader.items()
            ]
            try:
                await asyncio.wait(asking, timeout=LEADERS_TIMEOUT_MS / 1000)
            finally:  # also when the client of the page has gone
                for task in asking:
                    task.cancel()
            for outcome in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(outcome, Exception):
                    raise outcome
        return self._ends

    async def _ask(
        self, brokers: OtherBrokers, broker_id: int, leader: int, wanted: list[TopicPartition]
    ) -> None:
        link = self._links.get(leader)
        if self._is_closed:
            return
        if link is None:
            link = self._links[leader] = brokers.link(f"moldau-broker-{broker_id}-group-lags")
        for some in _pieces(wanted, PARTITIONS_PER_REQUEST):
            address = brokers.address(leader)
            if address is None:
                return
            try:
                response = await link.send(address, _request(some), timeout_ms=LEADERS_TIMEOUT_MS)
            except (LocalProtocolError, *LINK_ERRORS) as error:
                logger.info("%s did not say where %d partitions end: %s", address, len(some), error)
                return
            for topic in response.topics:
                for answer in topic.partitions:
                    if answer.error_code == ErrorCode.NONE:
                        place = TopicPartition(topic.name, answer.partition_index)
                        self._ends[place] = answer.offset

    async def close(self) -> None:
        self._is_closed = True
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()


def _pieces(values: Iterable[T], length: int) -> Iterator[tuple[T, ...]]:
    left = iter(values)
    while piece := tuple(islice(left, length)):
        yield piece


def _request(partitions: Iterable[TopicPartition]) -> p02.ListOffsetsRequest:
    topics: dict[str, p02.ListOffsetsTopic] = {}
    for topic, index in partitions:
        if topic not in topics:
            topics[topic] = p02.ListOffsetsTopic(name=topic, partitions=[])
        topics[topic].partitions.append(
            p02.ListOffsetsPartition(partition_index=index, timestamp=_LATEST)
        )
    return p02.ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))


class GroupLags:
    """The part of `/metrics` about groups' lag; belongs to the HTTP thread."""

    def __init__(self, data_loop: asyncio.AbstractEventLoop) -> None:
        self._data_loop = data_loop
        self._leaders = LeadersEnds()
        self._turn = asyncio.Lock()
        self._has_warned = False

    async def text(self, services: BrokerServices, on_data_loop: OnDataLoop) -> bytes:
        """The series in Prometheus' text form; empty when they are switched off."""
        if not services.node_config["moldau.group.lag.enable"]:
            return b""
        async with self._turn:
            offsets = await self._offsets(services, on_data_loop)
            ends = await self._ends(services, on_data_loop, list(offsets.places))
        max_partitions = services.node_config["moldau.group.lag.max.partitions"]
        self._warn(len(offsets.committed), max_partitions)
        return await asyncio.to_thread(rendered, offsets, ends, max_partitions)

    async def close(self) -> None:
        """Give up the connections; on the data loop."""
        await self._leaders.close()

    async def _offsets(self, services: BrokerServices, on_data_loop: OnDataLoop) -> Offsets:
        offsets = Offsets()
        image = services.metadata.image
        walk = CommittedWalk(services.coordinators.groups.runtime, services.clock)
        while found := await on_data_loop(walk.next_slice):
            offsets.add(found, image)
        return offsets

    async def _ends(
        self, services: BrokerServices, on_data_loop: OnDataLoop, places: list[TopicPartition]
    ) -> array[int]:
        ends = array("q")
        for some in _pieces(places, PARTITIONS_PER_STEP):
            ends.extend(await on_data_loop(partial(led_ends, services.replica_manager, some)))
        missing = [n for n, end in enumerate(ends) if end == _UNKNOWN]
        if missing:
            asked = [places[n] for n in missing]
            known = await run_on(self._data_loop, self._leaders.of(services, asked))
            for n in missing:
                ends[n] = known.get(places[n], _UNKNOWN)
        return ends

    def _warn(self, count: int, max_partitions: int) -> None:
        is_over = count > max_partitions > 0
        if is_over and not self._has_warned:
            logger.warning(
                "groups have committed offsets in %d partitions here, more than the %d of "
                "moldau.group.lag.max.partitions: /metrics shows the sums of groups and topics",
                count,
                max_partitions,
            )
        self._has_warned = is_over


class _Family:
    """The lines of one metric, encoded piece by piece."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lines = [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge"]
        self._encoded = bytearray()

    def add(self, labels: str, value: int) -> None:
        self._lines.append(f"{self.name}{labels} {value}")
        if len(self._lines) >= _LINES_PER_PIECE:
            self._encode()

    def _encode(self) -> None:
        self._encoded += "".join(f"{line}\n" for line in self._lines).encode()
        self._lines.clear()

    def encoded(self) -> bytearray:
        self._encode()
        return self._encoded


def rendered(offsets: Offsets, ends: array[int], max_partitions: int) -> bytes:
    """All series; `ends` has the end of each of `offsets.places`, -1 where it is unknown."""
    lag, current, current_sums, sums, members, left_out, unknown = map(_Family, _HELP)
    groups = [f'consumergroup="{_escaped(each)}"' for each in offsets.group_ids]
    for group, member_count in zip(groups, offsets.member_counts, strict=True):
        members.add(f"{{{group}}}", member_count)
    topics = [f'topic="{_escaped(each.topic)}"' for each in offsets.places]
    indexes = [each.partition for each in offsets.places]
    shows_partitions = len(offsets.committed) <= max_partitions
    summed, total, committed_total = "", _UNKNOWN, 0

    def end_sums() -> None:
        if summed:
            current_sums.add(f"{{{summed}}}", committed_total)
        if total != _UNKNOWN:
            sums.add(f"{{{summed}}}", total)

    for group_index, place, committed in zip(
        offsets.groups, offsets.partitions, offsets.committed, strict=True
    ):
        labels = f"{groups[group_index]},{topics[place]}"
        if labels != summed:
            end_sums()
            summed, total, committed_total = labels, _UNKNOWN, 0
        committed_total += committed
        # An end that was read earlier than the commit, at another leader, may be behind it.
        behind = _UNKNOWN if ends[place] == _UNKNOWN else max(ends[place] - committed, 0)
        if behind != _UNKNOWN:
            total = behind if total == _UNKNOWN else total + behind
        if shows_partitions:
            labels = f'{{{labels},partition="{indexes[place]}"}}'
            current.add(labels, committed)
            if behind != _UNKNOWN:
                lag.add(labels, behind)
    end_sums()
    left_out.add('{kind="group"}', offsets.left_out_groups)
    left_out.add('{kind="partition"}', 0 if shows_partitions else len(offsets.committed))
    unknown.add("", ends.count(_UNKNOWN))
    families = (lag, current, current_sums, sums, members, left_out, unknown)
    return b"".join(each.encoded() for each in families)


def _escaped(text: str) -> str:
    """The text as a label's value."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
