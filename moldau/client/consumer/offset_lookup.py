"""Asking leaders for offsets: by time and at the ends of logs (ListOffsets v1–v11), and where a
leader epoch ends in the leader's log (OffsetForLeaderEpoch v2–v4, KIP-320).

Owns the request to each leader and the retries. Must not touch positions. Invariant: every
partition asked for ends with one answer or one error.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from moldau.client.cluster.cluster_client import ClusterClient, Versions
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.errors import KafkaError, NoBrokerAvailable, UnsupportedByBroker, error_for
from moldau.client.records import OffsetAndTimestamp
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.p23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.schema import Request, Response
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer

CONSUMER_REPLICA_ID: Final = -1
UNKNOWN_OFFSET: Final = -1

LIST_OFFSETS_VERSIONS: Final = (1, 11)
EPOCH_END_VERSIONS: Final = (2, 4)
"""Kafka's consumer asks from version 3 on, as older ones need the right to alter the cluster; here
a refusal counts as "cannot say"."""


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """A leader's answer. `offset` -1: there is no such record; `leader_epoch` -1: not said."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The end offset of the largest epoch that is not above the one asked for; -1 for none.
    `is_unsupported`: the broker cannot say.
    """

    leader_epoch: int = -1
    end_offset: int = -1
    is_unsupported: bool = False

    @property
    def is_known(self) -> bool:
        return self.leader_epoch >= 0 and self.end_offset >= 0


Answer = TypeVar("Answer", FoundOffset, EpochEnd)
_Answers: TypeAlias = dict[TopicPartition, Answer | KafkaError]


class OffsetLookup:
    """Asks leaders for offsets; with `read_committed` a log ends at the last stable one."""

    def __init__(self, client: ClusterClient, *, read_committed: bool) -> None:
        self._client = client
        self._isolation_level = int(read_committed)

    async def find(
        self, targets: Mapping[TopicPartition, int], timeout_ms: float | None
    ) -> dict[TopicPartition, FoundOffset]:
        """The first offset at or after each timestamp (or a special one, below zero). Raises:
        KafkaError, that of one partition that could not be asked within the time.
        """
        found: dict[TopicPartition, FoundOffset] = {}

        async def attempt() -> None:
            left = {name: target for name, target in targets.items() if name not in found}
            answers = await self.offsets(left)
            problems = []
            for name, answer in answers.items():
                if isinstance(answer, FoundOffset):
                    found[name] = answer
                else:
                    problems.append(answer)
            if problems:
                raise next((each for each in problems if not each.retriable), problems[0])

        await self._client.retry(attempt, what="list offsets", timeout_ms=timeout_ms)
        return {name: found[name] for name in targets}

    async def by_time(
        self, times_ms: Mapping[TopicPartition, int], timeout_ms: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        found = await self.find(times_ms, timeout_ms)
        return {
            name: None
            if each.offset < 0
            else OffsetAndTimestamp(
                each.offset,
                each.timestamp_ms,
                each.leader_epoch if each.leader_epoch >= 0 else None,
            )
            for name, each in found.items()
        }

    async def offsets(self, targets: Mapping[TopicPartition, int]) -> _Answers[FoundOffset]:
        """As `find`, with one try: every partition's answer, or why there is none yet."""
        return await self._ask_leaders(targets, self._ask_offsets)

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> _Answers[EpochEnd]:
        """One try: where each epoch ends, or why there is no answer yet."""
        return await self._ask_leaders(epochs, self._ask_epoch_ends)

    async def _ask_leaders(
        self,
        wanted: Mapping[TopicPartition, int],
        ask: Callable[[int, Mapping[TopicPartition, int]], Awaitable[_Answers[Answer]]],
    ) -> _Answers[Answer]:
        """Ask all leaders at once; partitions without a leader have an error."""
        by_leader: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
        answers: _Answers[Answer] = {}
        metadata = self._client.metadata
        unknown = {name.topic for name in wanted if metadata.leader(*name) is None}
        if unknown:
            try:
                await self._client.refresh_metadata(sorted(unknown))
            except PASSING_FAULTS as fault:
                error = NoBrokerAvailable(f"look for leaders: {describe_fault(fault)}")
                answers.update((name, error) for name in wanted if name.topic in unknown)
        for name, value in wanted.items():
            leader = metadata.leader(*name)
            if leader is not None:
                answers.pop(name, None)
                by_leader[leader][name] = value
            elif name not in answers:
                answers[name] = error_for(metadata.problem(*name), None, str(name))
        for found in await asyncio.gather(*(ask(*each) for each in by_leader.items())):
            answers.update(found)
        return answers

    async def _ask_offsets(
        self, node_id: int, targets: Mapping[TopicPartition, int]
    ) -> _Answers[FoundOffset]:
        topics: dict[str, ListOffsetsTopic] = {}
        for name, timestamp in targets.items():
            topic = topics.setdefault(name.topic, ListOffsetsTopic(name=name.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=name.partition,
                    current_leader_epoch=self._leader_epoch(name),
                    timestamp=timestamp,
                )
            )
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=self._isolation_level,
            topics=list(topics.values()),
            timeout_ms=int(self._client.config.request_timeout_ms),
        )
        response = await self._ask(node_id, request, LIST_OFFSETS_VERSIONS, "list offsets")
        if isinstance(response, KafkaError):
            return dict.fromkeys(targets, response)
        answers: _Answers[FoundOffset] = {
            name: NoBrokerAvailable(f"list offsets: broker {node_id} left out {name}")
            for name in targets
        }
        for each in response.topics:
            for part in each.partitions:
                name = TopicPartition(each.name, part.partition_index)
                if name in answers:
                    answers[name] = (
                        FoundOffset(part.offset, part.timestamp, part.leader_epoch)
                        if part.error_code == ErrorCode.NONE
                        else self._refused(name, part.error_code, "list offsets")
                    )
        return answers

    async def _ask_epoch_ends(
        self, node_id: int, epochs: Mapping[TopicPartition, int]
    ) -> _Answers[EpochEnd]:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for name, epoch in epochs.items():
            topic = topics.setdefault(
                name.topic, OffsetForLeaderTopic(topic=name.topic, partitions=[])
            )
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=name.partition,
                    current_leader_epoch=self._leader_epoch(name),
                    leader_epoch=epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=CONSUMER_REPLICA_ID, topics=list(topics.values())
        )
        response = await self._ask(node_id, request, EPOCH_END_VERSIONS, "check positions")
        if isinstance(response, UnsupportedByBroker):
            return dict.fromkeys(epochs, EpochEnd(is_unsupported=True))
        if isinstance(response, KafkaError):
            return dict.fromkeys(epochs, response)
        missing = NoBrokerAvailable(f"check positions: broker {node_id} left partitions out")
        answers: _Answers[EpochEnd] = dict.fromkeys(epochs, missing)
        for each in response.topics:
            for part in each.partitions:
                name = TopicPartition(each.topic, part.partition)
                if name in answers:
                    answers[name] = self._epoch_end(name, part)
        return answers

    def _epoch_end(self, name: TopicPartition, part: EpochEndOffset) -> EpochEnd | KafkaError:
        code = part.error_code
        if code == ErrorCode.NONE:
            return EpochEnd(part.leader_epoch, part.end_offset)
        if code in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION):
            return EpochEnd(is_unsupported=True)
        return self._refused(name, code, "check the position of")

    def _leader_epoch(self, name: TopicPartition) -> int:
        topic = self._client.metadata.topics.get(name.topic)
        found = None if topic is None else topic.partitions.get(name.partition)
        return -1 if found is None else found.leader_epoch

    async def _ask(
        self, node_id: int, request: Request[Response], versions: Versions, what: str
    ) -> Response | KafkaError:
        """The leader's response, or why there is none: perhaps another broker leads by now."""
        try:
            return await self._client.ask_node(node_id, request, versions=versions)
        except UnsupportedByPeer as error:
            return UnsupportedByBroker(f"{what}: broker {node_id}: {error}")
        except PASSING_FAULTS as fault:
            self._client.updates.request()
            return NoBrokerAvailable(f"{what}: broker {node_id}: {describe_fault(fault)}")

    def _refused(self, name: TopicPartition, code: int, what: str) -> KafkaError:
        """A partition's error; asks for the metadata again where they are the reason."""
        error = error_for(code, None, f"{what} {name}")
        if error.code.invalidates_metadata:
            self._client.updates.request()
        return error
