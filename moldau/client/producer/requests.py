"""Produce requests (v3-v13) and how their answers are read.

Owns the messages and the choice of their version. Must not decide what an error means. Invariant:
`read` gives one answer for each batch of the request, also for those that the broker left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from moldau.client.producer.core.batch import ProducerBatch
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from moldau.protocol.records import Codec
from moldau.runtime.connection import Connection, UnsupportedByPeer

FIRST_WITH_ZSTD: Final = 7
FIRST_WITH_TOPIC_IDS: Final = 13


class BatchAnswer(NamedTuple):
    """What a broker said of one batch."""

    batch: ProducerBatch
    code: ErrorCode
    message: str | None
    base_offset: int
    log_append_time_ms: int
    record_errors: dict[int, str | None] | None


@dataclass(slots=True)
class ProduceCall:
    """One request and the batches in it, by topic (name, or id from v13 on) and partition."""

    request: ProduceRequest
    version: int
    batches: dict[tuple[str | UUID, int], ProducerBatch]

    def read(
        self, response: ProduceResponse
    ) -> tuple[list[BatchAnswer], list[tuple[str, int, int, int]]]:
        """The answer for each batch, and new leaders (KIP-951): topic, partition, leader, epoch."""
        by_id = self.version >= FIRST_WITH_TOPIC_IDS
        left = dict(self.batches)
        answers: list[BatchAnswer] = []
        leaders: list[tuple[str, int, int, int]] = []
        for topic in response.responses:
            topic_key: str | UUID = topic.topic_id if by_id else topic.name
            for entry in topic.partition_responses:
                batch = left.pop((topic_key, entry.index), None)
                if batch is None:
                    continue
                answers.append(_answer(batch, entry))
                leader = entry.current_leader
                if leader.leader_id >= 0 and leader.leader_epoch >= 0:
                    leaders.append(
                        (batch.topic, batch.partition, leader.leader_id, leader.leader_epoch)
                    )
        for batch in left.values():
            answers.append(
                BatchAnswer(
                    batch,
                    ErrorCode.NETWORK_EXCEPTION,
                    "the broker's answer does not mention the partition",
                    -1,
                    -1,
                    None,
                )
            )
        return answers, leaders


def _answer(batch: ProducerBatch, entry: PartitionProduceResponse) -> BatchAnswer:
    record_errors = None
    if entry.record_errors:
        record_errors = {
            each.batch_index: each.batch_index_error_message for each in entry.record_errors
        }
    return BatchAnswer(
        batch,
        ErrorCode.of(entry.error_code),
        entry.error_message,
        entry.base_offset,
        entry.log_append_time_ms,
        record_errors,
    )


def produce_call(
    connection: Connection,
    batches: Iterable[ProducerBatch],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
    highest_version: int | None,
    topic_id: Callable[[str], UUID | None],
) -> ProduceCall:
    """A request with one batch per partition, in the highest version that can say it.

    Raises:
        UnsupportedByPeer: the broker serves none.
    """
    version = connection.best_version(ApiKey.PRODUCE, ProduceRequest, max_version=highest_version)
    by_topic: dict[str, list[ProducerBatch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic, []).append(batch)
        header = batch.header
        if version < FIRST_WITH_ZSTD and header is not None and header.codec is Codec.ZSTD:
            raise UnsupportedByPeer(
                f"{connection.host}:{connection.port} takes no zstd: it serves Produce up to "
                f"version {version}, {FIRST_WITH_ZSTD} is needed"
            )
    ids: dict[str, UUID] = {}
    if version >= FIRST_WITH_TOPIC_IDS:
        for topic in by_topic:
            known = topic_id(topic)
            if known is None:
                version = FIRST_WITH_TOPIC_IDS - 1
                break
            ids[topic] = known
    topics: list[TopicProduceData] = []
    sent: dict[tuple[str | UUID, int], ProducerBatch] = {}
    for topic, of_topic in by_topic.items():
        data = TopicProduceData(
            partition_data=[
                PartitionProduceData(index=batch.partition, records=batch.encoded)
                for batch in of_topic
            ]
        )
        key: str | UUID = topic
        if version >= FIRST_WITH_TOPIC_IDS:
            key = data.topic_id = ids[topic]
        else:
            data.name = topic
        for batch in of_topic:
            sent[key, batch.partition] = batch
        topics.append(data)
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=topics
    )
    return ProduceCall(request, version, sent)
