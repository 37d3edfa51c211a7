"""Where a leader epoch ends in the leader's log: OffsetForLeaderEpoch v2-v4 (KIP-320).

Owns the request to each leader. Must not touch positions. Invariant: every partition asked for
gets an answer or an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS, describe_fault
from moldau.client.consumer.list_offsets import (
    CONSUMER_REPLICA_ID,
    group_by_leader,
    leader_epoch,
    refused,
)
from moldau.client.errors import KafkaError, NoBrokerAvailable
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.protocol.types import TopicPartition
from moldau.runtime.connection import UnsupportedByPeer

VERSIONS: Final = (2, 4)
"""Kafka's consumer asks from version 3 on, as older ones want the right to alter the cluster; a
refusal is taken as "cannot say"."""


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
        """Whether the leader found an end."""
        return self.leader_epoch >= 0 and self.end_offset >= 0


class EpochEnds:
    """Asks leaders where epochs end."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def ask_once(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd | KafkaError]:
        """One try for all: every partition's answer, or why there is none yet."""
        by_leader, problems = await group_by_leader(self._client, epochs)
        answers: dict[TopicPartition, EpochEnd | KafkaError] = {
            name: problem for name, problem in problems.items() if isinstance(problem, KafkaError)
        }

        async def ask(node_id: int, names: list[TopicPartition]) -> None:
            answers.update(await self._ask_node(node_id, {name: epochs[name] for name in names}))

        await asyncio.gather(*(ask(node_id, names) for node_id, names in by_leader.items()))
        return answers

    async def _ask_node(
        self, node_id: int, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd | KafkaError]:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for name, epoch in epochs.items():
            topic = topics.setdefault(
                name.topic, OffsetForLeaderTopic(topic=name.topic, partitions=[])
            )
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=name.partition,
                    current_leader_epoch=leader_epoch(self._client, name),
                    leader_epoch=epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=CONSUMER_REPLICA_ID, topics=list(topics.values())
        )
        try:
            response = await self._client.ask_node(node_id, request, versions=VERSIONS)
        except UnsupportedByPeer:
            return dict.fromkeys(epochs, EpochEnd(is_unsupported=True))
        except PASSING_FAULTS as fault:
            lost = NoBrokerAvailable(f"check positions: broker {node_id}: {describe_fault(fault)}")
            self._client.request_update()
            return dict.fromkeys(epochs, lost)
        answers: dict[TopicPartition, EpochEnd | KafkaError] = {}
        for each in response.topics:
            for part in each.partitions:
                name = TopicPartition(each.topic, part.partition)
                answers[name] = self._answer(name, part.error_code, part)
        missing = NoBrokerAvailable(f"check positions: broker {node_id} left partitions out")
        return {name: answers.get(name, missing) for name in epochs}

    def _answer(self, name: TopicPartition, code: int, part: EpochEnd) -> EpochEnd | KafkaError:
        if code == ErrorCode.NONE:
            return EpochEnd(part.leader_epoch, part.end_offset)
        if code in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION):
            return EpochEnd(is_unsupported=True)
        return refused(self._client, name, code, "check the position of")
