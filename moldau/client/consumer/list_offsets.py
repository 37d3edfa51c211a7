"""Looking up offsets by time, and the ends of logs: ListOffsets v1-v11.

Owns the request to each leader and the retries. Must not touch positions. Invariant: every
partition asked for ends with one answer or one error.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.errors import (
    BrokerError,
    KafkaError,
    NoBrokerAvailable,
    UnsupportedByBroker,
    error_for,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer

CONSUMER_REPLICA_ID: Final = -1
VERSIONS: Final = (1, 11)
UNKNOWN_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """A leader's answer. `offset` -1: there is no such record; `leader_epoch` -1: not said."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class OffsetLookup:
    """Asks leaders for offsets.

    Args:
        read_committed: whether "the end" is the last stable offset (KIP-98).
    """

    def __init__(self, client: ClusterClient, *, read_committed: bool) -> None:
        self._client = client
        self._isolation_level = int(read_committed)

    async def find(
        self, targets: Mapping[TopicPartition, int], timeout_ms: float | None
    ) -> dict[TopicPartition, FoundOffset]:
        """The first offset at or after each timestamp (or a special one, below zero).

        Raises: KafkaError, that of one partition that could not be asked within the time.
        """
        found: dict[TopicPartition, FoundOffset] = {}

        async def attempt() -> None:
            left = {name: target for name, target in targets.items() if name not in found}
            answers = await self.ask_once(left)
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

    async def ask_once(
        self, targets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | KafkaError]:
        """One try: every partition's answer, or why there is none yet."""
        by_leader, answers = await group_by_leader(self._client, targets)

        async def ask(node_id: int, names: list[TopicPartition]) -> None:
            answers.update(await self._ask_node(node_id, {name: targets[name] for name in names}))

        await asyncio.gather(*(ask(node_id, names) for node_id, names in by_leader.items()))
        return {**answers}

    async def _ask_node(
        self, node_id: int, targets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | KafkaError]:
        topics: dict[str, ListOffsetsTopic] = {}
        for name, timestamp in targets.items():
            topic = topics.setdefault(name.topic, ListOffsetsTopic(name=name.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=name.partition,
                    current_leader_epoch=leader_epoch(self._client, name),
                    timestamp=timestamp,
                )
            )
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=self._isolation_level,
            topics=list(topics.values()),
            timeout_ms=int(self._client.config.request_timeout_ms),
        )
        try:
            response = await self._client.ask_node(node_id, request, versions=VERSIONS)
        except UnsupportedByPeer as error:
            refusal = UnsupportedByBroker(f"list offsets: broker {node_id}: {error}")
            return dict.fromkeys(targets, refusal)
        except PASSING_FAULTS as fault:
            lost = NoBrokerAvailable(f"list offsets: broker {node_id}: {describe_fault(fault)}")
            self._client.request_update()
            return dict.fromkeys(targets, lost)
        answers: dict[TopicPartition, FoundOffset | KafkaError] = {}
        for each in response.topics:
            for part in each.partitions:
                name = TopicPartition(each.name, part.partition_index)
                if part.error_code == ErrorCode.NONE:
                    answers[name] = FoundOffset(part.offset, part.timestamp, part.leader_epoch)
                else:
                    answers[name] = refused(self._client, name, part.error_code, "list offsets")
        for name in targets:
            if name not in answers:
                answers[name] = NoBrokerAvailable(f"list offsets: broker {node_id} left out {name}")
        return {name: answers[name] for name in targets}


async def group_by_leader(
    client: ClusterClient, names: Mapping[TopicPartition, object]
) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, FoundOffset | KafkaError]]:
    """The partitions by their leaders; the error of those that have none at the moment."""
    by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    problems: dict[TopicPartition, FoundOffset | KafkaError] = {}
    unknown = {name.topic for name in names if client.metadata.leader(*name) is None}
    if unknown:
        try:
            await client.refresh_metadata(sorted(unknown))
        except PASSING_FAULTS as fault:
            error = NoBrokerAvailable(f"look for leaders: {describe_fault(fault)}")
            problems = dict.fromkeys((name for name in names if name.topic in unknown), error)
    for name in names:
        leader = client.metadata.leader(*name)
        if leader is not None:
            problems.pop(name, None)
            by_leader[leader].append(name)
        elif name not in problems:
            problems[name] = error_for(client.metadata.problem(*name), None, str(name))
    return by_leader, problems


def leader_epoch(client: ClusterClient, name: TopicPartition) -> int:
    """The epoch of the leader that is asked, -1 where it is not known."""
    topic = client.metadata.topics.get(name.topic)
    found = None if topic is None else topic.partitions.get(name.partition)
    return -1 if found is None else found.leader_epoch


def refused(client: ClusterClient, name: TopicPartition, code: int, what: str) -> BrokerError:
    """A partition's error; where the metadata are to blame they are asked for again."""
    error = error_for(code, None, f"{what} {name}")
    if error.code.invalidates_metadata:
        client.request_update()
    return error
